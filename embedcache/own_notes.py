"""Notes on shards that count only where they were written: what this cache has found out or done itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from embedcache.cache import Cache
from embedcache.errors import StorageError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes

NoteT = TypeVar("NoteT")

_MOST_BYTES = 64 << 20


class OwnNotes(Generic[NoteT]):
    """A note on each of some shards, kept in a cache's derived files.

    Notes that came along with somebody else's cache vouch for nothing: whether the file is the one that was
    written here is told as :mod:`embedcache.store.digests` does.

    Args:
        cache: where they are kept; without one they last as long as this object.
        name: of their file.
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
        self._path = None if cache is None else cache.derived_folder / "remotes" / name
        self._parse, self._spell = read, spell
        self._known = self._read()

    def get(self, shard: str) -> NoteT | None:
        """Return the note on a shard, where there is one."""
        return self._known.get(shard)

    def all(self) -> Mapping[str, NoteT]:
        """Return the notes by shard."""
        return dict(self._known)

    def add(self, found: Mapping[str, NoteT]) -> None:
        """Remember notes. Where they cannot be written they last as long as this object."""
        fresh = {shard: note for shard, note in found.items() if self._known.get(shard) != note}
        if not fresh:
            return
        # What other processes have added meanwhile is kept.
        self._known |= self._read() | fresh
        if self._path is not None:
            with suppress(StorageError):
                said = {shard: self._spell(note) for shard, note in self._known.items()}
                write_sealed_json(self._path, said)
                _vouched(self._path).remember([self._path])

    def _read(self) -> dict[str, NoteT]:
        if self._path is None:
            return {}
        try:
            if not _vouched(self._path).knows(self._path):
                return {}
            value = read_sealed_json(self._path, _MOST_BYTES)
            return {shard: self._parse(said) for shard, said in value.items() if is_shard_name(shard)}
        except (OSError, ValueError):
            return {}


def _vouched(path: Path) -> FileNotes:
    return FileNotes(path.with_name("checked.json"))
