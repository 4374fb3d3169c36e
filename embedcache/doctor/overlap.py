"""Overlap with evaluation sets: which of their texts stand in corpora and views, as they are or folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.doctor.evaluation_sets import EvaluationSet, fold
from embedcache.doctor.population import DistinctRows
from embedcache.doctor.progress import Meter
from embedcache.doctor.scan import EXAMPLES
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray, key_array


@dataclass(frozen=True)
class Overlap:
    """What of one evaluation set stands in the corpora.

    Attributes:
        name: the set's file.
        columns: its columns of texts.
        training: whether it is there to be trained on anyway.
        texts: its distinct texts.
        exact: how many of them stand in the corpora letter by letter.
        folded: how many do without case, blanks and punctuation; those of ``exact`` among them.
        skipped: its values that are no text.
        examples: texts of the corpora that were met.
    """

    name: str
    columns: tuple[str, ...]
    training: bool
    texts: int
    exact: int
    folded: int
    skipped: int
    examples: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the set's texts that stand in the corpora, folded."""
        return self.folded / self.texts if self.texts else 0.0

    def to_json(self) -> dict[str, object]:
        """Return all figures as a JSON object."""
        return {
            "set": self.name,
            "columns": list(self.columns),
            "training": self.training,
            "texts": self.texts,
            "exact": self.exact,
            "folded": self.folded,
            "share": round(self.share, 6),
            "skipped": self.skipped,
            "examples": list(self.examples),
        }


class _Met:
    """Which of many keys were met, and in which row for the first time."""

    def __init__(self, keys: Sequence[KeyArray]) -> None:
        self._index = KeyIndex(np.concatenate(keys))
        self._first_row = np.full(sum(map(len, keys)), -1, dtype=np.int64)

    def meet(self, keys: KeyArray, rows: NDArray[np.int64]) -> None:
        places = self._index.locate(keys)
        new = np.flatnonzero(places >= 0)
        new = new[self._first_row[places[new]] < 0][::-1]  # written backwards, so that the first row stays
        self._first_row[places[new]] = rows[new]

    def rows(self, keys: KeyArray) -> NDArray[np.int64]:
        """Return the row each of ``keys`` was first met in, -1 where it was not."""
        return self._first_row[self._index.locate(keys)]


def find_overlap(
    corpora: Sequence[DistinctRows], sets: Sequence[EvaluationSet], meter: Meter
) -> list[Overlap]:
    """Return what of each of ``sets`` stands in ``corpora``, of which some may be views.

    Memory grows with the sets alone.
    """
    exact, folded = _Met([one.keys for one in sets]), _Met([one.folded for one in sets])
    starts = np.cumsum([0, *(len(rows.corpus) for rows in corpora)])
    for start, distinct in zip(starts.tolist(), corpora, strict=False):
        for rows, keys in distinct.blocks():
            exact.meet(keys, start + rows)
            folded.meet(key_array(map(fold, distinct.corpus.texts(rows))), start + rows)
            meter.step(len(rows))

    def text(row: int) -> str:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return corpora[number].corpus.texts(np.array([row - starts[number]]))[0]

    found = []
    for one in sets:
        letter_by_letter, met = exact.rows(one.keys) >= 0, folded.rows(one.folded)
        examples = np.unique(met[met >= 0])[:EXAMPLES].tolist()
        found.append(
            Overlap(
                name=one.name,
                columns=one.columns,
                training=one.training,
                texts=len(one.keys),
                exact=int(np.count_nonzero(letter_by_letter)),
                folded=int(np.count_nonzero(met >= 0)),
                skipped=one.skipped,
                examples=tuple(map(text, examples)),
            )
        )
    return found
