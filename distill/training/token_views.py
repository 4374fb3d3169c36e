"""The token ids of what a run trains on, how often each of them comes, and a sample of the texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distill.data.dataset import DistillDataset
from distill.data.tokens import TokenArrays, tokenise_corpus
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.teacher.tokenize import FastTokenizer

_SAMPLED = 1000


def tokenise_view(
    cache: Cache, corpus: Corpus, view: str, tokenizer: FastTokenizer, on_progress: OnProgress | None
) -> TokenArrays:
    """Return the token ids of a view of a corpus, made now where the cache does not hold them yet."""
    texts = corpus if view == ORIGINAL else corpus.view(view)
    return tokenise_corpus(cache, texts, tokenizer, prepare_progress(on_progress, len(corpus)))


def prepare_progress(on_progress: OnProgress | None, rows: int) -> Callable[[int], None] | None:
    """Return what reports that so many of ``rows`` are tokenised; None where nobody wants to know."""
    if on_progress is None:
        return None
    return lambda done: on_progress(TrainProgress("prepare", done, rows))


def count_tokens(
    cache: Cache,
    dataset: DistillDataset,
    view: str,
    tokenizer: FastTokenizer,
    on_progress: OnProgress | None = None,
) -> NDArray[np.int64]:
    """Return how often each token comes in the rows to train on, int64, shape (ids of the tokenizer,).

    Args:
        cache: the cache; it keeps the token ids, as for training.
        dataset: the rows.
        view: the view of them that is counted.
        tokenizer: the tokenizer.
        on_progress: told how many rows are tokenised.

    Raises:
        StorageError: if token ids cannot be written.
    """
    arrays = tokenise_view(cache, dataset.corpus, view, tokenizer, on_progress)
    return arrays.counts(dataset.rows, tokenizer.vocabulary_size)


def sample_texts(dataset: DistillDataset) -> list[str]:
    """Return at most a thousand of the texts to train on, spread evenly over the rows."""
    return dataset.texts(dataset.rows[:: -(-len(dataset.rows) // _SAMPLED)])
