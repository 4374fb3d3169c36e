"""A DuckDB connection with a cache's views, that can read those and nothing else.

Views: ``rows`` of every corpus, ``views`` of these (other texts for their rows), ``vectors`` of every
teacher, and what is known of ``shards``, ``teachers`` and ``corpora``. The database is in memory and holds no
data: its views read the mapped files of the cache, column by column as a statement asks, and decode the
vectors they are asked for alone.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embedcache.cache import Cache
from embedcache.catalog.sources import (
    OpenTeacher,
    ShardTable,
    corpora_table,
    corpus_table,
    decoder,
    open_teachers,
    shard_tables,
    shards_table,
    teachers_table,
    view_table,
)
from embedcache.errors import EmbedCacheError, InputError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")

COLUMNS: dict[str, tuple[str, ...]] = {
    "rows": ("corpus", "row", "key", "text", "characters", "id", "label"),
    "views": ("corpus", "view", "row", "key", "text"),
    "vectors": ("teacher", "contract", "key", "vector", "tokens", "truncated", "codec", "shard"),
    "shards": (
        *("teacher", "contract", "shard", "rows", "bytes", "codec", "codebook"),
        *("mean_cosine", "worst_cosine", "provenance"),
    ),
    "teachers": (
        *("teacher", "names", "contract", "weights", "tokenizer", "architecture", "pooling", "modules"),
        *("prompt", "max_length", "normalize", "dimension", "output", "truncate_dim"),
        *("vectors", "shards", "bytes", "codec", "store", "origin"),
    ),
    "corpora": ("corpus", "rows", "parts", "digest", "has_ids", "has_labels", "skipped"),
}
"""The views and their columns."""

DEFAULT_MEMORY = "1GB"

_INTERRUPT_SECONDS = 0.02

_NO_ROWS = (
    "SELECT NULL::VARCHAR AS corpus, NULL::BIGINT AS row, NULL::BLOB AS key, NULL::VARCHAR AS text, "
    "NULL::BIGINT AS characters, NULL::VARCHAR AS id, NULL::VARCHAR AS label WHERE false"
)
_NO_VIEWS = (
    "SELECT NULL::VARCHAR AS corpus, NULL::VARCHAR AS view, NULL::BIGINT AS row, NULL::BLOB AS key, "
    "NULL::VARCHAR AS text WHERE false"
)
_NO_VECTORS = (
    "SELECT NULL::VARCHAR AS teacher, NULL::VARCHAR AS contract, NULL::BLOB AS key, NULL::FLOAT[] AS vector, "
    "NULL::INTEGER AS tokens, NULL::BOOLEAN AS truncated, NULL::VARCHAR AS codec, NULL::VARCHAR AS shard "
    "WHERE false"
)


def open_cache(cache: Cache | str | Path) -> Cache:
    """Return ``cache``, opened where it is a folder."""
    return cache if isinstance(cache, Cache) else Cache(cache)


def connect(
    cache: Cache | str | Path,
    *,
    views: Sequence[str] = tuple(COLUMNS),
    memory: str = DEFAULT_MEMORY,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views of a cache; it cannot reach files, extensions or settings.

    The connection sees the cache as it is now; what is built later, a new connection sees.

    Args:
        cache: the cache or its folder.
        views: which of :data:`COLUMNS` to offer. Offering ``rows`` or ``views`` reads every text of
            theirs once, to check it.
        memory: what DuckDB may take; sorts and joins of more go to a temporary folder, which it removes.
        threads: of DuckDB; default: as many as there are cores.

    Raises:
        InputError: if ``memory`` is no size.
        CorruptCacheError: if a file of the cache is damaged.
    """
    opened = open_cache(cache)
    connection = _connect_without_views(memory, threads)
    try:
        if "rows" in views:
            tables = [corpus_table(corpus) for corpus in opened.corpora()]
            _create(connection, "rows", _union(_rows_arms(connection, tables), _NO_ROWS))
        if "views" in views:
            made = [view for corpus in opened.corpora() for view in corpus.views()]
            sources = [_register(connection, f"views_{n}", view_table(view)) for n, view in enumerate(made)]
            columns = ", ".join(COLUMNS["views"])
            _create(connection, "views", _union([f"{one} SELECT {columns}" for one in sources], _NO_VIEWS))
        if "corpora" in views:
            _create(connection, "corpora", _register(connection, "corpora", corpora_table(opened)))
        if {"vectors", "shards", "teachers"} & set(views):
            _offer_teachers(connection, open_teachers(opened), views)
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def explained(views: Sequence[str] = ()) -> Iterator[None]:
    """Turn DuckDB's errors into :class:`InputError`: its message in one line, then what to do.

    Args:
        views: those whose columns the message lists; without any it lists the views.
    """
    import duckdb
    import pyarrow as pa

    try:
        yield
    except EmbedCacheError:
        raise
    # A result that is read as an Arrow stream reports its errors as pyarrow's.
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        message = one_line(error)
        if message.startswith("Permission Error"):
            raise InputError(
                f"reading outside the cache is refused ({message}): a statement sees the cache's views alone"
            ) from error
        advice = "allow more with --memory" if message.startswith("Out of Memory") else described(views)
        raise InputError(f"{message}; {advice}") from error


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Return what ``work`` returns, so that Ctrl-C ends it while DuckDB is busy with a statement.

    Python hears of signals between its own instructions alone: ``work`` runs on another thread, and this one
    waits.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is waited for
            answer.set_exception(error)

    # A plain thread: the end of a pool waits for its work, also where Ctrl-C comes while that is begun.
    thread = threading.Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        return answer.result()
    except KeyboardInterrupt:
        # Again and again: DuckDB forgets an interrupt that comes before the statement has begun.
        while thread.is_alive():
            connection.interrupt()
            thread.join(_INTERRUPT_SECONDS)
        raise


