"""The notes of shards that a run may delete from a mirror, and how a pull makes such shards stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.keys import KeyArray
from embedcache.locked_folder import locked_folder
from embedcache.reuse import shard_places

STREAM = "stream"
"""The folder of the notes, which is locked to make room and to take it."""


@dataclass(frozen=True)
class StreamNote:
    """The note of a shard that was fetched for a run, or is being fetched.

    Attributes:
        path: the note.
        bytes: size of the shard.
        used: when it was wanted last.
    """

    path: Path
    bytes: int
    used: float

    @property
    def key(self) -> tuple[str, str]:
        """Contract id and name of the shard."""
        return self.path.parent.name, self.path.stem


def streamed_shards(cache: Cache, contract_id: str) -> frozenset[str]:
    """Return the names of a teacher's shards that were fetched for runs, and may be deleted."""
    return frozenset(path.stem for path in (cache.derived_folder / STREAM / contract_id).glob("*.json"))


def keep_shards(cache: Cache, contract: Contract, names: Iterable[str]) -> None:
    """Make those shards of a teacher stay that are here: no run deletes them from now on.

    A shard that a run is fetching is not here yet: call this again once it is.
    """
    folder = cache.derived_folder / STREAM
    streamed = streamed_shards(cache, contract.id) & set(names)
    if not streamed:
        return
    shards = cache.teacher_folder(contract) / "shards"
    # Shards are deleted under this lock only, so a shard that is here now stays.
    with locked_folder(folder):
        for name in sorted(streamed):
            if (shards / f"{name}.arrow").is_file():
                (folder / contract.id / f"{name}.json").unlink(missing_ok=True)


def keep_rows(cache: Cache, contracts: Mapping[str, Contract], keys: KeyArray) -> None:
    """Make the shards stay that the vectors of ``keys`` are read from; shards that are gone count as missing.

    Args:
        cache: the cache.
        contracts: the teachers, by contract id.
        keys: of the texts.
    """
    for contract_id, contract in contracts.items():
        if streamed_shards(cache, contract_id):
            store = cache.store(contract)
            positions = store.locate(keys)
            numbers, _ = shard_places(store, positions[positions >= 0])
            keep_shards(cache, contract, {store.shards[number].name for number in set(numbers.tolist())})
