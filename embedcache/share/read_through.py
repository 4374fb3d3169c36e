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
from embedcache.share.manifest import ManifestSet, SharedFile, manifest_names
from embedcache.share.plan import select_manifests
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import compare
from embedcache.teacher.lazy import LazyTeacher

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
        may_be_empty: True if something is pushed to it during the build.

    Attributes:
        verdicts: comparisons of the vectors that came with the live teacher's.

    Raises:
        InputError, RemoteError: as ``embedcache.share.pull``.
    """

    def __init__(self, options: RemoteOptions | str, *, may_be_empty: bool = False) -> None:
        self._options = RemoteOptions(options) if isinstance(options, str) else options
        self._remote, self._may_be_empty = Remote(self._options.remote, to_write=may_be_empty), may_be_empty
        if not may_be_empty or manifest_names(self._remote):
            self._remote.open()
        self._incoming: Incoming | None = None
        self._fetched = 0
        self.verdicts: list[str] = []

    @property
    def url(self) -> str:
        """URL of the remote."""
        return self._remote.url

    @property
    def needs_signature(self) -> bool:
        """True if only signed manifests count."""
        return self._options.require_signature is not None

    @property
    def bytes(self) -> int:
        """Bytes that came."""
        return self._fetched + (0 if self._incoming is None else self._incoming.fetched)

    def list_again(self) -> None:
        """List the remote again, so that later pushes count."""
        self._fetched, self._incoming = self.bytes, None

    def find(
        self, cache: Cache, contract: Contract, codec: str, keys: KeyArray
    ) -> tuple[NDArray[np.bool_], list[SharedFile]]:
        """Return the mask of ``keys`` there in ``codec`` or a finer one, and the shards that hold them.

        Key lists are downloaded once into the derived files of ``cache``.

        Raises:
            InputError: if they are more than ``max_bytes``.
            RemoteError, StorageError: if they cannot be fetched or stored.
        """
        incoming = self._into(cache)
        finest = CODEC_NAMES[: CODEC_NAMES.index(codec) + 1]
        shards = [shard for shard in incoming.listed.shards(contract.id) if shard.codec in finest]
        there = RemoteKeys(incoming, shards)
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
            progress: receives what is done.

        Raises:
            InputError: if that is more than ``max_bytes``.
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room.
        """
        incoming, contract = self._into(cache), store.contract
        incoming.progress = progress
        shards = missing_files(cache, self.find(cache, contract, store.codec_name, keys)[1])
        if not shards:
            return
        files = [*shards, *incoming.listed.codebooks(shards)]
        with incoming.locked(files):
            incoming.fetch("fetch", files)
            incoming.check_documents([file for file in files if not file.rows])
            came = incoming.open_store(contract, shards)
            sample = compare(teacher.name, came, store, [corpus], lambda: teacher.encoder, progress=progress)
            if sample.is_bad:
                digests = [file.sha256 for file in shards]
                raise incoming.refusal(digests, f"{self.url}: {sample.message}")
            incoming.admit(files, {contract.id: store.container})
        self.verdicts.append(str(sample))
        store.open_new()

    def _into(self, cache: Cache) -> Incoming:
        if self._incoming is None:
            given, listed = self._options, ManifestSet({})
            if not self._may_be_empty or manifest_names(self._remote):
                listed = select_manifests(self._remote, cache, given.require_signature, given.skip_manifests)
            self._incoming = Incoming(cache, self._remote, listed, max_bytes=given.max_bytes)
        return self._incoming
