"""Retrieval: are the documents that a query asks for among the nearest?

Two layouts, both tab-separated with a header line and no quoting:

- ``NAME_queries.tsv`` (``query_id, text``), ``NAME_corpus.tsv`` (``doc_id, text``) and ``NAME_qrels.tsv``
  (``query_id, doc_id, score``; above zero is relevant, higher is more so);
- groups of captions ``NAME_captionsN.tsv`` (``split, image_index, caption1 ... captionN``): of the test split
  the first caption of an image is a query, the others of all images are the documents, and relevant are those
  of the same image.

A document whose id is the query's own is not ranked for it, as in BEIR ("ignore identical ids"): it is the
query itself, which some sets have among their documents. Where it is judged relevant it is ranked: nobody
judges a query by itself, so the two are numbered apart and their ids are the same by chance.

Figures, times 100, means over queries: nDCG at 10 (the set's figure), the share of the relevant documents
among the first 1, 5 and 10, ``success@1`` (is the first one relevant?), and the reciprocal rank of the first
relevant one. Ties: :mod:`distill.evaluation.old_ranking`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.old_ranking import Standing
from distill.evaluation.old_sts import parse_score
from distill.evaluation.ranked import Measure, RankedSet, RankedTask, build_set, read_texts
from distill.evaluation.tasks import NothingToScoreError, NotThereError, Request
from distill.evaluation.testset import describe_skipped, find_test_file, read_test_file, stems_of

MEASURES: dict[str, Measure] = {
    "ndcg@10": partial(Standing.ndcg, k=10),
    "recall@1": partial(Standing.recall, k=1),
    "recall@5": partial(Standing.recall, k=5),
    "recall@10": partial(Standing.recall, k=10),
    "success@1": partial(Standing.hit, k=1),
    "mrr": Standing.reciprocal_rank,
}
"""What is measured; the first one is a set's figure."""


def read(request: Request) -> RankedTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none.
        NothingToScoreError: if there are files of captions only, and none has a test split.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("retrieval")
    # Queries with judgements are a set that is not whole; queries alone may be another suite's.
    parts = {
        part: {stem.removesuffix(part) for stem in stems_of(folder, f"*{part}")}
        for part in ("_corpus", "_queries", "_qrels")
    }
    names = sorted(parts["_corpus"] | (parts["_queries"] & parts["_qrels"]))
    sets = [_read_judged(folder, name) for name in names]
    groups = [(stem, re.fullmatch(r".+_captions(\d+)", stem)) for stem in stems_of(folder, "*_captions*")]
    untested: list[str] = []
    for stem, found in groups:
        if found and (one := _read_captions(folder, stem, int(found[1]), untested)) is not None:
            sets.append(one)
    if untested and not sets:
        # Told when all files are read: none that is damaged may pass because of another.
        raise NothingToScoreError("; ".join(untested))
    if not sets:
        raise NotThereError(
            f"{folder} holds no retrieval set: looked for NAME_corpus.tsv with NAME_queries.tsv and "
            "NAME_qrels.tsv, and for NAME_captionsN.tsv, each also with .gz"
        )
    return RankedTask(folder, sets, MEASURES, [f"not scored: {line}" for line in untested])


def _read_judged(folder: Path, name: str) -> RankedSet:
    paths = {part: find_test_file(folder, f"{name}_{part}") for part in ("corpus", "queries", "qrels")}
    there = {part: path for part, path in paths.items() if path is not None}
    if len(there) < len(paths):
        lacking = ", ".join(f"{name}_{part}.tsv" for part in paths if part not in there)
        held = " and ".join(f"{name}_{part}.tsv" for part in there)
        raise DataError(f"{folder} holds {held} but not {lacking}, which belong to it; add them")
    corpus = read_test_file(there["corpus"], ("doc_id", "text"))
    asked = read_test_file(there["queries"], ("query_id", "text"))
    qrels = read_test_file(there["qrels"], ("query_id", "doc_id", "score"))
    skipped = corpus.skipped + asked.skipped + qrels.skipped
    documents = read_texts(corpus.rows, "document", corpus.path, skipped)
    queries = read_texts(asked.rows, "query", asked.path, skipped)
    judged: dict[str, dict[str, float]] = {}
    for query, document, cell in qrels.rows:
        score, fault = parse_score(cell)
        if not fault and query not in queries:
            fault = "judgement of a query that is absent"
        if not fault and document in judged.get(query, {}):
            fault = "repeated judgement"
        if fault:
            skipped[fault] += 1
        else:
            judged.setdefault(query, {})[document] = score
    relevant = {
        query: {document: score for document, score in scores.items() if score > 0}
        for query, scores in judged.items()
    }
    found = build_set(name, qrels.path, queries, documents, relevant, skipped, without_own=True)
    return replace(found, files=tuple(there.values()))


def _read_captions(folder: Path, stem: str, count: int, untested: list[str]) -> RankedSet | None:
    """Return the set of a file of captions; None, with a line in ``untested``, where it has no test split."""
    path = find_test_file(folder, stem)
    if path is None or count < 2:
        raise DataError(f"{folder / stem}.tsv: expected at least two captions for each image")
    columns = ("split", "image_index", *(f"caption{number}" for number in range(1, count + 1)))
    file = read_test_file(path, columns)
    skipped = file.skipped
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    relevant: dict[str, dict[str, float]] = {}
    splits: dict[str, None] = {}
    for split, image, first, *others in file.rows:
        if not re.match(r"test\b|test_", split):
            continue
        splits[split] = None
        group = f"{split}/{image}"
        if not first.strip():
            skipped["image without a first caption"] += 1
        elif group in queries:
            skipped["repeated image"] += 1
        else:
            queries[group] = first
            filled = {f"{group}/{place}": text for place, text in enumerate(others, 2) if text.strip()}
            skipped.update({"empty caption": len(others) - len(filled)} if len(filled) < len(others) else {})
            documents.update(filled)
            relevant[group] = dict.fromkeys(filled, 1.0)
    if not splits:
        told = f"{path} holds no row of a test split in {file.lines} rows; the split is to be called test"
        # Of a row that cannot be read nobody knows the split.
        if not file.rows or skipped:
            raise DataError(f"{told} (skipped: {describe_skipped(skipped)})")
        untested.append(told)
        return None
    remark = (
        f"of split {', '.join(splits)} the first caption of an image is a query, the others are documents"
    )
    return replace(build_set(stem, path, queries, documents, relevant, skipped, [remark]), files=(path,))
