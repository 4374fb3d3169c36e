"""Notes on shards that count only where they were written: what this cache has found out or done itself.

Notes that came along with somebody else's cache vouch for nothing, though they may warn. What tells is the
*anchor*, an empty file beside them that is made once and never written again: a file of notes says which
inode the anchor is, and when that was made and last changed, which nobody can set. So a copy of the folder
has an anchor that its notes do not name. Notes and what vouches for them are one file, and written at once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from embedcache.birth import birth_ns
from embedcache.cache import Cache
from embedcache.fsio import (
    explain_os_error,
    file_state,
    make_directory,
    read_sealed_json,
    write_sealed_json,
)
from embedcache.locked_folder import open_locked
from embedcache.store.containers.base import is_shard_name

NoteT = TypeVar("NoteT")

ANCHOR = "notes.lock"
"""The file that tells where notes were written; whoever writes notes locks it."""

MOST_BYTES = 64 << 20
"""What a file of notes may have."""


class OwnNotes(Generic[NoteT]):
    """A note on each of some shards, kept in a cache's derived files. Any number of processes may add some.

    Args:
        cache: where they are kept; without one they last as long as this object.
        name: of their file; it may say a folder too.
        read: makes a note of what the file says of a shard; it raises ValueError where that is none.
        spell: returns what the file is to say.
        suspicion: returns what of a note counts although it was written elsewhere: what warns, and vouches
            for nothing; None where nothing of it does.

    Attributes:
        fault: why the file that is there is damaged; empty if it is not. Then nothing vouches for anything,
            and what it has warned of is not known.
    """

    def __init__(
        self,
        cache: Cache | None,
        name: str,
        read: Callable[[object], NoteT],
        spell: Callable[[NoteT], object],
        suspicion: Callable[[NoteT], NoteT | None] = lambda note: None,
    ) -> None:
        folder = None if cache is None else cache.derived_folder / "remotes"
        self._path = None if folder is None else folder / name
        self._anchor = None if folder is None else folder / ANCHOR
        self._parse, self._spell, self._suspicion = read, spell, suspicion
        self._known: dict[str, NoteT] = {}
        self._seen: list[int] | None = None
        self.fault = ""
        self._take_in()

    def get(self, shard: str) -> NoteT | None:
        """Return the note on a shard, where there is one."""
        return self._known.get(shard)

    def all(self) -> Mapping[str, NoteT]:
        """Return the notes by shard."""
        return dict(self._known)

    def secret_number(self) -> int:
        """Return a number that is the same as long as notes count here; nobody elsewhere can know it."""
        if self._anchor is not None:
            with suppress(OSError):
                return int.from_bytes(
                    hashlib.sha256(repr(identity_of(self._anchor)).encode()).digest(), "big"
                )
        return secrets.randbits(256)

    def refresh(self) -> None:
        """Take in what other processes have added since."""
        self._take_in()

    def add(self, found: Mapping[str, NoteT]) -> None:
        """Remember notes. Where they cannot be written they last as long as this object."""
        fresh = {shard: note for shard, note in found.items() if self._known.get(shard) != note}
        if fresh:
            self._change(lambda: fresh)

    def update(self, shard: str, change: Callable[[NoteT | None], NoteT]) -> NoteT:
        """Change the note on a shard. Where that cannot be written it lasts as long as this object.

        Nobody else writes between reading and writing it, so what others have noted meanwhile is not lost.

        Args:
            shard: the shard.
            change: returns the new note; it is given the one that stands, None where there is none.

        Returns:
            The new note.
        """
        self._change(lambda: {shard: change(self._known.get(shard))})
        return self._known[shard]

    def _change(self, make: Callable[[], Mapping[str, NoteT]]) -> None:
        """Remember the notes that ``make`` returns once all that others have written is known."""
        with ExitStack() as stack:
            anchor = None
            if self._anchor is not None:
                with suppress(OSError):
                    anchor = stack.enter_context(locked(self._anchor))
            self._take_in()
            fresh = {shard: note for shard, note in make().items() if self._known.get(shard) != note}
            self._known |= fresh
            if fresh and anchor is not None and self._path is not None:
                with suppress(OSError):
                    said = {shard: self._spell(note) for shard, note in self._known.items()}
                    write_sealed_json(self._path, {"anchor": anchor, "notes": said})
                    self._seen, self.fault = file_state(self._path), ""

    def _take_in(self) -> None:
        """Take in what the file says, unless it is the one that was read or written last."""
        if self._path is None or self._anchor is None:
            return
        fault = ""
        try:
            state = file_state(self._path)
            if state == self._seen:
                return
            try:
                value = read_sealed_json(self._path, MOST_BYTES)
            except ValueError as error:
                fault = str(error)
            else:
                # What is whole and of another form was written by another version, and says nothing here.
                with suppress(ValueError):
                    self._known |= self._counting(value)
                    # Only now, for another thread that finds it seen counts on the notes.
                    self._seen = state
        except OSError:
            # There is none, or it is not ours to read.
            pass
        self.fault = fault

    def _counting(self, value: Mapping[str, object]) -> dict[str, NoteT]:
        """Return what counts here of what a file says.

        Raises:
            ValueError: if that is no notes.
        """
        notes = value.get("notes")
        if not isinstance(notes, dict):
            raise ValueError("it has no notes")
        found = {shard: self._parse(said) for shard, said in notes.items() if is_shard_name(shard)}
        if self._is_own(value.get("anchor")):
            return found
        left = {shard: self._suspicion(note) for shard, note in found.items()}
        return {shard: note for shard, note in left.items() if note is not None}

    def _is_own(self, anchor: object) -> bool:
        """Whether notes that name this anchor were written here."""
        with suppress(OSError):
            return self._anchor is not None and is_same_anchor(anchor, identity_of(self._anchor))
        return False


@contextmanager
def locked(anchor: Path, *, durably: bool = True) -> Iterator[list[int | None]]:
    """Let nobody else write notes inside the block; yield what they are to say of their anchor.

    Args:
        anchor: the anchor, made where there is none.
        durably: whether to see to it that it is still there should the machine crash.

    Raises:
        StorageError: if there is no anchor and none can be made, or it cannot be locked.
    """
    make_directory(anchor.parent)
    descriptor = open_locked(anchor, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW)
    try:
        try:
            # Should the machine crash, there are no notes without it.
            if durably:
                os.fsync(descriptor)
            identity = identity_of(anchor)
        except OSError as error:
            raise explain_os_error(error, anchor) from error
        yield identity
    finally:
        os.close(descriptor)


def identity_of(anchor: Path) -> list[int | None]:
    """Return what tells an anchor from every other: inode, time of change and of birth.

    Raises:
        OSError: if there is none.
    """
    # Not its device: the same disk may get another number when the machine is started again.
    found = os.lstat(anchor)
    return [found.st_ino, found.st_ctime_ns, birth_ns(anchor)]


def is_same_anchor(noted: object, found: Sequence[int | None]) -> bool:
    """Whether notes mean the anchor that was ``found``: its inode, and either time of it.

    A change of its mode or owner alters the one, and not every machine that sees a disk is told the other.
    """
    match noted:
        case [inode, changed, born]:
            return inode == found[0] and (changed == found[1] or (born is not None and born == found[2]))
    return False
