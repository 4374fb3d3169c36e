"""A folder of this machine, or of the network that is mounted here."""

from __future__ import annotations

import errno
import stat as modes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from embedcache.errors import StorageError
from embedcache.fsio import TEMPORARY_PREFIX, regular_size, remove_file, write_bytes
from embedcache.share.places.base import Data, Stat, final_name, growing_blocks

# What a network share answers while its server is away. A full or read-only disk, a quota that is used up and
# missing permissions are none of these: trying again does not help there.
_PASSING_ERRORS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN})


class FolderPlace:
    """The folder ``root``, written as a cache is: temporary name, fsync, atomic rename.

    Links, pipes and devices in it are not files of it: somebody else may have put them there. Errors of a
    network share that may pass are raised as ``OSError``, so that they are tried again; others of writing as
    :class:`StorageError`, which is final.
    """

    read_only = False

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._root)

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the regular files in ``folder``; temporary ones are left out."""
        return self._files(folder, lambda name: not name.startswith(TEMPORARY_PREFIX))

    def below(self, folder: str) -> None:
        """Return None: folders are listed one by one."""

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return the regular files in ``folder`` that have the name of a temporary file."""
        return self._files(folder, lambda name: bool(final_name(name)))

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a regular file."""
        return _stat(self._root / path)

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a regular file."""
        with self._opened(path) as handle:
            yield from growing_blocks(handle.read, size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a regular file."""
        with self._opened(path) as handle:
            handle.seek(start)
            data = bytearray()
            # A read may give less than was asked for.
            while len(data) < length and (block := handle.read(length - len(data))):
                data += block
        return bytes(data)

    def write(self, path: str, data: Data) -> None:
        """Write a file by way of a temporary one.

        Raises:
            StorageError: if it cannot be written, and trying again does not help.
            OSError: if it cannot be written just now.
        """
        with _passing_errors_kept():
            write_bytes(self._root / path, memoryview(data))

    def remove(self, path: str) -> None:
        """Delete a file; errors as :meth:`write`."""
        with _passing_errors_kept():
            if (self._root / path).parent.is_dir():
                remove_file(self._root / path)

    def _files(self, folder: str, is_meant: Callable[[str], bool]) -> dict[str, Stat]:
        try:
            names = [path.name for path in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return {}
        stats = {name: _stat(self._root / folder / name) for name in names if is_meant(name)}
        return {name: stat for name, stat in stats.items() if stat is not None}

    def _opened(self, path: str) -> FileIO:
        source = self._root / path
        try:
            regular_size(source)
        except ValueError as error:
            raise OSError(str(error)) from error
        return source.open("rb", buffering=0)


@contextmanager
def _passing_errors_kept() -> Iterator[None]:
    """Raise the ``OSError`` behind a ``StorageError`` of the block where it may pass."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _PASSING_ERRORS:
            raise OSError(cause.errno, cause.strerror) from error
        raise


def _stat(path: Path) -> Stat | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stat(status.st_size, status.st_mtime) if modes.S_ISREG(status.st_mode) else None
