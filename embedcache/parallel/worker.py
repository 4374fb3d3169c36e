"""Worker: a teacher in a separate process that encodes windows and commits their shards itself."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from embedcache.building.encode import BuildOutput, Encoded, encode_missing, register
from embedcache.building.result import OutputResult
from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, InputError
from embedcache.keys import key_array
from embedcache.missing import MissingRows
from embedcache.parallel.window import Window
from embedcache.store import FolderShards, ShardStore
from embedcache.store.checked import CheckedFiles
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from embedcache.teacher.text_encoder import TextEncoder


@dataclass(frozen=True)
class OutputSetup:
    """An output of the teacher, and how its vectors are stored.

    Attributes:
        name: name in the cache.
        contract: its contract.
        codec: codec of new vectors.
        codebook_in: a shard with the codebook of codec ``pq``, if any.
    """

    name: str
    contract: Contract
    codec: str
    codebook_in: str | None


@dataclass(frozen=True)
class WorkerSetup:
    """Setup of a worker.

    Attributes:
        teacher: the teacher to load.
        encode: options of encoding, with the worker's own device and threads.
        folder: the cache's folder.
        outputs: the outputs to store.
        marker: file in the folder, which shows a worker on another machine that it sees the folder; None
            where every worker does.
        remote: URL of the remote that a worker pushes to if it does not see the folder.
    """

    teacher: TeacherOptions | TextEncoder
    encode: EncodeOptions
    folder: Path
    outputs: tuple[OutputSetup, ...]
    marker: Path | None = None
    remote: str | None = None


@dataclass(frozen=True)
class WindowResult:
    """A window that is stored.

    Attributes:
        encoded: counts of its texts.
        stored: rows stored of each output.
    """

    encoded: Encoded
    stored: tuple[int, ...]


class Worker:
    """Worker; it loads its teacher at once.

    Raises:
        ContractMismatchError: if the teacher found here is not the build's.
        TeacherError, InputError: if it cannot be loaded.
        InputError: if this machine does not see the cache, and no remote was given.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup, self._sees = setup, setup.marker is None or setup.marker.exists()
        if not self._sees:
            self._refuse_apart()
        self._teacher = LazyTeacher(setup.teacher, setup.encode)
        found = {teacher.contract.output: teacher.contract for teacher in self._teacher.encoder.teachers}
        for output in setup.outputs:
            if differences := output.contract.differences(found[output.contract.output]):
                raise ContractMismatchError(
                    f"a worker found another teacher as {output.name!r} "
                    f"({describe_differences(differences)}): put the same model on every machine",
                    differences,
                )
        cache = Cache(setup.folder) if self._sees else None
        self._stores = [] if cache is None else [_open_store(cache, one) for one in setup.outputs]

    def _refuse_apart(self) -> None:
        where = f"{socket.gethostname()} does not see {self._setup.folder}"
        if self._setup.remote is None:
            raise InputError(
                f"{where}: put the cache into a folder that all machines share, or give a remote, which "
                "the vectors then go through"
            )
        if any(output.codec == pq.NAME for output in self._setup.outputs):
            raise InputError(f"{where}, where the codebook of codec pq is: take another codec")

    def encode(self, window: Window) -> WindowResult:
        """Encode a window and commit its shards, or push them.

        Raises:
            NonFiniteVectorError, TeacherError, StorageError: as ``encode_missing``.
            RemoteError: if they cannot be pushed.
        """
        if self._sees:
            return self._encode_into(self._stores, window)
        from embedcache.share.push import push

        with TemporaryDirectory(prefix="embedcache-worker-") as folder:
            cache = Cache.create(folder)
            register(cache, self._teacher)
            stores = [cache.store(output.contract, output.codec) for output in self._setup.outputs]
            done = self._encode_into(stores, window)
            push(folder, str(self._setup.remote), message=f"{len(window.rows):,} rows of {window.of}")
        return done

    def _encode_into(self, stores: Sequence[ShardStore], window: Window) -> WindowResult:
        keys, encoded = key_array(window.lines), Encoded()
        missing = [MissingRows(len(keys), len(keys), mask, [keys]) for mask in window.wanted]
        outputs = [
            BuildOutput(store, [], OutputResult(one.contract.output, one.name, one.contract.id, one.codec))
            for store, one in zip(stores, self._setup.outputs, strict=True)
        ]
        rows = self._setup.encode.shard_rows
        encode_missing(window, missing, outputs, self._teacher.encoder, rows, encoded, watch=False)
        for store in stores:
            store.container.finish()
        return WindowResult(encoded, tuple(output.result.encoded for output in outputs))


def _open_store(cache: Cache, output: OutputSetup) -> ShardStore:
    folder, contract = cache.teacher_folder(output.contract), output.contract
    listed = set() if output.codebook_in is None else {output.codebook_in}
    shards = _OwnShards(folder / "shards", cache.checked_files(contract), listed)
    return ShardStore(shards, contract, output.codec, codebooks=folder / "codebooks")


class _OwnShards(FolderShards):
    """Folder of shards that lists only those added through it, and the shard with the codebook.

    A store opens what is listed, and a worker needs nothing of what thousands of others have stored.
    """

    def __init__(self, folder: Path, checked: CheckedFiles, listed: set[str]) -> None:
        super().__init__(folder, checked)
        self._listed = listed

    def names(self) -> list[str]:
        return sorted(self._listed)

    def add(self, name: str, data: pa.Buffer) -> None:
        super().add(name, data)
        self._listed.add(name)
