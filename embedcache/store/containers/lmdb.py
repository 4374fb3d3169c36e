"""Shards inside one LMDB file: one file on disk, one transaction a shard, many writers on one machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import StorageError
from embedcache.fsio import make_directory, sha256_file, write_sealed_json, write_step
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes
from embedcache.store.mapped_lmdb import MappedLmdb, check_structure, explained, open_shared
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

SEAL = "vectors.seal.json"


class LmdbShards:
    """Shards as values of the LMDB file ``file``, under their names.

    LMDB needs real shared memory and file locks: on a network file system use the folder.

    Args:
        file: the LMDB file, created at the first write.
        notes: remembers that the file was found sound; without it the whole file is read at every opening.
    """

    kind = "lmdb"

    def __init__(self, file: Path, notes: FileNotes | None = None) -> None:
        self.file = file
        self._notes = notes or FileNotes()

    @cached_property
    def _mapped(self) -> MappedLmdb:
        there = self.file.exists()
        if self.file.is_symlink():
            raise damaged_shard(str(self.file), "it is a symbolic link; a cache holds its files itself")
        if there and not self._notes.knows(self.file):
            check_structure(self.file)
        return open_shared(self.file, writable=os.access(self.file if there else self.file.parent, os.W_OK))

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        if not self.file.exists():
            return []
        self._mapped.refresh()
        names = (key.decode("ascii", "replace") for key in self._mapped.list_keys())
        return sorted(name for name in names if is_shard_name(name))

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        data = self._mapped.get(name.encode())
        if data is None:
            raise damaged_shard(self.where(name), "it is gone")
        return data

    def add(self, name: str, data: pa.Buffer) -> None:
        """Store a shard in a transaction of its own."""
        make_directory(self.file.parent)
        mapped = self._mapped
        try:
            with explained(self.file), mapped.environment.begin(write=True) as transaction:
                transaction.put(name.encode(), memoryview(data), overwrite=False)
                write_step("lmdb-put", self.file)
            write_step("lmdb-committed", self.file)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot write {self.file}: {error.strerror or error}; run again") from error
        mapped.refresh()

    def remove(self, name: str) -> None:
        """Delete a shard; its space is used again by later ones."""
        with explained(self.file), self._mapped.environment.begin(write=True) as transaction:
            transaction.delete(name.encode())
        write_step("lmdb-committed", self.file)

    def size(self, name: str) -> int:
        """Return how many bytes a shard has."""
        return int(self.open(name).size)

    def where(self, name: str) -> str:
        """Return the file and the shard's name in it."""
        return f"{self.file}#{name}"

    def find_liars(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest."""
        if not names or self._notes.knows(self.file):
            return []
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(lambda name: hashlib.sha256(self.open(name)).hexdigest(), names))
        liars = [name for name, digest in zip(names, digests, strict=True) if name != digest]
        if not liars:
            self._notes.remember([self.file])
        return liars

    def finish(self) -> None:
        """Write beside the file the digest of the whole of it, for ``verify``, and what is in it."""
        if self.file.exists():
            write_sealed_json(
                self.file.with_name(SEAL),
                {
                    "bytes": self.file.stat().st_size,
                    "digest": sha256_file(self.file),
                    "shards": self.names(),
                },
            )
            self._notes.remember([self.file])
