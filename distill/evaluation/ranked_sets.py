"""Reading of the sets of ``retrieval`` and ``entities``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.files import (
    count_repeats,
    describe_skipped,
    find_file,
    find_stems,
    parse_score,
    read_rows,
    skipped_note,
)
from distill.evaluation.task import NotThereError


@dataclass(frozen=True)
class RankedSet:
    """Queries, documents, and the relevance of documents to queries.

    Attributes:
        name: the set's name.
        queries, documents: the texts.
        relevant: rows of each query's relevant documents, at least one.
        gains: relevance of each of them, above zero.
        skipped: reason -> rows left out.
        left_out: row of a query -> row of the document that is not ranked for it.
        remarks: notes on how the set was made.
    """

    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    relevant: Sequence[NDArray[np.int64]]
    gains: Sequence[NDArray[np.float64]]
    skipped: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[int, int] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def notes(self) -> list[str]:
        """Return notes on the set's size, rows left out and repeated texts."""
        lines = [f"{len(self.queries)} queries, {len(self.documents)} documents", *self.remarks]
        if repeats := count_repeats((text,) for text in self.documents):
            lines.append(f"{repeats} documents with the text of an earlier one: tied")
        if repeats := count_repeats((text,) for text in self.queries):
            lines.append(f"{repeats} queries with the text of an earlier one: each counts")
        return [*(f"{self.name}: {line}" for line in lines), *skipped_note(self.name, self.skipped)]


def read_retrieval(data: Path) -> list[RankedSet]:
    """Read the sets of ``retrieval`` in a folder.

    Raises:
        NotThereError: if there is none.
        DataError: if a set lacks a file, or cannot be read.
    """
    parts = {
        part: {stem.removesuffix(part) for stem in find_stems(data, f"*{part}")}
        for part in ("_corpus", "_queries", "_qrels")
    }
    # Queries alone may be of another suite.
    names = sorted(parts["_corpus"] | (parts["_queries"] & parts["_qrels"]))
    sets = [_read_judged(data, name) for name in names]
    for stem in find_stems(data, "*_captions*"):
        if found := re.fullmatch(r".+_captions(\d+)", stem):
            captions = _read_captions(data, stem, int(found[1]))
            sets += [captions] if captions else []
    if not sets:
        raise NotThereError(
            f"{data} holds no retrieval set: NAME_corpus.tsv with NAME_queries.tsv and NAME_qrels.tsv, or "
            "NAME_captionsN.tsv with rows of the split test, each also .gz"
        )
    return sets


def _read_judged(data: Path, name: str) -> RankedSet:
    columns = {
        "corpus": ("doc_id", "text"),
        "queries": ("query_id", "text"),
        "qrels": ("query_id", "doc_id", "score"),
    }
    paths = {part: find_file(data, f"{name}_{part}") for part in columns}
    if lacking := [f"{name}_{part}.tsv" for part, path in paths.items() if path is None]:
        raise DataError(f"{data}: the retrieval set {name} lacks {', '.join(lacking)}; add the file")
    files = {part: read_rows(path, columns[part]) for part, path in paths.items() if path is not None}
    skipped = files["corpus"].skipped + files["queries"].skipped + files["qrels"].skipped
    documents = read_texts(files["corpus"].rows, "document", files["corpus"].path, skipped)
    queries = read_texts(files["queries"].rows, "query", files["queries"].path, skipped)
    judged: dict[str, dict[str, float]] = {}
    for query, document, cell in files["qrels"].rows:
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
    return build_set(name, files["qrels"].path, queries, documents, relevant, skipped, without_own=True)


def _read_captions(data: Path, stem: str, count: int) -> RankedSet | None:
    """Return the set of a file of captions; None if it has no row of a test split."""
    path = find_file(data, stem)
    if path is None or count < 2:
        raise DataError(f"{data / stem}.tsv: expected at least two captions for each image")
    file = read_rows(path, ("split", "image_index", *(f"caption{n}" for n in range(1, count + 1))))
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    relevant: dict[str, dict[str, float]] = {}
    for split, image, first, *others in file.rows:
        if not re.match(r"test\b|test_", split):
            continue
        group = f"{split}/{image}"
        if group in queries or not first.strip():
            file.skipped["repeated image" if group in queries else "image without a first caption"] += 1
            continue
        queries[group] = first
        filled = {f"{group}/{place}": text for place, text in enumerate(others, 2) if text.strip()}
        if len(filled) < len(others):
            file.skipped["empty caption"] += len(others) - len(filled)
        documents |= filled
        relevant[group] = dict.fromkeys(filled, 1.0)
    if not queries:
        if file.skipped:
            raise DataError(
                f"{path} holds no row of a test split (skipped: {describe_skipped(file.skipped)})"
            )
        return None
    return build_set(stem, path, queries, documents, relevant, file.skipped)


