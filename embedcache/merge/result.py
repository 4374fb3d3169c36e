"""What a merge did, or would do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.merge.conflicts import Conflict
from embedcache.merge.corpora import TakenCorpus
from embedcache.merge.shards import Written
from embedcache.merge.teachers import TakenTeacher


@dataclass(frozen=True)
class MergedTeacher:
    """A teacher of the merged cache.

    Attributes:
        names: its names.
        contract_id: sha256 of its contract.
        caches: which caches have vectors of it, the winner first.
        rows: rows that are taken; a key that stands in several shards counts in each.
        same: keys that a second cache has with the same vector.
        near: keys that a second cache has with a vector that is the same but for noise.
        worst_near: the lowest cosine among these.
        coarser: rows left behind because another cache has them in a finer codec.
        unread: rows left behind that were never read: another vector of a key, in another shard.
        lost: keys that lost against another cache's vector.
        shards: what became of the shards; None of a dry run.
    """

    names: tuple[str, ...]
    contract_id: str
    caches: tuple[str, ...]
    rows: int
    same: int
    near: int
    worst_near: float
    coarser: int
    unread: int
    lost: int
    shards: Written | None

    @classmethod
    def of(cls, taken: TakenTeacher, shards: Written | None) -> MergedTeacher:
        """Return what became of a teacher."""
        weighed = taken.weighed
        return cls(
            tuple(sorted(taken.names)),
            taken.contract.id,
            tuple(source.label for source, store in taken.holders if store.shards),
            sum(one.rows for one in weighed.taken),
            weighed.same,
            weighed.near,
            weighed.worst_near,
            weighed.coarser,
            weighed.unread,
            sum(dispute.keys for dispute in weighed.disputes),
            shards,
        )


@dataclass(frozen=True)
class MergedCorpus:
    """A corpus of the merged cache: its name, rows, digest and views, and which cache it is of."""

    name: str
    rows: int
    digest: str
    views: tuple[str, ...]
    cache: str

    @classmethod
    def of(cls, taken: TakenCorpus) -> MergedCorpus:
        """Return what became of a corpus."""
        views = tuple(sorted(view.name for view in taken.views))
        return cls(taken.name, len(taken.corpus), taken.corpus.info.digest, views, taken.source.label)


@dataclass(frozen=True)
class MergeResult:
    """What a merge did, or would do.

    Attributes:
        into: folder of the merged cache.
        caches: the caches that it is made of; ``into`` among them where it was there.
        corpora: its corpora.
        teachers: its teachers.
        conflicts: what the caches did not agree on, and what became of it.
        told: what else there is to know, a line each.
        files: files and shards written, with the digest of each taken.
        bytes: their size.
        seconds: how long it took.
        written: False for a dry run.
    """

    into: Path
    caches: tuple[str, ...]
    corpora: tuple[MergedCorpus, ...]
    teachers: tuple[MergedTeacher, ...]
    conflicts: tuple[Conflict, ...]
    told: tuple[str, ...]
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    written: bool = False

    @property
    def undecided(self) -> tuple[Conflict, ...]:
        """The conflicts without an answer; only a dry run can have any."""
        return tuple(conflict for conflict in self.conflicts if not conflict.answer)

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {**asdict(self), "into": str(self.into)}
