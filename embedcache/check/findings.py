"""What a check of a cache finds, and how it says so."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from enum import Enum

DAMAGE = "damage"
NOTE = "note"


class Kind(str, Enum):
    """What a file of a cache is, by the place it lies in."""

    MARKER = "marker"
    CORPUS = "corpus description"
    PART = "corpus part"
    VIEW = "view description"
    VIEW_PART = "view part"
    RECIPE = "view recipe"
    CONTRACT = "contract"
    NAME = "teacher name"
    SHARD = "shard"
    STORE = "LMDB store"
    SEAL = "seal of an LMDB store"
    LOCK = "lock"
    CODEBOOK = "codebook"
    TABLE = "token embeddings"
    PROJECTION = "projection"
    INDEX = "index"
    TOKENS = "token arrays"
    DERIVED = "derived note"
    LEFTOVER = "unfinished write"
    QUARANTINED = "quarantined file"
    FOREIGN = "foreign file"
    SPECIAL = "link or device"


@dataclass(frozen=True, order=True)
class Finding:
    """Something about a file of a cache.

    Attributes:
        path: the file, relative to the cache; a shard inside an LMDB file is ``FILE#NAME``.
        kind: what the file is, one of the values of :class:`Kind`.
        severity: ``damage`` where something is lost or cannot be used, else ``note``.
        found: what was found, and what was expected.
        way_out: what to do.
    """

    path: str
    kind: str
    severity: str
    found: str
    way_out: str

    @property
    def is_damage(self) -> bool:
        """Whether something is lost or cannot be used."""
        return self.severity == DAMAGE

    @property
    def is_newer(self) -> bool:
        """Whether a newer embedcache wrote the file, or the corpus, teacher or cache it is part of."""
        return self.way_out == UPGRADE

    @property
    def unit(self) -> str:
        """What the file is part of: see :func:`unit_of`."""
        return unit_of(self.path)

    def to_json(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        return asdict(self)


Findings = Iterator[Finding]

REPAIR = "'embedcache repair' brings it back"
UPGRADE = "upgrade embedcache: a newer one wrote here"
PROJECTION_WAY_OUT = (
    "copy it back, or run 'distill project' again as the teacher's name file says; vectors are kept"
)
DERIVED_WAY_OUT = "'embedcache repair' removes it; it is made anew when it is needed"


def unit_of(path: str) -> str:
    """Return what a file is read with.

    That is ``corpora/NAME``, ``corpora/NAME/views/VIEW``, ``teachers/ID``, or for ``cache.json`` itself.
    """
    steps = path.split("/")
    return "/".join(steps[: 4 if steps[2:3] == ["views"] else 2])


def is_of(path: str, units: Collection[str]) -> bool:
    """Return whether a file is part of one of ``units``; a view is part of its corpus."""
    return "cache.json" in units or any(f"{path}/".startswith(f"{unit}/") for unit in units)


def damage(path: str, kind: Kind, found: str, way_out: str = REPAIR) -> Finding:
    """Return a finding of damage."""
    return Finding(printable(path), kind.value, DAMAGE, found, way_out)


def note(path: str, kind: Kind, found: str, way_out: str) -> Finding:
    """Return a finding that is no damage."""
    return Finding(printable(path), kind.value, NOTE, found, way_out)


def printable(name: str) -> str:
    """Return the name of a file as it can be shown: line breaks, control codes and stray bytes escaped."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    return printable(next(iter(str(error).splitlines()), "")) or type(error).__name__
