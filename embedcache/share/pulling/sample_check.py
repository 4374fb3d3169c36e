"""What became of comparing vectors that came from a remote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from embedcache.check.verify.deep import BAD

NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class SampleCheck:
    """What became of comparing a teacher's vectors with the live teacher.

    Attributes:
        teacher: its name.
        verdict: ``ok``, ``look`` or ``bad`` as ``embedcache verify --deep`` gives it, or ``not compared``.
        sampled: texts encoded; 0 where an earlier pull has found the vectors bad, or they contradict those
            that were here before.
        told: why it was not compared, or what the verdict means.
    """

    teacher: str
    verdict: str
    sampled: int
    told: str


def bad_samples(checks: Iterable[SampleCheck]) -> list[SampleCheck]:
    """Return the checks that found another teacher's vectors."""
    return [check for check in checks if check.verdict == BAD]


def apart_from_bad(checks: Sequence[SampleCheck]) -> list[SampleCheck]:
    """Return the checks of one teacher; where one is bad, good ones say that they are of the rest."""
    if not bad_samples(checks):
        return list(checks)
    return [
        replace(check, told=f"but for the bad shards, {check.told}")
        if check.verdict not in (BAD, NOT_COMPARED)
        else check
        for check in checks
    ]
