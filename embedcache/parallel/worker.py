"""Worker: a teacher in a separate process that encodes windows and commits their shards itself."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.building.encode import BuildCounts, encode_missing, register
from embedcache.building.pending import PendingWork
from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, InputError
from embedcache.keys import key_array
from embedcache.missing import MissingRows
from embedcache.parallel.window import Window
from embedcache.probes import Probes
from embedcache.store import ShardStore
from embedcache.store.containers import ListedShards
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions

if TYPE_CHECKING:
    from embedcache.teacher.text_encoder import TextEncoder


@dataclass(frozen=True)
class WorkerSetup:
    """Setup of a worker.

    Attributes:
        teacher: the teacher to load.
        encode: options of encoding, with the worker's own device and threads.
        folder: the cache's folder.
        name: the teacher's name in the cache.
        contract: contract of its vectors.
        codec: codec of new vectors.
        codebook_in: a shard with the codebook of codec ``pq``, if any.
        marker: file in the folder, which shows a worker on another machine that it sees the folder; None
            where every worker does.
        remote: URL of the remote that a worker pushes to if it does not see the folder.
        probes: stored rows that are encoded again before any are stored.
    """

    teacher: TeacherOptions | TextEncoder
    encode: EncodeOptions
    folder: Path
    name: str
    contract: Contract
    codec: str
    codebook_in: str | None = None
    marker: Path | None = None
    remote: str | None = None
    probes: Probes | None = None


class Worker:
    """Worker; it loads its teacher at once.

    Raises:
        ContractMismatchError: if the teacher found here is not the build's, or computes other vectors.
        TeacherError, InputError: if it cannot be loaded.
        InputError: if this machine does not see the cache, and no remote was given.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup, self._sees = setup, setup.marker is None or setup.marker.exists()
        if not self._sees:
            self._refuse_apart()
        self._teacher = LazyTeacher(setup.teacher, setup.encode)
        if differences := setup.contract.differences(self._teacher.encoder.teacher.contract):
            raise ContractMismatchError(
                f"a worker found another teacher as {setup.name!r} ({describe_differences(differences)}): "
                "put the same model on every machine",
                differences,
            )
        if setup.probes is not None:
            setup.probes.check(self._teacher.encoder)
        if self._sees:
            self._cache, self._store = Cache(setup.folder), _open_store(Cache(setup.folder), setup)
            return
        # One cache for all windows: it remembers the remote's manifests from push to push.
        self._scratch = TemporaryDirectory(prefix="embedcache-worker-")
        self._cache = Cache.create(self._scratch.name)
        register(self._cache, self._teacher)

    def _refuse_apart(self) -> None:
        where = f"{socket.gethostname()} does not see {self._setup.folder}"
        if self._setup.remote is None:
            raise InputError(
                f"{where}: put the cache into a folder that all machines share, or give a remote, which "
                "the vectors then go through"
            )
        if self._setup.codec == pq.NAME:
            raise InputError(f"{where}, where the codebook of codec pq is: take another codec")

    def encode(self, window: Window) -> BuildCounts:
        """Encode a window and commit its shards, or push them; return the counts of its texts.

        Raises:
            NonFiniteVectorError, TeacherError, StorageError: as ``encode_missing``.
            RemoteError: if they cannot be pushed.
        """
        if self._sees:
            return self._encode_into(self._store, window)
        from embedcache.share.push import push

        store = self._cache.store(self._setup.contract, self._setup.codec)
        done = self._encode_into(store, window)
        message = f"{len(window.rows):,} rows of {window.of}"
        push(self._cache.folder, str(self._setup.remote), message=message)
        for name in store.shard_names:
            store.container.remove(name)
        return done

    def _encode_into(self, store: ShardStore, window: Window) -> BuildCounts:
        keys, encoded = key_array(window.lines), BuildCounts()
        missing = MissingRows(len(keys), len(keys), np.ones(len(keys), np.bool_), [keys])
        encoder, rows = self._teacher.encoder, self._setup.encode.shard_rows
        pending = (
            PendingWork(self._cache.derived_folder, store, encoder, missing.holds) if self._sees else None
        )
        encode_missing(window, missing, store, encoder, rows, encoded, pending=pending, watch=False)
        store.container.finish()
        return encoded


def _open_store(cache: Cache, setup: WorkerSetup) -> ShardStore:
    folder = cache.teacher_folder(setup.contract)
    # A store opens what is listed, and a worker needs nothing of what thousands of others have stored.
    listed = () if setup.codebook_in is None else (setup.codebook_in,)
    shards = ListedShards(folder / "shards", listed, cache.checked_files(setup.contract))
    return ShardStore(shards, setup.contract, setup.codec, codebooks=folder / "codebooks")
