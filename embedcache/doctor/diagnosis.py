"""What an examination found: figures, and a verdict on each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from embedcache.doctor.geometry import Geometry
from embedcache.doctor.histogram import Histogram
from embedcache.doctor.overlap import Overlap
from embedcache.doctor.scan import Scan

Grade: TypeAlias = Literal["ok", "look", "bad"]


@dataclass(frozen=True)
class Verdict:
    """One line of a diagnosis.

    Attributes:
        name: what was measured.
        figure: the measurement, for people.
        value: the measurement as one number; None where there is none.
        grade: ``ok``, ``look`` (worth a look before training) or ``bad`` (mend it before training).
        advice: why it matters and what to do.
        examples: texts it was seen on; those of equal or nearly equal vectors stand together.
    """

    name: str
    figure: str
    value: float | None
    grade: Grade
    advice: str
    examples: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Coverage:
    """How much of a corpus has vectors.

    Attributes:
        corpus: its name.
        rows: its rows.
        distinct: its distinct texts.
        missing: distinct texts without a vector.
        examples: some of those.
    """

    corpus: str
    rows: int
    distinct: int
    missing: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What an examination found.

    Attributes:
        cache: the cache's folder.
        teacher: name of the teacher.
        contract_id: sha256 of its contract.
        max_length: tokens after which it cuts a text; 0 means never.
        normalize: whether its vectors should be of length one.
        coverage: one entry a corpus.
        scan: figures of all vectors.
        geometry: figures of a sample; None where fewer than two vectors are usable.
        overlaps: one entry an evaluation set.
        unread: file -> why it was not read, of the folders of evaluation sets.
        lengths: texts by their tokens, where they are known.
        verdicts: a judgement of each figure.
    """

    cache: str
    teacher: str
    contract_id: str
    max_length: int
    normalize: bool
    coverage: tuple[Coverage, ...]
    scan: Scan
    geometry: Geometry | None
    overlaps: tuple[Overlap, ...]
    unread: dict[str, str]
    lengths: Histogram
    verdicts: tuple[Verdict, ...]

    @property
    def worst(self) -> Grade:
        """The worst grade of all verdicts."""
        grades = {verdict.grade for verdict in self.verdicts}
        return "bad" if "bad" in grades else "look" if "look" in grades else "ok"

    def to_json(self) -> dict[str, object]:
        """Return everything as a JSON object; a figure that nothing was measured for is null."""
        norms = self.scan.norms
        return {
            "cache": self.cache,
            "teacher": self.teacher,
            "contract": self.contract_id,
            "max_length": self.max_length,
            "worst": self.worst,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "coverage": [asdict(one) for one in self.coverage],
            "vectors": {
                "looked_at": self.scan.vectors,
                "non_finite": self.scan.non_finite.count,
                "zero": self.scan.zero.count,
                "norms": None if norms is None else asdict(norms),
                "identical": {
                    "vectors": self.scan.identical.vectors,
                    "groups": self.scan.identical.groups,
                    "largest": self.scan.identical.largest,
                },
                "truncated": self.scan.truncated,
                "lengths": self.lengths.to_json(),
                "lengths_unknown": int(self.scan.tokens[0]),
            },
            "sample": None if self.geometry is None else self.geometry.to_json(),
            "overlap": [one.to_json() for one in self.overlaps],
            "unread": self.unread,
        }
