"""A corpus joined with teachers' cached vectors: what a student is trained on. Nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.held_out import HELD_OUT_STREAM
from distill.data.order import make_order, refuse_small_window
from distill.data.picked import PickedKeys
from distill.data.sampler import MOST_ROWS
from distill.data.targets import Targets, open_targets
from distill.data.windows import Order, WholeOrder, draw
from distill.errors import DataError
from distill.reaugkd.soft_labels import SoftLabels
from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.keys import KeyArray, first_occurrences
from embedcache.store import ShardStore

_QUEUE_STREAM = 2**31 - 3
"""Epoch number of the permutation that picks the rows a queue starts with; no training reaches it."""


@dataclass(frozen=True)
class DistillDataset:
    """Rows of a corpus and their targets.

    Attributes:
        corpus: the corpus.
        view: the view of it that the teacher has encoded; for the original text, the corpus itself.
        targets: the targets of ``rows``.
        rows: uint32, shape (n,); the training rows: distinct texts, held-out ones left out.
        held_out: uint32; rows kept out of training.
        duplicates: rows left out because their text stands earlier among the rows to train on.
        selected: rows that satisfy ``where``; None where all rows of the corpus were to be trained on.
        queue_rows: uint32; the rows whose vectors a queue starts with, in the order they enter it.
        soft: what a classifier is distilled from; None for losses that do not look at labels.
        order: the order that ``rows`` are trained on in.
    """

    corpus: Corpus
    view: Corpus
    targets: Targets
    rows: NDArray[np.uint32]
    held_out: NDArray[np.uint32]
    duplicates: int
    selected: int | None
    queue_rows: NDArray[np.uint32]
    soft: SoftLabels | None = None
    order: Order = field(default_factory=WholeOrder)

    def __len__(self) -> int:
        """Return the number of training rows."""
        return len(self.rows)

    @property
    def teacher(self) -> CachedTeacher:
        """The first teacher."""
        return self.targets.teachers[0]

    def texts(self, rows: NDArray[np.integer]) -> list[str]:
        """Return the texts that the teacher has encoded of ``rows``."""
        return self.view.texts(rows)

    def targets_of(self, rows: NDArray[np.integer]) -> Vectors:
        """Return the targets of corpus rows, whether they are training rows or not, float32."""
        return self.targets.lookup(self.view.keys_of(rows))


def open_dataset(
    cache: Cache,
    *,
    corpus: str | None = None,
    teacher: str | Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
    target_dim: int | None = None,
    view: str = ORIGINAL,
    where: str | None = None,
    held_out: int | Callable[[int], int] = 0,
    limit: int | None = None,
    queue: int | Callable[[int], int] = 0,
    queue_apart: bool = False,
    least_selected: int = 1,
    seed: int = 0,
    open_store: Callable[[Contract], ShardStore] | None = None,
    cache_limit: int | None = None,
) -> DistillDataset:
    """Join a corpus of ``cache`` with the vectors of one or several teachers.

    Args:
        cache: the cache.
        corpus, teacher: names; either may be left out where the cache holds one.
        weights: what each of several teachers counts for, relative to the others.
        target_dim: width to project the targets to; default: as wide as the teachers' vectors together.
        view: the view that the teacher has encoded.
        where: SQL predicate over the corpus's rows; only rows that satisfy it are trained on or held out. Its
            ``tokens`` and ``truncated`` are the first teacher's.
        held_out: how many distinct rows to keep out of training, chosen by ``seed``; or what says so, given
            how many distinct rows there are.
        limit: train on the first so many distinct rows only.
        queue: how many training rows to choose, by ``seed``, for a queue to start with, at most as many as
            there are; or what says so, given how many distinct rows there are.
        queue_apart: whether those rows are left out of the training.
        least_selected: how many distinct rows ``where`` has to leave to train on; fewer are a mistake in it.
        seed: chooses the held-out rows, those of the queue and the rows that a projection is fitted on. All
            of them are of the first window of the first epoch.
        open_store: opens the store of a contract; default: that of the cache.
        cache_limit: bytes that the fetched shards of such stores may have together; default: any number.

    Raises:
        ConfigError: if the weights or ``target_dim`` do not fit the teachers.
        DataError: if vectors are missing, no row satisfies ``where``, or too few are left to train on.
        InputError: if there is no such corpus or teacher, or ``where`` is no predicate.
    """
    chosen = cache.corpus(corpus)
    if len(chosen) > MOST_ROWS:
        raise DataError(
            f"corpus {chosen.name!r} has {len(chosen)} rows, training takes at most {MOST_ROWS}: "
            "split it into several corpora"
        )
    names = [teacher] if teacher is None or isinstance(teacher, str) else list(teacher)
    targets = open_targets(cache, names, weights, target_dim, open_store)
    mask, selected = (None, None) if where is None else _select(cache, chosen, targets.contracts[0].id, where)
    encoded = chosen if view == ORIGINAL else chosen.view(view)
    rows, duplicates = _distinct_rows(encoded, mask, limit)
    del mask
    distinct = len(rows)
    count = held_out if isinstance(held_out, int) else held_out(distinct)
    if count * 2 > distinct:
        raise DataError(
            f"corpus {chosen.name!r} has {distinct} distinct texts"
            f"{'' if where is None else ' among the rows selected'}; {count} held out leave too few "
            "to train on: use a larger corpus or a smaller evaluation.held_out"
        )
    if where is not None and distinct - count < least_selected:
        raise DataError(
            f"{selected} of the {len(chosen)} rows of corpus {chosen.name!r} satisfy "
            f"{where!r}, {distinct - count} of them to train on ({count} held out, repeated texts left out); "
            f"expected one batch of {least_selected} at least: select more rows, or lower --batch-size",
            "training.where",
        )
    queued = queue if isinstance(queue, int) else queue(distinct)
    order = make_order(cache_limit, targets, encoded, rows, seed)
    refuse_small_window(order, count + queued, f"{count:,} held out, {queued:,} that a queue starts with")
    kept = np.ones(distinct, dtype=np.bool_)
    kept[draw(order, distinct, seed, HELD_OUT_STREAM, count)] = False
    held_rows, rows, order = rows[~kept] if count else rows[:0], rows[kept], order.restricted(kept)
    queue_rows, rows, order = _queue_rows(rows, queued, queue_apart, seed, order)
    # Rows of a queue that are not set apart are trained on, and looked for as such.
    also = np.sort(np.concatenate([held_rows, queue_rows])) if queue_apart else held_rows
    targets = targets.join(encoded, rows, also)
    if target_dim is not None:
        targets = targets.project(target_dim, seed, len(rows), order)
    return DistillDataset(
        chosen, encoded, targets, rows, held_rows, duplicates, selected, queue_rows, order=order
    )


def seen_rows(
    cache: Cache, corpus: Corpus, view: Corpus, where: str | None, teacher: str, limit: int | None
) -> NDArray[np.uint32]:
    """Return the rows that a training of these settings sees, held-out ones included, uint32.

    Args:
        cache, corpus, view: as in a :class:`DistillDataset`.
        where, limit: as for :func:`open_dataset`.
        teacher: id of the first teacher's contract, whose tokens ``where`` means.

    Raises:
        DataError, InputError: as :func:`open_dataset`.
    """
    mask = None if where is None else _select(cache, corpus, teacher, where)[0]
    return _distinct_rows(view, mask, limit)[0]


def _queue_rows(
    rows: NDArray[np.uint32], count: int, apart: bool, seed: int, order: Order
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Order]:
    """Return the rows a queue starts with, and the rows to train on with their order."""
    places = draw(order, len(rows), seed, _QUEUE_STREAM, count)
    chosen = rows[places]
    if not (apart and count):
        return chosen, rows, order
    kept = np.ones(len(rows), dtype=np.bool_)
    kept[places] = False
    return chosen, rows[kept], order.restricted(kept)


def _select(cache: Cache, corpus: Corpus, teacher: str, where: str) -> tuple[NDArray[np.bool_], int]:
    """Return which rows satisfy ``where``, and how many do; tokens are those that ``teacher`` saw."""
    from embedcache.querying import select_rows

    found = select_rows(cache, corpus.name, where, teacher=teacher)
    if not len(found):
        raise DataError(
            f"no row of the {len(corpus)} of corpus {corpus.name!r} satisfies {where!r}; "
            "look at what its rows hold with 'embedcache query'",
            "training.where",
        )
    mask = np.zeros(len(corpus), dtype=np.bool_)
    mask[found] = True
    return mask, len(found)


def _distinct_rows(
    corpus: Corpus, mask: NDArray[np.bool_] | None, limit: int | None
) -> tuple[NDArray[np.uint32], int]:
    """Return the first row of each text, at most ``limit`` of them, and how many rows repeat a text."""
    parts: Sequence[KeyArray] = list(corpus.iter_keys())
    starts = [0, *accumulate(len(part) for part in parts)]
    fresh = first_occurrences(parts if mask is None else PickedKeys(parts, mask))
    distinct = int(np.count_nonzero(fresh))
    rows = np.empty(distinct if limit is None else min(limit, distinct), dtype=np.uint32)
    done = seen = 0
    # Part by part: the numbers of all rows at once would take eight bytes a row on the way.
    for start, end in pairwise(starts):
        inside = np.arange(start, end) if mask is None else start + np.flatnonzero(mask[start:end])
        found = inside[fresh[seen : seen + len(inside)]][: len(rows) - done]
        rows[done : done + len(found)] = found
        seen, done = seen + len(inside), done + len(found)
    return rows, len(fresh) - distinct
