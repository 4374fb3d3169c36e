"""Note of files whose digest was taken on this machine, so each is read once and not at every opening.

A file counts as checked while its inode and change time are those noted. Nobody can set these, so a note that
came along with another user's cache vouches for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import StorageError
from embedcache.fsio import file_state, map_regular, sha256_file, write_bytes

CHECKED = "checked.bin"
"""File name of the note on a teacher's files."""

CHECKED_DTYPE = np.dtype([("name", "S72"), ("state", "<u8", 5)])
_DIGEST_BYTES = 32

# Files found sound by this process, whether or not that could be noted.
_sound: dict[Path, list[int]] = {}


def read_checked(path: Path) -> NDArray[np.void]:
    """Return a note: :data:`CHECKED_DTYPE`, shape (files,), sorted by name, mapped.

    Raises:
        ValueError: if a byte of it has changed.
        OSError: if it cannot be read.
    """
    data = memoryview(map_regular(path))
    if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("its content does not match its digest")
    return np.frombuffer(data, CHECKED_DTYPE, offset=_DIGEST_BYTES)


def _state(path: Path) -> list[int]:
    # Inodes may take all 64 bits, and times may lie before 1970.
    return [number % (1 << 64) for number in file_state(path)]


class CheckedFiles:
    """Files found to have the digest they should have.

    Args:
        note: where that is noted; derived, never shared. None, or one that cannot be written: for as long as
            the process lives.
    """

    def __init__(self, note: Path | None = None) -> None:
        self._note = note
        self._noted = self._read()
        self._fresh: dict[str, list[int]] = {}
        self._dropped: set[str] = set()

    def _read(self) -> NDArray[np.void]:
        if self._note is not None:
            with suppress(OSError, ValueError):
                return read_checked(self._note)
        return np.empty(0, CHECKED_DTYPE)

    def _is_noted(self, name: str, state: list[int]) -> bool:
        names, wanted = self._noted["name"], np.bytes_(name.encode())
        place = int(np.searchsorted(names, wanted))
        return place < len(names) and names[place] == wanted and self._noted["state"][place].tolist() == state

    def knows(self, path: Path) -> bool:
        """Return whether ``path`` is still the file that was checked."""
        state = _state(path)
        return _sound.get(path.absolute()) == state or self._is_noted(path.name, state)

    def add(self, *paths: Path) -> None:
        """Count files as checked in this process; :meth:`save` notes them. Missing ones are left out."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._fresh[path.name] = _sound[path.absolute()] = _state(path)

    def forget(self, *names: str) -> None:
        """Drop files by name; :meth:`save` takes them out of the note."""
        self._dropped.update(names)

    def save(self) -> None:
        """Note the files added since; a note that cannot be written stays as it is."""
        fresh = {name: state for name, state in self._fresh.items() if not self._is_noted(name, state)}
        changed, self._fresh, self._dropped = {*self._dropped, *fresh}, {}, set()
        if self._note is None or not changed:
            return
        # Other processes may have added to it since it was read.
        noted = self._read()
        kept = noted[~np.isin(noted["name"], [name.encode() for name in changed])]
        more = np.array([(name.encode(), state) for name, state in fresh.items()], CHECKED_DTYPE)
        self._noted = np.sort(np.concatenate([kept, more]), order="name")
        data = self._noted.tobytes()
        with suppress(StorageError):
            write_bytes(self._note, hashlib.sha256(data).digest(), data)

    def find_corrupt(self, files: Mapping[Path, str]) -> list[Path]:
        """Return those of ``files`` (path -> expected sha256) that have another digest.

        Files that are known are not read again; those found sound are noted.
        """
        unknown = [path for path in files if not self.knows(path)]
        if not unknown:
            return []
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(sha256_file, unknown))
        corrupt = {path for path, digest in zip(unknown, digests, strict=True) if files[path] != digest}
        self.add(*(path for path in unknown if path not in corrupt))
        self.save()
        return sorted(corrupt)
