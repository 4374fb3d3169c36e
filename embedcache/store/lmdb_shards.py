"""Shards inside one LMDB file: one file on disk, one transaction per shard, many writers on one machine.

liblmdb trusts the file it maps, and a damaged one can end the process. So a file is first walked by the
offline verifier of the Python binding, which never hands it to the library.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from embedcache.errors import CorruptCacheError, StorageError, UnreadableError
from embedcache.fsio import (
    file_state,
    make_directory,
    open_regular,
    remove_file,
    sha256_file,
    write_sealed_json,
    write_step,
)
from embedcache.os_errors import explain_os_error, reading
from embedcache.store.base import ShardContainer, is_shard_name
from embedcache.store.checked import CheckedFiles
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import lmdb
    import pyarrow as pa

SEAL = "vectors.seal.json"
"""File beside the LMDB file with the digest of the whole of it."""

# Address space reserved for a file that may grow; it costs neither memory nor disk.
_MAP_BYTES = 1 << 40
_RETRIES = 10
_REMEDY = "run 'embedcache repair'"
_opened: WeakValueDictionary[tuple[int, int], OpenLmdb] = WeakValueDictionary()
_opening = threading.Lock()


@contextmanager
def _explained(path: Path, *, writable: bool = True) -> Iterator[None]:
    """Turn errors of LMDB and of the disk into errors that name the file and the remedy."""
    import lmdb

    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError) as error:
        raise CorruptCacheError(f"{path} is damaged ({error}): {_REMEDY}") from error
    except lmdb.Error as error:
        kind, verb = (StorageError, "write") if writable else (UnreadableError, "read")
        reason = str(error).removeprefix(f"{path}: ")
        raise kind(f"cannot {verb} {path}: {reason}; check the disk and run it again") from error
    except (StorageError, UnreadableError):
        raise
    except OSError as error:
        raise explain_os_error(error, path) from error


class OpenLmdb:
    """Open LMDB file.

    Values are handed out as buffers over the mapped file; each keeps this object, and so the file, open.
    Buffers stay valid after their values are deleted, unless the file is open for reading only.

    Args:
        path: the file.
        writable: True if this process may write to it; it is created if it is missing.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        import lmdb

        self.path, self.writable = path, writable
        with _explained(path, writable=writable):
            self.environment = lmdb.open(
                str(path),
                subdir=False,
                map_size=_MAP_BYTES,
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

    def get(self, key: bytes) -> pa.Buffer | None:
        """Return the value of ``key`` as a buffer over the mapped file, or None."""
        import numpy as np
        import pyarrow as pa

        with _explained(self.path, writable=False), self.environment.begin(buffers=True) as transaction:
            value = transaction.get(key)
            if not value:
                return None if value is None else pa.py_buffer(b"")
            # A plain memoryview would not keep the mapping alive.
            return pa.foreign_buffer(np.frombuffer(value, np.uint8).ctypes.data, len(value), base=self)

    def list_keys(self) -> list[bytes]:
        """Return all keys, in order."""
        with _explained(self.path, writable=False), self.environment.begin() as transaction:
            return list(transaction.cursor().iternext(values=False))


def open_lmdb(path: Path, *, writable: bool) -> OpenLmdb:
    """Return the open file at ``path``, the same object as long as it is used in this process.

    LMDB forbids opening a file twice in one process, and in a forked child, which gets its parent's.

    Raises:
        CorruptCacheError: if the file is damaged.
        UnreadableError, StorageError: if it cannot be opened for reading, or for writing.
    """
    with _opening:
        found = _opened.get(_identity(path)) if path.exists() else None
        if found is None:
            found = OpenLmdb(path.resolve(), writable=writable)
            _opened[_identity(path)] = found
        return found


def may_write(path: Path) -> bool:
    """Return whether this process may write to an LMDB file, to its lock and beside them."""
    lock = path.with_name(f"{path.name}-lock")
    files = [file for file in (path, lock) if file.exists()]
    return all(os.access(one, os.W_OK) for one in (path.parent, *files))


def _identity(path: Path) -> tuple[int, int]:
    # Not the path: another file may have been put in its place.
    status = path.stat()
    return status.st_dev, status.st_ino


def check_structure(path: Path) -> None:
    """Walk the file without handing it to liblmdb.

    Raises:
        CorruptCacheError: if a page is not as LMDB writes it.
        UnreadableError: if it cannot be read.
        StorageError: if other processes write to it all the time.
    """
    from lmdb.verify import verify

    for attempt in range(_RETRIES):
        before = file_state(path)
        try:
            with reading(path):
                problems = list(verify(str(path), subdir=False))  # type: ignore[no-untyped-call]
        except UnreadableError:
            raise
        except Exception as error:  # noqa: BLE001 - numbers that make no sense lead anywhere
            problems = [str(error) or type(error).__name__]
        if not problems:
            return
        # What was read while another process was writing proves nothing.
        if attempt and before == file_state(path):
            raise CorruptCacheError(f"{path} is not a sound LMDB file ({problems[0]}): {_REMEDY}")
        time.sleep(0.05)
    raise StorageError(f"{path} is being written to all the time and cannot be checked: try again later")


class LmdbShards(ShardContainer):
    """Shards as values of the LMDB file ``file``, under their names.

    LMDB needs real shared memory and file locks: on a network file system use the folder.

    The seal is removed before the file is changed and written when a writer is done, so it never describes
    another file than the one beside it.

    Args:
        file: the LMDB file, created at the first write.
        checked: notes that the file was found sound; default: for this process.
    """

    kind = "lmdb"

    def __init__(self, file: Path, checked: CheckedFiles | None = None) -> None:
        self.file = file
        self._seal = file.with_name(SEAL)
        self._checked = checked or CheckedFiles()
        self._sound: set[str] = set()

    @property
    def is_there(self) -> bool:
        """True if the file exists; it may hold no shards."""
        # Killed while it creates the file, LMDB leaves an empty one.
        with reading(self.file), suppress(FileNotFoundError, NotADirectoryError):
            return self.file.stat().st_size > 0
        return False

    @cached_property
    def _lmdb(self) -> OpenLmdb:
        lock = self.file.with_name(f"{self.file.name}-lock")
        files = [file for file in (self.file, lock) if file.exists() or file.is_symlink()]
        try:
            for file in files:
                open_regular(file).close()
        except UnreadableError:
            raise
        except (OSError, ValueError) as error:
            raise damaged_shard(str(self.file), error) from error
        if self.is_there and not self._checked.knows(self.file):
            check_structure(self.file)
        return open_lmdb(self.file, writable=may_write(self.file))

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        keys = self._lmdb.list_keys() if self.is_there else []
        return sorted(filter(is_shard_name, (key.decode("ascii", "replace") for key in keys)))

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        data = self._lmdb.get(name.encode())
        if data is None:
            raise damaged_shard(self.where(name), "it is gone")
        return data

    @contextmanager
    def _changing(self) -> Iterator[lmdb.Transaction]:
        """Begin a transaction, without the seal, that is committed at the end."""
        with _explained(self.file):
            with self._lmdb.environment.begin(write=True) as transaction:
                if self._seal.exists():
                    remove_file(self._seal)
                yield transaction
                write_step("lmdb-put", self.file)
            write_step("lmdb-committed", self.file)

    def add(self, name: str, data: pa.Buffer) -> None:
        """Store a shard in one transaction."""
        make_directory(self.file.parent)
        with self._changing() as transaction:
            transaction.put(name.encode(), memoryview(data), overwrite=False)
        self._sound.add(name)

    def remove(self, name: str) -> None:
        """Delete a shard; its space is used again once all readers have closed the file."""
        with self._changing() as transaction:
            transaction.delete(name.encode())

    def where(self, name: str) -> str:
        """Return the file and the shard's name in it."""
        return f"{self.file}#{name}"

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest; the whole file is read, once."""
        if self._sound.issuperset(names) or self._checked.knows(self.file):
            return []
        unknown = [name for name in self.names() if name not in self._sound]
        with ThreadPoolExecutor() as pool:
            digests = pool.map(hashlib.sha256, map(self.open, unknown))
            sound = {
                name for name, digest in zip(unknown, digests, strict=True) if name == digest.hexdigest()
            }
        self._sound |= sound
        if len(sound) == len(unknown):
            self._checked.add(self.file)
            if unknown:
                self._checked.save()
        return [name for name in names if name not in self._sound]

    def finish(self) -> None:
        """Write the seal: size and digest of the file, and the shards in it."""
        if not self.is_there or not self._lmdb.writable:
            return
        if not self._seal.exists() or not self._checked.knows(self.file):
            # No other process can write while this transaction lasts.
            with _explained(self.file), self._lmdb.environment.begin(write=True):
                shards = {name: self.open(name).size for name in self.names()}
                size, digest = self.file.stat().st_size, sha256_file(self.file)
                write_sealed_json(self._seal, {"bytes": size, "digest": digest, "shards": shards})
            self._checked.add(self.file)
        self._checked.save()
