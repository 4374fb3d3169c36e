"""Files on their way into a cache: nothing gets its name before its bytes and its content are found right."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from embedcache.arrow_file import read_batch
from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.check.verify.documents import told
from embedcache.check.verify.shards import open_without_codebook
from embedcache.codecs import pq
from embedcache.contract import Contract
from embedcache.corpus.description import CorpusInfo
from embedcache.corpus.part import part_schema
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, RemoteError
from embedcache.fsio import (
    commit,
    commit_new,
    explain_os_error,
    temporary_sibling,
)
from embedcache.share.documents import missing, unlike
from embedcache.share.manifest import SharedFile
from embedcache.share.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.transfer import Stopped
from embedcache.share.wanted import Wanted
from embedcache.store.containers import FolderShards, LmdbShards
from embedcache.token_table import TokenTable

if TYPE_CHECKING:
    import pyarrow as pa


class Arrivals:
    """Fetches files into a cache; safe from several threads.

    Args:
        remote: where they come from.
        cache: where they go.
        contracts: the teachers they may belong to, by contract id.
        codebooks: digests of the codebooks that there are, or will be.
        meter: counts what arrives.
    """

    def __init__(
        self,
        remote: Remote,
        cache: Cache,
        contracts: Mapping[str, Contract],
        codebooks: Iterable[str],
        meter: Meter,
    ) -> None:
        self._remote, self._cache, self._meter = remote, cache, meter
        self._codebooks = frozenset(codebooks)
        self._containers: dict[str, FolderShards | LmdbShards] = {
            contract_id: cache.container(contract) for contract_id, contract in contracts.items()
        }
        self._one_writer = threading.Lock()
        self._listed: dict[str, frozenset[str]] = {}

    def has(self, wanted: Wanted) -> bool:
        """Return whether the cache has a file already, as far as its size tells."""
        entry = wanted.entry
        if entry.kind is Kind.SHARD:
            container = self._containers[entry.teacher]
            if isinstance(container, LmdbShards):
                return entry.stem in self._in_lmdb(entry.teacher)
        place = self._cache.folder / wanted.path
        if place.is_symlink() or not place.is_file():
            return False
        if entry.kind is Kind.VIEW:
            # Of a view that nobody finished.
            return place.read_bytes() == wanted.data
        # Another document that is there says the same; that was looked at when the pull was planned.
        return wanted.data is not None or place.stat().st_size == wanted.file.bytes

    def fetch(self, wanted: Wanted) -> None:
        """Bring a file into the cache.

        Raises:
            RemoteError: if it cannot be had, or is not what it should be.
            StorageError: if it cannot be written.
            InputError: if another process has put another corpus there meanwhile.
        """
        if wanted.data is not None:
            self._put(wanted, wanted.data)
            self._meter.add(files=1, size=wanted.file.bytes)
            return
        entry = wanted.entry
        container = self._containers.get(entry.teacher)
        target = self._cache.folder / wanted.path
        if entry.kind is Kind.SHARD and isinstance(container, LmdbShards):
            # Outside shards/, of which there is none beside an LMDB file.
            target = self._cache.folder / "teachers" / entry.teacher / target.name
        with temporary_sibling(target) as temporary:
            self._download(wanted.file, temporary)
            self._examine(wanted, temporary)
            if entry.kind is not Kind.SHARD or container is None:
                commit(temporary, target)
            elif isinstance(container, FolderShards):
                container.adopt(entry.stem, temporary)
            else:
                with self._one_writer:
                    _copy_into(container, entry.stem, temporary)
                temporary.unlink()
        self._meter.add(files=1)

    def finish(self) -> None:
        """Put on record which files were found right, so that nobody has to read them again."""
        for container in self._containers.values():
            container.finish()

    def _in_lmdb(self, teacher: str) -> frozenset[str]:
        if teacher not in self._listed:
            self._listed[teacher] = frozenset(self._containers[teacher].names())
        return self._listed[teacher]

    def _put(self, wanted: Wanted, data: bytes) -> None:
        target = self._cache.folder / wanted.path
        with temporary_sibling(target) as temporary:
            temporary.write_bytes(data)
            if wanted.entry.kind is Kind.VIEW:
                commit(temporary, target)
            elif not commit_new(temporary, target) and wanted.entry.kind is Kind.CORPUS:
                raise InputError(
                    f"{target} was written by another process at the same moment: run the same command again"
                )

    def _download(self, file: SharedFile, temporary: Path) -> None:
        """Write an object to ``temporary``, with its digest taken on the way.

        Raises:
            RemoteError: if other bytes came, again and again.
            StorageError: if they cannot be written.
        """
        path = object_path(file.sha256)

        def act() -> None:
            digest, count = hashlib.sha256(), 0
            try:
                with _opened(temporary) as handle:
                    for block in self._remote.place.blocks(path, BLOCK_BYTES):
                        if self._remote.stop.is_set():
                            raise Stopped
                        count += len(block)
                        if count > file.bytes:
                            raise unlike(f"more than {file.bytes:,} bytes arrived")
                        digest.update(block)
                        _write(handle, block, temporary)
                        self._meter.add(size=len(block))
                if count != file.bytes or digest.hexdigest() != file.sha256:
                    what = "other bytes" if count == file.bytes else f"{count:,} of {file.bytes:,} bytes"
                    raise unlike(f"{what} arrived")
            except BaseException:
                self._meter.add(size=-min(count, file.bytes))
                raise

        try:
            retrying(f"read {path}", self._remote.where, act, self._remote.stop)
        except FileNotFoundError:
            raise missing(self._remote, file) from None

    def _examine(self, wanted: Wanted, place: Path) -> None:
        """Look at what has arrived as whoever opens the cache will.

        Raises:
            RemoteError: if it is not what its path says.
        """
        import pyarrow as pa

        entry = wanted.entry
        try:
            if entry.kind is Kind.SHARD:
                with pa.memory_map(str(place), "r") as source:
                    self._examine_shard(wanted, source.read_buffer())
            elif entry.kind in (Kind.PART, Kind.VIEW_PART) and wanted.info is not None:
                with pa.memory_map(str(place), "r") as source:
                    _examine_part(wanted, wanted.info, source.read_buffer())
            elif entry.kind is Kind.CODEBOOK:
                with TemporaryDirectory(prefix="embedcache-pull-") as scratch:
                    Path(scratch, f"{entry.stem}.npy").write_bytes(place.read_bytes())
                    pq.load(Path(scratch), entry.stem)
            elif entry.kind is Kind.TABLE:
                TokenTable.read(place, entry.teacher)
        except (CorruptCacheError, CacheFormatError) as error:
            raise self._refused(wanted, told(error, place)) from error
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            raise self._refused(wanted, next(iter(str(error).splitlines()), "")[:200]) from error

    def _examine_shard(self, wanted: Wanted, data: pa.Buffer) -> None:
        entry = wanted.entry
        shard = open_without_codebook(data, entry.stem, wanted.path)
        if shard.header.contract.id != entry.teacher:
            raise ValueError(f"it belongs to the teacher {shard.header.contract.id[:12]}…")
        codebook = shard.header.codebook
        if codebook is not None and codebook not in self._codebooks:
            raise ValueError(f"it needs the codebook {codebook[:12]}…, which no manifest lists")

    def _refused(self, wanted: Wanted, why: str) -> RemoteError:
        return RemoteError(
            f"{wanted.file.path} of {self._remote.where} is refused ({why}): its manifest is damaged or "
            "hostile; pull others alone, with --corpus and --teacher, or what one key has signed, with "
            "--require-signature"
        )


def _examine_part(wanted: Wanted, info: CorpusInfo, data: pa.Buffer) -> None:
    batch = read_batch(data)
    rows = next(part.rows for part in info.parts if part.sha256 == wanted.file.sha256)
    if not batch.schema.equals(part_schema(info.types)):
        raise ValueError("its columns are not those that its corpus describes")
    batch.validate(full=True)
    if batch.num_rows != rows or any(column.null_count for column in batch.columns):
        raise ValueError(f"it has {batch.num_rows:,} rows or gaps, and its corpus describes {rows:,}")


def _opened(path: Path) -> FileIO:
    try:
        return path.open("wb", buffering=0)
    except OSError as error:
        raise explain_os_error(error, path) from error


def _write(handle: FileIO, block: memoryview, path: Path) -> None:
    # What goes wrong here is no fault of the network, and trying again does not help.
    try:
        while len(block):
            block = block[handle.write(block) :]
    except OSError as error:
        raise explain_os_error(error, path) from error


def _copy_into(container: LmdbShards, name: str, place: Path) -> None:
    import pyarrow as pa

    with pa.memory_map(str(place), "r") as source:
        container.add(name, source.read_buffer())
