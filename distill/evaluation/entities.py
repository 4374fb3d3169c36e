"""Entity resolution: does a query find its entity in a catalogue?

Reads ``er_NAME_queries.tsv`` (``split, query_id, text, gold_entity_ids``: ids of the right entities, with
commas between them) and ``er_NAME_entities.tsv`` (``entity_id, text``), tab-separated with a header line and
no quoting, each also with ``.gz``. Where any query is of the split ``test``, only those are asked; a query of
several splits (``test,train``) is one of them. The catalogue is always the whole one.

Figures, times 100: Recall@1 (the set's figure), @5 and @10, which are the share of queries for which *any*
of the right entities is among the first k, and the mean reciprocal rank. Ties:
:mod:`distill.evaluation.ranking`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.ranked import Measure, RankedSet, RankedTask, build_set, read_texts
from distill.evaluation.ranking import Standing
from distill.evaluation.tasks import NotThereError, Request
from distill.evaluation.testset import find_test_file, read_test_file, stems_of

MEASURES: dict[str, Measure] = {
    "recall@1": partial(Standing.hit, k=1),
    "recall@5": partial(Standing.hit, k=5),
    "recall@10": partial(Standing.hit, k=10),
    "mrr": Standing.reciprocal_rank,
}
"""What is measured; the first one is a set's figure."""


def read(request: Request) -> RankedTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("entities")
    names = [stem.removesuffix("_queries").removeprefix("er_") for stem in stems_of(folder, "er_*_queries")]
    if not names:
        raise NotThereError(
            f"{folder} holds no catalogue with queries: looked for er_NAME_queries.tsv and "
            "er_NAME_entities.tsv, each also with .gz"
        )
    return RankedTask(folder, [_read_set(folder, name) for name in names], MEASURES)


def _read_set(folder: Path, name: str) -> RankedSet:
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
    splits = [{part.strip() for part in row[0].split(",")} for row in asked.rows]
    has_test = any("test" in parts for parts in splits)
    rows = [row[1:] for row, parts in zip(asked.rows, splits, strict=True) if "test" in parts or not has_test]
    queries = read_texts((row[:2] for row in rows), "query", asked_in, skipped)
    gold: dict[str, dict[str, float]] = {}
    for query, _, ids in rows:
        wanted = [entity.strip() for entity in ids.split(",")]
        # A repeated query was counted above; its first row is the one that is asked.
        gold.setdefault(query, dict.fromkeys(filter(None, wanted), 1.0))
    shared = sum("test" in parts and len(parts) > 1 for parts in splits)
    remarks = ["no query is of the split test, so all are asked"] if not has_test else []
    if shared:
        remarks.append(f"{shared} of the queries are in train or valid as well as in test")
    found = build_set(name, asked_in, queries, entities, gold, skipped, remarks)
    return replace(found, files=(asked_in, entities_in))
