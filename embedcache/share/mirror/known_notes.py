"""The notes of a mirror in memory, in the order in which their shards are deleted."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator
from contextlib import suppress
from pathlib import Path

from embedcache.errors import StorageError
from embedcache.fsio import explain_os_error
from embedcache.share.mirror_notes import StreamNote, announce_change, read_notes, read_state

ShardKey = tuple[str, str]
"""Contract id and name of a shard."""


class KnownNotes:
    """The notes of a mirror, read again only after another process has changed them.

    What is done for one shard then takes the same time however many there are. Every method but the
    constructor is called while the folder is locked, :meth:`refresh` first: then memory and folder agree, but
    for the times of notes, which other processes change without a word, and for what somebody deletes by
    hand. Both show when a note's turn comes.

    Args:
        folder: the folder of the notes.
        contract_ids: the teachers whose shards may be deleted.
        remote_id: stands for the remote whose shards may be deleted.
    """

    def __init__(self, folder: Path, contract_ids: Collection[str], remote_id: str) -> None:
        self._folder, self._contract_ids, self._remote_id = folder, frozenset(contract_ids), remote_id
        self._state: str | None = None
        self._notes: dict[ShardKey, StreamNote] = {}
        self._wanted: dict[str, frozenset[str]] = {}
        # When each shard was wanted last, in ns, the longest unused first.
        self._unwanted_used: OrderedDict[ShardKey, int] = OrderedDict()
        self._wanted_used: OrderedDict[ShardKey, int] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes that the shards have together, or will have, that may be deleted."""
        return self._bytes

    def refresh(self) -> None:
        """Read the notes if another process has changed them.

        Raises:
            StorageError: if they cannot be read.
        """
        state = read_state(self._folder)
        if state is not None and state == self._state:
            return
        notes = {note.key: note for note in self._read()}
        for note in [note for key, note in self._notes.items() if notes.get(key) != note]:
            self._forget(note)
        for note in [note for key, note in notes.items() if key not in self._notes]:
            self._remember(note, _time_of(note) or 0)
        self._sort()
        self._state = state

    def get(self, key: ShardKey) -> StreamNote | None:
        """Return the note of a shard, of whichever remote; None where there is none."""
        return self._notes.get(key)

    def is_mine(self, note: StreamNote) -> bool:
        """Return whether a note is of the remote and one of the teachers."""
        return note.remote_id == self._remote_id and note.contract_id in self._contract_ids

    def announce(self) -> None:
        """Have other processes read the notes again; called before a note is written or deleted.

        Raises:
            StorageError: if that cannot be written down.
        """
        self._state = announce_change(self._folder)

    def add(self, note: StreamNote) -> None:
        """Take in a note that was written just now."""
        self._remember(note, time.time_ns())

    def discard(self, note: StreamNote) -> None:
        """Forget a note that is gone."""
        if note.key in self._notes:
            self._forget(note)

    def touch(self, key: ShardKey) -> None:
        """Make a shard the last to be deleted, if it has a note."""
        note = self._notes.get(key)
        if note is None:
            return
        # Not by the clock of the file system, which stands still for some milliseconds at a time.
        now = time.time_ns()
        with suppress(OSError):
            os.utime(note.path, ns=(now, now))
        if self.is_mine(note):
            used = self._queue_of(key)
            used[key] = now
            used.move_to_end(key)

    def want(self, contract_id: str, names: Collection[str]) -> None:
        """Have the shards of a teacher deleted after all that nobody wants, instead of those named before."""
        self._wanted[contract_id] = frozenset(names)
        for name in names:
            self.touch((contract_id, name))
        self._sort()

    def oldest_first(self, *, and_wanted: bool) -> Generator[StreamNote, None, None]:
        """Yield notes of shards that may be deleted, the longest unused first; some may go meanwhile.

        Args:
            and_wanted: whether shards that are wanted follow those that are not.
        """
        yield from self._from_front(self._unwanted_used)
        if and_wanted:
            yield from self._from_front(self._wanted_used)

    def _from_front(self, queue: OrderedDict[ShardKey, int]) -> Iterator[StreamNote]:
        passed: list[tuple[ShardKey, int]] = []
        try:
            while queue:
                key, used = queue.popitem(last=False)
                passed.append((key, used))
                note = self._notes[key]
                now = _time_of(note)
                if now is None:
                    self._forget(note)
                elif now > used:
                    # Another process has wanted it since.
                    passed.pop()
                    queue[key] = now
                else:
                    yield note
        finally:
            for key, used in reversed(passed):
                if key in self._notes:
                    queue[key] = used
                    queue.move_to_end(key, last=False)

    def _read(self) -> Iterator[StreamNote]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError as error:
            raise explain_os_error(error, self._folder) from error
        for name in names:
            yield from read_notes(self._folder, name)

    def _remember(self, note: StreamNote, used: int) -> None:
        self._notes[note.key] = note
        if self.is_mine(note):
            self._bytes += note.bytes
            self._queue_of(note.key)[note.key] = used

    def _forget(self, note: StreamNote) -> None:
        del self._notes[note.key]
        if self.is_mine(note):
            self._bytes -= note.bytes
            self._queue_of(note.key).pop(note.key, None)

    def _queue_of(self, key: ShardKey) -> OrderedDict[ShardKey, int]:
        contract_id, name = key
        return self._wanted_used if name in self._wanted.get(contract_id, ()) else self._unwanted_used

    def _sort(self) -> None:
        """Put the notes in order again, after many have changed."""
        everything = sorted(
            [*self._unwanted_used.items(), *self._wanted_used.items()], key=lambda item: item[1]
        )
        self._unwanted_used.clear()
        self._wanted_used.clear()
        for key, used in everything:
            self._queue_of(key)[key] = used


def _time_of(note: StreamNote) -> int | None:
    """Return when a shard was wanted last, in ns; None where its note is gone."""
    try:
        return note.path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"cannot read {note.path}: {error.strerror}; see to the permissions of the mirror, or give "
            "another --mirror"
        ) from error
