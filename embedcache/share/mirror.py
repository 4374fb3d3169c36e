"""Training from a remote through a mirror: a cache of copies, whose shards are fetched and evicted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.inventory import MIRROR
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, read_sealed_json, write_sealed_json
from embedcache.housekeeping.remove import remove_corpus
from embedcache.keys import KeyArray
from embedcache.share.files import Selection
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile, Stock
from embedcache.share.pull import counted_stock, make_plan, pull
from embedcache.share.remote import JOBS, Remote, object_path
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import compare, local_teacher
from embedcache.sizes import readable
from embedcache.store import MemoryShards, ShardStore, VectorBatch, VectorStore
from embedcache.store.base import Positions
from embedcache.store.containers.folder import FolderShards
from embedcache.store.digests import FileNotes
from embedcache.store.shard import damaged_shard

_RESERVED = f"{TEMPORARY_PREFIX}reserved-"
_SHARDS = "teachers/*/shards"


def default_mirror(remote: Remote) -> Path:
    """Return the default folder of a remote's mirror, in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "embedcache" / "mirrors" / remote.id


class Mirror:
    """A cache with copies of a remote's files; a context manager that stops all downloads when it exits.

    Attributes:
        cache: the mirror.
        corpus: name of the corpus to train on.
    """

    def __init__(self, cache: Cache, corpus: str, meter: Meter, stream: Stream | None) -> None:
        self.cache, self.corpus = cache, corpus
        self._meter, self._stream = meter, stream

    @classmethod
    def open(
        cls,
        remote: str,
        folder: str | Path | None = None,
        *,
        teachers: Sequence[str] = (),
        corpus: str | None = None,
        require_signature: str | Path | None = None,
        limit: int | None = None,
        with_logits: bool = False,
        on_progress: OnCheck | None = None,
    ) -> Mirror:
        """Fill a mirror: with everything, or with everything but shards if there is a ``limit``.

        Args:
            remote: name or URL of the remote.
            folder: the mirror's folder; default: :func:`default_mirror`.
            teachers: names or beginnings of contract ids; default: all.
            corpus: ``NAME`` or ``NAME@DIGEST``; default: the only one on the remote.
            require_signature: file of public ed25519 keys; only manifests that one of them signed count.
            limit: bytes of shards that are kept at a time.
            with_logits: fetch the logits of the named teachers as well.
            on_progress: called as the work goes on.

        Raises:
            InputError: if the folder holds an ordinary cache or another remote's mirror, or something asked
                for is not on the remote.
            RemoteError: as :func:`pull`, and if a teacher's vectors are not the teacher's.
            StorageError: if the disk has no room.
        """
        source = Remote(remote).open()
        cache = _open_cache(default_mirror(source) if folder is None else Path(folder).expanduser(), source)
        meter = Meter(on_progress)
        # Of several processes that start together one fetches, and the others find everything here.
        with FileLock(cache.derived_folder / MIRROR / "opening.lock"):
            stock = counted_stock(source, cache, require_signature)
            known = {name for called in stock.teacher_names().values() for name in called}
            logits = {f"{name}.logits" for name in teachers} & known if with_logits else set()
            names = [*teachers, *sorted(logits)]
            infos = make_plan(source, stock, None, Selection(names, [corpus] if corpus else [])).infos
            if len(infos) != 1:
                raise InputError(
                    f"{source.url}: {len(infos)} corpora ({', '.join(sorted(infos)) or 'none'}), "
                    "expected one to train on. Choose it with --corpus."
                )
            ((name, info),) = infos.items()
            if name in cache.corpus_names() and cache.corpus(name).info.digest != info.digest:
                # Another version.
                remove_corpus(cache, name)
            done = pull(
                cache.folder,
                remote,
                Selection(names, [f"{name}@{info.digest}"]),
                require_signature=require_signature,
                with_shards=limit is None,
                on_progress=on_progress,
            )
            if done.is_bad:
                raise RemoteError("; ".join(one.told for one in done.samples if one.is_bad))
            meter.bytes += done.bytes
            stream = None if limit is None else Stream(cache, source, stock, name, limit, meter)
        return cls(cache, name, meter, stream)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all downloads."""
        if self._stream is not None:
            self._stream.close()

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were downloaded so far."""
        return self._meter.bytes

    def store(self, contract: Contract) -> VectorStore:
        """Return the store of a teacher's vectors."""
        return self.cache.store(contract) if self._stream is None else self._stream.store(contract)


