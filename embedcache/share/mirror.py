"""Training from a remote: a mirror is a cache of this machine that holds only copies of what a remote has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError, RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, read_sealed_json, write_sealed_json
from embedcache.housekeeping.remove import remove_corpus
from embedcache.keys import KeyArray
from embedcache.share.files import Selection
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile, Stock
from embedcache.share.plan import Plan
from embedcache.share.pull import counted_stock, pull
from embedcache.share.remote import JOBS, Remote, object_path
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import compare, local_teacher
from embedcache.sizes import readable
from embedcache.store import MemoryShards, ShardStore, VectorBatch, VectorStore
from embedcache.store.base import Positions
from embedcache.store.containers.folder import FolderShards
from embedcache.store.digests import FileNotes

_RESERVED = f"{TEMPORARY_PREFIX}reserved-"


def default_mirror(remote: Remote) -> Path:
    """Return the default folder of a remote's mirror, in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "embedcache" / "mirrors" / remote.id


class Mirror:
    """A cache with copies of what a remote has; a context manager, at whose end nothing more is fetched.

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
        """Fill a mirror. Without ``limit`` it then has everything, with it everything but shards.

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
        place = default_mirror(source) if folder is None else Path(folder).expanduser()
        cache = _open_cache(place, source)
        stock = counted_stock(source, cache, require_signature)
        known = {name for called in stock.teacher_names().values() for name in called}
        logits = {f"{name}.logits" for name in teachers} & known if with_logits else set()
        names = [*teachers, *sorted(logits)]
        selection = Selection(names, [] if corpus is None else [corpus])
        plan = Plan.make(source, stock, None, selection)
        if len(plan.corpora) != 1:
            raise InputError(
                f"{source.url}: {len(plan.corpora)} corpora ({', '.join(sorted(plan.corpora)) or 'none'}), "
                "expected one to train on. Choose it with --corpus."
            )
        ((name, digest),) = plan.corpora.items()
        if name in cache.corpus_names() and cache.corpus(name).info.digest != digest:
            # A copy of an older version.
            remove_corpus(cache, name)
        meter = Meter(on_progress)
        if limit is None:
            selection = Selection(names, [f"{name}@{digest}"])
            done = pull(
                place, remote, selection, require_signature=require_signature, on_progress=on_progress
            )
            if done.is_bad:
                raise RemoteError("; ".join(one.told for one in done.samples if one.is_bad))
            meter.bytes += done.bytes
            return cls(Cache(place), name, meter, None)
        return cls(cache, name, meter, Stream(cache, source, stock, plan, name, limit, meter))

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fetch nothing more."""
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
    note = place / "derived" / "mirror.json"
    if (place / "cache.json").exists():
        with suppress(OSError, ValueError, KeyError):
            if read_sealed_json(note)["remote"] == source.url:
                return Cache(place)
        raise InputError(f"{place}: no mirror of {source.url}. Give a new folder with --mirror.")
    cache = Cache.create(place)
    write_sealed_json(note, {"remote": source.url})
    return cache


class Stream:
    """Shards of a mirror that are fetched when they are needed and evicted when others need the room.

    Args:
        cache: the mirror.
        remote: the remote.
        stock: what the remote lists.
        plan: what is wanted of it; everything but shards is fetched at once.
        corpus: name of the corpus.
        limit: bytes of shards that are kept at a time.
        meter: counts what is downloaded.
    """

    def __init__(
        self, cache: Cache, remote: Remote, stock: Stock, plan: Plan, corpus: str, limit: int, meter: Meter
    ) -> None:
        self.cache, self.remote, self.stock, self.meter, self.limit = cache, remote, stock, meter, limit
        self.incoming = Incoming(cache, remote, stock, meter)
        self._corpus = corpus
        self._pool = ThreadPoolExecutor(JOBS, thread_name_prefix="mirror")
        self._stores: dict[str, StreamedStore] = {}
        self._used: dict[str, int] = {}
        self._clock = 0
        self._lock = threading.Lock()
        self._fetch_documents(plan)

    def _fetch_documents(self, plan: Plan) -> None:
        shards = [shard for one in plan.teachers for shard in self.stock.shards(one)]
        files = [*plan.texts, *plan.documents]
        missing = [file for file in files if not (self.cache.folder / file.path).is_file()]
        with self.incoming.locked([*files, *shards]):
            self.incoming.fetch("fetch", missing)
            self.incoming.check_corpora(missing, plan.corpora)
            for contract_id in plan.teachers:
                mine = [file for file in missing if file.entry.teacher == contract_id]
                if mine:
                    self.incoming.check_documents(self.incoming.contract(contract_id), mine)
            self.incoming.admit(missing)

    def close(self) -> None:
        """Fetch nothing more."""
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

    def corpora(self) -> list[Corpus]:
        """Return the corpus and its views, whose texts samples are taken of."""
        corpus = self.cache.corpus(self._corpus)
        return [corpus, *corpus.views()]

    def submit(self, act: Callable[[], None]) -> Future[None] | None:
        """Run ``act`` in the background; None once the mirror is closed."""
        with suppress(RuntimeError):
            return self._pool.submit(act)
        return None

    def touch(self, name: str) -> None:
        """Note that a shard was used just now."""
        with self._lock:
            self._clock += 1
            self._used[name] = self._clock

    def make_room(self, size: int, *, urgent: bool) -> bool:
        """Evict shards, the least recently used first, until ``size`` bytes more fit; return whether they do.

        A shard goes only if the remote still has it. Those of the current and the next window stay unless the
        room is needed at once.
        """
        near = {name for store in self._stores.values() for name in store.near}
        paths = self._shard_paths()
        held = sum(path.stat().st_size for path in paths if path.exists())
        candidates = [path for path in paths if not path.name.startswith(_RESERVED)]
        order = sorted(candidates, key=lambda path: (path.stem in near, self._used.get(path.stem, 0)))
        for path in order:
            if held + size <= self.limit:
                break
            if path.stem in near and not urgent:
                continue
            with suppress(FileNotFoundError):
                mine = path.stat().st_size
                stat = self.remote.stat(object_path(path.stem))
                if stat is not None and stat.bytes == mine:
                    path.unlink()
                    held -= mine
        return held + size <= self.limit

    def _shard_paths(self) -> list[Path]:
        bases = (self.cache.folder, self.incoming.folder)
        found = [path for base in bases for path in base.glob("teachers/*/shards/*")]
        return [
            path
            for path in found
            if path.suffix == ".arrow" and (path.name[0] != "." or _RESERVED in path.name)
        ]


class _SomeShards(FolderShards):
    """Some of the shards of a folder."""

    def __init__(self, folder: FolderShards, names: Collection[str]) -> None:
        super().__init__(folder.folder, folder.notes)
        self._some = sorted(names)

    def names(self) -> list[str]:
        """Return their names, sorted."""
        return self._some


class StreamedStore:
    """Vectors of one contract on a remote; a :class:`VectorStore` that is only read.

    Positions are those of :class:`RemoteKeys`, so they are known before a vector is here.
    """

    def __init__(self, stream: Stream, contract: Contract, keys: RemoteKeys) -> None:
        self._stream, self._contract, self._keys = stream, contract, keys
        folder = stream.cache.teacher_folder(contract)
        self._codebooks = folder / "codebooks"
        self._admitted = FolderShards(folder / "shards", FileNotes())
        self._staged = FolderShards(stream.incoming.folder / "teachers" / contract.id / "shards", FileNotes())
        self._opened: dict[int, ShardStore] = {}
        self._pending: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._sampled: set[str] = set()
        self.near: set[str] = set()
        """Names of the shards of the current and the next window."""

    @property
    def contract(self) -> Contract:
        """The contract of every vector."""
        return self._contract

    @property
    def codec_name(self) -> str:
        """The codec of most shards."""
        names = [shard.codec for shard in self._keys.shards]
        return max(sorted(set(names)), key=names.count)

    @property
    def shard_names(self) -> Sequence[str]:
        """Name of each shard, by number."""
        return [shard.sha256 for shard in self._keys.shards]

    @property
    def shard_sizes(self) -> Sequence[int]:
        """Bytes of each shard, by number."""
        return [shard.bytes for shard in self._keys.shards]

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
        """Fetch the shards of the first two windows in the background.

        Args:
            windows: numbers of the shards that are needed now, then those needed after them, and so on.
        """
        wanted = list(dict.fromkeys(number for window in windows[:2] for number in window))
        self.near = {self._keys.shards[number].sha256 for number in wanted}
        # A mapped shard takes its room on the disk even when it is deleted.
        self._opened = {number: self._opened[number] for number in wanted if number in self._opened}
        for number in wanted:
            with self._lock:
                if number in self._pending or self._place(number) is not None:
                    continue
                future = self._stream.submit(partial(self._fetch_ahead, number))
                if future is not None:
                    self._pending[number] = future

    def interrupt(self) -> None:
        """Fetch nothing more."""
        self._stream.remote.stop.set()

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the shards at ``positions`` that arrived since, and admit them.

        Args:
            positions: rows that are trained on next, shape (n,).
            computing: how to run the teacher.

        Raises:
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room for a shard.
        """
        numbers = np.unique(self.shards_at(positions)).tolist()
        for number in numbers:
            self._store(number)
        fresh = [n for n in numbers if self._staged.path(self.shard_names[n]).is_file()]
        if not fresh:
            return
        names = [self.shard_names[number] for number in fresh]
        came = self._open(self._staged, names)
        cache = self._stream.cache
        teacher = self._stream.incoming.teacher(self._contract.id)
        corpora = self._stream.corpora()
        none = ShardStore(MemoryShards(), self._contract)
        load = partial(local_teacher, cache, teacher, came, computing)
        sample = compare(came, none, teacher, corpora, load)
        if sample.is_bad:
            for name in names:
                self._staged.path(name).unlink(missing_ok=True)
            raise self._stream.incoming.refusal(names, f"vectors of {teacher.name}: {sample.told}")
        make_directory(self._admitted.folder)
        for name in names:
            with suppress(FileNotFoundError):
                self._staged.path(name).replace(self._admitted.path(name))

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions``, shape (n, d), in the order asked.

        The dtype is float16 where all of these are stored so, else float32.

        Raises:
            IndexError: if a position is -1.
            RemoteError: if a shard cannot be fetched, or is refused.
            StorageError: if there is no room for it.
        """
        if not len(positions):
            return np.empty((0, self._contract.dimension), dtype=np.float32)
        if positions.min() < 0:
            raise IndexError("a position outside the store; -1 stands for a missing key and holds no vector")
        numbers = self.shards_at(positions)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        runs = []
        for start, end in pairwise(edges):
            number = int(numbers[start])
            rows = positions[order[start:end]] - self._keys.starts[number]
            runs.append(self._store(number).gather(rows))
        found = np.concatenate(runs)
        vectors = np.empty_like(found)
        vectors[order] = found
        return vectors

    def vectors(self, positions: Positions) -> Vectors:
        """Return the vectors at ``positions`` as float32, shape (n, d); errors as :meth:`gather`."""
        return self.gather(positions).astype(np.float32, copy=False)

    def seen(self, positions: Positions) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return ``tokens`` and ``truncated`` of the rows at ``positions``, each of shape (n,)."""
        tokens, truncated = np.empty(len(positions), np.int32), np.empty(len(positions), np.bool_)
        numbers = self.shards_at(positions)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            rows = positions[mine] - self._keys.starts[number]
            tokens[mine], truncated[mine] = self._store(number).seen(rows)
        return tokens, truncated

    def _store(self, number: int) -> ShardStore:
        """Return the open store of one shard, fetched where it is not here."""
        name = self.shard_names[number]
        self._stream.touch(name)
        store = self._opened.get(number)
        while store is None:
            with self._lock:
                future = self._pending.pop(number, None)
            if future is not None and not future.cancel():
                future.result()
            place = self._place(number)
            if place is None:
                self._fetch(number, urgent=True)
                continue
            try:
                store = self._open(place, [name])
            except (CorruptCacheError, FileNotFoundError):
                # Another process has evicted or admitted it just now, or it is damaged and fetched again.
                place.path(name).unlink(missing_ok=True)
        if name in self.near:
            self._opened[number] = store
        return store

    def _place(self, number: int) -> FolderShards | None:
        name = self.shard_names[number]
        return next((one for one in (self._admitted, self._staged) if one.path(name).is_file()), None)

    def _open(self, place: FolderShards, names: Collection[str]) -> ShardStore:
        return ShardStore(_SomeShards(place, names), self._contract, codebooks=self._codebooks)

    def _fetch_ahead(self, number: int) -> None:
        self._fetch(number, urgent=False)

    def _fetch(self, number: int, *, urgent: bool) -> None:
        """Download a shard into the quarantine; without ``urgent`` only where there is room."""
        file = self._keys.shards[number]
        reserved = self._reserve(file, urgent=urgent)
        if reserved is None:
            return
        try:
            if self._place(number) is None:
                self._stream.incoming.fetch_one(file)
                self._check(file)
        finally:
            reserved.unlink(missing_ok=True)

    def _reserve(self, file: SharedFile, *, urgent: bool) -> Path | None:
        """Make room for a shard, and reserve it with an empty file of its size; None where there is none."""
        folder = make_directory(self._staged.folder)
        with FileLock(self._stream.cache.derived_folder / "mirror.lock"):
            if not self._stream.make_room(file.bytes, urgent=urgent):
                if not urgent:
                    return None
                raise StorageError(
                    f"{self._stream.cache.folder}: no room for a shard of {readable(file.bytes)} within "
                    "--cache-limit: what is there is in use or not on the remote any more. Raise the limit, "
                    "or give another --mirror."
                )
            reserved = folder / f"{_RESERVED}{os.getpid()}-{file.sha256}.arrow"
            reserved.touch()
            os.truncate(reserved, file.bytes)
            return reserved

    def _check(self, file: SharedFile) -> None:
        """Check that a shard is what its manifest says it is.

        Raises:
            RemoteError: if it is not.
        """
        try:
            self._stream.incoming.check_shards(self._open(self._staged, [file.sha256]), [file])
        except BaseException:
            self._staged.path(file.sha256).unlink(missing_ok=True)
            raise
