"""A folder of a repository on the model hub, read by way of its client's file system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from embedcache.share.places.base import Data, Stat

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class HubPlace:
    """The files of ``filesystem``, one of fsspec, below ``base`` (``datasets/OWNER/NAME/FOLDER``).

    Every write to a repository is a commit of its own, which does for no remote; a finished one is uploaded
    as the folder that it is.
    """

    read_only = True

    def __init__(self, where: str, filesystem: AbstractFileSystem, base: str) -> None:
        self._where, self._files, self._base = where, filesystem, base

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the files in ``folder`` as they are now, whatever was listed before."""
        try:
            with _explained():
                entries = self._files.ls(self._path(folder), detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        return {
            str(entry["name"]).rpartition("/")[2]: Stat(entry["size"])
            for entry in entries
            if entry["type"] == "file"
        }

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return none: nothing is written there."""
        return {}

    def stat(self, path: str) -> Stat | None:
        """Return the size of a file."""
        try:
            with _explained():
                found = self._files.info(self._path(path))
        except FileNotFoundError:
            return None
        return Stat(found["size"]) if found["type"] == "file" else None

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file."""
        with _explained(), self._files.open(self._path(path), "rb", block_size=size) as source:
            while block := source.read(size):
                yield memoryview(block)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        with _explained():
            found: bytes = self._files.cat_file(self._path(path), start=start, end=start + length)
        return found

    def write(self, path: str, data: Data) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def remove(self, path: str) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what the hub's client raises for a connection into what a connection raises elsewhere."""
    client_error = connection_error()
    try:
        yield
    except client_error as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"the connection failed: {str(error) or type(error).__name__}") from error


def connection_error() -> type[Exception]:
    """Return what the hub's client raises for a connection; whosever that is in this version."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__bases__ if base is not OSError)
