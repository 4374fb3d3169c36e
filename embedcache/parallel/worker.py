"""Worker: a teacher in a process of its own that encodes windows and commits their shards itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.building.encode import BuildOutput, Encoded, encode_missing
from embedcache.building.result import OutputResult
from embedcache.cache import Cache
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError
from embedcache.keys import key_array
from embedcache.missing import MissingRows
from embedcache.parallel.window import Window
from embedcache.store import FolderShards, ShardStore
from embedcache.store.checked import CheckedFiles
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from embedcache.teacher.windows import TextEncoder


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
    """Everything a worker is told when it starts.

    Attributes:
        teacher: the teacher to load.
        encode: how it computes, with the worker's own device and threads.
        folder: the cache's folder.
        outputs: the outputs to store.
    """

    teacher: TeacherOptions | TextEncoder
    encode: EncodeOptions
    folder: Path
    outputs: tuple[OutputSetup, ...]


@dataclass(frozen=True)
class Done:
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
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._encoder = LazyTeacher(setup.teacher, setup.encode).encoder
        found = {teacher.contract.output: teacher.contract for teacher in self._encoder.teachers}
        for output in setup.outputs:
            if differences := output.contract.differences(found[output.contract.output]):
                raise ContractMismatchError(
                    f"a worker found another teacher as {output.name!r} "
                    f"({describe_differences(differences)}): put the same model on every machine",
                    differences,
                )
        self._stores = [_open_store(Cache(setup.folder), output) for output in setup.outputs]

    def encode(self, window: Window) -> Done:
        """Encode a window and commit its shards; errors as :func:`encode_missing`."""
        keys, encoded = key_array(window.lines), Encoded()
        missing = [MissingRows(len(keys), len(keys), mask, [keys]) for mask in window.wanted]
        outputs = [
            BuildOutput(store, [], OutputResult(one.contract.output, one.name, one.contract.id, one.codec))
            for store, one in zip(self._stores, self._setup.outputs, strict=True)
        ]
        rows = self._setup.encode.shard_rows
        encode_missing(window, missing, outputs, self._encoder, rows, encoded, watch=False)
        for store in self._stores:
            store.container.finish()
        return Done(encoded, tuple(output.result.encoded for output in outputs))


def _open_store(cache: Cache, output: OutputSetup) -> ShardStore:
    folder, contract = cache.teacher_folder(output.contract), output.contract
    listed = set() if output.codebook_in is None else {output.codebook_in}
    outbox = _Outbox(folder / "shards", cache.checked_files(contract), listed)
    return ShardStore(outbox, contract, output.codec, codebooks=folder / "codebooks")


class _Outbox(FolderShards):
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
