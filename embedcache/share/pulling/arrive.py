"""Files on their way into a cache: none gets its name before its bytes and its content were checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
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
from embedcache.conversions import Conversions
from embedcache.corpus.corpus import read_info
from embedcache.corpus.description import CorpusInfo
from embedcache.corpus.part import part_schema
from embedcache.corpus.view_record import is_recorded, record_from_json
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, RemoteError, StorageError
from embedcache.fsio import commit, commit_new, read_sealed_json
from embedcache.locked_folder import locked_folder
from embedcache.share.pulling.recode import Recoder
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.download import download
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import shortened
from embedcache.share.temporaries import arriving
from embedcache.share.transfer import PULL_PATIENCE_SECONDS, Stopped, run_all
from embedcache.store.containers import FolderShards, LmdbShards
from embedcache.token_table import TokenTable

if TYPE_CHECKING:
    import pyarrow as pa

_GLANCE_SECONDS = 0.1


class _Busy(Exception):  # noqa: N818 - no error: there is other work until then
    """Another pull of this machine is fetching the file just now."""


class Arrivals:
    """Fetches files into a cache; safe from several threads.

    Args:
        remote: where they come from.
        cache: where they go.
        contracts: the teachers they may belong to, by contract id; default: none.
        codebooks: digests of the codebooks that the cache has, or will have; default: none.
        meter: counts what arrives; default: nobody does.
        recoder: keeps shards in another codec; default: they stay as they are.
        containers: where shards go, by contract id; default: where the cache keeps them.

    Attributes:
        recoded_before: names of shards that the cache has in another codec, because an earlier pull has
            converted them.
        brought_by_others: paths of files that other pulls brought before :meth:`fetch` began with them.
    """

    def __init__(
        self,
        remote: Remote,
        cache: Cache,
        *,
        contracts: Mapping[str, Contract] | None = None,
        codebooks: Iterable[str] = (),
        meter: Meter | None = None,
        recoder: Recoder | None = None,
        containers: Mapping[str, FolderShards | LmdbShards] | None = None,
    ) -> None:
        self._recoder = recoder
        self._conversions = Conversions(cache)
        self._sources: dict[str, frozenset[str]] = {}
        self.recoded_before: set[str] = set()
        self.brought_by_others: set[str] = set()
        self._remote, self._cache, self._meter = remote, cache, meter or Meter()
        self._codebooks = frozenset(codebooks)
        self._containers: dict[str, FolderShards | LmdbShards] = {
            contract_id: (containers or {}).get(contract_id) or cache.container(contract)
            for contract_id, contract in (contracts or {}).items()
        }
        self._one_writer = threading.Lock()
        self._listed: dict[str, frozenset[str]] = {}

    def has(self, wanted: Wanted) -> bool:
        """Return whether the cache has a file already, judged by its size."""
        if self._is_there(wanted):
            return True
        entry = wanted.entry
        if entry.kind is not Kind.SHARD or entry.stem not in self._sources_of(entry.teacher):
            return False
        self.recoded_before.add(entry.stem)
        return True

    def _is_there(self, wanted: Wanted) -> bool:
        entry = wanted.entry
        if entry.kind is Kind.SHARD:
            container = self._containers[entry.teacher]
            if isinstance(container, LmdbShards):
                return entry.stem in self._in_lmdb(entry.teacher)
        place = self._cache.folder / wanted.path
        if place.is_symlink() or not place.is_file():
            return False
        if wanted.data is None:
            return place.stat().st_size == wanted.file.bytes
        # Of a corpus or a view another version may have come since the pull was planned.
        return not entry.corpus or _is_same_document(wanted, place)

    def _is_there_by_now(self, wanted: Wanted) -> bool:
        """Return whether another pull has brought a file since this one has looked."""
        name, container = wanted.entry.stem, self._containers.get(wanted.entry.teacher)
        if wanted.entry.kind is not Kind.SHARD or container is None:
            return self._is_there(wanted)
        with self._one_writer if isinstance(container, LmdbShards) else nullcontext():
            is_there = container.has(name) if isinstance(container, LmdbShards) else self._is_there(wanted)
            return is_there or (self._recoder is not None and self._conversions.has_copy(container, name))

    def fetch_all(self, wanted: Sequence[Wanted], jobs: int) -> None:
        """Bring files into the cache, those last that another pull of this machine is fetching just now.

        Args:
            wanted: the files, in the order in which they are begun.
            jobs: transfers at once.

        Raises:
            RemoteError, StorageError, InputError: as :meth:`fetch`.
        """
        busy: list[Wanted] = []

        def fetch(file: Wanted) -> None:
            try:
                self._fetch(file, _raise_busy)
            except _Busy:
                busy.append(file)

        run_all(fetch, wanted, jobs=jobs, stop=self._remote.stop, patience=PULL_PATIENCE_SECONDS)
        if busy:
            with self._meter.called("wait for another pull"):
                run_all(self.fetch, busy, jobs=jobs, stop=self._remote.stop, patience=PULL_PATIENCE_SECONDS)

    def fetch(self, wanted: Wanted, *, anew: bool = False) -> None:
        """Bring a file into the cache; one that another pull of this machine is fetching is waited for.

        Args:
            wanted: the file.
            anew: fetch it though a file of its size is there, which is damaged.

        Raises:
            RemoteError: if it cannot be had, or is not what it should be.
            StorageError: if it cannot be written, or another process has put another one there meanwhile.
            InputError: if a shard cannot be kept in the codec that was asked for.
        """
        self._fetch(wanted, self._wait, anew=anew)

    def _wait(self) -> None:
        self._meter.add()
        if self._remote.stop.wait(_GLANCE_SECONDS):
            raise Stopped

    def _fetch(self, wanted: Wanted, wait: Callable[[], None], *, anew: bool = False) -> None:
        if wanted.data is not None:
            self._put(wanted, wanted.data, wait)
            self._meter.add(files=1, size=wanted.file.bytes)
            return
        entry = wanted.entry
        container = self._containers.get(entry.teacher)
        target = self._cache.folder / wanted.path
        if entry.kind is Kind.SHARD and isinstance(container, LmdbShards):
            # Beside an LMDB file there is no folder shards/.
            target = self._cache.folder / "teachers" / entry.teacher / target.name
        with arriving(target, wait) as temporary:
            if not anew and self._is_there_by_now(wanted):
                self.brought_by_others.add(wanted.path)
                self._meter.add(files=1, size=wanted.file.bytes)
                return
            download(self._remote, wanted.file, temporary, self._meter)
            self._examine(wanted, temporary)
            if entry.kind is not Kind.SHARD or container is None:
                commit(temporary, target)
            elif self._recoder is not None and self._recode(self._recoder, wanted, container, temporary):
                pass
            elif isinstance(container, FolderShards):
                container.adopt(entry.stem, temporary)
            else:
                with self._one_writer:
                    _copy_into(container, entry.stem, temporary)
        self._meter.add(files=1)

    def finish(self) -> None:
        """Record which shards were checked, so that nobody has to read them again."""
        for container in self._containers.values():
            container.finish()

    def _recode(
        self, recoder: Recoder, wanted: Wanted, container: FolderShards | LmdbShards, place: Path
    ) -> bool:
        """Put a shard into the cache in another codec; return whether it was converted."""
        try:
            with self._one_writer if isinstance(container, LmdbShards) else nullcontext():
                return recoder.put(container, self._conversions, wanted.entry.stem, place)
        except InputError as error:
            raise InputError(
                f"{wanted.file.path} of {self._remote.where} cannot be kept as {recoder.codec} ({error}): "
                "pull without --codec, or other teachers alone, with --teacher"
            ) from error

    def _sources_of(self, teacher: str) -> frozenset[str]:
        if teacher not in self._sources:
            self._sources[teacher] = self._conversions.sources(self._containers[teacher])
        return self._sources[teacher]

    def _in_lmdb(self, teacher: str) -> frozenset[str]:
        if teacher not in self._listed:
            self._listed[teacher] = frozenset(self._containers[teacher].names())
        return self._listed[teacher]

    def _put(self, wanted: Wanted, data: bytes, wait: Callable[[], None]) -> None:
        """Write a document; what a process of another version of its corpus or view has written stays."""
        kind, target = wanted.entry.kind, self._cache.folder / wanted.path
        with arriving(target, wait) as temporary:
            temporary.write_bytes(data)
            if kind in (Kind.VIEW, Kind.RECIPE):
                # A description and a recipe make a view: nobody may put another in between.
                with locked_folder(target.parent, or_unlocked=True):
                    is_ours = _commit_of_view(kind, temporary, target, data)
            else:
                is_ours = commit_new(temporary, target)
        if not is_ours:
            # Where a teacher is said to come from may differ, and the note that is there stays.
            if wanted.entry.corpus and not (target.is_file() and _is_same_document(wanted, target)):
                raise self._other_version(wanted)
            self.brought_by_others.add(wanted.path)

    def _other_version(self, wanted: Wanted) -> StorageError:
        corpus, view = wanted.entry.corpus, wanted.entry.view
        what = f"view {view!r} of corpus {corpus!r}" if view else f"corpus {corpus!r}"
        return StorageError(
            f"cannot write {self._cache.folder / wanted.path}: another process has meanwhile written another "
            f"{what} than {self._remote.where} has; pull the corpus under another name, with --corpus "
            f"{PurePosixPath(wanted.file.path).parts[1]} --as NAME"
        )

    def _examine(self, wanted: Wanted, place: Path) -> None:
        """Read a file that has arrived as whoever opens the cache will.

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
            raise self._refused(wanted, shortened(next(iter(str(error).splitlines()), ""))) from error

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


