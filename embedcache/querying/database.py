"""A cache in SQL: DuckDB tables over its files, and rows of a corpus selected by a condition.

The database holds no data. Its tables read the mapped files column by column, and decode vectors only where a
statement asks for them. DuckDB's settings keep a statement from files, extensions and settings.
"""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.querying.tables import TABLES, corpus_table, create_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_BATCH_ROWS = 8192
T = TypeVar("T")
# These may give other rows another time, so they cannot select rows to train on.
_CHANGING = "SELECT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query; they are computed while they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def query(cache: Cache | str | Path, sql: str) -> pa.Table:
    """Run one SELECT over the tables of a cache (``TABLES``) and return its rows.

    Args:
        cache: the cache or its folder.
        sql: the statement, in DuckDB's SQL.

    Raises:
        InputError: if it is not one SELECT, is wrong, or reads anything but the cache.
        CorruptCacheError: if a file of the cache is damaged.
    """
    import pyarrow as pa

    with open_query(cache, sql) as result:
        return pa.Table.from_batches(list(result.batches), result.schema)


@contextmanager
def open_query(cache: Cache | str | Path, sql: str) -> Iterator[QueryResult]:
    """Yield the rows of a SELECT as a stream; arguments and errors as ``query``."""
    tables = [table for table in TABLES if table in _words(sql)]
    columns = "; ".join(f"{table}({', '.join(TABLES[table])})" for table in tables)
    hint = columns or f"the tables are {', '.join(TABLES)}"
    with _connect(open_cache(cache), tables or list(TABLES)) as connection:
        with _explained(hint):
            kinds = [statement.type.name for statement in connection.extract_statements(sql)]
            if len(kinds) != 1 or kinds[0] not in ("SELECT", "EXPLAIN"):
                raise InputError(f"expected one SELECT, found {', '.join(kinds) or 'nothing'}")
            # Selected from, a second column `key` is called `key_1`.
            rows = connection.sql(sql).select("*")
            reader = _interruptible(connection, lambda: rows.to_arrow_reader(_BATCH_ROWS))

        def batches() -> Iterator[pa.RecordBatch]:
            with _explained(hint):
                while (batch := _interruptible(connection, lambda: next(reader, None))) is not None:
                    yield batch

        yield QueryResult(reader.schema, batches())


def select_rows(
    cache: Cache | str | Path, corpus: str | None, where: str, *, teacher: str | None = None
) -> NDArray[np.int64]:
    """Return the rows of a corpus for which a condition is true, ascending; int64, shape (n,).

    Args:
        cache: the cache or its folder.
        corpus: name of the corpus; None means the only one.
        where: expression in DuckDB's SQL over ``row``, ``key``, ``text``, ``characters``, ``id`` and
            ``label`` where the corpus has them, and a teacher's ``tokens`` and ``truncated`` (NULL where it
            has no vector). Subqueries may read the tables of the cache.
        teacher: teacher whose ``tokens`` and ``truncated`` are meant; default: the only one.

    Raises:
        InputError: if the condition is wrong, or could give other rows another time.
        CorruptCacheError: if a file of the cache is damaged.
    """
    opened, words = open_cache(cache), _words(where)
    chosen = opened.corpus(corpus)
    seen = opened.store(opened.teacher(teacher).contract) if words & {"tokens", "truncated"} else None
    with _connect(opened, [table for table in TABLES if table in words]) as connection:
        connection.register("_selected", corpus_table(chosen, seen))
        rows = connection.sql("SELECT *, length(text) AS characters FROM _selected")
        changing = {name for (name,) in connection.execute(_CHANGING).fetchall()} - set(rows.columns)
        if found := sorted(words & changing):
            raise InputError(
                f"where {where!r}: {found[0]} gives other rows every time; "
                "for a tenth of the rows use hash(key) % 10 = 0"
            )
        with _explained(f"where {where!r} is not a condition on rows with {', '.join(rows.columns)}"):
            kinds = [str(kind) for kind in rows.select(where).types]
            if kinds != ["BOOLEAN"]:
                raise InputError(f"where {where!r} gives {', '.join(kinds)}, expected true or false")
            selected = rows.filter(where).select("row")
            return np.sort(_interruptible(connection, selected.fetchnumpy)["row"])


def open_cache(cache: Cache | str | Path) -> Cache:
    """Return the cache, opened if it is given as a folder."""
    return cache if isinstance(cache, Cache) else Cache(cache)


def _words(sql: str) -> set[str]:
    """Return the words of a statement in lower case, those inside strings left out."""
    return set(re.findall(r"\w+", re.sub(r"'(?:[^']|'')*'", " ", sql.lower())))


@contextmanager
def _connect(cache: Cache, tables: Iterable[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that sees some of ``TABLES`` and nothing else."""
    import duckdb

    # DuckDB creates the folder when memory runs out, and removes it.
    spill = Path(tempfile.gettempdir()) / f"embedcache-{uuid.uuid4().hex}"
    # A statement could read Python variables otherwise.
    guards = {"enable_external_access": False, "python_enable_replacements": False}
    with duckdb.connect(":memory:", config={**guards, "temp_directory": str(spill)}) as connection:
        for table in tables:
            create_table(connection, cache, table)
        connection.execute("SET lock_configuration = true")
        yield connection


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which Ctrl-C ends: DuckDB itself does not notice it."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        try:
            return result.result()
        except KeyboardInterrupt:
            while not result.done():
                # An interrupt before the statement has begun is lost.
                connection.interrupt()
                time.sleep(0.02)
            raise


@contextmanager
def _explained(hint: str) -> Iterator[None]:
    """Turn DuckDB's errors, also those of its Arrow streams, into an ``InputError`` of one line."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        message = str(error).split("\n\nLINE ")[0].split("\nPossible solutions:")[0]
        raise InputError(f"{' '.join(message.split())}; {hint}") from error
