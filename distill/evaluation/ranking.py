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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.files import (
    items_digest,
    require_folder,
)
from distill.evaluation.models import Encode
from distill.evaluation.ranked_sets import RankedSet, read_entities, read_retrieval
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Items, SuiteFile, SuiteOptions, register_suite
from distill.vectors import unit

SMALLEST_DIFFERENCE = 1e-6
"""Cosines of float32 vectors are exact to about 1e-7: nearer ones are tied."""

_BLOCK = 64_000_000  # cosines held at once: 256 MB


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


def rank(one: RankedSet, queries: NDArray[np.float32], documents: NDArray[np.float32]) -> list[Standing]:
    """Rank all documents for each query.

    Args:
        one: the set.
        queries: (q, d) vectors, none zero.
        documents: (n, d) vectors, none zero.
    """
    # In float32, unlike pairs' cosines: a catalogue may hold millions of rows.
    asked, found = unit(queries), unit(documents)
    standings = []
    rows = max(1, _BLOCK // max(1, len(found)))
    for start in range(0, len(asked), rows):
        for query, cosines in enumerate(asked[start : start + rows] @ found.T, start):
            if query in one.left_out:
                cosines[one.left_out[query]] = -np.inf
            own = cosines[one.relevant[query]]
            above, below = own + SMALLEST_DIFFERENCE, own - SMALLEST_DIFFERENCE
            better = np.array([np.count_nonzero(cosines > bound) for bound in above], np.int64)
            not_worse = np.array([np.count_nonzero(cosines >= bound) for bound in below], np.int64)
            first = int(np.count_nonzero(own >= own.max() - np.float32(SMALLEST_DIFFERENCE)))
            standings.append(Standing(better, not_worse - better, first, one.gains[query]))
    return standings


@register_suite(
    "retrieval",
    summary="documents that answer a query; captions of one image",
    files=[
        SuiteFile("NAME_queries", ("query_id", "text"), ("NAME",)),
        SuiteFile("NAME_corpus", ("doc_id", "text"), ("NAME",)),
        SuiteFile("NAME_qrels", ("query_id", "doc_id", "score"), ("NAME",)),
        SuiteFile(
            "NAME_captionsN", ("split", "image_index", "caption1", "...", "captionN"), ("NAME_captionsN",)
        ),
    ],
    items=lambda data, options: _items(read_retrieval(require_folder(data, "retrieval"))),
)
def retrieval(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score nDCG@10, recall, success@1 and MRR."""
    return _score(encode, data, read_retrieval(require_folder(data, "retrieval")), RETRIEVAL)


@register_suite(
    "entities",
    summary="entity resolution: queries against a catalogue",
    files=[
        SuiteFile("er_NAME_queries", ("split", "query_id", "text", "gold_entity_ids"), ("NAME",)),
        SuiteFile("er_NAME_entities", ("entity_id", "text"), ("NAME",)),
    ],
    items=lambda data, options: _items(read_entities(require_folder(data, "entities"))),
)
def entities(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score Recall@1, @5, @10 and MRR."""
    return _score(encode, data, read_entities(require_folder(data, "entities")), ENTITIES)


def _items(sets: Sequence[RankedSet]) -> Items:
    return {one.name: [(text,) for text in (*one.queries, *one.documents)] for one in sets}


def _score(encode: Encode, data: Path, sets: Sequence[RankedSet], measures: Measures) -> SuiteResult:
    texts = list(dict.fromkeys(text for one in sets for text in (*one.queries, *one.documents)))
    vectors, row = encode(texts), {text: number for number, text in enumerate(texts)}
    figures = {}
    for one in sets:
        queries, documents = (vectors[[row[text] for text in side]] for side in (one.queries, one.documents))
        standings = rank(one, queries, documents)
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
            outcomes=Outcomes.of_values(outcomes, items_digest([one.queries, one.documents])),
            label=one.name,
            skipped=sum(one.skipped.values()),
        )
    notes = tuple(note for one in sets for note in one.notes())
    return SuiteResult(figures, notes=notes, settings={"data": str(data), "sentences": len(texts)})
