"""Files whose digest has been taken here before: a foreign file is read once, not at every opening.

A file that is named by the sha256 of its bytes may lie. Its digest is taken at the first opening, and again
only when the file has changed. Whether it has is told by what nobody can set: inode and change time. So a
note that came along with somebody else's cache vouches for nothing.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import StorageError
from embedcache.fsio import file_state, regular_size, sha256_file, write_bytes

CHECKED = "checked.bin"
"""The file of the notes on a teacher's files."""

# Enough for some 1.9 million files; it is mapped and not unpacked.
_MOST_BYTES = 256 << 20
_DIGEST_BYTES = 32
_LONGEST_NAME = 255
_STATE = 5

# What was found sound beside notes that cannot be written: a read-only cache is read once a process.
_noted_nowhere: dict[Path, list[int]] = {}


@dataclass(frozen=True)
class NotedFiles:
    """What a file of notes says.

    Attributes:
        names: of files, in UTF-8, sorted; shape (n,).
        states: the state of each; uint64 of shape (n, 5).
    """

    names: NDArray[np.bytes_]
    states: NDArray[np.uint64]

    @classmethod
    def of(cls, states: Mapping[str, list[int]]) -> NotedFiles:
        """Return notes on files, by name."""
        names = np.array([name.encode() for name in states] or [b""], dtype=np.bytes_)[: len(states)]
        rows = np.array(list(states.values()), dtype="<u8").reshape(-1, _STATE)
        order = np.argsort(names, kind="stable")
        return cls(names[order], rows[order])

    def get(self, name: str) -> list[int] | None:
        """Return the state that was noted of a file, where there is one."""
        place = self._place_of(name)
        return None if place is None else [int(number) for number in self.states[place]]

    def _place_of(self, name: str) -> int | None:
        sought = name.encode()
        # A longer one would make NumPy copy all names to compare them.
        if len(sought) > self.names.itemsize:
            return None
        place = int(np.searchsorted(self.names, np.bytes_(sought)))
        return place if place < len(self.names) and self.names[place] == sought else None

    def without(self, names: Collection[str]) -> NotedFiles:
        """Return the notes on all other files."""
        places = [place for name in names if (place := self._place_of(name)) is not None]
        return NotedFiles(np.delete(self.names, places), np.delete(self.states, places, axis=0))

    def union(self, other: NotedFiles) -> NotedFiles:
        """Return these notes and others, which are on other files."""
        names = np.concatenate([self.names, other.names])
        order = np.argsort(names, kind="stable")
        return NotedFiles(names[order], np.concatenate([self.states, other.states])[order])


def read_noted(path: Path) -> NotedFiles:
    """Return what a file of notes says, mapped rather than read.

    Raises:
        ValueError: if a byte of it is not as it was written, or it has too many of them.
        OSError: if it cannot be read.
    """
    size = regular_size(path)
    if not _DIGEST_BYTES + 16 <= size <= _MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, expected {_DIGEST_BYTES + 16} to {_MOST_BYTES:,}")
    with path.open("rb") as handle:
        data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("its content is not what its digest was taken of")
    count, width = (int(number) for number in np.frombuffer(data, "<i8", 2, _DIGEST_BYTES))
    begin = _DIGEST_BYTES + 16
    # Python's numbers do not overflow.
    if count < 0 or not 0 < width <= _LONGEST_NAME or begin + count * (8 * _STATE + width) != len(data):
        raise ValueError(f"{count} names of {width} bytes do not fit its {len(data):,} bytes")
    states = np.frombuffer(data, "<u8", count * _STATE, begin).reshape(-1, _STATE)
    names = np.frombuffer(data, f"S{width}", count, begin + states.nbytes)
    return NotedFiles(names, states)


def write_noted(path: Path, noted: NotedFiles) -> None:
    """Write a file of notes, atomically.

    Raises:
        StorageError: if it cannot be written.
    """
    sizes = np.array([len(noted.names), noted.names.itemsize], dtype="<i8").tobytes()
    pieces = (sizes, np.ascontiguousarray(noted.states).tobytes(), noted.names.tobytes())
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    write_bytes(path, digest.digest(), *pieces)


def _state_at(path: Path) -> list[int]:
    # Inodes may take all 64 bits, and times may lie before 1970.
    return [number % (1 << 64) for number in file_state(path)]


class FileNotes:
    """Notes on files found to be what they should be.

    Args:
        note: where the notes are kept; derived, never shared. A damaged or missing one is no note; one that
            cannot be written lasts as long as the process. None: they last as long as this object.
    """

    def __init__(self, note: Path | None = None) -> None:
        self._note = note
        self._fresh: dict[str, list[int]] = {}
        self._forgotten: set[str] = set()
        self._unsaved = False

    @cached_property
    def _noted(self) -> NotedFiles:
        if self._note is not None:
            with suppress(OSError, ValueError):
                return read_noted(self._note)
        return NotedFiles.of({})

    def _state_of(self, name: str) -> list[int] | None:
        if name in self._forgotten:
            return None
        return self._fresh.get(name) or self._noted.get(name)

    def knows(self, path: Path) -> bool:
        """Whether ``path`` is still the file that was remembered."""
        return _state_at(path) in (self._state_of(path.name), self._unwritten().get(path.absolute()))

    def remember(self, paths: Iterable[Path]) -> None:
        """Remember files as sound. Where the note cannot be written the next process checks them again."""
        paths = list(paths)
        states: dict[str, list[int]] = {}
        for path in paths:
            # Another process may have merged it into a larger one meanwhile.
            with suppress(FileNotFoundError):
                states[path.name] = _state_at(path)
        if self._unsaved or any(self._state_of(name) != state for name, state in states.items()):
            self._fresh |= states
            self._forgotten -= states.keys()
            self._unsaved = False
            if self._note is not None:
                try:
                    self._write(self._note)
                except StorageError:
                    places = {path.name: path.absolute() for path in paths}
                    _noted_nowhere.update({places[name]: state for name, state in states.items()})

    def _write(self, note: Path) -> None:
        """Write all notes; what other processes have checked meanwhile is kept."""
        known = self._noted
        with suppress(OSError, ValueError):
            known = read_noted(note)
        known = known.without(self._forgotten | self._fresh.keys()).union(NotedFiles.of(self._fresh))
        write_noted(note, known)
        self._noted = known
        self._fresh = {}

    def forget(self, names: Iterable[str]) -> None:
        """Drop the notes on the files named ``names``; :meth:`remember` writes that down."""
        for name in names:
            self._unsaved |= self._state_of(name) is not None
            self._fresh.pop(name, None)
            self._forgotten.add(name)
        for path in [path for path in self._unwritten() if path.name in self._forgotten]:
            del _noted_nowhere[path]

    def _unwritten(self) -> dict[Path, list[int]]:
        # Without a place of their own, notes are nobody else's.
        return {} if self._note is None else _noted_nowhere

    def find_liars(self, files: Mapping[Path, str]) -> list[Path]:
        """Return those of ``files`` (path -> sha256 it should have) whose bytes have another digest.

        Files known to be sound are not read again; those found sound are remembered.
        """
        unknown = [path for path in files if not self.knows(path)]
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(sha256_file, unknown))
        liars = [path for path, digest in zip(unknown, digests, strict=True) if files[path] != digest]
        self.remember(path for path in unknown if path not in liars)
        return liars