@dataclass(frozen=True)
class Catalogue:
    """Entities, and queries with the ids of their right entities.

    Attributes:
        entities: id -> text.
        queries: (id, text, splits, ids of entities) of all splits.
        skipped: reason -> rows left out.
        path: file of the queries.
    """

    entities: dict[str, str]
    queries: list[tuple[str, str, frozenset[str], tuple[str, ...]]]
    skipped: Counter[str]
    path: Path


def read_catalogues(data: Path) -> dict[str, Catalogue]:
    """Read the sets of ``entities`` in a folder, with the queries of all splits.

    Raises:
        NotThereError: if there is none.
        DataError: if a set lacks its catalogue, or cannot be read.
    """
    found = {}
    for stem in find_stems(data, "er_*_queries"):
        name = stem.removeprefix("er_").removesuffix("_queries")
        asked_in, entities_in = find_file(data, stem), find_file(data, f"er_{name}_entities")
        if asked_in is None or entities_in is None:
            raise DataError(f"{data} holds {stem}.tsv but not er_{name}_entities.tsv, its catalogue; add it")
        asked = read_rows(asked_in, ("split", "query_id", "text", "gold_entity_ids"))
        catalogue = read_rows(entities_in, ("entity_id", "text"))
        skipped = asked.skipped + catalogue.skipped
        queries = [
            (query, text, frozenset(_parts(splits)), tuple(_parts(ids)))
            for splits, query, text, ids in asked.rows
        ]
        entities = read_texts(catalogue.rows, "entity", entities_in, skipped)
        found[name] = Catalogue(entities, queries, skipped, asked_in)
    if not found:
        raise NotThereError(f"{data} holds no er_NAME_queries.tsv with er_NAME_entities.tsv, each also .gz")
    return found


def read_entities(data: Path) -> list[RankedSet]:
    """Read the sets of ``entities`` in a folder; errors as :func:`read_catalogues`."""
    sets = []
    for name, found in read_catalogues(data).items():
        tested = [query for query in found.queries if "test" in query[2]]
        asked = tested or found.queries
        skipped = Counter(found.skipped)
        queries = read_texts(((query, text) for query, text, _, _ in asked), "query", found.path, skipped)
        gold: dict[str, dict[str, float]] = {}
        for query, _, _, ids in asked:
            # A repeated query was counted; its first row is asked.
            gold.setdefault(query, dict.fromkeys(ids, 1.0))
        remarks = [] if tested else ["no query is of the split test, so all are asked"]
        if shared := sum(len(splits) > 1 for _, _, splits, _ in tested):
            remarks.append(f"{shared} of the queries are in other splits as well")
        sets.append(build_set(name, found.path, queries, found.entities, gold, skipped, remarks))
    return sets


def _parts(cell: str) -> list[str]:
    return list(dict.fromkeys(part for raw in cell.split(",") if (part := raw.strip())))


def read_texts(
    rows: Iterable[tuple[str, ...]], what: str, path: Path, skipped: Counter[str]
) -> dict[str, str]:
    """Return id -> text; empty texts and repeated ids are counted in ``skipped``.

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
    """Return a set of the queries that have a relevant document among ``documents``.

    Args:
        name: the set's name.
        path: file for messages.
        queries, documents: id -> text.
        judged: query's id -> relevant document's id -> relevance, above zero.
        skipped: rows left out so far; counted on.
        remarks: notes on the set.
        without_own: do not rank a document with the id of the query for it, unless it is judged relevant.

    Raises:
        DataError: if no query is left.
    """
    row_of = {document: row for row, document in enumerate(documents)}
    kept: list[str] = []
    relevant, gains = [], []
    left_out: dict[int, int] = {}
    for query, text in queries.items():
        wanted = judged.get(query, {})
        there = {document: gain for document, gain in wanted.items() if document in row_of}
        if not there:
            absent = "whose relevant documents are all absent" if wanted else "without a relevant document"
            skipped[f"query {absent}"] += 1
            continue
        if len(there) < len(wanted):
            skipped["relevant document that is absent"] += len(wanted) - len(there)
        if without_own and query in row_of and query not in there:
            left_out[len(kept)] = row_of[query]
        kept.append(text)
        relevant.append(np.array([row_of[document] for document in there], np.int64))
        gains.append(np.array(list(there.values()), np.float64))
    if not kept:
        raise DataError(
            f"{path} holds no query with a relevant document (skipped: {describe_skipped(skipped)}); "
            "check that the ids of the files match"
        )
    if left_out:
        remarks = [*remarks, f"{len(left_out)} queries have a document of their own id: not ranked for them"]
    return RankedSet(name, kept, list(documents.values()), relevant, gains, dict(skipped), left_out, remarks)
