"""Nearest neighbours of held-out sentences, by teacher and student side by side (Table 12 of ConGen)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from distill.errors import DataError
from distill.evaluation.encoding import unit_rows
from distill.report.data import Examples, Neighbour, Query

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEIGHBOURS = 3
"""Neighbours shown of each sentence."""

_MOST_SENTENCES = 2000


def choose_sentences(texts: Sequence[str]) -> list[str]:
    """Return the distinct sentences that neighbours are looked for among, at most two thousand."""
    return list(dict.fromkeys(text for text in texts if text.strip()))[:_MOST_SENTENCES]


def make_examples(
    texts: Sequence[str],
    vectors: Mapping[str, NDArray[np.float32]],
    teacher: str | None,
    *,
    queries: int,
    source: str,
    seed: int = 0,
) -> Examples:
    """Return the nearest neighbours of some sentences, drawn by seed and not chosen.

    Args:
        texts: n distinct sentences.
        vectors: key of each model -> (n, d) vectors.
        teacher: key of the teacher, whose neighbours the others' are held against; None for no teacher.
        queries: how many sentences to draw.
        source: where the sentences come from.
        seed: draws them.

    Raises:
        DataError: if there are no two sentences, or vectors of another number than sentences.
    """
    count = len(texts)
    if count < 2:
        raise DataError(f"{source}: {count} sentences have no neighbours, expected at least 2")
    if wrong := [key for key, rows in vectors.items() if len(rows) != count]:
        raise DataError(f"vectors of {', '.join(wrong)} are not as many as the {count} sentences")
    chosen = np.random.default_rng(seed).choice(count, min(queries, count), replace=False)
    units = {key: unit_rows(rows) for key, rows in vectors.items()}
    near = {key: [_nearest(unit, row) for row in chosen.tolist()] for key, unit in units.items()}
    found = []
    for place, row in enumerate(chosen.tolist()):
        reference = set() if teacher is None else {one for one, _ in near[teacher][place]}

        def shown(places: Sequence[tuple[int, float]], reference: set[int] = reference) -> list[Neighbour]:
            return [Neighbour(texts[one], round(cosine, 4), one in reference) for one, cosine in places]

        found.append(Query(texts[row], {key: shown(rows[place]) for key, rows in near.items()}))
    return Examples(count, source, found)


def _nearest(unit: NDArray[np.float64], row: int) -> list[tuple[int, float]]:
    cosines = unit @ unit[row]
    cosines[row] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(NEIGHBOURS, len(unit) - 1)]
    return [(int(one), float(cosines[one])) for one in order]
