"""A cache in SQL: DuckDB tables over its files, and rows selected by a condition."""

from embedcache.querying.database import QueryResult, open_cache, open_query, query, select_rows
from embedcache.querying.tables import TABLES, by_contract, corpus_facts, teacher_facts

__all__ = [
    "TABLES",
    "QueryResult",
    "by_contract",
    "corpus_facts",
    "open_cache",
    "open_query",
    "query",
    "select_rows",
    "teacher_facts",
]
