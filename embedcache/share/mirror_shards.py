"""Shards of a remote that are here for a while: fetched when they are wanted, deleted where room is needed.

A note in ``derived/stream`` of the mirror stands for each shard that was fetched here. Only what has a note
is ever deleted, and only while the remote has it: a shard that was built or pulled here may be the only copy.
A note is written before its shard is fetched, so what is there together never exceeds the limit; its time is
when the shard was last wanted. Whoever fetches a shard holds its note's lock, and whoever makes room that of
the folder, so any number of processes can work on one mirror of a machine. A shard that one process deletes
stays readable for another that has it mapped.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import (
    CorruptCacheError,
    EmbedCacheError,
    InputError,
    StorageError,
)
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    explain_os_error,
    make_directory,
    read_sealed_json,
    remove_file,
    sealed,
    spelled_json,
)
from embedcache.locked_folder import locked_folder
from embedcache.share.arrive import Arrivals
from embedcache.share.chosen_shards import ChosenShards
from embedcache.share.manifest import SharedFile
from embedcache.share.mirror_notes import STREAM
from embedcache.share.remote import Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.transfer import JOBS, Stopped
from embedcache.share.wanted import Wanted
from embedcache.store import FolderShards, ShardStore

_GLANCE_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 600.0


@dataclass(frozen=True)
class _Note:
    """A shard that was fetched here, or is about to be."""

    path: Path
    bytes: int
    used: float

    @property
    def key(self) -> tuple[str, str]:
        """Contract id and name of the shard."""
        return self.path.parent.name, self.path.stem


class MirrorShards:
    """The shards of a mirror.

    Args:
        source: the remote.
        cache: the mirror.
        contracts: the teachers, by contract id.
        listed: their shards on the remote: contract id -> name -> file.
        arrivals: fetches files into the mirror.
        limit: bytes that fetched shards may have together; None: any number.
        jobs: transfers at once.
    """

    def __init__(
        self,
        source: Remote,
        cache: Cache,
        contracts: Mapping[str, Contract],
        listed: Mapping[str, Mapping[str, SharedFile]],
        arrivals: Arrivals,
        limit: int | None,
        jobs: int = JOBS,
    ) -> None:
        self._source, self._cache, self._contracts, self._listed = source, cache, contracts, listed
        self._arrivals, self._limit = arrivals, limit
        self._folder = make_directory(cache.derived_folder / STREAM)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="stream")
        self._lock = threading.Lock()
        self._wanted: dict[str, set[str]] = {}
        self._pending: set[tuple[str, str]] = set()
        self._containers = {
            contract_id: FolderShards(cache.teacher_folder(contract) / "shards")
            for contract_id, contract in contracts.items()
        }
        for contract in contracts.values():
            if cache.container(contract).kind != "arrow":
                raise InputError(
                    f"{cache.folder} keeps vectors of {contract.id[:12]} in LMDB, and a mirror keeps "
                    "shards as files: give another --mirror"
                )

    @property
    def is_limited(self) -> bool:
        """Whether shards are deleted to make room for others."""
        return self._limit is not None

    def own(self, contract_id: str) -> ShardStore | None:
        """Return the store of a teacher's shards that are here and not on the remote; None without any."""
        container, listed = self._containers[contract_id], self._listed[contract_id]
        names = [name for name in container.names() if name not in listed]
        return self._store(contract_id, names) if names else None

    def want(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards of a teacher fetched in the background, in this order; others may be deleted first.

        What cannot be fetched now is told of when somebody opens it.
        """
        with self._lock:
            self._wanted[contract_id] = set(names)
        for name in names:
            self._touch(contract_id, name)
        self.hurry(contract_id, names)

    def hurry(self, contract_id: str, names: Sequence[str]) -> None:
        """Have shards fetched in the background beside those that are wanted already."""
        for name in names:
            key = (contract_id, name)
            with self._lock:
                if key in self._pending or self._path(*key).is_file() or self._source.stop.is_set():
                    continue
                self._pending.add(key)
            with suppress(RuntimeError):  # somebody has closed it meanwhile
                self._pool.submit(self._fetch_ahead, key)

    def open(self, contract_id: str, name: str) -> ShardStore:
        """Return a store of one shard, fetched where it is not here; once it is open nobody can take it away.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if there is no room for it.
            CorruptCacheError: if one that was not fetched here is damaged.
        """
        key = (contract_id, name)
        since = time.monotonic()
        while True:
            if not self._obtain(key, urgent=True):
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise StorageError(
                        f"cannot write {self._path(*key)}: other runs on this mirror keep all of the "
                        f"{self._limit or 0:,} bytes busy; give one of them another --mirror"
                    )
                time.sleep(_GLANCE_SECONDS)
                continue
            try:
                return self._store(contract_id, [name])
            except (CorruptCacheError, FileNotFoundError):
                # Deleted by another process since, or damaged: then it is fetched once more.
                if self._path(*key).is_file() and not self._give_up(key):
                    raise
                if time.monotonic() - since > _LONGEST_WAIT_SECONDS:
                    raise

    def close(self) -> None:
        """Fetch nothing more, and put on record what was found right."""
        self._source.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._arrivals.finish()

    def _store(self, contract_id: str, names: Sequence[str]) -> ShardStore:
        contract = self._contracts[contract_id]
        codebooks = self._cache.teacher_folder(contract) / "codebooks"
        return ShardStore(ChosenShards(self._containers[contract_id], names), contract, codebooks=codebooks)

    def _path(self, contract_id: str, name: str) -> Path:
        return self._containers[contract_id].path(name)

    def _note(self, contract_id: str, name: str) -> Path:
        return self._folder / contract_id / f"{name}.json"

    def _touch(self, contract_id: str, name: str) -> None:
        # Not by the clock of the file system, which stands still for some milliseconds at a time.
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self._note(contract_id, name), ns=(now, now))

    def _fetch_ahead(self, key: tuple[str, str]) -> None:
        try:
            if not self._source.stop.is_set():
                self._obtain(key, urgent=False)
        except (EmbedCacheError, Stopped):
            # Whoever opens the shard tries again, and tells of it.
            return
        finally:
            with self._lock:
                self._pending.discard(key)

    def _obtain(self, key: tuple[str, str], *, urgent: bool) -> bool:
        """Bring a shard here; return whether it is."""
        note = self._note(*key)
        file = self._listed[key[0]][key[1]]
        while not self._source.stop.is_set():
            with locked_folder(self._folder):
                if self._path(*key).is_file():
                    self._touch(*key)
                    return True
                self._clear(key)
                is_fetched_elsewhere = note.exists()
                if not is_fetched_elsewhere and not self._make_room(file.bytes, urgent=urgent):
                    return False
                held = None if is_fetched_elsewhere else self._reserve(note, file)
            if held is not None:
                self._fetch(file, note, held)
                return True
            if not urgent:
                return False
            time.sleep(_GLANCE_SECONDS)
        raise Stopped

    def _fetch(self, file: SharedFile, note: Path, held: int) -> None:
        try:
            self._arrivals.fetch(Wanted(file, file.path))
        except BaseException:
            with locked_folder(self._folder):
                note.unlink(missing_ok=True)
            raise
        finally:
            os.close(held)

    def _reserve(self, note: Path, file: SharedFile) -> int:
        """Write the note of a shard that is about to be fetched, and return it locked."""
        make_directory(note.parent)
        try:
            descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, spelled_json(sealed({"bytes": file.bytes, "remote": self._source.id})))
            os.fsync(descriptor)
        except OSError as error:
            raise explain_os_error(error, note) from error
        return descriptor

    def _make_room(self, size: int, *, urgent: bool) -> bool:
        """Delete shards until one of ``size`` bytes fits; those that are wanted last, and only if urgent."""
        if self._limit is None:
            return True
        notes = self._notes()
        used = sum(note.bytes for note in notes)
        with self._lock:
            wanted = {(contract, name) for contract, names in self._wanted.items() for name in names}
        for note in sorted(notes, key=lambda note: (note.key in wanted, note.used)):
            if used + size <= self._limit or (note.key in wanted and not urgent):
                break
            if self._evict(note):
                used -= note.bytes
        return used + size <= self._limit

    def _notes(self) -> list[_Note]:
        """Return the notes of what was fetched from this remote."""
        found = map(self._read_note, self._folder.glob("*/*.json"))
        return [note for note in found if note is not None]

    def _read_note(self, path: Path) -> _Note | None:
        try:
            value = read_sealed_json(path)
            if value["remote"] == self._source.id and path.parent.name in self._listed:
                return _Note(path, int(value["bytes"]), path.stat().st_mtime)
        except (OSError, ValueError, KeyError, TypeError):
            # Of a process that was killed as it wrote it, before it had fetched anything.
            pass
        return None

    def _evict(self, note: _Note) -> bool:
        """Delete a shard that was fetched here and that the remote has; return whether it is gone."""
        held = _locked(note.path)
        if held is None:
            return False
        try:
            if self._path(*note.key).is_file():
                if not self._is_on_remote(note):
                    return False
                remove_file(self._path(*note.key))
            self._forget(note.key)
            return True
        finally:
            os.close(held)

    def _is_on_remote(self, note: _Note) -> bool:
        contract_id, name = note.key
        if name not in self._listed[contract_id]:
            return False
        path = object_path(name)
        try:
            stat = retrying(
                f"look up {path}",
                self._source.where,
                lambda: self._source.place.stat(path),
                self._source.stop,
            )
        except EmbedCacheError:
            return False
        return stat is not None and stat.bytes in (None, note.bytes)

    def _give_up(self, key: tuple[str, str]) -> bool:
        """Delete a damaged shard that was fetched here; return whether it was."""
        with locked_folder(self._folder):
            notes = [note for note in self._notes() if note.key == key]
            return bool(notes) and self._evict(notes[0])

    def _clear(self, key: tuple[str, str]) -> None:
        """Remove what is left of a fetch that was killed: then nobody holds the note."""
        held = _locked(self._note(*key))
        if held is not None:
            self._forget(key)
            os.close(held)

    def _forget(self, key: tuple[str, str]) -> None:
        """Remove the note of a shard that is gone, and what a fetch that was killed has left of it."""
        for path in self._path(*key).parent.glob(f"{TEMPORARY_PREFIX}*-{key[1]}.arrow"):
            path.unlink(missing_ok=True)
        self._note(*key).unlink(missing_ok=True)


def _locked(note: Path) -> int | None:
    """Return a note that is there, open and locked; None where there is none or somebody holds it."""
    try:
        descriptor = os.open(note, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain_os_error(error, note) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
