"""Retrieval and entity resolution: exact search by cosine for the relevant documents of queries.

``retrieval`` reads ``NAME_queries``, ``NAME_corpus`` and ``NAME_qrels`` (above zero is relevant, higher is
more so), and captions ``NAME_captionsN``: of the test split the first caption of an image is a query, the
others of all images are the documents. A document with the id of the query is not ranked for it, as in BEIR,
unless it is judged relevant. ``entities`` reads ``er_NAME_queries`` and the catalogue ``er_NAME_entities``;
queries of the split ``test`` are asked if there are any.

Documents whose cosines differ by less than float32 resolves are tied, and every measure is its expected value
over all orders of the tied documents (McSherry and Najork, "Computing Information Retrieval Performance
Measures Efficiently in the Presence of Tied Scores", ECIR 2008). So nothing depends on the order of lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.catalogues import read_catalogues
from distill.evaluation.files import (
    count_repeats,
    describe_skipped,
    find_files,
    items_digest,
    parse_score,
    read_rows,
    read_texts,
    skipped_note,
    texts_by_id,
)
from distill.evaluation.models import Encode, Vectors
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Encoded, Items, NotThereError, SuiteFile, SuiteOptions, register_suite
from distill.vectors import unit

SMALLEST_DIFFERENCE = 1e-6
"""Cosines of float32 vectors are exact to about 1e-7: nearer ones are tied."""

_BLOCK = 64_000_000  # cosines held at once: 256 MB


@dataclass(frozen=True)
class RankedSet:
    """Queries, documents, and the relevance of documents to queries.

    Attributes:
        name: the set's name.
        queries, documents: the texts.
        gains: row of each query's relevant documents, at least one -> relevance, above zero.
        left_out: row of a query -> row of the document that is not ranked for it.
        skipped: reason -> rows left out.
        remarks: notes on how the set was made.
    """

    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    gains: Sequence[Mapping[int, float]]
    left_out: Mapping[int, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def notes(self) -> list[str]:
        """Return notes on the set's size, rows left out and repeated texts."""
        lines = [f"{len(self.queries)} queries, {len(self.documents)} documents", *self.remarks]
        if self.left_out:
            lines.append(f"{len(self.left_out)} queries have a document of their own id: not ranked for them")
        if repeats := count_repeats((text,) for text in self.documents):
            lines.append(f"{repeats} documents with the text of an earlier one: tied")
        if repeats := count_repeats((text,) for text in self.queries):
            lines.append(f"{repeats} queries with the text of an earlier one: each counts")
        return [*(f"{self.name}: {line}" for line in lines), *skipped_note(self.name, self.skipped)]


@dataclass(frozen=True)
class Standing:
    """Places of the relevant documents of one query.

    Attributes:
        better: (r,) number of documents that are more similar than each relevant one.
        tied: (r,) number that are as similar as it, itself among them.
        first: relevant documents as similar as the most similar one of them.
        gains: (r,) relevance of each, above zero.
    """

    better: NDArray[np.int64]
    tied: NDArray[np.int64]
    first: int
    gains: NDArray[np.float64]

    def hit(self, k: int) -> float:
        """Return the probability that a relevant document is among the first ``k``."""
        better, tied = self._best()
        missed = 1.0
        for place in range(min(max(k - better, 0), tied)):
            missed *= max(tied - self.first - place, 0) / (tied - place)
        return 1 - missed

    def recall(self, k: int) -> float:
        """Return the expected share of the relevant documents that are among the first ``k``."""
        return float(np.clip((k - self.better) / self.tied, 0, 1).mean())

    def reciprocal_rank(self) -> float:
        """Return the expected reciprocal rank of the first relevant document."""
        better, tied = self._best()
        place = np.arange(1, tied - self.first + 2)
        # Of the tied documents, the one at ``place`` is relevant although none before it was.
        hazard = self.first / (tied - place + 1)
        until = np.concatenate([[1.0], np.cumprod(1 - hazard[:-1])])
        return float((until * hazard / (better + place)).sum())

    def ndcg(self, k: int) -> float:
        """Return the expected nDCG at ``k``: linear gains and discount ``1 / log2(rank + 1)``."""
        discounts = 1 / np.log2(np.arange(2, k + 2))
        up_to = np.concatenate([[0.0], np.cumsum(discounts)])
        ends = up_to[np.minimum(self.better + self.tied, k)], up_to[np.minimum(self.better, k)]
        best = np.sort(self.gains)[::-1][:k]
        gained = (self.gains * (ends[0] - ends[1]) / self.tied).sum()
        return float(gained / (best * discounts[: len(best)]).sum())

    def _best(self) -> tuple[int, int]:
        row = int(self.better.argmin())
        return int(self.better[row]), int(self.tied[row])


Measures = Mapping[str, Callable[[Standing], float]]

