"""The files of a mirror's shards, and the notes of those that were fetched for a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from embedcache.locked_folder import locked_folder, locked_if_free, open_locked
from embedcache.share.limits import refuse_without_room
from embedcache.share.mirror.known_notes import KnownNotes, ShardKey
from embedcache.share.mirror_notes import STREAM, StreamNote
from embedcache.share.temporaries import abandoned_bytes_of
from embedcache.store import FolderShards, ShardStore
from embedcache.store.containers import ChosenShards

_LESS = "keep fewer shards at a time with --cache-limit, or give a folder on another disk with --mirror"


class NotedShards:
    """The shards of a mirror on the disk.

    What reads, writes or deletes notes is called inside :meth:`locked`.

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
        self._known = KnownNotes(self.folder, contracts.keys(), remote_id)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing notes inside the block.

        Raises:
            StorageError: if the folder of the notes cannot be locked or read.
        """
        with locked_folder(self.folder):
            self._known.refresh()
            yield

    @property
    def bytes(self) -> int:
        """Bytes that all shards of the remote with notes have, or will have."""
        return self._known.bytes

    def names(self, contract_id: str) -> list[str]:
        """Return the names of a teacher's shards that are here."""
        return self._containers[contract_id].names()

    def path(self, key: ShardKey) -> Path:
        """Return the file of a shard, whether it is here or not."""
        contract_id, name = key
        return self._containers[contract_id].path(name)

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
        self._known.touch(key)

    def want(self, contract_id: str, names: Collection[str]) -> None:
        """Put down that shards of a teacher are wanted; until the next call they are deleted last."""
        self._known.want(contract_id, names)

    def oldest_first(self, *, and_wanted: bool) -> Generator[StreamNote, None, None]:
        """Yield notes of shards that may be deleted, the longest unused first; some may go meanwhile.

        Args:
            and_wanted: whether shards that are wanted follow those that are not.
        """
        return self._known.oldest_first(and_wanted=and_wanted)

    def note(self, key: ShardKey) -> StreamNote | None:
        """Return the note of a shard; None where there is none, or it is of another remote."""
        note = self._known.get(key)
        return note if note is not None and self._known.is_mine(note) else None

    def reserve(self, key: ShardKey, size: int) -> int:
        """Write the note of a shard that is about to be fetched.

        Args:
            key: the shard.
            size: its bytes.

        Returns:
            A descriptor that holds the note's lock until it is closed.

        Raises:
            StorageError: if the note cannot be written, or the disk has no room for the shard; then there is
                no note.
        """
        refuse_without_room(self.path(key), size, _LESS)
        note = StreamNote(self.folder, *key, size, self._remote_id)
        make_directory(note.path.parent)
        self._known.announce()
        try:
            descriptor = open_locked(note.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except FileNotFoundError as error:
            raise explain_os_error(error, note.path) from error
        try:
            _write_time(descriptor, None)
            os.fsync(descriptor)
        except BaseException as error:
            # A note whose lock is never let go would stand for a fetch that never ends.
            with suppress(OSError):
                note.path.unlink(missing_ok=True)
            os.close(descriptor)
            if isinstance(error, OSError):
                raise explain_os_error(error, note.path) from error
            raise
        self._known.add(note)
        return descriptor

    def withdraw(self, key: ShardKey) -> None:
        """Delete the note of a shard that could not be fetched."""
        note = self.note(key)
        if note is not None:
            self._known.announce()
            note.path.unlink(missing_ok=True)
            self._known.discard(note)

    def put_time(self, held: int, key: ShardKey, changed: float) -> None:
        """Write into a note when the object was last written, as its place tells before the fetch.

        Called outside :meth:`locked` too: whoever fetches the shard holds the lock of its note.

        Args:
            held: what :meth:`reserve` returned.
            key: the shard.
            changed: the time.

        Raises:
            StorageError: if it cannot be written.
        """
        try:
            _write_time(held, changed)
        except OSError as error:
            raise explain_os_error(error, self.folder / key[0] / f"{key[1]}-….json") from error

    def time_of_object(self, note: StreamNote) -> float | None:
        """Return when the object of a shard was last written before the fetch; None where no note tells."""
        try:
            changed = read_sealed_json(note.path).get("changed")
        except (OSError, ValueError):
            # Of a process that was killed as it wrote the note.
            return None
        return float(changed) if isinstance(changed, (int, float)) else None

    def arriving(self, key: ShardKey) -> frozenset[tuple[str, int]]:
        """Return names and sizes of the temporary files of a shard: they change while it is fetched."""
        sizes = set()
        for path in self._temporary(key):
            with suppress(OSError):
                sizes.add((path.name, path.stat().st_size))
        return frozenset(sizes)

    def delete(self, note: StreamNote) -> None:
        """Delete a shard, and its note.

        Raises:
            StorageError: if it cannot be deleted.
        """
        if not self.is_here(note.key):
            self._forget(note)
            return
        remove_file(self.path(note.key))
        self._delete_note(note)

    def clear(self, key: ShardKey) -> bool:
        """Remove what a killed fetch of a shard has left; return whether somebody fetches it now.

        Raises:
            StorageError: if it cannot be removed.
        """
        note = self._known.get(key)
        if note is None:
            return False
        with locked_if_free(note.path) as is_held:
            if is_held or not note.path.exists():
                self._forget(note)
                return False
        return True

    def _forget(self, note: StreamNote) -> None:
        """Remove the note of a shard that is not here, and the temporary files of a fetch that was killed."""
        for path in self._temporary(note.key):
            # A pull may be fetching the shard at this moment.
            abandoned_bytes_of(path, delete=True)
        self._delete_note(note)

    def _delete_note(self, note: StreamNote) -> None:
        self._known.announce()
        remove_file(note.path)
        self._known.discard(note)

    def _temporary(self, key: ShardKey) -> list[Path]:
        return list(self.path(key).parent.glob(f"{TEMPORARY_PREFIX}*-{key[1]}.arrow"))


def _write_time(descriptor: int, changed: float | None) -> None:
    """Write a note, which may have been written before."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, spelled_json(sealed({"changed": changed})), 0)
