"""A cache in SQL: DuckDB tables over its files, and rows selected by a condition."""

from embedcache.querying.database import (
    DEFAULT_MEMORY,
    QueryResult,
    open_cache,
    open_query,
    query,
    select_rows,
)
from embedcache.querying.tables import TABLES, by_contract

__all__ = [
    "DEFAULT_MEMORY",
    "TABLES",
    "QueryResult",
    "by_contract",
    "open_cache",
    "open_query",
    "query",
    "select_rows",
]
