"""A corpus that is part of another: some of its rows, with all of its views cut to the same ones.

It is a corpus of its own, with its own digest and parts. The recipe of a view says what is made of each text
alone, so it stays true of fewer of them; how many rows were left out stands among what the corpus skipped.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_store import store_view
from embedcache.errors import InputError
from embedcache.key_index import first_occurrences
from embedcache.keys import KeyArray
from embedcache.views.kept import Kept, Made

LEFT_OUT = "not in the subset"
"""What the corpus says of the rows of the other that it has not."""

_BATCH_ROWS = 4096
_LONGEST_NAME = 100
_LONGEST_CONDITION = 40

OnRows = Callable[[str, int], None]
"""Called with the title of what is stored and how many of its rows are."""


def subset_keys(
    corpus: Corpus, rows: NDArray[np.integer], views: Collection[str] | None = None
) -> list[KeyArray]:
    """Return the distinct keys that a teacher may have a vector for: of the rows' texts and of their views'.

    Args:
        corpus: the whole corpus.
        rows: ascending, without repeats.
        views: names of the views whose texts count; default: all that are of the corpus's present rows.

    Returns:
        One array of dtype ``V16`` for the corpus and one a view, in their order; no key stands twice.

    Raises:
        InputError: if the rows do not ascend, or there is no such view.
        IndexError: if a row is not one of the corpus.
        CorruptCacheError: if a part is missing or damaged.
    """
    refuse_unordered(rows)
    chosen = corpus.views() if views is None else [corpus.view(name) for name in views]
    parts = [one.keys_of(rows) for one in (corpus, *chosen)]
    firsts = np.split(first_occurrences(parts), np.cumsum([len(part) for part in parts])[:-1])
    return [part[marks] for part, marks in zip(parts, firsts, strict=True)]


def part_name(corpus: str, total: int, rows: int | None, where: str | None) -> str:
    """Return what a part of a corpus is called where nobody says: a name that tells which part it is.

    Args:
        corpus: the name of the whole.
        total: its rows.
        rows: how many of them at most; None: all.
        where: the condition that chooses them; None: all.
    """
    tail = ""
    if where is not None:
        words = re.sub(r"[^A-Za-z0-9]+", "-", where).strip("-")[:_LONGEST_CONDITION].strip("-")
        # Conditions that differ in their signs alone have the same words.
        tail += f"-where-{words}-{hashlib.sha256(where.encode()).hexdigest()[:6]}".replace("--", "-")
    if rows is not None and (where is not None or rows < total):
        tail += f"-first-{rows}"
    return corpus[: _LONGEST_NAME - len(tail)] + tail


def store_subset(
    corpus: Corpus,
    rows: NDArray[np.integer],
    corpora: Path,
    name: str | None = None,
    *,
    replace: bool = False,
    on_rows: OnRows | None = None,
) -> tuple[Corpus, bool]:
    """Store ``rows`` of a corpus, and of its views, as the corpus ``corpora/<name>``.

    Killed or out of disk, what is written stays and the same call goes on from it. Views that were made of
    other rows than the corpus has now are left out, as nothing reads them.

    Args:
        corpus: the whole corpus; it may lie in another cache.
        rows: ascending, without repeats.
        corpora: a cache's folder of corpora.
        name: what it is called there; default: as the whole.
        replace: whether a corpus of the same name with other rows, or a view by another recipe, may be
            replaced.
        on_rows: called as the work goes on.

    Returns:
        The corpus, and whether it and all its views were already there.

    Raises:
        InputError: if there are no rows or they do not ascend, or the name is taken by other rows.
        IndexError: if a row is not one of the corpus.
        CorruptCacheError: if a part of the corpus or of a view is missing or damaged.
        StorageError: if the cache cannot be written.
    """
    refuse_unordered(rows)
    views = corpus.views()
    report = ReadReport(skipped=_skipped(corpus, rows))
    batches = _told(row_batches(corpus, rows), corpus.title, on_rows)
    part, was_there = store_corpus(corpora, name or corpus.name, batches, report, replace=replace)
    for view in views:
        if on_rows is not None:
            on_rows(view.title, 0)
        _, view_was_there = store_view(
            part,
            view.recipe,
            _Cut(view, rows).make,
            replace=replace,
            on_rows=None if on_rows is None else lambda done, title=view.title: on_rows(title, done),  # type: ignore[misc]
        )
        was_there = was_there and view_was_there
    return part, was_there


def row_batches(corpus: Corpus, rows: NDArray[np.integer]) -> Iterator[RowBatch]:
    """Yield ``rows`` of a corpus, in the order given, as :func:`store_corpus` takes them.

    Raises:
        IndexError: if a row is not one of the corpus.
        CorruptCacheError: if a part is missing or damaged.
    """
    for start in range(0, len(rows), _BATCH_ROWS):
        some = rows[start : start + _BATCH_ROWS]
        yield RowBatch(
            corpus.texts(some),
            corpus.ids(some) if corpus.info.has_ids else None,
            corpus.labels(some) if corpus.info.has_labels else None,
        )


def refuse_unordered(rows: NDArray[np.integer]) -> None:
    """Raise :class:`InputError` where there are no ``rows``, or they do not ascend."""
    if not len(rows):
        raise InputError("no row was chosen: a corpus has at least one; see to the number or the condition")
    if (np.diff(rows) <= 0).any():
        raise InputError("the rows do not ascend, or one stands twice: a part of a corpus keeps its order")


def _skipped(corpus: Corpus, rows: NDArray[np.integer]) -> Counter[str]:
    skipped = Counter(corpus.info.skipped)
    if left_out := len(corpus) - len(rows):
        skipped[LEFT_OUT] += left_out
    return skipped


def _told(batches: Iterator[RowBatch], title: str, on_rows: OnRows | None) -> Iterator[RowBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += len(batch.texts)
        if on_rows is not None:
            on_rows(title, done)


class _Cut:
    """Gives the texts that a view has for some rows of its corpus, as the maker of a view.

    Args:
        view: the whole view.
        rows: which rows; their texts become those of the part, in order.
    """

    def __init__(self, view: View, rows: NDArray[np.integer]) -> None:
        self._view, self._rows = view, rows
        self._kept = _reason(view)

    def make(self, first_row: int, texts: list[str]) -> list[Made]:
        """Return the view's texts for ``texts``, the part's rows from ``first_row`` on."""
        rows = self._rows[first_row : first_row + len(texts)]
        return [
            self._kept if made == text and self._kept is not None else made
            for text, made in zip(texts, self._view.texts(rows), strict=True)
        ]


def _reason(view: View) -> Kept | None:
    """Return what to count a row as that has the text of the corpus; None: the recipe gave the same text.

    Which of several reasons it was is not known of a row.
    """
    reasons = [reason for reason, rows in view.record.counts.items() if rows and reason != "changed"]
    if reasons == ["unchanged"]:
        return None
    known = {kept.value: kept for kept in Kept}
    return known.get(reasons[0], Kept.SAME_TEXT) if len(reasons) == 1 else Kept.SAME_TEXT
