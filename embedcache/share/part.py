"""A part of a corpus: some of its rows as a corpus of its own, with the same rows of its views."""

from __future__ import annotations

import shutil

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.subset import part_name, store_subset, subset_keys
from embedcache.keys import KeyArray
from embedcache.share.files import Selection


def cut_part(staged: Cache, corpus: Corpus, selection: Selection) -> tuple[Corpus, KeyArray]:
    """Replace a corpus in a quarantine by the chosen rows of it.

    Returns:
        The part, and the distinct keys of its texts and its views' texts.

    Raises:
        InputError: if no row is chosen, or the condition is none.
    """
    rows = _chosen(staged, corpus, selection)
    keys = np.concatenate(subset_keys(corpus, rows))
    name = part_name(corpus.name, len(corpus), selection.rows, selection.where)
    if name == corpus.name:
        return corpus, keys
    part, _ = store_subset(corpus, rows, staged.corpora_folder, name)
    shutil.rmtree(corpus.folder)
    return part, keys


def _chosen(staged: Cache, corpus: Corpus, selection: Selection) -> NDArray[np.int64]:
    rows = np.arange(len(corpus), dtype=np.int64)
    if selection.where is not None:
        from embedcache.catalog import select_rows

        rows = select_rows(staged, corpus.name, selection.where)
    return rows if selection.rows is None else rows[: selection.rows]
