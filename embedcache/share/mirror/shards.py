"""Shards of a remote that are here for a while: fetched when they are wanted, deleted where room is needed.

A note in ``derived/stream`` of the mirror stands for each shard that was fetched here. Only what has a note
is ever deleted, and only while the remote has it: a shard that was built or pulled here may be the only copy.
A note is written before its shard is fetched, so what is there together never exceeds the limit; its time is
when the shard was last wanted. Whoever fetches a shard holds its note's lock, and whoever makes room that of
the folder, so any number of processes can work on one mirror of a machine. A shard that one process deletes
stays readable for another that has it mapped.

A remote that cannot be reached is asked again a few times, never while the folder is locked; then whoever
needs the shard is told. One that has lost what is here makes no room: then there may be too little of it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, StorageError
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    explain_os_error,
    make_directory,
    read_sealed_json,
    remove_file,
    sealed,
    spelled_json,
)
from embedcache.locked_folder import locked_folder
from embedcache.share.mirror.chosen_shards import ChosenShards
from embedcache.share.mirror_notes import STREAM, StreamNote, holding
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.transfer import JOBS, Stopped
from embedcache.store import FolderShards, ShardStore

_Key = tuple[str, str]  # contract id and name of a shard

_GLANCE_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 600.0
_SLOW_SECONDS = 5.0
_SELDOM_SECONDS = 60.0


class _State(Enum):
    """How it stands with a shard that somebody wants."""

    HERE = auto()
    COMING = auto()
    NO_ROOM = auto()
    ROOM = auto()


class MirrorShards:
    """The shards of a mirror.

    Args:
        source: the remote.
        cache: the mirror.
        contracts: the teachers, by contract id.
        listed: their shards on the remote: contract id -> name -> file.
        arrivals: fetches files into the mirror.
        limit: bytes that fetched shards may have together; None: any number.
        jobs: transfers at once.
        on_wait: told, now and then, which shard is waited for, where that takes more than some seconds; from
            a thread of its own.
    """

    def __init__(
        self,
        source: Remote,
        cache: Cache,
        contracts: Mapping[str, Contract],
        listed: Mapping[str, Mapping[str, SharedFile]],
        arrivals: Arrivals,
        limit: int | None,
        jobs: int = JOBS,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._on_wait, self._told = on_wait, -_SELDOM_SECONDS
        self._source, self._cache, self._contracts, self._listed = source, cache, contracts, listed
        self._arrivals, self._limit = arrivals, limit
        self._folder = make_directory(cache.derived_folder / STREAM)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="stream")
        self._lock = threading.Lock()
        self._wanted: dict[str, set[str]] = {}
        self._pending: dict[_Key, Future[None]] = {}
        self._containers = {
            contract_id: FolderShards(cache.teacher_folder(contract) / "shards")
            for contract_id, contract in contracts.items()
        }
        for contract in contracts.values():
            if cache.container(contract).kind != "arrow":
                raise InputError(
                    f"{cache.folder} keeps vectors of {contract.id[:12]} in LMDB, and a mirror keeps "
                    "shards as files: give another --mirror"
                )

    @property
    def is_limited(self) -> bool:
        """Whether shards are deleted to make room for others."""
        return self._limit is not None

    def own(self, contract_id: str) -> ShardStore | None:
        """Return the store of a teacher's shards that are here and not on the remote; None without any."""
        container, listed = self._containers[contract_id], self._listed[contract_id]
        names = [name for name in container.names() if name not in listed]
        return self._store(contract_id, names) if names else None

    def want(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards of a teacher fetched in the background, in this order; others may be deleted first.

        What cannot be fetched now is told of when somebody opens it.
        """
        with self._lock:
            self._wanted[contract_id] = set(names)
        for name in names:
            self._touch(contract_id, name)
        self.hurry(contract_id, names)

    def hurry(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards fetched in the background beside those that are wanted already."""
        for name in names:
            key = (contract_id, name)
            with self._lock:
                if key in self._pending or self._path(*key).is_file() or self._source.stop.is_set():
                    continue
                with suppress(RuntimeError):  # somebody has closed it meanwhile
                    self._pending[key] = self._pool.submit(self._fetch_ahead, key)

    def open(self, contract_id: str, name: str) -> ShardStore:
        """Return a store of one shard, fetched where it is not here; once it is open nobody can take it away.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if there is no room for it.
            CorruptCacheError: if one that was not fetched here is damaged.
        """
        key = (contract_id, name)
        if self._path(*key).is_file():
            return self._opened(key)
        with self._telling(name):
            self._join(key)
            return self._opened(key)

    def _opened(self, key: _Key) -> ShardStore:
        since = time.monotonic()
        while True:
            if not self._obtain(key, urgent=True):
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise StorageError(
                        f"cannot write {self._path(*key)}: other runs on this mirror keep all of the "
                        f"{self._limit or 0:,} bytes busy; give one of them another --mirror"
                    )
                time.sleep(_GLANCE_SECONDS)
                continue
            try:
                return self._store(key[0], [key[1]])
            except (CorruptCacheError, FileNotFoundError):
                # Deleted by another process since, or damaged: then it is fetched once more.
                if self._path(*key).is_file() and not self._give_up(key):
                    raise
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise

    def close(self) -> None:
        """Fetch nothing more, and put on record what was found right."""
        self._source.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._arrivals.finish()

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Have it said that a shard is waited for, where the block takes long."""
        timer = threading.Timer(_SLOW_SECONDS, self._tell, [name])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, name: str) -> None:
        now = time.monotonic()
        if self._on_wait is not None and now - self._told >= _SELDOM_SECONDS:
            self._told = now
            self._on_wait(f"shard {name[:12]} of {self._source.where}")

    def _join(self, key: _Key) -> None:
        """Wait for a fetch of a shard in the background, and raise its error; one not begun is called off."""
        with self._lock:
            future = self._pending.get(key)
            if future is None or future.cancel():
                self._pending.pop(key, None)
                return
        # Not for ever: a thread that waits without end does not hear Ctrl-C everywhere.
        while not wait([future], timeout=_GLANCE_SECONDS).done:
            pass
        future.result()

    def _store(self, contract_id: str, names: Sequence[str]) -> ShardStore:
        contract = self._contracts[contract_id]
        codebooks = self._cache.teacher_folder(contract) / "codebooks"
        return ShardStore(ChosenShards(self._containers[contract_id], names), contract, codebooks=codebooks)

    def _path(self, contract_id: str, name: str) -> Path:
        return self._containers[contract_id].path(name)

    def _note(self, contract_id: str, name: str) -> Path:
        return self._folder / contract_id / f"{name}.json"

    def _touch(self, contract_id: str, name: str) -> None:
        # Not by the clock of the file system, which stands still for some milliseconds at a time.
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self._note(contract_id, name), ns=(now, now))

    def _fetch_ahead(self, key: _Key) -> None:
        # An error stays with the future: of whoever waits for it, else of nobody.
        try:
            self._obtain(key, urgent=False)
        finally:
            with self._lock:
                self._pending.pop(key, None)

    def _obtain(self, key: _Key, *, urgent: bool) -> bool:
        """Bring a shard here; return whether it is."""
        on_remote: dict[_Key, bool] = {}
        while not self._source.stop.is_set():
            place = self._take_place(key, on_remote, urgent=urgent)
            if isinstance(place, int):
                self._fetch(self._listed[key[0]][key[1]], self._note(*key), place)
                return True
            if isinstance(place, list):
                on_remote.update({note.key: self._is_on_remote(note) for note in place})
                continue
            if place is not _State.COMING or not urgent:
                return place is _State.HERE
            # What is asked before a wait says little after it.
            on_remote.clear()
            time.sleep(_GLANCE_SECONDS)
        raise Stopped

    def _take_place(
        self, key: _Key, on_remote: Mapping[_Key, bool], *, urgent: bool
    ) -> int | list[StreamNote] | _State:
        """Make room for a shard that is not here, and take it.

        Args:
            key: the shard.
            on_remote: whether the remote has others, as far as it was asked.
            urgent: whether shards that are wanted may go.

        Returns:
            The note of the shard, locked; or those that may go once it is known whether the remote has them;
            or why it is not to be fetched.
        """
        file = self._listed[key[0]][key[1]]
        with locked_folder(self._folder):
            if self._path(*key).is_file():
                self._touch(*key)
                return _State.HERE
            self._clear(key)
            if self._note(*key).exists():
                return _State.COMING
            found = self._make_room(file, on_remote, urgent=urgent)
            return self._reserve(self._note(*key), file) if found is _State.ROOM else found

    def _fetch(self, file: SharedFile, note: Path, held: int) -> None:
        try:
            self._arrivals.fetch(Wanted(file, file.path))
        except BaseException:
            with locked_folder(self._folder):
                note.unlink(missing_ok=True)
            raise
        finally:
            os.close(held)

    def _reserve(self, note: Path, file: SharedFile) -> int:
        """Write the note of a shard that is about to be fetched, and return it locked."""
        make_directory(note.parent)
        try:
            descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, spelled_json(sealed({"bytes": file.bytes, "remote": self._source.id})))
            os.fsync(descriptor)
        except OSError as error:
            raise explain_os_error(error, note) from error
        return descriptor

    def _make_room(
        self, file: SharedFile, on_remote: Mapping[_Key, bool], *, urgent: bool
    ) -> list[StreamNote] | _State:
        """Delete shards until another fits; those that are wanted last, and only if urgent."""
        if self._limit is None:
            return _State.ROOM
        notes = self._notes()
        left, is_busy, unknown = self._limit - file.bytes - sum(note.bytes for note in notes), False, []
        with self._lock:
            wanted = {(contract, name) for contract, names in self._wanted.items() for name in names}
        for note in sorted(notes, key=lambda note: (note.key in wanted, note.used)):
            if left >= 0 or (note.key in wanted and not urgent):
                break
            with holding(note.path) as held:
                if not held:
                    is_busy = True
                    continue
                if on_remote.get(note.key, True):
                    left += note.bytes
                    if note.key in on_remote or not self._path(*note.key).is_file():
                        self._delete(note.key)
                    else:
                        unknown.append(note)
        if unknown:
            return unknown
        if left < 0 and urgent and not is_busy:
            # Nothing is left but what may be the only copy, and waiting changes nothing.
            kept = self._limit - file.bytes - left
            raise StorageError(
                f"cannot write {self._path(file.entry.teacher, file.entry.stem)}: it has {file.bytes:,} "
                f"bytes, and of the {self._limit:,} that fetched shards may have, {kept:,} are of some that "
                f"{self._source.where} does not have any more, which are kept: give a larger --cache-limit, "
                "or another --mirror"
            )
        return _State.ROOM if left >= 0 else _State.NO_ROOM

    def _notes(self) -> list[StreamNote]:
        """Return the notes of what was fetched from this remote."""
        found = map(self._read_note, self._folder.glob("*/*.json"))
        return [note for note in found if note is not None]

    def _read_note(self, path: Path) -> StreamNote | None:
        try:
            value = read_sealed_json(path)
            if value["remote"] == self._source.id and path.parent.name in self._listed:
                return StreamNote(path, int(value["bytes"]), path.stat().st_mtime)
        except (OSError, ValueError, KeyError, TypeError):
            # Of a process that was killed as it wrote it, before it had fetched anything.
            pass
        return None

    def _is_on_remote(self, note: StreamNote) -> bool:
        """Ask the remote whether it has a shard; not while the folder is locked, for it may take long."""
        contract_id, name = note.key
        if name not in self._listed[contract_id]:
            return False
        path = object_path(name)
        stat = retrying(
            f"look up {path}", self._source.where, lambda: self._source.place.stat(path), self._source.stop
        )
        return stat is not None and stat.bytes in (None, note.bytes)

    def _give_up(self, key: _Key) -> bool:
        """Delete a damaged shard that was fetched here and that the remote has; return whether it was."""
        note = self._read_note(self._note(*key))
        if note is None or not self._is_on_remote(note):
            return False
        with locked_folder(self._folder), holding(note.path) as held:
            if held:
                self._delete(key)
            return held

    def _delete(self, key: _Key) -> None:
        remove_file(self._path(*key))
        self._forget(key)

    def _clear(self, key: _Key) -> None:
        """Remove what is left of a fetch that was killed: then nobody holds the note."""
        with holding(self._note(*key)) as held:
            if held:
                self._forget(key)

    def _forget(self, key: _Key) -> None:
        """Remove the note of a shard that is gone, and what a fetch that was killed has left of it."""
        for path in self._path(*key).parent.glob(f"{TEMPORARY_PREFIX}*-{key[1]}.arrow"):
            remove_file(path)
        remove_file(self._note(*key))
