"""Shards of a remote that are here for a while: fetched when they are wanted, deleted where room is needed.

A note in ``derived/stream`` of the mirror stands for each shard that was fetched here. Only what has a note
is ever deleted, and only while the remote has it: a shard that was built or pulled here may be the only copy.
A note is written before its shard is fetched, so what is there together never exceeds the limit; its time is
when the shard was last wanted. Whoever fetches a shard holds its note's lock, and whoever makes room that of
the folder, so any number of processes can work on one mirror of a machine. A shard that one process deletes
stays readable for another that has it mapped.

A remote that cannot be reached is asked again a few times, never while the folder is locked; then whoever
needs the shard is told. One that has lost what is here makes no room: then there may be too little of it.
A shard that another process fetches is waited for as long as more of it arrives.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.locked_folder import locked_folder, locked_if_free
from embedcache.share.mirror.noted_shards import NotedShards, ShardKey
from embedcache.share.mirror_notes import StreamNote
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.transfer import JOBS, Stopped
from embedcache.store import ShardStore

_GLANCE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 600.0
_SLOW_SECONDS = 5.0
_SELDOM_SECONDS = 60.0


class _State(Enum):
    """How it stands with a shard that somebody wants."""

    HERE = auto()
    COMING = auto()  # somebody else fetches it
    NO_ROOM = auto()
    ROOM = auto()
    UNKNOWN = auto()  # there is room once shards are deleted that the remote may have
    RESERVED = auto()  # whoever asked is to fetch it


@dataclass(frozen=True)
class _Turn:
    """What came of asking for the place of a shard.

    Attributes:
        state: how it stands with the shard.
        held: descriptor that holds the lock of the shard's note; only where the place is reserved.
        doubtful: notes of the shards that may go if the remote has them; only where that is unknown.
    """

    state: _State
    held: int | None = None
    doubtful: tuple[StreamNote, ...] = ()


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

    Raises:
        InputError: if the mirror keeps vectors of one of the teachers in LMDB.
        StorageError: if the mirror cannot be written.
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
        self._source, self._listed, self._arrivals, self._limit = source, listed, arrivals, limit
        self._shards = NotedShards(cache, contracts, source.id)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="stream")
        self._lock = threading.Lock()
        self._wanted: dict[str, set[str]] = {}
        self._pending: dict[ShardKey, Future[None]] = {}

    @property
    def is_limited(self) -> bool:
        """Whether shards are deleted to make room for others."""
        return self._limit is not None

    def own(self, contract_id: str, left_out: Collection[str] = ()) -> ShardStore | None:
        """Return the store of a teacher's shards that are here and not on the remote; None without any.

        Args:
            contract_id: the teacher's.
            left_out: names of shards that are not in it either.
        """
        others = {*self._listed[contract_id], *left_out}
        names = [name for name in self._shards.names(contract_id) if name not in others]
        return self._shards.store(contract_id, names) if names else None

    def want(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards of a teacher fetched in the background, in this order; others may be deleted first.

        What cannot be fetched now is told of when somebody opens it.
        """
        with self._lock:
            self._wanted[contract_id] = set(names)
        for name in names:
            self._shards.touch((contract_id, name))
        self.hurry(contract_id, names)

    def hurry(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards fetched in the background beside those that are wanted already."""
        for name in names:
            key = (contract_id, name)
            with self._lock:
                if key in self._pending or self._shards.is_here(key) or self._source.stop.is_set():
                    continue
                with suppress(RuntimeError):  # somebody has closed it meanwhile
                    self._pending[key] = self._pool.submit(self._fetch_ahead, key)

    def open(self, contract_id: str, name: str) -> ShardStore:
        """Return a store of one shard, fetched where it is not here; once it is open nobody can take it away.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if there is no room for it, or another process does not get on with fetching it.
            CorruptCacheError: if one that was not fetched here is damaged.
        """
        key = (contract_id, name)
        if self._shards.is_here(key):
            return self._opened(key)
        with self._telling(name):
            self._join(key)
            return self._opened(key)

    def open_several(self, contract_id: str, names: Sequence[str]) -> ShardStore:
        """Return a store of several shards, fetched where they are not here; errors as :meth:`open`."""
        self.hurry(contract_id, names)
        since = time.monotonic()
        while True:
            for name in names:
                self.open(contract_id, name)
            try:
                return self._shards.store(contract_id, names)
            except FileNotFoundError:
                # Another process has made room meanwhile.
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise

    def _opened(self, key: ShardKey) -> ShardStore:
        since = time.monotonic()
        while True:
            if not self._obtain(key, urgent=True):
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise StorageError(
                        f"cannot write {self._shards.path(key)}: other runs on this mirror keep all of the "
                        f"{self._limit or 0:,} bytes busy; give one of them another --mirror"
                    )
                time.sleep(_GLANCE_SECONDS)
                continue
            try:
                return self._shards.store(key[0], [key[1]])
            except (CorruptCacheError, FileNotFoundError):
                # Deleted by another process since, or damaged: then it is fetched once more.
                if self._shards.is_here(key) and not self._give_up(key):
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

    def _join(self, key: ShardKey) -> None:
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

    def _fetch_ahead(self, key: ShardKey) -> None:
        # An error stays with the future: of whoever waits for it, else of nobody.
        try:
            self._obtain(key, urgent=False)
        finally:
            with self._lock:
                self._pending.pop(key, None)

    def _obtain(self, key: ShardKey, *, urgent: bool) -> bool:
        """Bring a shard here; return whether it is.

        Args:
            key: the shard.
            urgent: whether somebody waits for it: then shards that are wanted may go for it, and another
                process that fetches it is waited for.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if it cannot be written, or another process does not get on with fetching it.
            Stopped: if nothing is to be fetched any more.
        """
        on_remote: dict[ShardKey, bool] = {}
        others: _OthersFetch | None = None
        while not self._source.stop.is_set():
            turn = self._take_turn(key, on_remote, urgent=urgent)
            if turn.state is _State.RESERVED and turn.held is not None:
                self._fetch(key, turn.held)
                return True
            if turn.state is _State.UNKNOWN:
                on_remote.update({note.key: self._is_on_remote(note) for note in turn.doubtful})
                continue
            if turn.state is not _State.COMING or not urgent:
                return turn.state is _State.HERE
            others = others or _OthersFetch(self._shards, key)
            others.require_progress()
            # What is asked before a wait says little after it.
            on_remote.clear()
            time.sleep(_GLANCE_SECONDS)
        raise Stopped

    def _take_turn(self, key: ShardKey, on_remote: Mapping[ShardKey, bool], *, urgent: bool) -> _Turn:
        """Make room for a shard that is not here, and reserve it.

        Args:
            key: the shard.
            on_remote: whether the remote has others, as far as it was asked.
            urgent: whether shards that are wanted may go.

        Raises:
            StorageError: if the note of the shard cannot be written, or waiting does not make room.
        """
        with locked_folder(self._shards.folder):
            if self._shards.is_here(key):
                self._shards.touch(key)
                return _Turn(_State.HERE)
            self._shards.clear(key)
            if self._shards.note_path(key).exists():
                return _Turn(_State.COMING)
            turn = self._make_room(key, on_remote, urgent=urgent)
            if turn.state is not _State.ROOM:
                return turn
            return _Turn(_State.RESERVED, held=self._shards.reserve(key, self._file(key).bytes))

    def _fetch(self, key: ShardKey, held: int) -> None:
        file = self._file(key)
        try:
            self._arrivals.fetch(Wanted(file, file.path))
        except BaseException:
            with locked_folder(self._shards.folder):
                self._shards.note_path(key).unlink(missing_ok=True)
            raise
        finally:
            os.close(held)

    def _file(self, key: ShardKey) -> SharedFile:
        contract_id, name = key
        return self._listed[contract_id][name]

    def _make_room(self, key: ShardKey, on_remote: Mapping[ShardKey, bool], *, urgent: bool) -> _Turn:
        """Delete shards until another fits; those that are wanted last, and only if urgent.

        Raises:
            StorageError: if it is urgent, and nothing is left that may ever go.
        """
        if self._limit is None:
            return _Turn(_State.ROOM)
        file, notes = self._file(key), self._shards.notes()
        left, is_busy, doubtful = self._limit - file.bytes - sum(note.bytes for note in notes), False, []
        with self._lock:
            wanted = {(contract, name) for contract, names in self._wanted.items() for name in names}
        for note in sorted(notes, key=lambda note: (note.key in wanted, note.used)):
            if left >= 0 or (note.key in wanted and not urgent):
                break
            with locked_if_free(note.path) as is_held:
                if not is_held:
                    is_busy = True
                    continue
                if on_remote.get(note.key, True):
                    left += note.bytes
                    if note.key in on_remote or not self._shards.is_here(note.key):
                        self._shards.delete(note.key)
                    else:
                        doubtful.append(note)
        if doubtful:
            return _Turn(_State.UNKNOWN, doubtful=tuple(doubtful))
        if left < 0 and urgent and not is_busy:
            # Nothing is left but what may be the only copy, and waiting changes nothing.
            kept = self._limit - file.bytes - left
            raise StorageError(
                f"cannot write {self._shards.path(key)}: it has {file.bytes:,} "
                f"bytes, and of the {self._limit:,} that fetched shards may have, {kept:,} are of some that "
                f"{self._source.where} does not have any more, which are kept: give a larger --cache-limit, "
                "or another --mirror"
            )
        return _Turn(_State.ROOM if left >= 0 else _State.NO_ROOM)

    def _is_on_remote(self, note: StreamNote) -> bool:
        """Ask the remote whether it has a shard; not while the folder is locked, for it may take long."""
        contract_id, name = note.key
        if name not in self._listed[contract_id]:
            return False
        stat = self._source.stat(object_path(name))
        return stat is not None and stat.bytes in (None, note.bytes)

    def _give_up(self, key: ShardKey) -> bool:
        """Delete a damaged shard that was fetched here and that the remote has; return whether it was."""
        note = self._shards.read_note(self._shards.note_path(key))
        if note is None or not self._is_on_remote(note):
            return False
        with locked_folder(self._shards.folder), locked_if_free(note.path) as is_held:
            if is_held:
                self._shards.delete(key)
            return is_held


class _OthersFetch:
    """The wait for a shard that another process fetches.

    It may be large and the connection slow, so the time is measured that goes by without progress.
    """

    def __init__(self, shards: NotedShards, key: ShardKey) -> None:
        self._shards, self._key = shards, key
        self._since = self._looked = time.monotonic()
        self._arriving = shards.arriving(key)

    def require_progress(self) -> None:
        """See that more of the shard has arrived lately.

        Raises:
            StorageError: if none has for long.
        """
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            arriving = self._shards.arriving(self._key)
            if arriving != self._arriving:
                self._arriving, self._since = arriving, now
        if now - self._since > _LONGEST_WAIT_SECONDS:
            raise StorageError(
                f"cannot write {self._shards.path(self._key)}: another process on this mirror fetches it, "
                f"and nothing of it has arrived for {_LONGEST_WAIT_SECONDS:.0f} seconds; end that process, "
                "or give another --mirror"
            )
