"""The notes of shards that a run may delete from a mirror, and how a pull makes such shards stay."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.fsio import explain_os_error, read_regular
from embedcache.keys import KeyArray
from embedcache.locked_folder import locked_folder
from embedcache.reuse import shard_places

STREAM = "stream"
"""The folder of the notes, which is locked to make room and to take it."""

_STATE = "state"
_STATE_BYTES = 32
_NOTE = re.compile(r"([0-9a-f]{64})-([0-9]{1,18})-([0-9a-f]{32})\.json")


@dataclass(frozen=True)
class StreamNote:
    """The note of a shard that was fetched for a run, or is being fetched. Its file name says all of this.

    Attributes:
        folder: the folder of the notes of all teachers.
        contract_id: the teacher.
        name: the name of the shard.
        bytes: its size.
        remote_id: stands for the remote that it comes from.
    """

    folder: Path
    contract_id: str
    name: str
    bytes: int
    remote_id: str

    @property
    def key(self) -> tuple[str, str]:
        """Contract id and name of the shard."""
        return self.contract_id, self.name

    @property
    def path(self) -> Path:
        """The file of the note."""
        return self.folder / self.contract_id / f"{self.name}-{self.bytes}-{self.remote_id}.json"


def read_notes(folder: Path, contract_id: str) -> Iterator[StreamNote]:
    """Yield the notes of a teacher's shards; files of other names are none. No file is opened.

    Args:
        folder: the folder of the notes of all teachers.
        contract_id: the teacher.

    Raises:
        StorageError: if the folder cannot be read.
    """
    try:
        names = [path.name for path in (folder / contract_id).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise explain_os_error(error, folder / contract_id) from error
    for match in filter(None, map(_NOTE.fullmatch, names)):
        yield StreamNote(folder, contract_id, match[1], int(match[2]), match[3])


def announce_change(folder: Path) -> str:
    """Tell all processes that keep the notes in memory to read them again.

    It is called before notes are written or deleted, while the folder is locked: whoever locks the folder
    next reads the notes even if this process is killed between the two.

    Args:
        folder: the folder of the notes of all teachers.

    Returns:
        The new state of the folder.

    Raises:
        StorageError: if the state cannot be written.
    """
    state = uuid.uuid4().hex
    path = folder / _STATE
    try:
        # Not durable: no process keeps notes in memory once the machine has started anew.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            os.write(descriptor, state.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise explain_os_error(error, path) from error
    return state


def read_state(folder: Path) -> str | None:
    """Return the state of the folder of the notes, which is another after every change; None if unknown."""
    try:
        return read_regular(folder / _STATE, most=_STATE_BYTES).decode("ascii", "replace")
    except (OSError, ValueError):
        return None


def streamed_shards(cache: Cache, contract_id: str) -> frozenset[str]:
    """Return the names of a teacher's shards that were fetched for runs, and may be deleted."""
    return frozenset(note.name for note in read_notes(cache.derived_folder / STREAM, contract_id))


def keep_shards(cache: Cache, contract: Contract, names: Iterable[str]) -> None:
    """Make those shards of a teacher stay that are here: no run deletes them from now on.

    A shard that a run is fetching is not here yet: call this again once it is.

    Raises:
        StorageError: if the notes cannot be read or deleted.
    """
    folder, wanted = cache.derived_folder / STREAM, frozenset(names)
    if not streamed_shards(cache, contract.id) & wanted:
        return
    shards = cache.teacher_folder(contract) / "shards"
    # Shards are deleted under this lock only, so a shard that is here now stays.
    with locked_folder(folder):
        announce_change(folder)
        for note in read_notes(folder, contract.id):
            if note.name in wanted and (shards / f"{note.name}.arrow").is_file():
                note.path.unlink(missing_ok=True)


def keep_rows(cache: Cache, contracts: Mapping[str, Contract], keys: KeyArray) -> None:
    """Make the shards stay that the vectors of ``keys`` are read from; shards that are gone count as missing.

    Args:
        cache: the cache.
        contracts: the teachers, by contract id.
        keys: of the texts.

    Raises:
        StorageError: as :func:`keep_shards`.
    """
    for contract_id, contract in contracts.items():
        if streamed_shards(cache, contract_id):
            store = cache.store(contract)
            positions = store.locate(keys)
            numbers, _ = shard_places(store, positions[positions >= 0])
            keep_shards(cache, contract, {store.shards[number].name for number in set(numbers.tolist())})
