"""One SELECT over the views of a cache, its rows given as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.cache import Cache
from embedcache.catalog.connection import (
    COLUMNS,
    DEFAULT_MEMORY,
    connect,
    described,
    explained,
    interruptible,
)
from embedcache.errors import InputError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# Rows of a batch: enough to be quick, few enough that a batch of wide vectors stays in tens of megabytes.
_BATCH_ROWS = 8192

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(?=\w)", re.IGNORECASE)

_ONE_SELECT = "expected one SELECT statement from the cache's views, which are only read"

# Functions that can stand behind FROM and give nothing but what they are given.
_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}


class QueryResult:
    """The rows of a statement, computed while they are read; close it, or use it in a ``with`` block.

    Attributes:
        schema: names and Arrow types of the columns. Of columns of one name, all but the first get a number.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, reader: pa.RecordBatchReader, views: tuple[str, ...]
    ) -> None:
        import pyarrow as pa

        self._connection, self._reader, self._views = connection, reader, views
        names = _distinct(reader.schema.names)
        fields = [field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]
        self.schema = pa.schema(fields)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows not read yet, in batches.

        Raises:
            InputError: if the statement fails on a row.
        """
        import pyarrow as pa

        with explained(self._views):
            while (batch := interruptible(self._connection, self._next)) is not None:
                yield pa.record_batch(batch.columns, schema=self.schema)

    def _next(self) -> pa.RecordBatch | None:
        return next(self._reader, None)

    def table(self) -> pa.Table:
        """Return the rows not read yet, all at once."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self), self.schema)

    def close(self) -> None:
        """Stop the statement and let go of the cache's files."""
        self._reader.close()
        self._connection.close()

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def query(
    cache: Cache | str | Path, sql: str, *, memory: str = DEFAULT_MEMORY, threads: int | None = None
) -> QueryResult:
    """Run one SELECT over ``rows``, ``views``, ``vectors``, ``shards``, ``teachers`` and ``corpora``.

    Args:
        cache: the cache or its folder.
        sql: the statement, in DuckDB's SQL.
        memory: what DuckDB may take.
        threads: of DuckDB; default: as many as there are cores.

    Raises:
        InputError: if it is not one SELECT, reads anything else than the views, or is wrong.
        CorruptCacheError: if a file of the cache is damaged.
    """
    views = mentioned_views(sql)
    connection = connect(cache, views=views or tuple(COLUMNS), memory=memory, threads=threads)
    try:
        with explained(views):
            check_select(connection, sql)
            reader = interruptible(connection, lambda: connection.sql(sql).to_arrow_reader(_BATCH_ROWS))
    except BaseException:
        connection.close()
        raise
    return QueryResult(connection, reader, views)


def mentioned_views(sql: str) -> tuple[str, ...]:
    """Return the views whose names stand anywhere in ``sql``; those that do not need not be opened."""
    words = set(re.findall(r"\w+", sql.lower()))
    return tuple(view for view in COLUMNS if view in words)


def check_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """See that ``sql`` is one statement that selects, or explains one that does, from the views alone.

    Raises:
        InputError: if it is not; the message names the kind of statement, or the function.
        duckdb.Error: if it cannot be parsed.
    """
    kinds = [statement.type.name.replace("_", " ") for statement in connection.extract_statements(sql)]
    if not kinds:
        raise InputError(f"no statement was given: {_ONE_SELECT}; {described()}")
    if len(kinds) > 1:
        raise InputError(f"{len(kinds)} statements were given ({', '.join(kinds)}): {_ONE_SELECT}")
    if kinds == ["EXPLAIN"] and (explaining := _EXPLAIN.match(sql)):
        # It runs nothing but what it explains, and that not always.
        check_select(connection, sql[explaining.end() :])
        return
    if kinds != ["SELECT"]:
        raise InputError(f"a statement of kind {kinds[0]} is refused: {_ONE_SELECT}")
    if problem := problem_inside(syntax_tree(connection, sql)):
        raise InputError(f"{problem} is refused: {_ONE_SELECT}")


def syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Return how DuckDB reads statements that select, as its JSON; ``error`` says whether they do not."""
    text = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()[0][0]
    tree: dict[str, Any] = json.loads(text)
    return tree


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside a syntax tree."""
    pending = [tree]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def problem_inside(tree: dict[str, Any]) -> str | None:
    """Return what in a SELECT writes, or reads anything but the views; None where nothing does."""
    for node in nodes(tree):
        kind = str(node.get("type"))
        # A WITH clause may hold statements of its own.
        if kind.endswith("_QUERY_NODE"):
            return f"a statement of kind {kind.removesuffix('_QUERY_NODE')}"
        if kind == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name")).lower()
            if name not in _TABLE_FUNCTIONS:
                return f"reading from the function {name}"
    return None


def _distinct(names: list[str]) -> list[str]:
    """Return names that differ: a second ``key`` is called ``key_1``."""
    taken: dict[str, None] = {}
    for name in names:
        free, number = name, 0
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        taken[free] = None
    return list(taken)