RETRIEVAL: Measures = {
    "ndcg@10": partial(Standing.ndcg, k=10),
    "recall@1": partial(Standing.recall, k=1),
    "recall@5": partial(Standing.recall, k=5),
    "recall@10": partial(Standing.recall, k=10),
    "success@1": partial(Standing.hit, k=1),
    "mrr": Standing.reciprocal_rank,
}
"""Measures of ``retrieval``; the first is a set's figure."""

ENTITIES: Measures = {
    "recall@1": partial(Standing.hit, k=1),
    "recall@5": partial(Standing.hit, k=5),
    "recall@10": partial(Standing.hit, k=10),
    "mrr": Standing.reciprocal_rank,
}
"""Measures of ``entities``; the first is a set's figure. Any of the right entities counts."""


def rank(one: RankedSet, queries: Vectors, documents: Vectors) -> list[Standing]:
    """Rank all documents, (n, d) vectors, for each query of (q, d) vectors; none is zero."""
    # In float32, unlike pairs' cosines: a catalogue may hold millions of rows.
    asked, found = unit(queries), unit(documents)
    standings = []
    rows = max(1, _BLOCK // len(found))
    for start in range(0, len(asked), rows):
        for query, cosines in enumerate(asked[start : start + rows] @ found.T, start):
            if query in one.left_out:
                cosines[one.left_out[query]] = -np.inf
            own = cosines[list(one.gains[query])]
            better = np.array([np.count_nonzero(cosines > bound) for bound in own + SMALLEST_DIFFERENCE])
            not_worse = np.array([np.count_nonzero(cosines >= bound) for bound in own - SMALLEST_DIFFERENCE])
            first = int(np.count_nonzero(own >= own.max() - np.float32(SMALLEST_DIFFERENCE)))
            gains = np.array(list(one.gains[query].values()), np.float64)
            standings.append(Standing(better, not_worse - better, first, gains))
    return standings


def read_retrieval(data: Path) -> list[RankedSet]:
    """Read the sets of ``retrieval`` in a folder.

    Raises:
        NotThereError: if there is none.
        DataError: if a set lacks a file, or cannot be read.
    """
    parts = {
        part: {stem.removesuffix(part): path for stem, path in find_files(data, f"*{part}").items()}
        for part in ("_corpus", "_queries", "_qrels")
    }
    # Queries alone may be of another suite.
    names = sorted(parts["_corpus"].keys() | (parts["_queries"].keys() & parts["_qrels"].keys()))
    if lacking := [f"{name}{part}.tsv" for name in names for part in parts if name not in parts[part]]:
        raise DataError(f"{data}: a retrieval set lacks {', '.join(lacking)}; add the file")
    sets = [_read_judged(name, *(paths[name] for paths in parts.values())) for name in names]
    for stem, path in find_files(data, "*_captions*").items():
        if found := re.fullmatch(r".+_captions([2-9]\d*)", stem):
            sets += _read_captions(stem, path, int(found[1]))
    if not sets:
        raise NotThereError(
            f"{data} holds no retrieval set: NAME_corpus.tsv with NAME_queries.tsv and NAME_qrels.tsv, or "
            "NAME_captionsN.tsv with rows of the split test, each also .gz"
        )
    return sets


def _read_judged(name: str, corpus: Path, asked: Path, qrels: Path) -> RankedSet:
    rows, skipped = read_rows(qrels, ("query_id", "doc_id", "score"))
    documents = read_texts(corpus, "doc_id", skipped)
    queries = read_texts(asked, "query_id", skipped)
    judged: dict[str, dict[str, float]] = {}
    for query, document, cell in rows:
        scores = judged.setdefault(query, {})
        if not np.isfinite(score := parse_score(cell)):
            skipped["no usable score"] += 1
        elif query not in queries:
            skipped["judgement of a query that is absent"] += 1
        elif document in scores:
            skipped["repeated judgement"] += 1
        else:
            scores[document] = score
    relevant = {query: {one: gain for one, gain in of.items() if gain > 0} for query, of in judged.items()}
    return _build_set(name, qrels, queries, documents, relevant, skipped, without_own=True)


def _read_captions(stem: str, path: Path, count: int) -> list[RankedSet]:
    """Return the set of a file of captions; none if it has no row of a test split."""
    rows, skipped = read_rows(path, ("split", "image_index", *(f"caption{n}" for n in range(1, count + 1))))
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    relevant: dict[str, dict[str, float]] = {}
    for split, image, first, *others in rows:
        if not re.match(r"test\b|test_", split):
            continue
        group = f"{split}/{image}"
        if group in queries or not first.strip():
            skipped["repeated image, or without a first caption"] += 1
            continue
        queries[group] = first
        filled = {f"{group}/{place}": text for place, text in enumerate(others) if text.strip()}
        if len(filled) < len(others):
            skipped["empty caption"] += len(others) - len(filled)
        documents |= filled
        relevant[group] = dict.fromkeys(filled, 1.0)
    return [_build_set(stem, path, queries, documents, relevant, skipped)] if queries else []


def read_entities(data: Path) -> list[RankedSet]:
    """Read the sets of ``entities`` in a folder; errors as ``read_catalogues``."""
    sets = []
    for name, found in read_catalogues(data).items():
        tested = [query for query in found.queries if "test" in query[2]]
        asked = tested or found.queries
        skipped = Counter(found.skipped)
        queries = texts_by_id(((query, text) for query, text, _, _ in asked), "query", found.path, skipped)
        gold: dict[str, dict[str, float]] = {}
        for query, _, _, ids in asked:
            # A repeated query was counted; its first row is asked.
            gold.setdefault(query, dict.fromkeys(ids, 1.0))
        remarks = [] if tested else ["no query is of the split test, so all are asked"]
        if shared := sum(len(splits) > 1 for _, _, splits, _ in tested):
            remarks.append(f"{shared} of the queries are in other splits as well")
        sets.append(_build_set(name, found.path, queries, found.entities, gold, skipped, remarks))
    return sets


def _build_set(
    name: str,
    path: Path,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    relevant: Mapping[str, Mapping[str, float]],
    skipped: Counter[str],
    remarks: Sequence[str] = (),
    *,
    without_own: bool = False,
) -> RankedSet:
    """Return a set of the queries that have a relevant document among ``documents``.

    Args:
        name: the set's name.
        path: file for messages.
        queries, documents: id -> text.
        relevant: query's id -> relevant document's id -> relevance, above zero.
        skipped: rows left out so far; counted on.
        remarks: notes on the set.
        without_own: do not rank a document with the id of the query for it, unless it is judged relevant.

    Raises:
        DataError: if no query is left.
    """
    row_of = {document: row for row, document in enumerate(documents)}
    kept: list[str] = []
    gains: list[dict[int, float]] = []
    left_out: dict[int, int] = {}
    for query, text in queries.items():
        wanted = relevant.get(query, {})
        present = {row_of[document]: gain for document, gain in wanted.items() if document in row_of}
        if not present:
            skipped["query without a relevant document that is there"] += 1
            continue
        if len(present) < len(wanted):
            skipped["relevant document that is absent"] += len(wanted) - len(present)
        if without_own and query in row_of and row_of[query] not in present:
            left_out[len(kept)] = row_of[query]
        kept.append(text)
        gains.append(present)
    if not kept:
        raise DataError(
            f"{path} holds no query with a relevant document (skipped: {describe_skipped(skipped)}); "
            "check that the ids of the files match"
        )
    return RankedSet(name, kept, list(documents.values()), gains, left_out, dict(skipped), remarks)


def _items(sets: Sequence[RankedSet]) -> Items:
    return {one.name: [(text,) for text in (*one.queries, *one.documents)] for one in sets}


@register_suite(
    "retrieval",
    summary="documents that answer a query; captions of one image",
    files=[
        SuiteFile("NAME_queries", ("query_id", "text")),
        SuiteFile("NAME_corpus", ("doc_id", "text")),
        SuiteFile("NAME_qrels", ("query_id", "doc_id", "score")),
        SuiteFile("NAME_captionsN", ("split", "image_index", "caption1", "...", "captionN")),
    ],
    items=lambda data, options: _items(read_retrieval(data)),
)
def retrieval(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score nDCG@10, recall, success@1 and MRR."""
    return _score(encode, data, read_retrieval(data), RETRIEVAL)


@register_suite(
    "entities",
    summary="entity resolution: queries against a catalogue",
    files=[
        SuiteFile("er_NAME_queries", ("split", "query_id", "text", "gold_entity_ids")),
        SuiteFile("er_NAME_entities", ("entity_id", "text")),
    ],
    items=lambda data, options: _items(read_entities(data)),
)
def entities(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score Recall@1, @5, @10 and MRR."""
    return _score(encode, data, read_entities(data), ENTITIES)


def _score(encode: Encode, data: Path, sets: Sequence[RankedSet], measures: Measures) -> SuiteResult:
    figures, sentences = {}, 0
    for one in sets:
        vectors = Encoded(encode, (*one.queries, *one.documents))
        sentences += len(vectors)
        standings = rank(one, vectors(one.queries), vectors(one.documents))
        values = {
            name: np.array([100 * measure(standing) for standing in standings])
            for name, measure in measures.items()
        }
        (main, outcomes), *others = values.items()
        figures[one.name] = Figure(
            value=float(outcomes.mean()),
            measure=main,
            items=len(outcomes),
            others={name: float(value.mean()) for name, value in others},
            outcomes=Outcomes(outcomes, texts=items_digest([one.queries, one.documents])),
            label=one.name,
            skipped=sum(one.skipped.values()),
        )
    notes = tuple(note for one in sets for note in one.notes())
    return SuiteResult(figures, notes=notes, settings={"data": str(data), "sentences": sentences})
