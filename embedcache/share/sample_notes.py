"""What is known of vectors that came from a remote: which were compared, and what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from embedcache.cache import Cache
from embedcache.own_notes import OwnNotes
from embedcache.store.containers.base import is_shard_name

_NAME = "sampled.json"


@dataclass(frozen=True)
class SampleNote:
    """What is known of one teacher's vectors from one remote.

    Attributes:
        verdict: of the last comparison; empty where there was none, or what it found bad is gone.
        known: the shards that need no comparison: they are the cache's own, were compared, or are to be kept.
        bad: the shards that came when a comparison found other vectors than the teacher's among them.
        pending: whether a pull has begun of which something may still have to be compared: then every shard
            that is not known does.
        told: tells the state of the cache of which it was last said that texts to compare by are not there.
    """

    verdict: str = ""
    known: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()
    pending: bool = False
    told: str = ""

    @classmethod
    def from_json(cls, value: object) -> SampleNote:
        """Read a note back.

        Raises:
            ValueError: if it is none.
        """
        match value:
            case {
                "verdict": str(verdict),
                "known": known,
                "bad": bad,
                "pending": bool(pending),
                "told": str(told),
            }:
                return cls(verdict, _names(known), _names(bad), pending, told)
        raise ValueError("no note on what was compared of a teacher")

    def to_json(self) -> dict[str, object]:
        """Return the note as a JSON object."""
        return {
            "verdict": self.verdict,
            "known": sorted(self.known),
            "bad": sorted(self.bad),
            "pending": self.pending,
            "told": self.told,
        }


class SampleNotes(OwnNotes[SampleNote]):
    """The notes on the teachers of one remote, by contract id.

    They count only where they were written, so that nobody's cache comes with vectors that are believed: of
    what no note is found, all that the remote has is compared.

    Args:
        cache: the cache.
        remote_id: the id of the remote.
    """

    def __init__(self, cache: Cache, remote_id: str) -> None:
        super().__init__(cache, f"{remote_id}/{_NAME}", SampleNote.from_json, SampleNote.to_json)

    def of(self, contract_id: str) -> SampleNote:
        """Return what is known of a teacher, also since this object was made."""
        self._take_in()
        return self.get(contract_id) or SampleNote()


def all_sample_notes(cache: Cache) -> Iterator[SampleNotes]:
    """Yield the notes on all remotes that a cache has some on."""
    for path in sorted((cache.derived_folder / "remotes").glob(f"*/{_NAME}")):
        yield SampleNotes(cache, path.parent.name)


def _names(value: object) -> frozenset[str]:
    if isinstance(value, list) and all(isinstance(name, str) and is_shard_name(name) for name in value):
        return frozenset(value)
    raise ValueError("no names of shards")
