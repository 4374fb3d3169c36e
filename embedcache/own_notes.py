"""Notes on shards that count only where they were written: what this cache has found out or done itself.

Notes that came along with somebody else's cache vouch for nothing. What tells is the *anchor*, an empty file
beside them that is made once and never written again: a file of notes says which inode the anchor is, and
when that was made and last changed, which nobody can set. So a copy of the folder has an anchor that its
notes do not name. Notes and what vouches for them are one file, and written at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from embedcache.birth import birth_ns
from embedcache.cache import Cache
from embedcache.fsio import explain_os_error, file_state, make_directory, read_sealed_json, write_sealed_json
from embedcache.locked_folder import open_locked
from embedcache.store.containers.base import is_shard_name

NoteT = TypeVar("NoteT")

ANCHOR = "notes.lock"
"""The file that tells where notes were written; whoever writes notes locks it."""

_MOST_BYTES = 64 << 20


class OwnNotes(Generic[NoteT]):
    """A note on each of some shards, kept in a cache's derived files. Any number of processes may add some.

    Args:
        cache: where they are kept; without one they last as long as this object.
        name: of their file; it may say a folder too.
        read: makes a note of what the file says of a shard; it raises ValueError where that is none.
        spell: returns what the file is to say.
    """

    def __init__(
        self,
        cache: Cache | None,
        name: str,
        read: Callable[[object], NoteT],
        spell: Callable[[NoteT], object],
    ) -> None:
        folder = None if cache is None else cache.derived_folder / "remotes"
        self._path = None if folder is None else folder / name
        self._anchor = None if folder is None else folder / ANCHOR
        self._parse, self._spell = read, spell
        self._known: dict[str, NoteT] = {}
        self._seen: list[int] | None = None
        self._take_in()

    def get(self, shard: str) -> NoteT | None:
        """Return the note on a shard, where there is one."""
        return self._known.get(shard)

    def all(self) -> Mapping[str, NoteT]:
        """Return the notes by shard."""
        return dict(self._known)

    def refresh(self) -> None:
        """Take in what other processes have added since."""
        self._take_in()

    def add(self, found: Mapping[str, NoteT]) -> None:
        """Remember notes. Where they cannot be written they last as long as this object."""
        fresh = {shard: note for shard, note in found.items() if self._known.get(shard) != note}
        if not fresh:
            return
        self._known |= fresh
        if self._path is not None and self._anchor is not None:
            with suppress(OSError), _locked(self._anchor) as anchor:
                # What other processes have added meanwhile is kept.
                self._take_in()
                self._known |= fresh
                said = {shard: self._spell(note) for shard, note in self._known.items()}
                write_sealed_json(self._path, {"anchor": anchor, "notes": said})
                self._seen = file_state(self._path)

    def _take_in(self) -> None:
        """Take in what the file says, unless it is the one that was read or written last."""
        if self._path is None or self._anchor is None:
            return
        with suppress(OSError, ValueError):
            state = file_state(self._path)
            if state == self._seen:
                return
            value = read_sealed_json(self._path, _MOST_BYTES)
            if not _is_same(value.get("anchor"), _identity(self._anchor)):
                return
            notes = value.get("notes")
            if isinstance(notes, dict):
                self._known |= {
                    shard: self._parse(said) for shard, said in notes.items() if is_shard_name(shard)
                }
                # Only now, for another thread that finds it seen counts on the notes.
                self._seen = state


@contextmanager
def _locked(anchor: Path) -> Iterator[list[int | None]]:
    """Let nobody else write notes inside the block; yield what they are to say of their anchor.

    Raises:
        StorageError: if there is no anchor and none can be made, or it cannot be locked.
    """
    make_directory(anchor.parent)
    descriptor = open_locked(anchor, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW)
    try:
        try:
            # Should the machine crash, there are no notes without it.
            os.fsync(descriptor)
            identity = _identity(anchor)
        except OSError as error:
            raise explain_os_error(error, anchor) from error
        yield identity
    finally:
        os.close(descriptor)


def _identity(anchor: Path) -> list[int | None]:
    # Not its device: the same disk may get another number when the machine is started again.
    found = os.lstat(anchor)
    return [found.st_ino, found.st_ctime_ns, birth_ns(anchor)]


def _is_same(noted: object, found: Sequence[int | None]) -> bool:
    """Whether notes mean the anchor that was ``found``: its inode, and either time of it.

    A change of its mode or owner alters the one, and not every machine that sees a disk is told the other.
    """
    match noted:
        case [inode, changed, born]:
            return inode == found[0] and (changed == found[1] or (born is not None and born == found[2]))
    return False
