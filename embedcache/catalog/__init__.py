"""The catalog: a cache as tables of SQL, read where they lie."""

from embedcache.catalog.choose import choose_rows
from embedcache.catalog.connection import COLUMNS, connect
from embedcache.catalog.query import QueryResult, query
from embedcache.catalog.select import select_rows

__all__ = ["COLUMNS", "QueryResult", "choose_rows", "connect", "query", "select_rows"]
