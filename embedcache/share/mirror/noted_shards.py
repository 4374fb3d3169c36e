"""The files of a mirror's shards, and the notes of those that were fetched for a run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import InputError
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    explain_os_error,
    make_directory,
    read_sealed_json,
    remove_file,
    sealed,
    spelled_json,
)
from embedcache.locked_folder import locked_if_free, open_locked
from embedcache.share.mirror.chosen_shards import ChosenShards
from embedcache.share.mirror_notes import STREAM, StreamNote
from embedcache.store import FolderShards, ShardStore

ShardKey = tuple[str, str]
"""Contract id and name of a shard."""


class NotedShards:
    """The shards of a mirror on the disk.

    The lock of :attr:`folder` is held by the caller that writes or deletes notes.

    Args:
        cache: the mirror.
        contracts: the teachers, by contract id.
        remote_id: stands for the remote in notes; those of other remotes are left alone.

    Attributes:
        folder: the folder of the notes.

    Raises:
        InputError: if the mirror keeps vectors of one of the teachers in LMDB.
        StorageError: if the folder of the notes cannot be made.
    """

    def __init__(self, cache: Cache, contracts: Mapping[str, Contract], remote_id: str) -> None:
        self._cache, self._contracts, self._remote_id = cache, contracts, remote_id
        for contract in contracts.values():
            if cache.container(contract).kind != "arrow":
                raise InputError(
                    f"{cache.folder} keeps vectors of {contract.id[:12]} in LMDB, and a mirror keeps "
                    "shards as files: give another --mirror"
                )
        self.folder = make_directory(cache.derived_folder / STREAM)
        self._containers = {
            contract_id: FolderShards(cache.teacher_folder(contract) / "shards")
            for contract_id, contract in contracts.items()
        }

    def names(self, contract_id: str) -> list[str]:
        """Return the names of a teacher's shards that are here."""
        return self._containers[contract_id].names()

    def path(self, key: ShardKey) -> Path:
        """Return the file of a shard, whether it is here or not."""
        contract_id, name = key
        return self._containers[contract_id].path(name)

    def note_path(self, key: ShardKey) -> Path:
        """Return the file of the note of a shard, whether there is one or not."""
        contract_id, name = key
        return self.folder / contract_id / f"{name}.json"

    def is_here(self, key: ShardKey) -> bool:
        """Return whether a shard is here as a whole."""
        return self.path(key).is_file()

    def store(self, contract_id: str, names: Sequence[str]) -> ShardStore:
        """Return a store of some of a teacher's shards.

        Raises:
            FileNotFoundError: if one is not here.
            CorruptCacheError: if one is damaged.
        """
        contract = self._contracts[contract_id]
        codebooks = self._cache.teacher_folder(contract) / "codebooks"
        return ShardStore(ChosenShards(self._containers[contract_id], names), contract, codebooks=codebooks)

    def touch(self, key: ShardKey) -> None:
        """Put down that a shard was wanted just now, if it has a note."""
        # Not by the clock of the file system, which stands still for some milliseconds at a time.
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self.note_path(key), ns=(now, now))

    def reserve(self, key: ShardKey, size: int) -> int:
        """Write the note of a shard that is about to be fetched.

        Args:
            key: the shard.
            size: its bytes.

        Returns:
            A descriptor that holds the note's lock until it is closed.

        Raises:
            StorageError: if the note cannot be written; then there is none.
        """
        path = self.note_path(key)
        make_directory(path.parent)
        content = spelled_json(sealed({"bytes": size, "remote": self._remote_id}))
        try:
            descriptor = open_locked(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except FileNotFoundError as error:
            raise explain_os_error(error, path) from error
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as note:
                note.write(content)
            os.fsync(descriptor)
        except BaseException as error:
            # A note whose lock is never let go would stand for a fetch that never ends.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(descriptor)
            if isinstance(error, OSError):
                raise explain_os_error(error, path) from error
            raise
        return descriptor

    def notes(self) -> list[StreamNote]:
        """Return the notes of the shards that were fetched from the remote."""
        notes = [self.read_note(path) for path in self.folder.glob("*/*.json")]
        return [note for note in notes if note is not None]

    def read_note(self, path: Path) -> StreamNote | None:
        """Return what a note says; None where there is none, it is of another remote or is not whole."""
        try:
            value = read_sealed_json(path)
            if value["remote"] == self._remote_id and path.parent.name in self._contracts:
                return StreamNote(path, int(value["bytes"]), path.stat().st_mtime)
        except (OSError, ValueError, KeyError, TypeError):
            # Of a process that was killed as it wrote the note, before it had fetched anything.
            pass
        return None

    def arriving(self, key: ShardKey) -> frozenset[tuple[str, int]]:
        """Return names and sizes of the temporary files of a shard: they change while it is fetched."""
        sizes = set()
        for path in self._temporary(key):
            with suppress(OSError):
                sizes.add((path.name, path.stat().st_size))
        return frozenset(sizes)

    def delete(self, key: ShardKey) -> None:
        """Delete a shard, and its note.

        Raises:
            StorageError: if it cannot be deleted.
        """
        remove_file(self.path(key))
        self._forget(key)

    def clear(self, key: ShardKey) -> None:
        """Remove what a killed fetch of a shard has left; a fetch that goes on holds the lock of the note.

        Raises:
            StorageError: if it cannot be removed.
        """
        with locked_if_free(self.note_path(key)) as is_held:
            if is_held:
                self._forget(key)

    def _forget(self, key: ShardKey) -> None:
        """Remove the note of a shard that is not here, and its temporary files."""
        for path in self._temporary(key):
            remove_file(path)
        remove_file(self.note_path(key))

    def _temporary(self, key: ShardKey) -> list[Path]:
        return list(self.path(key).parent.glob(f"{TEMPORARY_PREFIX}*-{key[1]}.arrow"))
