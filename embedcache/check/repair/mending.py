"""What a repair works with: what it may do, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from embedcache.check.bench import Bench
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import FileSource
from embedcache.fsio import sealed, spelled_json
from embedcache.live import Computing

IDENTICAL = "identical"
RIGHT = "right, not identical"
TO_ENCODE = "to be encoded"
REMOVED = "removed"
MOVED = "moved"
NOT_REPAIRED = "not repaired"

_MOST_WRONG = 16


@dataclass(frozen=True)
class Mend:
    """What became of something damaged.

    Attributes:
        path: the file, relative to the cache.
        kind: what it is.
        outcome: ``identical`` to what it was before the damage; ``right, not identical``; ``removed``, for it
            is made anew when it is needed; ``moved``; ``to be encoded``, in a dry run; or ``not repaired``.
        detail: how, or what is needed.
        rows: rows encoded for it; in a dry run, how many would be at most.
    """

    path: str
    kind: str
    outcome: str
    detail: str
    rows: int = 0

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


def proves(data: bytes, value: Mapping[str, object]) -> bool:
    """Return whether the damaged content of a sealed file proves that it said ``value``.

    Either the seal of ``value`` is left of it, or it is nearly everything: another value would have another
    seal.
    """
    whole = spelled_json(sealed(value))
    wrong = sum(a != b for a, b in zip(data, whole, strict=False))
    return str(sealed(value)["sha256"]).encode() in data or (len(data) == len(whole) and wrong <= _MOST_WRONG)


@dataclass
class Mending:
    """A repair that is going on.

    Attributes:
        bench: the cache, and what was found sound in it.
        computing: how to run teachers.
        dry_run: write nothing and load no teacher.
        quarantine: move files away that embedcache does not know.
        sources: files to read damaged corpora from.
        options: how to read them.
        mends: what was done so far.
        rows_encoded: rows that were encoded so far.
    """

    bench: Bench
    computing: Computing = field(default_factory=Computing)
    dry_run: bool = False
    quarantine: bool = False
    sources: Sequence[FileSource] = ()
    options: ReadOptions = field(default_factory=ReadOptions)
    mends: list[Mend] = field(default_factory=list)
    rows_encoded: int = 0

    @property
    def folder(self) -> Path:
        """The cache."""
        return self.bench.folder

    def inside(self, path: Path) -> str:
        """Return a path relative to the cache, as findings name it."""
        return path.relative_to(self.folder).as_posix()

    def done(self, path: str, kind: str, outcome: str, detail: str, rows: int = 0) -> None:
        """Note what became of something damaged."""
        self.mends.append(Mend(path, kind, outcome, detail, rows))
