"""Histograms: counts between edges, kept small enough for JSON, a terminal and a plot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 40


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges.

    Attributes:
        edges: n + 1 rising values; a bin holds what is at least its left edge and below its right one, the
            last bin also what equals its right edge.
        counts: n counts.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        """Return ``edges`` and ``counts``."""
        return {"edges": [float(f"{edge:.6g}") for edge in self.edges], "counts": list(self.counts)}


def histogram(values: NDArray[np.floating], *, narrowest: float = 1e-6) -> Histogram:
    """Return the histogram of ``values``, shape (n,), finite, in :data:`BINS` bins of equal width.

    Args:
        values: at least one.
        narrowest: the range is widened to this, so that rounding is not spread over the whole width.
    """
    low, high = float(values.min()), float(values.max())
    # Around large values the smallest step between two numbers is larger than any fixed width.
    width = max(narrowest, 1e-3 * max(abs(low), abs(high)), high - low)
    middle = (low + high) / 2
    counts, edges = np.histogram(
        values.astype(np.float64), bins=BINS, range=(middle - width / 2, middle + width / 2)
    )
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))


def histogram_of_counts(counts: NDArray[np.int64]) -> Histogram:
    """Return the histogram of whole numbers given as ``counts[number]``, in at most :data:`BINS` bins."""
    filled = np.flatnonzero(counts)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, 0)
    step = -(-(last + 1 - first) // BINS)
    starts = np.arange(first, last + 1, step)
    sums = np.add.reduceat(counts[first : last + 1], starts - first)
    edges = [*starts.tolist(), int(starts[-1]) + step]
    return Histogram(tuple(map(float, edges)), tuple(sums.tolist()))
