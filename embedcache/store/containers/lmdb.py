"""Shards inside one LMDB file: one file on disk, one transaction a shard, many writers on one machine."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError, StorageError
from embedcache.fsio import (
    explain_os_error,
    make_directory,
    remove_file,
    sha256_file,
    write_sealed_json,
    write_step,
)
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes
from embedcache.store.mapped_lmdb import MAP_BYTES, MappedLmdb, check_structure, explained, open_shared
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

SEAL = "vectors.seal.json"


# What LMDB gives one value at most.
_MOST_SHARD_BYTES = (1 << 32) - 1
_DELETION_BYTES = 1 << 20


@contextmanager
def _said_if_full(file: Path, needed: int) -> Iterator[None]:
    """Say of a write of ``needed`` bytes that failed that ``file`` has no room, where that is so.

    LMDB answers with an I/O error where the disk took a part of what was to be written.
    """
    import lmdb

    if needed > _MOST_SHARD_BYTES:
        raise InputError(
            f"a shard of {needed:,} bytes does not go into {file}: LMDB keeps at most "
            f"{_MOST_SHARD_BYTES:,} in one value; lower --shard-rows"
        )
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, lmdb.MapFullError):
            raise StorageError(
                f"cannot write {file}: with {needed:,} bytes more it would be larger than the "
                f"{MAP_BYTES >> 40} TiB it may grow to; keep the vectors in files, with "
                "'embedcache copy --store arrow'"
            ) from error
        free = shutil.disk_usage(file.parent).free
        if isinstance(cause, lmdb.DiskError) or (isinstance(cause, lmdb.Error) and free < needed):
            raise StorageError(
                f"cannot write {file}: the disk is full ({needed:,} bytes needed, {free:,} free); make room "
                "and run the same command again: what is stored stays"
            ) from error
        raise


class LmdbShards:
    """Shards as values of the LMDB file ``file``, under their names.

    LMDB needs real shared memory and file locks: on a network file system use the folder.

    A seal beside the file holds the digest of the whole of it. It is taken away before the file is changed,
    and written when a writer is done, so it never tells of another file than the one that is there.

    Args:
        file: the LMDB file, created at the first write.
        notes: remembers that the file was found sound; without it the whole file is read at every opening.
    """

    kind = "lmdb"

    def __init__(self, file: Path, notes: FileNotes | None = None) -> None:
        self.file = file
        self._notes = notes or FileNotes()

    @property
    def is_there(self) -> bool:
        """Whether there is such a file, with shards in it or without."""
        # Killed as it creates the file, LMDB leaves an empty one.
        return self.file.exists() and self.file.stat().st_size > 0

    @property
    def _seal(self) -> Path:
        return self.file.with_name(SEAL)

    @cached_property
    def _mapped(self) -> MappedLmdb:
        if self.file.is_symlink():
            raise damaged_shard(str(self.file), "it is a symbolic link; a cache holds its files itself")
        places = [self.file.parent, self.file] if self.file.exists() else [self.file.parent]
        if self.is_there and not self._notes.knows(self.file):
            check_structure(self.file)
        return open_shared(self.file, writable=all(os.access(place, os.W_OK) for place in places))

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        if not self.is_there:
            return []
        self._mapped.refresh()
        names = (key.decode("ascii", "replace") for key in self._mapped.list_keys())
        return sorted(name for name in names if is_shard_name(name))

    def has(self, name: str) -> bool:
        """Return whether a shard is there by now; cheaper than :meth:`names`."""
        if not self.is_there:
            return False
        self._mapped.refresh()
        return self._mapped.get(name.encode()) is not None

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        if not self._mapped.writable:
            # Without a lock nothing keeps the pages of an older state from being written over.
            self._mapped.refresh()
        data = self._mapped.get(name.encode())
        if data is None:
            raise damaged_shard(self.where(name), "it is gone")
        return data

    def add(self, name: str, data: pa.Buffer) -> None:
        """Store a shard in a transaction of its own."""
        make_directory(self.file.parent)
        try:
            with (
                _said_if_full(self.file, data.size),
                explained(self.file),
                self._mapped.environment.begin(write=True) as transaction,
            ):
                self._unseal()
                transaction.put(name.encode(), memoryview(data), overwrite=False)
                write_step("lmdb-put", self.file)
            write_step("lmdb-committed", self.file)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise explain_os_error(error, self.file) from error
        self._mapped.refresh()

    def remove(self, name: str) -> None:
        """Delete a shard; its space is used again once all who have the file open now have closed it."""
        with (
            # Pages that change are written anew: a deletion takes room before it gives any.
            _said_if_full(self.file, _DELETION_BYTES),
            explained(self.file),
            self._mapped.environment.begin(write=True) as transaction,
        ):
            self._unseal()
            transaction.delete(name.encode())
        write_step("lmdb-committed", self.file)

    def _unseal(self) -> None:
        if self._seal.exists():
            remove_file(self._seal)

    def is_checked(self, name: str) -> bool:
        """Whether the file was found sound here before, with all shards in it, and is that file still."""
        return self._notes.knows(self.file)

    def where(self, name: str) -> str:
        """Return the file and the shard's name in it."""
        return f"{self.file}#{name}"

    def find_liars(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest."""
        if not names or self._notes.knows(self.file):
            return []
        with ThreadPoolExecutor() as pool:
            # Opened by this thread alone: an LMDB transaction is not to be shared.
            digests = list(pool.map(hashlib.sha256, map(self.open, names)))
        liars = [name for name, digest in zip(names, digests, strict=True) if name != digest.hexdigest()]
        if not liars:
            self._notes.remember([self.file])
        return liars

    def close(self) -> None:
        """Close the file; buffers handed out before must not be used any more."""
        if "_mapped" in self.__dict__:
            self.__dict__.pop("_mapped").close()

    def finish(self) -> None:
        """Write beside the file the digest of the whole of it, for ``verify``, and what is in it."""
        if not self.is_there or not self._mapped.writable:
            return
        if self._seal.exists() and self._notes.knows(self.file):
            return
        # Nobody else can write while this transaction lasts.
        with explained(self.file), self._mapped.environment.begin(write=True):
            shards = {name: self.open(name).size for name in self.names()}
            size, digest = self.file.stat().st_size, sha256_file(self.file)
            write_sealed_json(self._seal, {"bytes": size, "digest": digest, "shards": shards})
        self._notes.remember([self.file])
