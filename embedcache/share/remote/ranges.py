"""Ranges of positions: how a manifest says which of its files are meant, in few bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges ``[first, end)``, sorted, with a gap between any two: so the same positions have one spelling."""


def ranges_of(positions: Iterable[int]) -> Ranges:
    """Return the ranges of positions.

    Args:
        positions: in ascending order.
    """
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return tuple(ranges)


def checked_ranges(value: object, count: int) -> Ranges:
    """Return the ranges that somebody's JSON gives.

    Args:
        value: what it says.
        count: how many positions there are.

    Raises:
        ValueError: if these are not ranges of them, or could be spelled otherwise.
    """
    ranges: list[tuple[int, int]] = []
    for pair in value if isinstance(value, list) else [None]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)):
            raise ValueError("it holds something else where ranges of its files belong")
        first, end = pair
        # The first may begin with the first position; later ones leave one out at least.
        if not (ranges[-1][1] < first if ranges else first >= 0) or not first < end <= count:
            raise ValueError(f"its ranges are not in order, or not of its {count:,} files")
        ranges.append((first, end))
    return tuple(ranges)
