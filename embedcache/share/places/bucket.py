"""A folder in a bucket of S3, of what speaks as S3 does, or of Google Cloud Storage."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from embedcache.share.places.base import Data, Stat

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem


class BucketPlace:
    """The objects of ``filesystem`` below ``base`` (``bucket/prefix``)."""

    read_only = False

    def __init__(self, where: str, filesystem: FileSystem, base: str) -> None:
        self._where, self._files, self._base = where, filesystem, base

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the objects directly below a prefix."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._path(folder), allow_not_found=True)
        found = self._files.get_file_info(selector)
        return {info.base_name: _stat(info) for info in found if info.type == FileType.File}

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return none: an object has no name before it is whole."""
        return {}

    def stat(self, path: str) -> Stat | None:
        """Return size and time of an object."""
        from pyarrow.fs import FileType

        info = self._files.get_file_info(self._path(path))
        return _stat(info) if info.type == FileType.File else None

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of an object, each block with a request of its own."""
        with self._files.open_input_file(self._path(path)) as source:
            while block := source.read(size):
                yield memoryview(block)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object, with one request."""
        with self._files.open_input_file(self._path(path)) as source:
            # Arrow refuses to begin behind the end.
            within = max(0, min(length, source.size() - start))
            found: bytes = source.read_at(within, start) if within else b""
        return found

    def write(self, path: str, data: Data) -> None:
        """Write an object, which is there once all of it is."""
        stream = self._files.open_output_stream(self._path(path), compression=None)
        try:
            stream.write(data)
        except BaseException:
            _never_close(stream)
            raise
        stream.close()

    def remove(self, path: str) -> None:
        """Delete an object."""
        from pyarrow.fs import FileType

        # Deleting what is gone is an error to Arrow.
        if self._files.get_file_info(self._path(path)).type == FileType.File:
            try:
                self._files.delete_file(self._path(path))
            except FileNotFoundError:
                return

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base


def _never_close(stream: Any) -> None:
    """Keep ``stream`` open for ever: closing it, as its destructor does, completes the upload of a part."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))


def _stat(info: FileInfo) -> Stat:
    # Some servers date what is just being written to 1970: that is no time, and by it nothing is old.
    changed = info.mtime_ns or 0
    return Stat(info.size, changed / 1e9 if changed > 0 else None)
