"""The files that a pull is about to fetch."""

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
        data: its bytes, if they were read already; they may differ from those on the remote.
        info: for a part and for a description, the description of the corpus or view; else None.
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
    """The files that a cache is to have after a pull.

    Attributes:
        wanted: the files, with those that the cache has already.
        contracts: the teachers they belong to, by contract id.
        told: what is worth telling.
    """

    wanted: Sequence[Wanted]
    contracts: Mapping[str, Contract]
    told: Sequence[str] = field(default_factory=tuple)
