"""Shards inside one LMDB file: one file on disk, one transaction a shard, many writers on one machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError, StorageError
from embedcache.fsio import (
    explain_os_error,
    make_directory,
    open_regular,
    remove_file,
    sha256_file,
    write_sealed_json,
    write_step,
)
from embedcache.store.base import is_shard_name
from embedcache.store.checked import CheckedFiles
from embedcache.store.mapped_lmdb import MappedLmdb, check_structure, explained, open_shared
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

SEAL = "vectors.seal.json"
"""File beside the LMDB file with the digest of the whole of it."""

# The largest value of LMDB.
_MOST_SHARD_BYTES = (1 << 32) - 1


class LmdbShards:
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
        self._checked = checked or CheckedFiles()
        self._sound: set[str] = set()

    @property
    def is_there(self) -> bool:
        """Whether there is such a file, with shards in it or without."""
        # Killed while it creates the file, LMDB leaves an empty one.
        return self.file.exists() and self.file.stat().st_size > 0

    @property
    def _seal(self) -> Path:
        return self.file.with_name(SEAL)

    @cached_property
    def _mapped(self) -> MappedLmdb:
        lock = self.file.with_name(f"{self.file.name}-lock")
        files = [file for file in (self.file, lock) if file.exists() or file.is_symlink()]
        try:
            for file in files:
                open_regular(file).close()
        except (OSError, ValueError) as error:
            raise damaged_shard(str(self.file), error) from error
        places = [self.file.parent, *files]
        if self.is_there and not self._checked.knows(self.file):
            check_structure(self.file)
        return open_shared(self.file, writable=all(os.access(place, os.W_OK) for place in places))

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        if not self.is_there:
            return []
        self._mapped.refresh()
        names = (key.decode("ascii", "replace") for key in self._mapped.list_keys())
        return sorted(filter(is_shard_name, names))

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
        if data.size > _MOST_SHARD_BYTES:
            raise InputError(
                f"a shard of {data.size:,} bytes does not go into {self.file}: LMDB keeps at most "
                f"{_MOST_SHARD_BYTES:,} in one value; lower --shard-rows"
            )
        make_directory(self.file.parent)
        try:
            with explained(self.file), self._mapped.environment.begin(write=True) as transaction:
                self._unseal()
                transaction.put(name.encode(), memoryview(data), overwrite=False)
                write_step("lmdb-put", self.file)
            write_step("lmdb-committed", self.file)
        except StorageError:
            raise
        except OSError as error:
            raise explain_os_error(error, self.file) from error
        self._sound.add(name)
        self._mapped.refresh()

    def remove(self, name: str) -> None:
        """Delete a shard; its space is used again once all readers have closed the file."""
        with explained(self.file), self._mapped.environment.begin(write=True) as transaction:
            self._unseal()
            transaction.delete(name.encode())
        write_step("lmdb-committed", self.file)

    def _unseal(self) -> None:
        if self._seal.exists():
            remove_file(self._seal)

    def where(self, name: str) -> str:
        """Return the file and the shard's name in it."""
        return f"{self.file}#{name}"

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest; the whole file is read, once."""
        if not names or self._checked.knows(self.file):
            return []
        unknown = [name for name in self.names() if name not in self._sound]
        with ThreadPoolExecutor() as pool:
            # Opened by this thread alone: an LMDB transaction must not be shared.
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

    def close(self) -> None:
        """Close the file; buffers handed out before must not be used any more."""
        if "_mapped" in self.__dict__:
            self.__dict__.pop("_mapped").close()

    def finish(self) -> None:
        """Write the seal: size and digest of the file, and the shards in it."""
        if not self.is_there or not self._mapped.writable:
            return
        if not self._seal.exists() or not self._checked.knows(self.file):
            # No other process can write while this transaction lasts.
            with explained(self.file), self._mapped.environment.begin(write=True):
                shards = {name: self.open(name).size for name in self.names()}
                size, digest = self.file.stat().st_size, sha256_file(self.file)
                write_sealed_json(self._seal, {"bytes": size, "digest": digest, "shards": shards})
            self._checked.add(self.file)
        self._checked.save()
