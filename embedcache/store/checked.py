"""Note of files whose digest was taken on this machine, so that each file is read only once.

A file counts as checked while its inode and change time are those noted. No user can set these, so a note
that came along with a foreign cache vouches for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from embedcache.errors import StorageError, UnreadableError
from embedcache.fsio import map_regular, open_regular, write_bytes
from embedcache.os_errors import reading

CHECKED = "checked.bin"
"""File name of the note on a teacher's files."""

_ROW = np.dtype([("name", "S72"), ("state", "<u8", 5)])

_BLOCK = 1 << 20

# Files found sound by this process, whether or not that could be noted.
_sound: dict[Path, list[int]] = {}


def _state(path: Path) -> list[int]:
    with reading(path):
        status = path.lstat()
    numbers = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino
    # Inodes may take all 64 bits, and times may lie before 1970.
    return [number % (1 << 64) for number in numbers]


class CheckedFiles:
    """Files found to have the digest they should have.

    Args:
        note: file of the note; derived, never shared. Default, and if it cannot be written: nothing is
            noted, and files are checked once a process.
    """

    def __init__(self, note: Path | None = None) -> None:
        self._note = note
        self._noted = self._read()
        self._fresh: dict[bytes, list[int]] = {}

    def _read(self) -> dict[bytes, list[int]]:
        if self._note is not None:
            with suppress(OSError, ValueError):
                rows = np.frombuffer(map_regular(self._note), _ROW)
                return dict(zip(rows["name"].tolist(), rows["state"].tolist(), strict=True))
        return {}

    def knows(self, path: Path) -> bool:
        """Return whether ``path`` is still the file that was checked."""
        try:
            return _state(path) in (_sound.get(path.absolute()), self._noted.get(path.name.encode()))
        except FileNotFoundError:
            return False

    def add(self, *paths: Path) -> None:
        """Count files as checked in this process; ``save`` notes them. Missing ones are left out."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._fresh[path.name.encode()] = _sound[path.absolute()] = _state(path)

    def save(self) -> None:
        """Note the files added since; a note that cannot be written stays as it is."""
        if self._note is None or self._fresh.items() <= self._noted.items():
            return
        # Other processes may have added to it since it was read.
        self._noted = {**self._read(), **self._fresh}
        with suppress(StorageError):
            write_bytes(self._note, np.array(list(self._noted.items()), _ROW).tobytes())

    def find_corrupt(self, files: Mapping[Path, str]) -> list[Path]:
        """Return those of ``files`` (path -> expected sha256) that are missing, links or changed.

        Files that are known are not read again; those found sound are noted.

        Raises:
            UnreadableError: if one of them cannot be read.
        """
        unknown = [path for path in files if not self.knows(path)]
        if not unknown:
            return []
        with ThreadPoolExecutor() as pool:
            is_sound = list(pool.map(lambda path: _has_digest(path, files[path]), unknown))
        self.add(*(path for path, sound in zip(unknown, is_sound, strict=True) if sound))
        self.save()
        return sorted(path for path, sound in zip(unknown, is_sound, strict=True) if not sound)


def _has_digest(path: Path, expected: str) -> bool:
    digest = hashlib.sha256()
    try:
        with open_regular(path) as handle, reading(path):
            while block := handle.read(_BLOCK):
                digest.update(block)
    except UnreadableError:
        raise
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == expected