def _open_cache(place: Path, source: Remote) -> Cache:
    source.refuse_nested(place)
    cache = Cache.create(place)
    note = cache.derived_folder / MIRROR / "remote.json"
    with suppress(OSError, ValueError, KeyError):
        if read_sealed_json(note)["remote"] == source.url:
            return cache
    if note.exists() or any((place / name).exists() for name in ("corpora", "teachers")):
        raise InputError(f"{place}: no mirror of {source.url}. Give a new folder with --mirror.")
    make_directory(note.parent)
    write_sealed_json(note, {"remote": source.url})
    return cache


class Stream:
    """Shards of a mirror: fetched when they are needed, evicted when others need the room.

    A shard is first in a quarantine, ``derived/mirror``, and enters the cache once it was compared with the
    teacher. A lock file per shard lets one process at a time fetch it. The process that holds it reserves
    room with an empty file of the shard's size.

    Args:
        cache: the mirror.
        remote: the remote.
        stock: files that the remote lists.
        corpus: name of the corpus.
        limit: bytes of shards that are kept at a time.
        meter: counts downloaded bytes.
    """

    def __init__(
        self, cache: Cache, remote: Remote, stock: Stock, corpus: str, limit: int, meter: Meter
    ) -> None:
        self.cache, self.remote, self.stock, self.meter, self.limit = cache, remote, stock, meter, limit
        self.corpus = corpus
        self.incoming = Incoming(cache, remote, stock, meter, folder=cache.derived_folder / MIRROR)
        self._locks = make_directory(self.incoming.folder / "locks")
        self._pool = ThreadPoolExecutor(JOBS, thread_name_prefix="mirror")
        self._stores: dict[str, StreamedStore] = {}
        self._used: dict[str, float] = {}
        with self.locked():
            self._clean()

    def close(self) -> None:
        """Stop all downloads."""
        self.remote.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def store(self, contract: Contract) -> StreamedStore:
        """Return the store of a teacher's vectors."""
        if contract.id not in self._stores:
            shards = self.stock.shards(contract.id)
            if not shards:
                raise InputError(f"{self.remote.url}: no vectors of teacher {contract.id[:12]}.")
            keys = RemoteKeys(self.cache, self.remote, shards, self.meter)
            self._stores[contract.id] = StreamedStore(self, contract, keys)
        return self._stores[contract.id]

    def submit(self, act: Callable[[], None]) -> None:
        """Run ``act`` in the background; its errors are dropped. Do nothing once the mirror is closed."""
        with suppress(RuntimeError):
            self._pool.submit(act)

    def touch(self, name: str) -> None:
        """Note that a shard is used."""
        self._used[name] = time.monotonic()

    def fetch(
        self, file: SharedFile, is_here: Callable[[], bool], check: Callable[[], None], *, urgent: bool
    ) -> None:
        """Download a shard into the quarantine and check it, unless it is here.

        Args:
            file: the shard.
            is_here: returns whether the mirror has it.
            check: raises where its content is not the listed one.
            urgent: wait for other processes, and take the room of any shard. Otherwise fetch it only if
                nobody else does and there is room.

        Raises:
            RemoteError: if it cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        with self._alone(file.sha256, wait=urgent) as is_alone:
            if not is_alone or is_here():
                return
            reserved = self._reserve(file, urgent=urgent)
            if reserved is None:
                return
            try:
                self.incoming.fetch_one(file)
                check()
            except BaseException:
                self.incoming.path(file).unlink(missing_ok=True)
                raise
            finally:
                with self.locked():
                    reserved.unlink(missing_ok=True)

    def locked(self) -> FileLock:
        """Return the lock under which shards are counted: meanwhile none is reserved, moved or evicted."""
        return FileLock(self.incoming.folder / "room.lock")

    @contextmanager
    def _alone(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Hold the lock of a shard; yield False if another thread or process has it and ``wait`` is False."""
        lock = FileLock(self._locks / name)
        with suppress(Timeout):
            lock.acquire(timeout=0)
        while wait and not lock.is_locked:
            self._pause(0.05)
            with suppress(Timeout):
                lock.acquire(timeout=0)
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def _pause(self, seconds: float) -> None:
        if self.remote.stop.wait(seconds):
            raise RemoteError(f"{self.remote.url}: stopped.")

    def _reserve(self, file: SharedFile, *, urgent: bool) -> Path | None:
        """Make room for a shard and reserve it; return the file that does, None where there is no room."""
        reserved = self.incoming.path(file).with_name(f"{_RESERVED}{file.sha256}")
        make_directory(reserved.parent)
        while True:
            with self.locked():
                if self._make_room(file.bytes, urgent=urgent):
                    reserved.touch()
                    os.truncate(reserved, file.bytes)
                    return reserved
                is_busy = any(self.incoming.folder.glob(f"{_SHARDS}/{_RESERVED}*"))
            if not urgent:
                return None
            if not is_busy:
                raise StorageError(
                    f"{self.cache.folder}: no room for a shard of {readable(file.bytes)} in --cache-limit; "
                    "the shards there are not on the remote any more. Raise the limit or change --mirror."
                )
            self._pause(0.1)

    def _make_room(self, size: int, *, urgent: bool) -> bool:
        """Evict shards, the least recently used first, until ``size`` bytes more fit; return whether they do.

        A shard goes only if the remote still has it. Those of the current and the next window go only if
        ``urgent``.
        """
        self._clean()
        every = [
            path
            for base in (self.cache.folder, self.incoming.folder)
            for path in base.glob(f"{_SHARDS}/*")
            if path.suffix == ".arrow" or path.name.startswith(_RESERVED)
        ]
        # A shard that has just arrived and its reservation count once, and it is not evicted yet.
        held = dict[str, int]()
        for path in every:
            with suppress(FileNotFoundError):
                held[_digest_of(path)] = path.stat().st_size
        reserved = {_digest_of(path) for path in every if path.suffix != ".arrow"}
        paths = [path for path in every if _digest_of(path) not in reserved]
        near = {name for store in self._stores.values() for name in store.near}
        for path in sorted(paths, key=lambda path: (path.stem in near, self._used.get(path.stem, 0))):
            if sum(held.values()) + size <= self.limit or (path.stem in near and not urgent):
                break
            stat = self.remote.stat(object_path(path.stem))
            if stat is not None and stat.bytes == held.get(path.stem):
                path.unlink(missing_ok=True)
                del held[path.stem]
        return sum(held.values()) + size <= self.limit

    def _clean(self) -> None:
        """Delete the reservations and temporary files of processes that were killed."""
        for path in self.incoming.folder.glob(f"{_SHARDS}/{TEMPORARY_PREFIX}*"):
            with self._alone(_digest_of(path), wait=False) as is_alone:
                if is_alone:
                    path.unlink(missing_ok=True)


