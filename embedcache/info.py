"""Figures of a cache, as named tables: what ``ls`` lists and ``info`` counts."""
# ruff: noqa: S608 - names of corpora and contract ids are letters, digits, '.', '_' and '-'

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import VIEWS, read_record
from embedcache.corpus.origin import read_note
from embedcache.errors import InputError
from embedcache.keys import first_occurrences
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import by_contract, corpus_facts, query, teacher_facts
from embedcache.teacher.token_table import table_path

Row: TypeAlias = dict[str, object]
Tables: TypeAlias = dict[str, list[Row]]
"""Name of a table -> its rows, as column -> value."""

MOST_LABELS = 5
"""Labels of a corpus that are listed, the commonest first."""

_SPREAD = (
    "min({0}) AS least, quantile_disc({0}, 0.5) AS median, avg({0}) AS mean, "
    'quantile_disc({0}, 0.95) AS "95 %", max({0}) AS most'
)
_CHARACTERS = f"""
    SELECT corpus, {_SPREAD.format("characters")}
    FROM rows WHERE {{}} GROUP BY corpus ORDER BY corpus"""
_LABELS = f"""
    SELECT corpus, label, count(*) AS rows, count(*) OVER (PARTITION BY corpus) AS labels
    FROM rows WHERE label IS NOT NULL AND {{}} GROUP BY corpus, label
    QUALIFY row_number() OVER (PARTITION BY corpus ORDER BY count(*) DESC, label) <= {MOST_LABELS}
    ORDER BY corpus, rows DESC, label"""
_TOKENS = f"""
    SELECT teacher, {_SPREAD.format("nullif(tokens, 0)")}, count_if(truncated)::BIGINT AS truncated
    FROM vectors WHERE {{}} GROUP BY teacher, contract ORDER BY teacher"""
_CODECS = """
    SELECT teacher, codec, sum(rows)::BIGINT AS rows, sum(mean_cosine * rows) / sum(rows) AS mean_cosine,
        min(worst_cosine) AS worst_cosine
    FROM shards WHERE {} GROUP BY teacher, contract, codec ORDER BY teacher, rows DESC"""
_PROVENANCE = """
    SELECT teacher, provenance, sum(rows)::BIGINT AS rows
    FROM shards WHERE {} GROUP BY teacher, contract, provenance ORDER BY teacher, rows DESC"""


def list_contents(cache: Cache) -> Tables:
    """Return the tables ``corpora`` and ``teachers`` of a cache; no text, key or vector is read."""
    return {
        "corpora": [
            {**corpus_facts(corpus), "views": len(corpus.view_names())} for corpus in cache.corpora()
        ],
        "teachers": [teacher_facts(cache, teachers) for teachers in by_contract(cache)],
    }


def describe(cache: Cache, name: str | None = None, progress: Progress = NO_PROGRESS) -> Tables:
    """Count the content of a cache; texts and keys are read, vectors are not.

    Args:
        cache: the cache.
        name: corpus, teacher or contract id to describe; default: all.
        progress: receiver of progress.

    Returns:
        ``corpora``, ``characters`` (of a text), ``labels``, ``views``, ``teachers``, ``tokens`` (of a text as
        the teacher saw it, special ones included), ``codecs`` (mean and worst cosine to the vectors before),
        ``provenance`` and ``coverage`` (rows of corpora and views that have a vector).

    Raises:
        InputError: if there is no such corpus or teacher.
        CorruptCacheError: if the cache is damaged.
    """
    groups = by_contract(cache)
    corpora = [corpus for corpus in cache.corpora() if name in (None, corpus.name)]
    teachers = [one for one in groups if name is None or _is_called(one, name)]
    if name is not None and not corpora and not teachers:
        known = ", ".join([*cache.corpus_names(), *(teacher.name for one in groups for teacher in one)])
        raise InputError(f"no corpus or teacher {name!r} in {cache.folder}: it holds {known or 'none'}")
    progress.phase("count rows", sum(map(len, corpora)))
    of_corpora = _among("corpus", [corpus.name for corpus in corpora])
    of_teachers = _among("contract", [one[0].contract.id for one in teachers])
    provenance = _select(cache, _PROVENANCE, of_teachers)
    for row in provenance:
        row["provenance"] = json.loads(str(row["provenance"]))
    return {
        "corpora": [_corpus(cache, corpus, progress) for corpus in corpora],
        "characters": _select(cache, _CHARACTERS, of_corpora),
        "labels": _select(cache, _LABELS, of_corpora),
        "views": [view for corpus in corpora for view in _views(corpus)],
        "teachers": [_teacher(cache, one) for one in teachers],
        "tokens": _select(cache, _TOKENS, of_teachers),
        "codecs": _select(cache, _CODECS, of_teachers),
        "provenance": provenance,
        "coverage": [row for one in teachers for row in _coverage(cache, one[0], progress)],
    }


def _is_called(teachers: Sequence[CachedTeacher], name: str) -> bool:
    is_id = len(name) >= 6 and teachers[0].contract.id.startswith(name)
    return is_id or name in [teacher.name for teacher in teachers]


def _among(column: str, values: Sequence[str]) -> str:
    quoted = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({quoted})" if values else "false"


def _select(cache: Cache, sql: str, condition: str) -> list[Row]:
    rows: list[Row] = query(cache, sql.format(condition)).to_pylist()
    return rows


def _corpus(cache: Cache, corpus: Corpus, progress: Progress) -> Row:
    note = read_note(cache.derived_folder, corpus.name)
    repeated = len(corpus) - int(np.count_nonzero(first_occurrences(list(corpus.iter_keys()))))
    progress.advance(len(corpus))
    return {
        **corpus_facts(corpus),
        "duplicates": repeated,
        "bytes": sum((corpus.folder / part.file_name).stat().st_size for part in corpus.parts),
        "read_from": [path for path, _ in note.files] if note is not None else [],
    }


def _views(corpus: Corpus) -> Iterator[Row]:
    for name in corpus.view_names():
        record = read_record(corpus.folder / VIEWS / name)
        yield {
            "corpus": corpus.name,
            "view": name,
            "recipe": record.recipe.describe(),
            "rows": dict(record.counts),
            "is_current": record.of == corpus.info.digest,
        }


def _teacher(cache: Cache, teachers: Sequence[CachedTeacher]) -> Row:
    table = table_path(cache.folder, teachers[0].contract)
    size = table.stat().st_size if table.is_file() else None
    return {**teacher_facts(cache, teachers), "token_embeddings": size}


def _coverage(cache: Cache, teacher: CachedTeacher, progress: Progress) -> Iterator[Row]:
    store, corpora = cache.store(teacher.contract), cache.corpora()
    progress.phase(f"look up {teacher.name}", sum(map(len, corpora)))
    for corpus in corpora:
        for texts in (corpus, *corpus.views()):
            found = sum(int(np.count_nonzero(store.locate(keys) >= 0)) for keys in texts.iter_keys())
            name = corpus.name if texts is corpus else f"{corpus.name}/{texts.name}"
            yield {"teacher": teacher.name, "corpus": name, "with_vector": found, "rows": len(texts)}
        progress.advance(len(corpus))