def described(views: Sequence[str] = ()) -> str:
    """Return the columns of ``views`` in one line; without any, what views there are."""
    if not views:
        return f"the views are {', '.join(COLUMNS)}; 'DESCRIBE rows' lists the columns of one"
    return "; ".join(f"{view}({', '.join(COLUMNS[view])})" for view in views)


def one_line(error: Exception) -> str:
    """Return DuckDB's message as one line, without the picture of the statement and advice for its shell."""
    message = str(error).split("\n\nLINE ")[0].split("\nPossible solutions:")[0]
    return " ".join(message.split())


def _connect_without_views(
    memory: str = DEFAULT_MEMORY, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a connection that sees nothing: no cache, files, extensions or settings.

    Args:
        memory: what DuckDB may take.
        threads: of DuckDB; default: as many as there are cores.

    Raises:
        InputError: if ``memory`` is no size.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": False,
        # Else a statement could name any Python variable.
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "memory_limit": memory,
        "threads": threads or os.cpu_count() or 1,
        # DuckDB makes the folder when it needs it, and removes it when the connection is closed.
        "temp_directory": str(Path(tempfile.gettempdir()) / f"embedcache-{uuid.uuid4().hex}"),
    }
    try:
        return duckdb.connect(":memory:", config=config)
    except duckdb.Error as error:
        raise InputError(
            f"{one_line(error)}; --memory {memory} was given, expected a size as 2GB or 500MB"
        ) from error


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> str:
    connection.register(f"_{name}", table)
    return f"FROM _{name}"


def _create(connection: duckdb.DuckDBPyConnection, view: str, body: str) -> None:
    connection.execute(f"CREATE VIEW {view} AS {body}")


def _union(arms: Sequence[str], empty: str) -> str:
    return " UNION ALL ".join(f"({arm})" for arm in arms) if arms else empty


def _rows_arms(connection: duckdb.DuckDBPyConnection, tables: Sequence[pa.Table]) -> list[str]:
    # Types of labels are reconciled as UNION ALL does: whole numbers and fractions give DOUBLE, text VARCHAR.
    unlabelled = "NULL" if any("label" in table.column_names for table in tables) else "NULL::VARCHAR"
    arms = []
    for number, table in enumerate(tables):
        source = _register(connection, f"rows_{number}", table)
        id_ = "id" if "id" in table.column_names else "NULL::VARCHAR AS id"
        label = "label" if "label" in table.column_names else f"{unlabelled} AS label"
        arms.append(f"{source} SELECT corpus, row, key, text, length(text) AS characters, {id_}, {label}")
    return arms


def _offer_teachers(
    connection: duckdb.DuckDBPyConnection, teachers: Sequence[OpenTeacher], views: Sequence[str]
) -> None:
    if "teachers" in views:
        _create(connection, "teachers", _register(connection, "teachers", teachers_table(teachers)))
    if "shards" in views:
        _create(connection, "shards", _register(connection, "shards", shards_table(teachers)))
    if "vectors" in views:
        tables = [table for opened in teachers for table in shard_tables(opened)]
        _create(connection, "vectors", _union(_vectors_arms(connection, tables), _NO_VECTORS))


def _vectors_arms(connection: duckdb.DuckDBPyConnection, tables: Sequence[ShardTable]) -> list[str]:
    # Arrays of one length have functions that lists have not; of several lengths, only lists fit one column.
    one_width = len({table.dimension for table in tables}) == 1
    arms = []
    for number, shards in enumerate(tables):
        names = shards.table.column_names
        vector_type = f"FLOAT[{shards.dimension}]"
        parameters = ["BLOB", "FLOAT"] if "scale" in names else ["BLOB"]
        connection.create_function(
            f"_decode_{number}",
            decoder(shards.codec, shards.dimension),
            parameters,
            vector_type,
            type="arrow",  # type: ignore[call-overload]
        )
        source = _register(connection, f"vectors_{number}", shards.table)
        vector = f"_decode_{number}(stored{', scale' if 'scale' in names else ''})"
        if not one_width:
            vector += "::FLOAT[]"
        where = " WHERE own" if "own" in names else ""
        columns = ", ".join(f"{vector} AS vector" if c == "vector" else c for c in COLUMNS["vectors"])
        arms.append(f"{source} SELECT {columns}{where}")
    return arms
