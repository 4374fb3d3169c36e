"""Why two corpora of one name are not the same, in words for whoever wanted them to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedcache.corpus.corpus import Corpus, CorpusInfo
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.sizes import counted

if TYPE_CHECKING:
    import pyarrow as pa

_OPTIONS = {"id": "--id-column", "label": "--label-column"}


def describe_difference(there: CorpusInfo, new: CorpusInfo, first_row: int | None = None) -> str:
    """Say what sets the corpus ``there`` apart from the ``new`` one.

    Args:
        there: the corpus in the cache.
        new: the one that was to be stored under its name.
        first_row: the first row that differs, counted from 0, where it is known.
    """
    if there.columns[ORIGINAL] == new.columns[ORIGINAL]:
        words = [f"both have the same {counted(new.rows, 'text')}"]
    elif there.rows == new.rows:
        words = [f"both have {counted(new.rows, 'row')}, with other texts"]
    else:
        words = [f"it has {counted(there.rows, 'row')}, this one has {counted(new.rows, 'row')}"]
    words += filter(None, (_column_difference(there, new, name) for name in _OPTIONS))
    # Where only one of them has a column, every row differs.
    if first_row is not None and there.columns.keys() == new.columns.keys():
        words.append(f"row {first_row} (counted from 0) is the first that differs")
    return ", ".join(words)


def _column_difference(there: CorpusInfo, new: CorpusInfo, name: str) -> str:
    old, fresh = there.columns.get(name), new.columns.get(name)
    if old == fresh:
        return ""
    if fresh is None:
        return f"it has {name}s (it was built with {_OPTIONS[name]}), this one has none"
    if old is None:
        return f"it has no {name}s (it was built without {_OPTIONS[name]}), this one has"
    return f"with other {name}s"


def first_difference(there: Corpus, number: int, columns: Mapping[str, pa.Array]) -> int:
    """Return the first row, counted from 0, in which a part differs from the one to stand in its place.

    The parts before it are the same, and both corpora have the same columns.

    Args:
        there: the corpus in the cache.
        number: which part; it may be one more than the corpus has.
        columns: ``key`` and where there are any ``id`` and ``label``, of the other part.

    Raises:
        CorruptCacheError: if the part is missing or damaged.
    """
    first_row = sum(part.rows for part in there.parts[:number])
    if number == len(there.parts):
        return first_row
    common = min(there.parts[number].rows, len(columns["key"]))
    same = key_view(there.column(number, "key"))[:common] == key_view(columns["key"])[:common]
    for name in _OPTIONS:
        if name in columns:
            pairs = zip(
                there.column(number, name)[:common].to_pylist(),
                columns[name][:common].to_pylist(),
                strict=True,
            )
            same &= np.array([old == new for old, new in pairs], dtype=np.bool_)
    return first_row + (common if same.all() else int(np.argmin(same)))
