"""Queries whose relevant documents are to be found among many: what ``retrieval`` and ``entities`` share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.old_ranking import Standing, rank_relevant
from distill.evaluation.scores import MeanOutcomes, SetScore, SetScores
from distill.evaluation.tasks import Subject
from distill.evaluation.testset import count_repeats, describe_skipped

Measure = Callable[[Standing], float]
"""One query's figure, 0..1."""


@dataclass(frozen=True)
class RankedSet:
    """Queries, the documents they are asked of, and which of these are relevant to which.

    Attributes:
        name: the set's name.
        queries: (q) texts.
        documents: (n) texts.
        relevant: for each query the rows of its relevant documents, at least one, none twice.
        gains: for each query how relevant each of them is, above zero.
        skipped: rows left out, by reason.
        remarks: what else a reader must know of the set.
        left_out: row of a query -> row of the document that is not ranked for it.
        files: where all of it is from.
    """

    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    relevant: Sequence[NDArray[np.int64]]
    gains: Sequence[NDArray[np.float64]]
    skipped: Mapping[str, int]
    remarks: Sequence[str] = ()
    left_out: Mapping[int, int] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def notes(self) -> list[str]:
        """Return one line on the set's size, and one each for what was left out or may mislead."""
        notes = [f"{self.name}: {len(self.queries)} queries, {len(self.documents)} documents"]
        notes += [f"{self.name}: {remark}" for remark in self.remarks]
        if self.skipped:
            count, reasons = sum(self.skipped.values()), describe_skipped(Counter(self.skipped))
            notes.append(f"{self.name}: {count} rows skipped ({reasons})")
        for what, texts in (("queries", self.queries), ("documents", self.documents)):
            if repeats := count_repeats(texts):
                tied = "; such documents are tied" if what == "documents" else ", each counted"
                notes.append(f"{self.name}: {repeats} {what} with the text of an earlier one{tied}")
        return notes


@dataclass(frozen=True)
class RankedTask:
    """The sets that are there, and what is measured of them.

    Attributes:
        data: the folder.
        sets: the sets.
        measures: name -> measure; the first one is the figure of a set.
        remarks: what is to be known of files that hold no set.
    """

    data: Path
    sets: Sequence[RankedSet]
    measures: Mapping[str, Measure]
    remarks: Sequence[str] = ()
    needs_teacher: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sets."""
        return tuple(dict.fromkeys(path for one in self.sets for path in one.files))

    @property
    def facts(self) -> dict[str, object]:
        """The folder, and the number of queries and documents of each set."""
        sizes = {
            one.name: {"queries": len(one.queries), "documents": len(one.documents)} for one in self.sets
        }
        return {"data": str(self.data), "sets": sizes}

    @property
    def notes(self) -> list[str]:
        """Sizes of the sets, rows skipped, repeated texts."""
        return [*self.remarks, *(note for one in self.sets for note in one.notes())]

    def texts(self) -> list[str]:
        """Return all queries and documents."""
        return [text for one in self.sets for text in (*one.queries, *one.documents)]

    def test_items(self) -> dict[str, list[tuple[str, ...]]]:
        """Return queries and documents, by set."""
        return {one.name: [(text,) for text in (*one.queries, *one.documents)] for one in self.sets}

    def score(self, subject: Subject, notes: list[str]) -> SetScores:
        """Score every set."""
        return SetScores({one.name: self._score_set(one, subject) for one in self.sets}, len(self.sets))

    def _score_set(self, one: RankedSet, subject: Subject) -> SetScore:
        pick = subject.encoded.pick
        standings = rank_relevant(
            pick(one.queries), pick(one.documents), one.relevant, one.gains, one.left_out
        )
        values = {
            name: np.array([measure(standing) for standing in standings])
            for name, measure in self.measures.items()
        }
        (headline, figure), *others = values.items()
        return SetScore(
            label=one.name,
            measure=headline,
            value=100 * float(figure.mean()),
            items=len(figure),
            skipped=sum(one.skipped.values()),
            others={name: 100 * float(value.mean()) for name, value in others},
            outcomes=MeanOutcomes(figure, dict(others)),
        )


def read_texts(
    rows: Iterable[tuple[str, ...]], what: str, path: Path, skipped: Counter[str]
) -> dict[str, str]:
    """Return id -> text of (id, text) rows; empty texts and repeated ids are counted in ``skipped``.

    Raises:
        DataError: if no row is left.
    """
    texts: dict[str, str] = {}
    for name, text in rows:
        if not text.strip():
            skipped[f"empty {what}"] += 1
        elif name in texts:
            skipped[f"repeated id of a {what}"] += 1
        else:
            texts[name] = text
    if not texts:
        raise DataError(f"{path} holds no {what} (skipped: {describe_skipped(skipped)})")
    return texts


def build_set(
    name: str,
    path: Path,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judged: Mapping[str, Mapping[str, float]],
    skipped: Counter[str],
    remarks: Sequence[str] = (),
    *,
    without_own: bool = False,
) -> RankedSet:
    """Put a set together: queries without a relevant document among ``documents`` are left out and counted.

    Args:
        name: the set's name.
        path: the file to name where nothing can be scored.
        queries: query's id -> text.
        documents: document's id -> text.
        judged: query's id -> relevant document's id -> how relevant it is, above zero.
        skipped: rows left out so far, by reason; counted on.
        remarks: what else a reader must know.
        without_own: leave a document with the id of the query out of that query's ranking, unless it is
            judged relevant to it.

    Raises:
        DataError: if no query is left.
    """
    row_of = {document: row for row, document in enumerate(documents)}
    kept: list[str] = []
    relevant: list[NDArray[np.int64]] = []
    gains: list[NDArray[np.float64]] = []
    left_out: dict[int, int] = {}
    own_relevant = 0
    for query, text in queries.items():
        wanted = judged.get(query, {})
        there = {document: gain for document, gain in wanted.items() if document in row_of}
        if not wanted:
            skipped["query without a relevant document"] += 1
        elif not there:
            skipped["query whose relevant documents are all absent"] += 1
        else:
            # A query of which only some are absent is scored on the others.
            if lost := len(wanted) - len(there):
                skipped["relevant document that is absent"] += lost
            if without_own and query in there:
                own_relevant += 1
            elif without_own and query in row_of:
                left_out[len(kept)] = row_of[query]
            kept.append(text)
            relevant.append(np.array([row_of[document] for document in there], dtype=np.int64))
            gains.append(np.array(list(there.values()), dtype=np.float64))
    if not kept:
        raise DataError(
            f"{path} holds no query with a relevant document (skipped: {describe_skipped(skipped)}); "
            "check that the files' ids belong together"
        )
    told = list(remarks)
    if left_out:
        told.append(f"{len(left_out)} queries have a document of their own id: not ranked for them")
    if own_relevant:
        told.append(f"{own_relevant} queries have a document of their own id that is relevant: ranked")
    return RankedSet(name, kept, list(documents.values()), relevant, gains, dict(skipped), told, left_out)
