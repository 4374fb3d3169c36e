"""Training from a remote through a mirror: a cache on this machine with copies of its files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, write_bytes
from embedcache.gc import find_removal
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import Selection
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile
from embedcache.share.plan import Plan, select_manifests
from embedcache.share.pull import pull
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import SampleCheck, compare, local_encoder
from embedcache.sizes import readable
from embedcache.store import FolderShards, MemoryShards, Shard, ShardStore
from embedcache.store.base import Positions

if TYPE_CHECKING:
    import pyarrow as pa

_SHARDS = "teachers/*/shards"


class Mirror:
    """A cache with copies of a remote's files; a context manager that stops all downloads when it exits.

    With a limit, shards lie in ``derived/mirror`` and come and go: the least recently used are evicted first.
    One process at a time fetches and evicts; the others read the shards that are there meanwhile.

    Attributes:
        cache: the mirror.
        corpus: name of the corpus to train on.
        incoming: the shards of a mirror with a limit.
        near: digests of the shards of the current and the next window, by contract id.
        used: time of the last use of each shard.
        on_sample: called with the result of each comparison of vectors with the live teacher.
    """

    def __init__(
        self, corpus: str, incoming: Incoming, limit: int | None, on_sample: Callable[[SampleCheck], None]
    ) -> None:
        self.cache, self.corpus, self.incoming, self.on_sample = incoming.cache, corpus, incoming, on_sample
        self.near: dict[str, set[str]] = {}
        self.used: dict[str, float] = {}
        self._limit = limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._is_closed = False

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
        progress: Progress = NO_PROGRESS,
        on_sample: Callable[[SampleCheck], None] = lambda sample: None,
    ) -> Mirror:
        """Fill a mirror: with everything, or with everything but shards if there is a ``limit``.

        Args:
            remote: name or URL of the remote.
            folder: the mirror's folder; default: one of the remote in the user's cache folder.
            teachers: names or beginnings of contract ids; default: all.
            corpus: ``NAME`` or ``NAME@DIGEST``; default: the only one on the remote.
            require_signature: file of public ed25519 keys; only manifests that one of them signed count.
            limit: bytes of shards that are kept at a time.
            with_logits: fetch the logits of the named teachers as well.
            progress: receives what is done.
            on_sample: called with the result of each comparison of vectors with the live teacher.

        Raises:
            InputError: if the folder holds an ordinary cache or another remote's mirror, or something asked
                for is not on the remote.
            RemoteError: as ``pull``, and if a teacher's vectors are not the teacher's.
            StorageError: if the disk has no room.
        """
        source = Remote(remote).open()
        user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        place = Path(folder or f"{user}/embedcache/mirrors/{source.id}").expanduser()
        cache = _open_cache(place, source)
        shards = cache.derived_folder / "mirror"
        # Several processes may start together: one fetches, the others wait.
        with FileLock(shards / "opening.lock"):
            listed = select_manifests(source, cache, require_signature)
            known = {name for called in listed.teacher_names().values() for name in called}
            logits = sorted({f"{name}.logits" for name in teachers if with_logits} & known)
            wanted = Selection([*teachers, *logits], [corpus] if corpus else [], vectors=limit is None)
            corpora = Plan.make(source, listed, None, wanted).corpora
            if len(corpora) != 1:
                raise InputError(
                    f"{source.url}: {len(corpora)} corpora ({', '.join(sorted(corpora)) or 'none'}), "
                    "expected one to train on. Choose a corpus."
                )
            ((name, digest),) = corpora.items()
            if name in cache.corpus_names() and cache.corpus(name).info.digest != digest:
                find_removal(cache, "corpus", name).delete()
            wanted, signed = replace(wanted, corpora=[f"{name}@{digest}"]), require_signature
            done = pull(cache.folder, remote, wanted, require_signature=signed, progress=progress)
            if done.is_bad:
                raise RemoteError("; ".join(one.message for one in done.samples if one.is_bad))
            for sample in done.samples:
                on_sample(sample)
            for path in cache.folder.glob(f"{_SHARDS}/*.arrow") if limit is not None else ():
                # Left by a run without a limit; they count towards the limit.
                make_directory((shards / path.relative_to(cache.folder)).parent)
                path.replace(shards / path.relative_to(cache.folder))
        incoming = Incoming(cache, source, listed, progress=progress, folder=shards)
        incoming.fetched = done.bytes
        return cls(name, incoming, limit, on_sample)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all downloads."""
        self._is_closed = True
        self.incoming.remote.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were downloaded so far."""
        return self.incoming.fetched

    def store(self, contract: Contract) -> ShardStore:
        """Return the store of a teacher's vectors."""
        return self.cache.store(contract) if self._limit is None else StreamedStore(self, contract)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which shards are fetched and evicted.

        Raises:
            RemoteError: if the mirror is closed.
        """
        with FileLock(self.incoming.folder / "shards.lock"):
            if self._is_closed:
                raise RemoteError(f"{self.incoming.remote.url}: stopped.")
            # Left by killed processes.
            for path in self.incoming.folder.glob(f"{_SHARDS}/{TEMPORARY_PREFIX}*"):
                path.unlink(missing_ok=True)
            yield

    def fetch(self, files: Sequence[SharedFile], *, ahead: bool = False) -> None:
        """Download shards that are missing; call it under the lock.

        Args:
            files: the shards.
            ahead: fetch those of the current and the next window, as far as there is room beside others of
                them. Otherwise any other shard may be evicted.

        Raises:
            RemoteError, StorageError: if one cannot be fetched, or they are more than the limit.
        """
        near, chosen = set[str]().union(*self.near.values()), list[SharedFile]()
        held = [(path, path.stat()) for path in self.incoming.folder.glob(f"{_SHARDS}/*.arrow")]
        room = (self._limit or 0) - sum(state.st_size for _, state in held)
        keep = near if ahead else {file.sha256 for file in files}
        held = [one for one in held if one[0].stem not in keep]
        held.sort(key=lambda one: (one[0].stem not in near, -self.used.get(one[0].stem, 0)))
        for file in files:
            if self.incoming.path(file).is_file() or (ahead and file.sha256 not in near):
                continue
            while room < file.bytes and held:
                path, state = held.pop()
                path.unlink()
                room += state.st_size
            if room >= file.bytes:
                chosen.append(file)
                room -= file.bytes
            elif not ahead:
                raise StorageError(
                    f"{self.cache.folder}: no room for a shard of {readable(file.bytes)} in cache_limit "
                    f"{readable(self._limit or 0)}. Raise the limit."
                )
        if chosen:
            self.incoming.fetch("fetch vectors", chosen)

    def fetch_ahead(self, files: Sequence[SharedFile]) -> None:
        """Download shards in the background; errors show when the shards are needed."""

        def fetch() -> None:
            with self.locked():
                self.fetch(files, ahead=True)

        with suppress(RuntimeError):  # a closed pool takes no more work
            self._pool.submit(fetch)


class MirrorShards(FolderShards):
    """Shards of one contract on a remote, fetched into a mirror when they are opened."""

    def __init__(self, mirror: Mirror, contract: Contract) -> None:
        super().__init__(mirror.incoming.folder / "teachers" / contract.id / "shards")
        self.files = {file.sha256: file for file in mirror.incoming.listed.shards(contract.id)}
        self._mirror, self._contract = mirror, contract

    def names(self) -> list[str]:
        """Return the names of all shards on the remote, sorted."""
        return sorted(self.files)

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return nothing: each shard is checked when it is opened."""
        return []

    def add(self, name: str, data: object) -> None:
        """Refuse: a remote is pushed to."""
        raise InputError("vectors cannot be added to a remote that is trained from: build, then push.")

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, mapped; it is fetched if it is missing or damaged.

        Raises:
            RemoteError, StorageError: if it cannot be fetched, or is not what its manifest lists.
        """
        if self.path(name).is_file():
            # Another process may evict it just now.
            with suppress(RemoteError):
                return self._open_checked(name)
        with self._mirror.locked():
            self._mirror.fetch([self.files[name]])
            return self._open_checked(name)

    def _open_checked(self, name: str) -> pa.Buffer:
        """Open and check a shard; delete it if it is refused."""
        try:
            if super().find_corrupt([name]):
                raise RemoteError(f"{self.where(name)} is missing or damaged.")
            store = self._mirror.incoming.open_store(self._contract, [self.files[name]])
            return store.container.open(name)
        except RemoteError:
            self.path(name).unlink(missing_ok=True)
            raise


class StreamedStore(ShardStore):
    """Vectors of one contract on a remote, fetched into a mirror; nothing can be put into it.

    Attributes:
        shard_sizes: bytes of each shard, in the order of positions.

    Raises:
        InputError: if the remote has no vectors of it.
    """

    def __init__(self, mirror: Mirror, contract: Contract) -> None:
        incoming, shards = mirror.incoming, MirrorShards(mirror, contract)
        files = list(shards.files.values())
        if not files:
            raise InputError(f"{incoming.remote.url}: no vectors of teacher {contract.id[:12]}.")
        self._mirror, self._lock = mirror, threading.RLock()
        self._compared: set[str] = set()
        self._coming: list[SharedFile] | None = None
        incoming.fetch("fetch codebooks", incoming.listed.codebooks(files))
        keys = RemoteKeys(incoming, files)
        super().__init__(shards, contract, codebooks=shards.folder.parent / "codebooks", index=keys.index)
        self._files = keys.shards
        self.shard_sizes: Sequence[int] = [file.bytes for file in self._files]

    def want(self, now: Sequence[int], coming: Sequence[int] = ()) -> None:
        """Fetch shards in the background.

        The next window waits for the next ``gather``: the first batch of a window may have rows of the
        window before, whose shards make room for it.

        Args:
            now: numbers of the shards of the current window.
            coming: numbers of the shards of the next window.
        """
        self._coming = [self._files[number] for number in (*now, *coming)]
        self._mirror.near[self.contract.id] = {file.sha256 for file in self._coming}
        self._mirror.fetch_ahead(self._coming[: len(now)])

    def load(self, numbers: Sequence[int]) -> None:
        """Wait until shards are here, and keep them open.

        Raises:
            RemoteError, StorageError: if one cannot be fetched, or is refused.
        """
        for _ in self._open([self.shard_names[number] for number in numbers]):
            pass

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the shards at ``positions`` with the live teacher; each shard once.

        Args:
            positions: rows that are trained on next, shape (n,).
            computing: settings of the teacher; if its model is not on this machine, nothing is compared.

        Raises:
            RemoteError, StorageError: if vectors are not the teacher's, or as ``gather``.
        """
        numbers = np.unique(self.shards_at(positions)).tolist()
        names = {self.shard_names[number] for number in numbers} - self._compared
        if not names:
            return
        shards, cache = MemoryShards(), self._mirror.cache
        for name in names:
            shards.add(name, self.container.open(name))
        came = ShardStore(shards, self.contract, codebooks=self._codebooks)
        teacher = next(one for one in cache.teachers() if one.contract == self.contract)
        corpus, nothing = cache.corpus(self._mirror.corpus), ShardStore(MemoryShards(), self.contract)
        load = partial(local_encoder, cache, teacher, came, computing)
        sample = compare(teacher.name, came, nothing, [corpus, *corpus.views()], load)
        if sample.is_bad:
            self._release(set())
            for name in names:
                self.container.remove(name)
            raise self._mirror.incoming.refusal(names, f"vectors of {teacher.name}: {sample.message}")
        self._mirror.on_sample(sample)
        self._compared |= names

    def gather(self, positions: Positions) -> NDArray[np.floating]:
        """Return the vectors at ``positions`` in ``dtype``, shape (n, d), in the order asked.

        Raises:
            IndexError: if a position is -1 or past the end.
            RemoteError, StorageError: if a shard cannot be fetched, or is refused.
        """
        vectors = super().gather(positions)
        if self._coming is not None:
            wanted, self._coming = self._coming, None
            self._release({file.sha256 for file in wanted})
            self._mirror.fetch_ahead(wanted)
        return vectors

    def _open(self, names: Iterable[str]) -> Iterator[Shard]:
        names = list(names)
        self._mirror.used.update(dict.fromkeys(names, time.monotonic()))
        with self._lock:
            return iter(list(super()._open(names)))

    def _release(self, keep: Set[str]) -> None:
        """Close shards: a deleted file takes disk space while it is mapped."""
        with self._lock:
            self._opened = {name: shard for name, shard in self._opened.items() if name in keep}


def _open_cache(place: Path, source: Remote) -> Cache:
    source.refuse_nested(place)
    cache = Cache.create(place)
    note = cache.derived_folder / "mirror" / "remote"
    noted = note.read_text() if note.is_file() else ""
    if noted != source.url:
        if noted or any((place / name).exists() for name in ("corpora", "teachers")):
            raise InputError(
                f"{place}: no mirror of {source.url}. Give a new folder as mirror. A mirror without its "
                "derived/ folder can be deleted: it holds only copies."
            )
        write_bytes(note, source.url.encode())
    return cache
