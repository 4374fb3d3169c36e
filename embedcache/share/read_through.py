"""Read-through of a build: fetch the shards of a remote that hold missing rows, in place of encoding them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.keys import KeyArray
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import missing_files
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import ManifestSet, SharedFile
from embedcache.share.pull import refuse_too_much, select_manifests
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import LiveTeacher, compare
from embedcache.teacher.lazy import LazyTeacher, columns_of

if TYPE_CHECKING:
    from embedcache.store import ShardStore


@dataclass(frozen=True)
class RemoteOptions:
    """Remote that a build fetches from, and its limits.

    Attributes:
        remote: name or URL.
        max_bytes: refuse to fetch more than this.
        require_signature: file of public ed25519 keys; only manifests that one of them signed count.
        skip_manifests: beginnings of digests of manifests that do not count.
    """

    remote: str
    max_bytes: int | None = None
    require_signature: str | Path | None = None
    skip_manifests: Sequence[str] = ()


class ReadThrough:
    """A remote that a build fetches rows from.

    Args:
        options: name or URL, or that with limits.

    Attributes:
        bytes: bytes that came.
        verdicts: comparisons of the vectors that came with the live teacher's.

    Raises:
        InputError, RemoteError: as :func:`embedcache.share.pull`.
    """

    def __init__(self, options: RemoteOptions | str) -> None:
        self._options = RemoteOptions(options) if isinstance(options, str) else options
        self._remote = Remote(self._options.remote).open()
        self._listed: ManifestSet | None = None
        self.bytes = 0
        self.verdicts: list[str] = []

    @property
    def url(self) -> str:
        """URL of the remote."""
        return self._remote.url

    def find(
        self, cache: Cache, contract: Contract, codec: str, keys: KeyArray
    ) -> tuple[NDArray[np.bool_], list[SharedFile]]:
        """Return which of ``keys`` are there in ``codec`` or a finer one, and the shards that hold them.

        Key lists are downloaded once into the derived files of ``cache``.

        Raises:
            InputError: if they are more than ``max_bytes``.
            RemoteError, StorageError: if they cannot be fetched or stored.
        """
        finest = CODEC_NAMES[: CODEC_NAMES.index(codec) + 1]
        shards = [shard for shard in self._manifests(cache).shards(contract.id) if shard.codec in finest]
        there = RemoteKeys(cache, self._remote, shards)
        refuse_too_much(cache.folder, (), self._options.max_bytes, self.bytes + there.missing_bytes)
        return there.locate(keys) >= 0, there.shards_with(keys)

    def fetch(
        self,
        cache: Cache,
        store: ShardStore,
        keys: KeyArray,
        corpus: Corpus,
        teacher: LazyTeacher,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        """Fetch the shards that hold vectors of ``keys``; they are compared with the teacher, then admitted.

        Args:
            cache: the cache.
            store: the store of the teacher's vectors, which has the new shards afterwards.
            keys: keys of missing rows.
            corpus: holds their texts.
            teacher: the teacher.
            progress: receives the phase ``fetch``.

        Raises:
            InputError: if that is more than ``max_bytes``.
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room.
        """
        contract = store.contract
        shards = missing_files(cache, self.find(cache, contract, store.codec_name, keys)[1])
        if not shards:
            return
        listed = self._manifests(cache)
        files = [*shards, *listed.codebooks(shards)]
        refuse_too_much(cache.folder, files, self._options.max_bytes, self.bytes)
        incoming = Incoming(cache, self._remote, listed, progress)
        with incoming.locked(files):
            incoming.fetch("fetch", files)
            came = incoming.open_store(contract, files)

            def live() -> LiveTeacher:
                return LiveTeacher(teacher.encoder, columns_of(teacher.encoder, contract))

            sample = compare(came, store, incoming.teacher(contract.id), [corpus], live, progress=progress)
            if sample.is_bad:
                digests = [file.sha256 for file in shards]
                raise incoming.refusal(digests, f"{self.url}: {sample.message}")
            incoming.admit(files)
        self.verdicts.append(f"{sample.verdict} ({sample.sampled:,} texts): {sample.message}")
        self.bytes += sum(file.bytes for file in files)
        store.open_new()

    def _manifests(self, cache: Cache) -> ManifestSet:
        if self._listed is None:
            given = self._options
            signed, skipped = given.require_signature, given.skip_manifests
            self._listed = select_manifests(self._remote, cache, signed, skipped)
        return self._listed
