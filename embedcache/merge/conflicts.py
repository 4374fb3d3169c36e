"""Conflicts between caches: what they do not agree on, whose word it is, and who is to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from embedcache.errors import InputError

CORPUS, VIEW, NAME, TABLE, VECTORS = "corpus", "view", "teacher name", "token embeddings", "vectors"
"""The kinds of conflict."""

_SHOWN = 3
_TEXT_SHOWN = 60


@dataclass(frozen=True)
class Side:
    """What one cache has of something that is disputed.

    Attributes:
        cache: the cache, as it was given.
        holds: what it has, in words.
        provenance: how its vectors were computed; empty where it is not about vectors.
    """

    cache: str
    holds: str
    provenance: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Conflict:
    """Something that caches do not agree on.

    Attributes:
        kind: :data:`CORPUS`, :data:`VIEW`, :data:`NAME`, :data:`TABLE` or :data:`VECTORS`.
        what: its name.
        sides: what each cache has; the first one wins.
        answer: what becomes of it; empty where nobody has decided.
        keys: of vectors, how many keys.
        worst_cosine: of vectors, the lowest cosine between the two of a key.
        expected_cosine: what noise explains; of the pair that is farthest beyond it.
        examples: of vectors, some of the texts; a key in hexadecimal where no corpus has its text.
    """

    kind: str
    what: str
    sides: tuple[Side, ...]
    answer: str = ""
    keys: int = 0
    worst_cosine: float | None = None
    expected_cosine: float | None = None
    examples: tuple[str, ...] = ()

    @property
    def can_keep_both(self) -> bool:
        """Whether both sides can be kept, under two names."""
        return self.kind in (CORPUS, VIEW, NAME)

    def describe(self) -> str:
        """Return the conflict in one line, without its answer."""
        sides = "; ".join(f"{side.cache} has {side.holds}" for side in self.sides)
        if self.kind != VECTORS:
            return f"{self.kind} {self.what!r}: {sides}"
        examples = ", ".join(repr(text[:_TEXT_SHOWN]) for text in self.examples)
        return (
            f"vectors of {self.what}: {self.keys:,} texts with two, worst cosine {self.worst_cosine:.6f} "
            f"where {self.expected_cosine:.6f} is noise ({sides}), such as {examples}"
        )

    def to_json(self) -> dict[str, object]:
        """Return the conflict as a JSON object."""
        return asdict(self)


class MergeConflictError(InputError):
    """Caches do not agree, and nobody has said whose word counts; nothing was written.

    Args:
        conflicts: those without an answer.

    Attributes:
        conflicts: the same.
    """

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        self.conflicts = tuple(conflicts)
        shown = " | ".join(conflict.describe() for conflict in self.conflicts[:_SHOWN])
        more = f" | and {len(self.conflicts) - _SHOWN} more" if len(self.conflicts) > _SHOWN else ""
        remedies = ["say whose word counts with --prefer first, last or one of the caches"]
        if any(conflict.can_keep_both for conflict in self.conflicts):
            remedies.append("keep both under two names with --keep-both")
        super().__init__(
            f"nothing was written, the caches do not agree: {shown}{more}. --dry-run lists all of it; "
            + ", or ".join(remedies)
        )