def _is_same_document(wanted: Wanted, place: Path) -> bool:
    """Return whether a document of a corpus or a view that is there describes the same rows."""
    if wanted.entry.kind is Kind.CORPUS and wanted.info is not None:
        return read_info(place.parent).digest == wanted.info.digest
    return place.read_bytes() == wanted.data


def _raise_busy() -> None:
    raise _Busy


def _commit_of_view(kind: Kind, temporary: Path, target: Path, data: bytes) -> bool:
    """Put the description or the recipe of a view in its place; return whether that was done.

    The folder is to be locked. A description is not there for good before its recipe is; so the recipe has to
    be that of the description that was written last.
    """
    folder = target.parent
    if kind is Kind.VIEW:
        if is_recorded(folder) or (target.is_file() and target.read_bytes() == data):
            return False
        commit(temporary, target)
        return True
    record = record_from_json(read_sealed_json(temporary), folder.name)
    return record.digest == read_info(folder).digest and commit_new(temporary, target)


def _examine_part(wanted: Wanted, info: CorpusInfo, data: pa.Buffer) -> None:
    batch = read_batch(data)
    rows = next(part.rows for part in info.parts if part.sha256 == wanted.file.sha256)
    if not batch.schema.equals(part_schema(info.types)):
        raise ValueError("its columns are not those that its corpus describes")
    batch.validate(full=True)
    if batch.num_rows != rows or any(column.null_count for column in batch.columns):
        raise ValueError(f"it has {batch.num_rows:,} rows or gaps, and its corpus describes {rows:,}")


def _copy_into(container: LmdbShards, name: str, place: Path) -> None:
    import pyarrow as pa

    with pa.memory_map(str(place), "r") as source:
        container.add(name, source.read_buffer())
