"""LMDB files: opened once a process, and only after their structure has been checked.

liblmdb trusts the files it maps, and a damaged one can end the process. So a file is first walked by the
offline verifier that comes with the Python binding, which never hands it to the library.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from embedcache.errors import CorruptCacheError, StorageError
from embedcache.fsio import file_state

if TYPE_CHECKING:
    import lmdb
    import pyarrow as pa

MAP_BYTES = 1 << 40
"""Address space reserved for a file that may grow; it costs neither memory nor disk."""

_REMEDY = "run 'embedcache repair'"
_RETRIES = 10
_opened: WeakValueDictionary[tuple[int, int], MappedLmdb] = WeakValueDictionary()
_opening = threading.Lock()


class MappedLmdb:
    """An open LMDB file.

    Values are handed out as buffers over the mapped file; each keeps this object, and so the file, open. What
    is deleted meanwhile stays as it was under them, unless this process may not write to the file.

    Args:
        path: the file.
        writable: whether it may be written to, by other processes too; it is created if it is missing.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        import lmdb

        self.path = path
        self.writable = writable
        self._process = os.getpid()
        self._reader: lmdb.Transaction | None = None
        with explained(path):
            self.environment = lmdb.open(
                str(path),
                subdir=False,
                map_size=MAP_BYTES,
                readonly=not writable,
                create=writable,
                lock=writable,
                readahead=False,
                max_dbs=0,
            )
            if writable:
                # Readers that were killed would keep pages forever.
                self.environment.reader_check()
            # LMDB reuses no page that was in use when the oldest transaction began; none is older than this.
            self._guard = self.environment.begin() if writable else None
            with self.environment.begin() as transaction:
                flags = self.environment.open_db(txn=transaction).flags()
        if any(flags.values()):
            raise CorruptCacheError(f"{path} is damaged (its keys are in no plain order): {_REMEDY}")

    def refresh(self) -> None:
        """Let later reads see what has been committed since; buffers handed out before stay valid."""
        # The transactions that a forked child finds belong to its parent.
        if self._reader is not None and self._process == os.getpid():
            self._reader.abort()
        self._reader = None

    def get(self, key: bytes) -> pa.Buffer | None:
        """Return the value of ``key`` as a buffer over the mapped file, or None."""
        import numpy as np
        import pyarrow as pa

        with explained(self.path):
            value = self._read().get(key)
        if value is None:
            return None
        if not len(value):
            return pa.py_buffer(b"")
        # A plain memoryview would not keep the mapping alive.
        return pa.foreign_buffer(np.frombuffer(value, np.uint8).ctypes.data, len(value), base=self)

    def list_keys(self) -> list[bytes]:
        """Return all keys, in order."""
        with explained(self.path):
            return [bytes(key) for key in self._read().cursor().iternext(values=False)]

    def _read(self) -> lmdb.Transaction:
        if self._reader is None:
            self._reader = self.environment.begin(buffers=True)
        return self._reader

    def close(self) -> None:
        """Close the file; buffers handed out before must not be used any more."""
        self.refresh()
        self._guard = None
        self.environment.close()


def open_shared(path: Path, *, writable: bool) -> MappedLmdb:
    """Return the open file at ``path``, the same object as long as it is used in this process.

    LMDB forbids opening a file twice in one process, and in a forked child: that gets its parent's.

    Raises:
        CorruptCacheError: if the file is damaged.
        StorageError: if it cannot be opened.
    """
    with _opening:
        found = _opened.get(_identity(path)) if path.exists() else None
        if found is None:
            found = MappedLmdb(path.resolve(), writable=writable)
            _opened[_identity(path)] = found
        return found


def _identity(path: Path) -> tuple[int, int]:
    # Not the path: another file may have been put in its place.
    status = path.stat()
    return status.st_dev, status.st_ino


def check_structure(path: Path) -> None:
    """Walk the file without handing it to liblmdb.

    Raises:
        CorruptCacheError: if a page is not as LMDB writes it.
    """
    from lmdb.verify import verify

    for attempt in range(_RETRIES):
        before = file_state(path)
        try:
            problems = list(verify(str(path), subdir=False))  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - numbers that make no sense lead anywhere
            problems = [str(error) or type(error).__name__]
        if not problems:
            return
        # What was read while another process was writing proves nothing.
        if attempt and before == file_state(path):
            raise CorruptCacheError(f"{path} is no sound LMDB file ({problems[0]}): {_REMEDY}")
        time.sleep(0.05)
    raise StorageError(f"{path} is being written to all the time and cannot be checked: try again later")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into errors that name the file and the remedy."""
    import lmdb

    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError) as error:
        raise CorruptCacheError(f"{path} is damaged ({error}): {_REMEDY}") from error
    except lmdb.Error as error:
        raise StorageError(
            f"cannot use {path} ({error}): see that the disk has room and the folder can be written, "
            "and run the same command again"
        ) from error