def _digest_of(path: Path) -> str:
    """Return the digest in the name of a shard, of its reservation or of its temporary file."""
    return path.name.removesuffix(".arrow")[-64:]


class StreamedStore:
    """Vectors of one contract on a remote; a read-only :class:`VectorStore`.

    Positions are those of :class:`RemoteKeys`, so they are known before a vector is fetched.
    """

    def __init__(self, stream: Stream, contract: Contract, keys: RemoteKeys) -> None:
        self._stream, self._contract, self._keys = stream, contract, keys
        folder = stream.cache.teacher_folder(contract)
        self._codebooks, self._notes = folder / "codebooks", FileNotes()
        self._admitted = FolderShards(folder / "shards", self._notes)
        staged = stream.incoming.folder / "teachers" / contract.id / "shards"
        self._staged = FolderShards(staged, self._notes)
        self._opened: dict[int, ShardStore] = {}
        self._compared: set[str] = set()
        self._coming: list[int] | None = None
        self.near: set[str] = set()
        """Names of the shards of the current and the next window."""
        self.shard_names: Sequence[str] = [shard.sha256 for shard in keys.shards]
        """Name of each shard, by number."""
        self.shard_sizes: Sequence[int] = [shard.bytes for shard in keys.shards]
        """Bytes of each shard, by number."""

    @property
    def contract(self) -> Contract:
        """The contract of every vector."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """The finest codec of the shards."""
        return min((shard.codec for shard in self._keys.shards), key=CODEC_NAMES.index)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The dtype :meth:`gather` returns: float16 where everything is stored so, else float32."""
        is_half = {shard.codec for shard in self._keys.shards} == {"float16"}
        return np.dtype(np.float16 if is_half else np.float32)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._keys.starts[-1])

    def put(self, batch: VectorBatch) -> None:
        """Refuse: a remote is pushed to."""
        raise InputError("vectors cannot be added to a remote that is trained from: build, then push.")

    def locate(self, keys: KeyArray) -> Positions:
        """Return the position of each key, -1 where it is missing."""
        return self._keys.locate(keys)

    def shards_at(self, positions: Positions) -> Positions:
        """Return the number of the shard of each position."""
        return self._keys.shards_at(positions)

    def want(self, windows: Sequence[Sequence[int]]) -> None:
        """Fetch the shards of the first window in the background, and those of the second one afterwards.

        The second window waits for the next :meth:`gather`: the first batch of a window may have rows of the
        window before, whose shards make room for it.

        Args:
            windows: numbers of the shards that are needed now, then those needed after them, and so on.
        """
        now, coming = [*windows, (), ()][:2]
        self.near = {self.shard_names[number] for number in (*now, *coming)}
        self._fetch_ahead(now)
        self._coming = [*now, *coming]

    def _fetch_ahead(self, numbers: Sequence[int]) -> None:
        files = [self._keys.shards[number] for number in numbers if self._place(number) is None]
        if files:
            size = sum(file.bytes for file in files)
            self._stream.meter.begin("fetch vectors", total_files=len(files), total_bytes=size)
        for number in numbers:
            self._stream.submit(partial(self._fetch, number, urgent=False))

    def interrupt(self) -> None:
        """Stop all downloads."""
        self._stream.remote.stop.set()

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the new shards at ``positions`` with the teacher, and admit them.

        Args:
            positions: rows that are trained on next, shape (n,).
            computing: how to run the teacher.

        Raises:
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room for a shard.
        """
        names = {n: self.shard_names[n] for n in np.unique(self.shards_at(positions)).tolist()}
        stores = {name: self._store(n) for n, name in names.items() if name not in self._compared}
        fresh = {name: one for name, one in stores.items() if not self._admitted.path(name).is_file()}
        if fresh:
            self._compare(fresh, computing)
        self._compared |= stores.keys()
        make_directory(self._admitted.folder)
        with self._stream.locked():
            for name in names.values():
                with suppress(FileNotFoundError):
                    self._staged.path(name).replace(self._admitted.path(name))
        self._notes.remember(self._admitted.path(name) for name in names.values())

    def _compare(self, stores: dict[str, ShardStore], computing: Computing) -> None:
        shards = MemoryShards()
        for name, one in stores.items():
            shards.add(name, one.container.open(name))
        came = ShardStore(shards, self._contract, codebooks=self._codebooks)
        stream = self._stream
        teacher = stream.incoming.teacher(self._contract.id)
        corpus = stream.cache.corpus(stream.corpus)
        load = partial(local_teacher, stream.cache, teacher, came, computing)
        none = ShardStore(MemoryShards(), self._contract)
        sample = compare(came, none, teacher, [corpus, *corpus.views()], load)
        if sample.is_bad:
            self._opened.clear()
            for name in stores:
                self._staged.path(name).unlink(missing_ok=True)
            raise stream.incoming.refusal(list(stores), f"vectors of {teacher.name}: {sample.told}")

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in :attr:`dtype`, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
            RemoteError: if a shard cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        vectors = np.empty((len(positions), self._contract.dimension), dtype=self.dtype)
        for places, store, rows in self._runs(positions):
            vectors[places] = store.gather(rows)
        if self._coming is not None:
            wanted, self._coming = self._coming, None
            # A mapped shard takes its room on the disk even when it is deleted.
            self._opened = {number: self._opened[number] for number in wanted if number in self._opened}
            self._fetch_ahead(wanted)
        return vectors

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d); errors as :meth:`gather`."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        tokens, truncated = np.empty(len(positions), np.int32), np.empty(len(positions), np.bool_)
        for places, store, rows in self._runs(positions):
            tokens[places], truncated[places] = store.seen(rows)
        return tokens, truncated

    def _runs(self, positions: Positions) -> Iterator[tuple[NDArray[np.intp], ShardStore, Positions]]:
        """Yield for each shard the places in ``positions`` it answers, its store and the rows in it."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(places):
                number = int(numbers[places[0]])
                yield places, self._store(number), positions[places] - self._keys.starts[number]

    def _store(self, number: int) -> ShardStore:
        """Return the open store of one shard, fetched where it is missing."""
        self._stream.touch(self.shard_names[number])
        while (store := self._opened.get(number)) is None:
            place = self._place(number)
            if place is None:
                self._fetch(number, urgent=True)
                continue
            try:
                self._opened[number] = self._open(place, number)
            except (CorruptCacheError, FileNotFoundError):
                # Damaged, or moved or evicted by another process just now.
                place.path(self.shard_names[number]).unlink(missing_ok=True)
        return store

    def _place(self, number: int) -> FolderShards | None:
        name = self.shard_names[number]
        return next((one for one in (self._admitted, self._staged) if one.path(name).is_file()), None)

    def _open(self, place: FolderShards, number: int) -> ShardStore:
        name, shard = self.shard_names[number], MemoryShards()
        shard.add(name, place.open(name))
        if place.find_liars([name]):
            raise damaged_shard(place.where(name), "its digest is another one")
        return ShardStore(shard, self._contract, codebooks=self._codebooks)

    def _fetch(self, number: int, *, urgent: bool) -> None:
        file = self._keys.shards[number]

        def check() -> None:
            self._notes.remember([self._staged.path(file.sha256)])
            with self._stream.incoming.refusing([file]):
                store = self._open(self._staged, number)
            self._stream.incoming.check_shards(store, [file])

        if urgent or file.sha256 in self.near:
            self._stream.fetch(file, lambda: self._place(number) is not None, check, urgent=urgent)
