"""Subset of a corpus: some of its rows, with its views cut to the same rows, as a separate corpus."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_store import store_view
from embedcache.errors import InputError
from embedcache.keys import KeyArray
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.views.recipe import Kept, Made

LEFT_OUT = "not in the subset"
"""Reason under which a subset counts the other rows of its corpus as skipped."""

_BATCH_ROWS = 4096
_LONGEST_NAME = 100
_LONGEST_CONDITION = 40


def text_keys(
    corpus: Corpus, rows: NDArray[np.integer] | None = None, views: Sequence[View] | None = None
) -> KeyArray:
    """Return the keys of a corpus's texts and of its views', dtype ``V16``; a key may occur several times.

    Args:
        corpus: the corpus.
        rows: rows that count; default: all.
        views: views that count; default: all of the corpus.

    Raises:
        CorruptCacheError: if a part is missing or damaged.
    """
    chosen = [corpus, *(corpus.views() if views is None else views)]
    return np.concatenate([one.keys() if rows is None else one.keys_of(rows) for one in chosen])


def subset_name(corpus: str, where: str) -> str:
    """Return the name of the rows of a corpus for which a condition holds."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", where).strip("-")[:_LONGEST_CONDITION].strip("-")
    # Conditions that differ in punctuation alone have the same words.
    tail = f"-where-{words}-{hashlib.sha256(where.encode()).hexdigest()[:6]}".replace("--", "-")
    return corpus[: _LONGEST_NAME - len(tail)] + tail


def copy_rows(
    corpus: Corpus,
    rows: NDArray[np.integer],
    corpora: Path,
    name: str,
    views: Sequence[View] | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Corpus:
    """Store rows of a corpus and of its views as the corpus ``corpora/<name>``.

    Killed, the same call continues from what is written.

    Args:
        corpus: the corpus; it may lie in another cache.
        rows: ascending, without repeats, at least one.
        corpora: folder of corpora of the target cache.
        name: name of the subset.
        views: views of these rows to copy; default: those of the corpus.
        overwrite: replace a corpus of the name with other rows, and its views.
        progress: receives the rows written.

    Raises:
        InputError: if the rows do not ascend or there are none, or the name belongs to other rows.
        IndexError: if a row is not one of the corpus.
        CorruptCacheError: if a part of the corpus or of a view is missing or damaged.
        StorageError: if the cache cannot be written.
    """
    if not len(rows) or (np.diff(rows) <= 0).any():
        raise InputError(f"{corpus.title}: a subset needs ascending rows, at least one")
    skipped = Counter(corpus.info.skipped)
    if left_out := len(corpus) - len(rows):
        skipped[LEFT_OUT] += left_out
    chosen = corpus.views() if views is None else views
    progress.phase(f"write {name}", len(rows) * (1 + len(chosen)))
    batches = _row_batches(corpus, rows, progress)
    subset, _ = store_corpus(corpora, name, batches, ReadReport(skipped=skipped), replace=overwrite)
    for view in chosen:

        def texts_of(first_row: int, texts: list[str], view: View = view) -> list[Made]:
            made = view.texts(rows[first_row : first_row + len(texts)])
            progress.advance(len(texts))
            # The record of the view does not say which rows were kept for which reason.
            return [Kept.SAME_TEXT if new == text else new for text, new in zip(texts, made, strict=True)]

        store_view(subset, view.recipe, texts_of, replace=overwrite)
    return subset


def _row_batches(corpus: Corpus, rows: NDArray[np.integer], progress: Progress) -> Iterator[RowBatch]:
    for start in range(0, len(rows), _BATCH_ROWS):
        some = rows[start : start + _BATCH_ROWS]
        yield RowBatch(
            corpus.texts(some),
            corpus.ids(some) if corpus.info.has_ids else None,
            corpus.labels(some) if corpus.info.has_labels else None,
        )
        progress.advance(len(some))
