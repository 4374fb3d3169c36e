"""Shards of a remote in a mirror: fetched when they are wanted, deleted when others need the room.

Each shard that was fetched for a run has a note in ``derived/stream`` of the mirror. Only shards with a note
are ever deleted, and only while the remote has them as they were fetched: a shard that was built or pulled
here may be the only copy, and so may one whose object on the remote was damaged since. The note is written
before its shard is fetched, so all shards together never exceed the limit; its time is when the shard was
last wanted. A process holds the lock of the note while it fetches a shard, and the lock of the folder while
it makes room, so any number of processes can work on one mirror of a machine. A shard that one process
deletes stays readable for another that has it mapped. What is done for one shard takes the same time however
many there are.

A remote that cannot be reached is asked again a few times, never while the folder is locked; then the error
goes to the caller that needs the shard. Shards that the remote has lost are kept, so room may run out. A
shard that another process fetches is waited for as long as more of it arrives.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.locked_folder import locked_if_free
from embedcache.share.mirror.known_notes import ShardKey
from embedcache.share.mirror.noted_shards import NotedShards
from embedcache.share.mirror.others_fetch import LONGEST_WAIT_SECONDS, OthersFetch
from embedcache.share.mirror.remote_copy import has_copy
from embedcache.share.mirror_notes import StreamNote
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.transfer import JOBS, Stopped
from embedcache.store import ShardStore

_GLANCE_SECONDS = 0.05
_SLOW_SECONDS = 5.0
_SELDOM_SECONDS = 60.0


class _State(Enum):
    """The state of a shard that is wanted."""

    HERE = auto()
    COMING = auto()  # another thread or process fetches it
    NO_ROOM = auto()
    ROOM = auto()
    UNKNOWN = auto()  # there is room once shards are deleted that the remote may have
    RESERVED = auto()  # the caller is to fetch it


@dataclass(frozen=True)
class _Turn:
    """The outcome of an attempt to reserve the place of a shard.

    Attributes:
        state: the state of the shard.
        held: descriptor that holds the lock of the shard's note, if the place is reserved.
        doubtful: notes of the shards that may be deleted if the remote has them, if that is unknown.
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
        on_wait: called from another thread with the shard that is waited for, if that takes some seconds.

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
        self._pending: dict[ShardKey, Future[None]] = {}

    @property
    def is_limited(self) -> bool:
        """Whether shards are deleted to make room for others."""
        return self._limit is not None

    def missing_bytes(self, contract_id: str, names: Iterable[str]) -> int:
        """Return how much has to be fetched of a teacher's shards with these names."""
        keys = [(contract_id, name) for name in names]
        return sum(self._file(key).bytes for key in keys if not self._shards.is_here(key))

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

        Errors are raised when the shard is opened.
        """
        with suppress(StorageError), self._shards.locked():
            self._shards.want(contract_id, names)
        self.hurry(contract_id, names)

    def hurry(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards fetched in the background beside those that are wanted already."""
        for name in names:
            key = (contract_id, name)
            with self._lock:
                if key in self._pending or self._shards.is_here(key) or self._source.stop.is_set():
                    continue
                with suppress(RuntimeError):  # closed by another thread meanwhile
                    self._pending[key] = self._pool.submit(self._fetch_ahead, key)

    def open(self, contract_id: str, name: str) -> ShardStore:
        """Return a store of one shard, fetched where it is not here; an open shard stays readable.

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
        # Before all others: what was wanted until now would take the room of the first for ever.
        self.want(contract_id, names)
        since = time.monotonic()
        while True:
            for name in names:
                self.open(contract_id, name)
            try:
                return self._shards.store(contract_id, names)
            except (CorruptCacheError, FileNotFoundError):
                # A shard that was deleted to make room meanwhile looks damaged.
                are_here = all(self._shards.is_here((contract_id, name)) for name in names)
                if are_here or time.monotonic() - since > LONGEST_WAIT_SECONDS:
                    raise

    def _opened(self, key: ShardKey) -> ShardStore:
        since = time.monotonic()
        while True:
            if not self._obtain(key, urgent=True):
                if time.monotonic() - since > LONGEST_WAIT_SECONDS:
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
                if time.monotonic() - since > LONGEST_WAIT_SECONDS:
                    raise

    def close(self) -> None:
        """Fetch nothing more, and note which files were checked."""
        self._source.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._arrivals.finish()

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Call ``on_wait`` for a shard if the block takes long."""
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
        """Wait for a fetch of a shard in the background, and raise its error; one not begun is cancelled."""
        with self._lock:
            future = self._pending.get(key)
            if future is None or future.cancel():
                self._pending.pop(key, None)
                return
        # With a timeout: on some systems Ctrl-C does not reach a thread that waits without one.
        while not wait([future], timeout=_GLANCE_SECONDS).done:
            pass
        future.result()

    def _fetch_ahead(self, key: ShardKey) -> None:
        # An error stays with the future: it is raised in :meth:`_join`, if anybody waits.
        try:
            self._obtain(key, urgent=False)
        finally:
            with self._lock:
                self._pending.pop(key, None)

    def _obtain(self, key: ShardKey, *, urgent: bool) -> bool:
        """Bring a shard here; return whether it is.

        Args:
            key: the shard.
            urgent: whether a caller waits for it: then wanted shards may be deleted for it, and another
                process that fetches it is waited for.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if it cannot be written, or another process does not get on with fetching it.
            Stopped: if nothing is to be fetched any more.
        """
        on_remote: dict[ShardKey, bool] = {}
        others: OthersFetch | None = None
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
            others = others or OthersFetch(self._shards, key)
            others.require_progress()
            # An answer from before the wait may be wrong after it.
            on_remote.clear()
            time.sleep(_GLANCE_SECONDS)
        raise Stopped

    def _take_turn(self, key: ShardKey, on_remote: Mapping[ShardKey, bool], *, urgent: bool) -> _Turn:
        """Make room for a shard that is not here, and reserve it.

        Args:
            key: the shard.
            on_remote: whether the remote has other shards, as far as it was asked.
            urgent: whether wanted shards may be deleted.

        Raises:
            StorageError: if the note of the shard cannot be written, or waiting does not make room.
        """
        with self._shards.locked():
            if self._shards.is_here(key):
                self._shards.touch(key)
                return _Turn(_State.HERE)
            if self._shards.clear(key):
                return _Turn(_State.COMING)
            turn = self._make_room(key, on_remote, urgent=urgent)
            if turn.state is not _State.ROOM:
                return turn
            return _Turn(_State.RESERVED, held=self._shards.reserve(key, self._file(key).bytes))

    def _fetch(self, key: ShardKey, held: int) -> None:
        file = self._file(key)
        try:
            # Asked before the fetch: an object that changes meanwhile has another time afterwards.
            stat = self._source.stat(object_path(file.sha256))
            if stat is not None and stat.changed is not None:
                self._shards.put_time(held, key, stat.changed)
            self._arrivals.fetch(Wanted(file, file.path))
        except BaseException:
            with self._shards.locked():
                self._shards.withdraw(key)
            raise
        finally:
            os.close(held)

    def _file(self, key: ShardKey) -> SharedFile:
        contract_id, name = key
        return self._listed[contract_id][name]

    def _make_room(self, key: ShardKey, on_remote: Mapping[ShardKey, bool], *, urgent: bool) -> _Turn:
        """Delete shards until another fits; those that are wanted last, and only if urgent.

        Raises:
            StorageError: if it is urgent, and no other shard may ever be deleted.
        """
        if self._limit is None:
            return _Turn(_State.ROOM)
        size, is_busy = self._file(key).bytes, False
        doubtful, lost = list[StreamNote](), list[StreamNote]()

        def room() -> int:
            """Return how many bytes are left beside the shard, once all that is doubtful has gone."""
            return (self._limit or 0) - size - self._shards.bytes + sum(note.bytes for note in doubtful)

        with closing(self._shards.oldest_first(and_wanted=urgent)) as notes:
            while room() < 0 and (note := next(notes, None)) is not None:
                with locked_if_free(note.path) as is_held:
                    if not is_held:
                        is_busy = True
                    elif not on_remote.get(note.key, True):
                        lost.append(note)
                    elif note.key in on_remote or not self._shards.is_here(note.key):
                        self._shards.delete(note)
                    else:
                        doubtful.append(note)
        for note in lost:
            # The remote is asked for it again only after all others.
            self._shards.touch(note.key)
        if doubtful:
            return _Turn(_State.UNKNOWN, doubtful=tuple(doubtful))
        if room() < 0 and urgent and not is_busy:
            # Nothing is left but what may be the only copy, and waiting changes nothing.
            raise StorageError(
                f"cannot write {self._shards.path(key)}: it has {size:,} bytes, and of the {self._limit:,} "
                f"that fetched shards may have, {self._shards.bytes:,} are of some that {self._source.where} "
                "does not have any more, which are kept: give a larger --cache-limit, or "
                "another --mirror"
            )
        return _Turn(_State.ROOM if room() >= 0 else _State.NO_ROOM)

    def _is_on_remote(self, note: StreamNote) -> bool:
        """Ask the remote whether it has a shard; not while the folder is locked, for it may take long."""
        # Whether or not a manifest that counts lists it: an earlier run may have looked at others.
        return has_copy(self._source, note.name, note.bytes, self._shards.time_of_object(note))

    def _give_up(self, key: ShardKey) -> bool:
        """Delete a damaged shard that was fetched here and that the remote has; return whether it was."""
        with self._shards.locked():
            note = self._shards.note(key)
        if note is None or not self._is_on_remote(note):
            return False
        with self._shards.locked(), locked_if_free(note.path) as is_held:
            if is_held:
                self._shards.delete(note)
            return is_held
