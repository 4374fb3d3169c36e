"""Entity resolution: does a query find its entity in a catalogue?

Reads ``er_NAME_queries.tsv`` (``split, query_id, text, gold_entity_ids``: ids of the right entities, with
commas between them) and ``er_NAME_entities.tsv`` (``entity_id, text``), tab-separated with a header line and
no quoting, each also with ``.gz``. Where any query is of the split ``test``, only those are asked; a query of
several splits (``test,train``) is one of them. The catalogue is always the whole one.

Figures, times 100: Recall@1 (the set's figure), @5 and @10, which are the share of queries for which *any*
of the right entities is among the first k, and the mean reciprocal rank. Ties:
:mod:`distill.evaluation.old_ranking`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.old_ranking import Standing
from distill.evaluation.ranked import Measure, RankedSet, RankedTask, build_set, read_texts
from distill.evaluation.tasks import NotThereError, Request
from distill.evaluation.testset import find_test_file, read_test_file, stems_of

MEASURES: dict[str, Measure] = {
    "recall@1": partial(Standing.hit, k=1),
    "recall@5": partial(Standing.hit, k=5),
    "recall@10": partial(Standing.hit, k=10),
    "mrr": Standing.reciprocal_rank,
}
"""What is measured; the first one is a set's figure."""


@dataclass(frozen=True)
class Query:
    """A query as its file has it.

    Attributes:
        name: its id.
        text: what is asked; may be empty.
        splits: the splits it is of.
        entities: ids of the right entities.
    """

    name: str
    text: str
    splits: frozenset[str]
    entities: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """A set as its two files have it.

    Attributes:
        entities: id -> text.
        queries: all queries, of whatever split.
        skipped: rows left out, by reason.
        files: that of the queries, that of the entities.
    """

    entities: dict[str, str]
    queries: list[Query]
    skipped: Counter[str]
    files: tuple[Path, Path]


def read(request: Request) -> RankedTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("entities")
    names = names_in(folder)
    return RankedTask(folder, [_read_set(folder, name) for name in names], MEASURES)


def names_in(folder: Path) -> list[str]:
    """Return the names of the sets in ``folder``, sorted.

    Raises:
        NotThereError: if there are none.
    """
    names = [stem.removesuffix("_queries").removeprefix("er_") for stem in stems_of(folder, "er_*_queries")]
    if not names:
        raise NotThereError(
            f"{folder} holds no catalogue with queries: looked for er_NAME_queries.tsv and "
            "er_NAME_entities.tsv, each also with .gz"
        )
    return names


def read_catalogue(folder: Path, name: str) -> Catalogue:
    """Read the entities and the queries of all splits of the set ``name``.

    Raises:
        DataError: if a file is missing, cannot be read or lacks a column, or there is no entity.
    """
    asked_in = find_test_file(folder, f"er_{name}_queries")
    entities_in = find_test_file(folder, f"er_{name}_entities")
    if asked_in is None or entities_in is None:
        raise DataError(
            f"{folder} holds er_{name}_queries.tsv but not er_{name}_entities.tsv, its catalogue; add it"
        )
    asked = read_test_file(asked_in, ("split", "query_id", "text", "gold_entity_ids"))
    catalogue = read_test_file(entities_in, ("entity_id", "text"))
    skipped = asked.skipped + catalogue.skipped
    entities = read_texts(catalogue.rows, "entity", entities_in, skipped)
    queries = [
        Query(query, text, frozenset(_parts(splits)), tuple(_parts(ids)))
        for splits, query, text, ids in asked.rows
    ]
    return Catalogue(entities, queries, skipped, (asked_in, entities_in))


def _parts(cell: str) -> list[str]:
    """Return what stands between commas, each once; nothing for an empty cell."""
    return list(dict.fromkeys(part for raw in cell.split(",") if (part := raw.strip())))


def _read_set(folder: Path, name: str) -> RankedSet:
    found = read_catalogue(folder, name)
    has_test = any("test" in query.splits for query in found.queries)
    asked = [query for query in found.queries if "test" in query.splits or not has_test]
    skipped = Counter(found.skipped)
    queries = read_texts(((query.name, query.text) for query in asked), "query", found.files[0], skipped)
    gold: dict[str, dict[str, float]] = {}
    for query in asked:
        # A repeated query was counted above; its first row is the one that is asked.
        gold.setdefault(query.name, dict.fromkeys(query.entities, 1.0))
    shared = sum("test" in query.splits and len(query.splits) > 1 for query in asked)
    remarks = ["no query is of the split test, so all are asked"] if not has_test else []
    if shared:
        remarks.append(f"{shared} of the queries are in train or valid as well as in test")
    built = build_set(name, found.files[0], queries, found.entities, gold, skipped, remarks)
    return replace(built, files=found.files)
