"""Fetching the files of a suite from named, pinned sources."""

from distill.evaluation.fetch.fetch import Fetched, fetch_suite, missing
from distill.evaluation.fetch.sources import Table, fetchable_suites, tables_of

__all__ = ["Fetched", "Table", "fetch_suite", "fetchable_suites", "missing", "tables_of"]
