"""Figures as people read them."""

from __future__ import annotations

from distill.evaluation.scores import Interval
from distill.evaluation.spread import Score

NOTHING = "–"  # noqa: RUF001 - what tables print where nothing is known
"""Stands where nothing is known."""


def figure(score: Score | None, digits: int = 2) -> str:
    """Return a mean and, of several runs, its deviation."""
    if score is None:
        return NOTHING
    return f"{score.mean:,.{digits}f}" + ("" if score.std is None else f" ± {score.std:,.{digits}f}")


def percent(score: Score | None) -> str:
    """Return a share in per cent."""
    return NOTHING if score is None else f"{figure(score)} %"


def interval(ends: Interval | None, digits: int = 2) -> str:
    """Return an interval."""
    return NOTHING if ends is None else f"[{ends[0]:,.{digits}f}, {ends[1]:,.{digits}f}]"


def with_interval(shown: str, ends: Interval | None, digits: int = 2) -> str:
    """Return a figure as it is shown, and its interval behind it where there is one."""
    return shown if ends is None else f"{shown} {interval(ends, digits)}"


def parameters(count: int | None) -> str:
    """Return a number of parameters in millions."""
    return NOTHING if count is None else f"{count / 1e6:.1f} M"


def megabytes(size: float | None) -> str:
    """Return a size in units of 10^6 bytes."""
    return NOTHING if size is None else f"{size:.1f}"


def duration(seconds: float) -> str:
    """Return a duration in the two largest units it fills."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
