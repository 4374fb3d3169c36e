"""A folder in a bucket of S3, of what speaks as S3 does, or of Google Cloud Storage."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from embedcache.share.places.base import Data, Stat, growing_blocks
from embedcache.share.retry import RefusedError

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

_MOST_OPEN = 32
# How Arrow's client of S3 says that a time limit was reached.
_SILENT = "curlCode: 28"


class BucketPlace:
    """The objects below a prefix of a bucket.

    Args:
        where: the URL.
        filesystem: the bucket's client.
        base: bucket and prefix, ``bucket/prefix``.
        writing: the client that objects are written with; default: ``filesystem``.
        deleting: the client that objects are deleted with, which tries only once; default: ``once``.
        once: the client that tries only once, for what is asked before the server has answered, and after it
            has fallen silent; default: ``filesystem``.
        errors: watches over each request, and turns what the client raises into an ``OSError``.
    """

    read_only = False

    def __init__(
        self,
        where: str,
        filesystem: FileSystem,
        base: str,
        *,
        writing: FileSystem | None = None,
        deleting: FileSystem | None = None,
        once: FileSystem | None = None,
        errors: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._where, self._files, self._base = where, filesystem, base
        self._writing, self._once = writing or filesystem, once or filesystem
        self._deleting = deleting or self._once
        self._errors = errors
        # Whether the server is known to answer. A silent one is not to be waited for again and again.
        self._answers = False
        self._open: dict[str, NativeFile] = {}
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the objects directly below a prefix."""
        entries = self._listed(folder)
        if not entries and not folder:
            self._require_bucket()
        return entries

    def below(self, folder: str) -> dict[str, Stat]:
        """Return all objects below a prefix, of which a thousand or so come with each request."""
        return self._listed(folder, deep=True)

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return nothing: an object has no name before it is whole."""
        return {}

    def stat(self, path: str) -> Stat | None:
        """Return size and time of an object."""
        from pyarrow.fs import FileType

        with self._client() as files:
            info = files.get_file_info(self._path(path))
        return _stat(info) if info.type == FileType.File else None

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of an object; of S3, each block with a request of its own."""
        # A stream, not a file: of Google, :meth:`_opened` tells why.
        with (
            self._client() as files,
            files.open_input_stream(self._path(path), compression=None) as source,
        ):
            yield from growing_blocks(source.read, size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object, with one request where parts of it were read before."""
        with self._client() as files:
            source = self._opened(files, path)
            try:
                # Arrow refuses to begin behind the end.
                within = max(0, min(length, source.size() - start))
                data: bytes = source.read_at(within, start) if within else b""
            except BaseException:
                self._forget(path)
                raise
        if len(data) < length:
            # There may be a longer object in its place by now.
            self._forget(path)
        return data

    def write(self, path: str, data: Data) -> None:
        """Write an object, which is there once all of it is."""
        if not self._answers and self._once is not self._writing:
            # Writing waits for long. A server that does not answer at all is noticed sooner by looking.
            self._look(path)
        with self._noted():
            try:
                stream = self._writing.open_output_stream(self._path(path), compression=None)
            except FileNotFoundError as error:
                raise self._no_bucket() from error
            try:
                try:
                    stream.write(data)
                except BaseException:
                    _never_close(stream)
                    raise
                stream.close()
            except FileNotFoundError as error:
                # Google forgets uploads that stood still for long: the upload is begun anew.
                raise OSError("the server has forgotten an upload in the middle of it") from error
            except OSError as error:
                # S3 answers for the first time here.
                if "NO_SUCH_BUCKET" in str(error):
                    raise self._no_bucket() from error
                raise

    def remove(self, path: str) -> None:
        """Delete an object."""
        from pyarrow.fs import FileType

        with self._errors():
            try:
                self._deleting.delete_file(self._path(path))
            except FileNotFoundError:
                return
            except OSError:
                # Afterwards Arrow puts a marker in the place of the folder on S3. Some servers refuse it: the
                # object is gone all the same.
                info = self._deleting.get_file_info(self._path(path))
                if info.type != FileType.NotFound:
                    raise

    def _listed(self, folder: str, *, deep: bool = False) -> dict[str, Stat]:
        """Return the objects below a prefix, by their paths from there."""
        from pyarrow.fs import FileSelector, FileType

        prefix = self._path(folder)
        with self._client() as files:
            entries = files.get_file_info(FileSelector(prefix, allow_not_found=True, recursive=deep))
        return {
            info.path.removeprefix(f"{prefix}/"): _stat(info)
            for info in entries
            if info.type == FileType.File
        }

    @contextmanager
    def _client(self) -> Iterator[FileSystem]:
        """Yield the client for what is read, and take note of whether the server answers."""
        with self._noted():
            yield self._files if self._answers else self._once

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Watch over a request, and take note of whether the server answers."""
        try:
            with self._errors():
                yield
        except OSError as error:
            if _SILENT in str(error):
                self._answers = False
            raise
        self._answers = True

    def _look(self, path: str) -> None:
        """Raise ``OSError`` if the server is silent; other errors are left to what is done next."""
        try:
            self.stat(path)
        except OSError as error:
            if _SILENT in str(error):
                raise

    def _require_bucket(self) -> None:
        """Raise :class:`RefusedError` where there is no bucket, as far as the server tells."""
        from pyarrow.fs import FileType

        try:
            with self._errors():
                info = self._once.get_file_info(self._base.partition("/")[0])
        except OSError:
            # Not everybody who may read objects may look at the bucket.
            return
        if info.type == FileType.NotFound:
            raise self._no_bucket()

    def _no_bucket(self) -> RefusedError:
        bucket = self._base.partition("/")[0]
        return RefusedError(
            f"there is no bucket {bucket}", "see to the spelling of the URL, or make the bucket"
        )

    def _opened(self, files: FileSystem, path: str) -> NativeFile:
        """Return an object to read parts of, opened.

        It stays open, for opening takes a request. Of Google it takes two: the second begins to read the
        whole object, and all threads wait until its first byte has come.
        """
        with self._lock:
            source = self._open.pop(path, None)
            if source is not None:
                # What was used last stays longest.
                self._open[path] = source
        if source is None:
            source = files.open_input_file(self._path(path))
            with self._lock:
                self._open[path] = source
                if len(self._open) > _MOST_OPEN:
                    # It is closed once no thread reads it any more.
                    del self._open[next(iter(self._open))]
        return source

    def _forget(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base


def _never_close(stream: Any) -> None:
    """Keep ``stream`` open until the process ends, for closing it makes an object of the part that was sent.

    Its destructor closes it too, so a reference is never given back: for each upload that failed, one
    connection and its buffered part are lost. Arrow 26 can give up an upload in C++
    (``FileInterface::Abort``), but not from Python. The call exists in CPython alone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))


def _stat(info: FileInfo) -> Stat:
    # Some servers give 1970 as the time of an object that is still being written, and Arrow does where it
    # cannot read a time in a listing: then it is unknown.
    changed = info.mtime_ns or 0
    return Stat(info.size, changed / 1e9 if changed > 0 else None)
