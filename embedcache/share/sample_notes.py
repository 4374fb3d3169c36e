"""What is known of vectors that came from a remote: whether they were compared, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from embedcache.cache import Cache
from embedcache.errors import StorageError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.share.remote import Remote
from embedcache.store.containers.base import is_shard_name

# Names of all shards of all teachers.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class SampleNote:
    """What is known of one teacher's vectors from one remote.

    Attributes:
        verdict: of the last comparison; empty where there was none.
        before: the shards that were here before those came that are still to be compared; None: none are.
        bad: the shards that came when a comparison found other vectors than the teacher's among them.
    """

    verdict: str = ""
    before: tuple[str, ...] | None = None
    bad: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: object) -> SampleNote:
        """Read a note back; of what is none nothing is known."""
        match value:
            case {"verdict": str(verdict), "before": before, "bad": bad}:
                return cls(verdict, None if before is None else _names(before), _names(bad))
        return cls()


class SampleNotes:
    """The notes on the teachers of one remote, in a cache's derived files.

    Args:
        cache: the cache.
        remote: the remote.
    """

    def __init__(self, cache: Cache, remote: Remote) -> None:
        self._path = cache.derived_folder / "remotes" / remote.id / "sampled.json"
        self._known = self._read()

    def get(self, contract_id: str) -> SampleNote:
        """Return what is known of a teacher."""
        return self._known.get(contract_id, SampleNote())

    def put(self, notes: Mapping[str, SampleNote]) -> None:
        """Remember what is known of some teachers; where that cannot be written, as long as this object."""
        fresh = {one: note for one, note in notes.items() if self.get(one) != note}
        if not fresh:
            return
        # What other processes have noted of other teachers meanwhile is kept.
        self._known |= self._read() | fresh
        with suppress(StorageError):
            write_sealed_json(self._path, {one: asdict(note) for one, note in self._known.items()})

    def _read(self) -> dict[str, SampleNote]:
        try:
            value: dict[str, Any] = read_sealed_json(self._path, _MOST_BYTES)
        except (OSError, ValueError):
            return {}
        return {one: SampleNote.from_json(said) for one, said in value.items()}


def _names(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    return tuple(name for name in names if isinstance(name, str) and is_shard_name(name))
