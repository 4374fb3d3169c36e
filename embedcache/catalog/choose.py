"""Which rows of a corpus a part of it has: the first so many, those that a condition takes, or both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.catalog.connection import DEFAULT_MEMORY, open_cache
from embedcache.catalog.select import select_rows
from embedcache.errors import InputError


def choose_rows(
    cache: Cache | str | Path,
    corpus: str | None = None,
    *,
    first: int | None = None,
    where: str | None = None,
    teacher: str | None = None,
    memory: str = DEFAULT_MEMORY,
) -> NDArray[np.int64]:
    """Return the rows of a corpus that ``where`` takes, and of these the first; ascending int64, shape (n,).

    Args:
        cache: the cache or its folder.
        corpus: the corpus; may be None where the cache holds one.
        first: how many at most, counted after ``where`` as SQL's LIMIT does; default: all.
        where: a condition as for :func:`select_rows`; default: every row.
        teacher: whose ``tokens`` and ``truncated`` are meant.
        memory: what DuckDB may take.

    Raises:
        InputError: if ``first`` is below 1, ``where`` cannot be used, or no row is left.
        CorruptCacheError: if a file of the cache is damaged.
    """
    if first is not None and first < 1:
        raise InputError(f"--rows {first}: expected at least 1")
    opened = open_cache(cache)
    chosen = opened.corpus(corpus)
    if where is None:
        return np.arange(len(chosen) if first is None else min(first, len(chosen)), dtype=np.int64)
    rows = select_rows(opened, chosen.name, where, teacher=teacher, memory=memory)[:first]
    if not len(rows):
        raise InputError(f"{where!r} holds for none of the {len(chosen):,} rows of {chosen.title}")
    return rows
