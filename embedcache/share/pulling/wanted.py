"""What a pull is about to fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from embedcache.check.inventory import Entry
from embedcache.contract import Contract
from embedcache.corpus.description import CorpusInfo
from embedcache.share.remote.layout import shared_entry
from embedcache.share.remote.manifest import SharedFile


@dataclass(frozen=True)
class Wanted:
    """A file that a cache is to have.

    Attributes:
        file: what it is on the remote.
        path: where it is to lie in the cache.
        data: its bytes, where they were read already; then they may be others than those on the remote.
        info: of a part, the description of its corpus or view; of a description, itself.
    """

    file: SharedFile
    path: str
    data: bytes | None = None
    info: CorpusInfo | None = None

    @cached_property
    def entry(self) -> Entry:
        """What it is in the cache."""
        return shared_entry(self.path, self.file.bytes, self.file.sha256)


@dataclass(frozen=True)
class PullPlan:
    """What a pull is about to do.

    Attributes:
        wanted: the files the cache is to have, those that it has included.
        contracts: the teachers they belong to, by contract id.
        told: what is worth telling.
    """

    wanted: Sequence[Wanted]
    contracts: Mapping[str, Contract]
    told: Sequence[str] = field(default_factory=tuple)
