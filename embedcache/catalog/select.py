"""The rows of a corpus for which a predicate in SQL holds: ``--where``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.catalog.connection import (
    DEFAULT_MEMORY,
    connect,
    interruptible,
    one_line,
    open_cache,
)
from embedcache.catalog.query import mentioned_views, nodes, problem_inside, syntax_tree
from embedcache.catalog.sources import corpus_table
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import key_view
from embedcache.errors import InputError
from embedcache.store.store import ShardStore

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_SEEN = {"tokens", "truncated"}
_BATCH_ROWS = 65536

_COLUMN_TYPES = {"row": "BIGINT", "key": "BLOB", "text": "VARCHAR", "characters": "BIGINT", "id": "VARCHAR"}
_LABEL_TYPES = ("VARCHAR", "BIGINT", "DOUBLE")
_SEEN_TYPES = {"tokens": "INTEGER", "truncated": "BOOLEAN"}


def select_rows(
    cache: Cache | str | Path,
    corpus: str | None,
    where: str,
    *,
    teacher: str | None = None,
    memory: str = DEFAULT_MEMORY,
) -> NDArray[np.int64]:
    """Return the rows of a corpus for which ``where`` is true, ascending; int64, shape (n,).

    ``where`` may use ``row``, ``key``, ``text``, ``characters``, ``id`` and ``label`` where the corpus has
    them, ``tokens`` and ``truncated`` of a teacher (NULL where it has no vector, so never true), and
    subqueries over the catalog's views. Texts are read where they lie, never held.

    Args:
        cache: the cache or its folder.
        corpus: the corpus; may be None where the cache holds one.
        where: a predicate in DuckDB's SQL, such as ``label = 'news' AND NOT truncated``.
        teacher: whose ``tokens`` and ``truncated``; may be left out where the cache holds one teacher.
        memory: what DuckDB may take.

    Raises:
        InputError: if ``where`` is no predicate, is wrong, or would give other rows another time.
        CorruptCacheError: if a file of the cache is damaged.
    """
    opened = open_cache(cache)
    chosen = opened.corpus(corpus)
    with closing(connect(opened, views=mentioned_views(where), memory=memory)) as connection:
        condition = _condition(connection, where)
        rows = _offer(connection, corpus_table(chosen))
        if _SEEN & set(re.findall(r"\w+", where.lower())) and not _has_what_it_takes(rows, condition):
            store = opened.store(opened.teacher(teacher).contract)
            rows = _offer(connection, corpus_table(chosen, partial(_seen, chosen, store)))
        return _rows_where(connection, rows, condition, where, len(chosen))


def _lacking(connection: duckdb.DuckDBPyConnection, columns: Sequence[str], condition: str) -> str:
    """Return which of the columns that only some corpora have a condition needs; empty if that is no help."""
    absent = [name for name in ("id", "label") if name not in columns]
    words = set(re.findall(r"\w+", condition.lower()))
    tables = [_COLUMN_TYPES | _SEEN_TYPES | {"label": kind} for kind in _LABEL_TYPES]
    if all(_problem_with(_no_rows(connection, table), condition) for table in tables):
        return ""
    return " and ".join(f"the corpus has no {name}s" for name in absent if name in words)


def _no_rows(connection: duckdb.DuckDBPyConnection, types: dict[str, str]) -> duckdb.DuckDBPyRelation:
    columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in types.items())
    return connection.sql(f"SELECT {columns} WHERE false")


def _problem_with(rows: duckdb.DuckDBPyRelation, condition: str) -> str:
    """Return why a condition is none on ``rows``, without looking at any; empty where it is one."""
    import duckdb

    try:
        return _wrong_kind(rows, condition)
    except duckdb.Error as error:
        return one_line(error)


def _wrong_kind(rows: duckdb.DuckDBPyRelation, condition: str) -> str:
    kinds = [str(kind) for kind in rows.select(condition).types]
    return "" if kinds == ["BOOLEAN"] else f"it gives {', '.join(kinds)}, expected true or false"


def _condition(connection: duckdb.DuckDBPyConnection, where: str) -> str:
    """Return ``where`` in parentheses, once it is one expression that gives the same rows every time."""
    import duckdb

    # On a line of its own, or a comment at the end would swallow the parenthesis.
    condition = f"({where}\n)"
    try:
        tree = syntax_tree(connection, f"SELECT {condition}")
        frame = syntax_tree(connection, "SELECT (true\n)")
        bare = syntax_tree(connection, f"SELECT {where}\n")
    except duckdb.Error as error:
        raise _no_predicate(where, one_line(error)) from error
    if tree["error"]:
        raise _no_predicate(where, one_line(ValueError(tree["error_message"])))
    if problem := problem_inside(tree):
        raise _no_predicate(where, f"{problem} is refused")
    # A parenthesis that closes ours and one that opens another are an error without ours.
    if bare["error"] or _without_expression(tree) != _without_expression(frame):
        raise _no_predicate(where, "it is not one whole expression")
    # Some functions, such as current_date, are written without parentheses and read like columns.
    called = {str(node["function_name"]) for node in nodes(tree) if node.get("class") == "FUNCTION"}
    called |= {str(node["column_names"][-1]) for node in nodes(tree) if node.get("class") == "COLUMN_REF"}
    changing = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
    ).fetchall()
    if found := sorted(called & {name for (name,) in changing}):
        raise _no_predicate(
            where,
            f"{found[0]}() gives other rows every time; for a tenth of the rows say hash(key) % 10 = 0",
        )
    return condition


def _without_expression(tree: dict[str, Any]) -> Any:
    """Return all of a syntax tree but its one selected expression; the whole where there is not one."""
    statements = tree["statements"]
    if len(statements) != 1 or len(statements[0]["node"].get("select_list", ())) != 1:
        return tree
    node = {name: value for name, value in statements[0]["node"].items() if name != "select_list"}
    return {**tree, "statements": [{**statements[0], "node": node}]}


def _no_predicate(where: str, reason: str) -> InputError:
    return InputError(f"{where!r} is no condition on rows: {reason}")


def _offer(connection: duckdb.DuckDBPyConnection, table: pa.Table) -> duckdb.DuckDBPyRelation:
    """Return the rows of a corpus with ``characters``, and without the name that all rows share."""
    connection.register("_selected", table)
    columns = [name for name in table.column_names if name != "corpus"]
    return connection.sql(f"FROM _selected SELECT {', '.join(columns)}, length(text) AS characters")


def _has_what_it_takes(rows: duckdb.DuckDBPyRelation, condition: str) -> bool:
    import duckdb

    try:
        rows.filter(condition)
    except duckdb.BinderException:
        return False
    return True


def _seen(corpus: Corpus, store: ShardStore, number: int) -> dict[str, pa.Array]:
    """Return ``tokens`` and ``truncated`` of the rows of a part; 5 bytes a row as long as they are used."""
    import pyarrow as pa

    positions = store.locate(key_view(corpus.column(number, "key")))
    missing = positions < 0
    tokens, truncated = np.zeros(len(missing), np.int32), np.zeros(len(missing), np.bool_)
    tokens[~missing], truncated[~missing] = store.seen(positions[~missing])
    return {"tokens": pa.array(tokens, mask=missing), "truncated": pa.array(truncated, mask=missing)}


def _rows_where(
    connection: duckdb.DuckDBPyConnection,
    rows: duckdb.DuckDBPyRelation,
    condition: str,
    where: str,
    count: int,
) -> NDArray[np.int64]:
    import duckdb
    import pyarrow as pa

    marks = np.zeros(count, dtype=np.bool_)

    def mark() -> None:
        for batch in rows.filter(condition).select("row").to_arrow_reader(_BATCH_ROWS):
            marks[batch.column(0).to_numpy()] = True

    try:
        if problem := _wrong_kind(rows, condition):
            raise _no_predicate(where, problem)
        interruptible(connection, mark)
    # A result that is read as an Arrow stream reports its errors as pyarrow's.
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        is_unknown = isinstance(error, duckdb.BinderException)
        reason = (is_unknown and _lacking(connection, rows.columns, condition)) or one_line(error)
        raise _no_predicate(where, f"{reason}; the columns are {', '.join(rows.columns)}") from error
    return np.flatnonzero(marks)
