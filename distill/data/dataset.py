"""A corpus joined with the cached vectors of its teachers; nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from distill.data.sampler import HELD_OUT_STREAM, MOST_ROWS
from distill.data.targets import Targets, open_targets
from distill.data.windows import WindowOrder, draw
from distill.errors import ConfigError, DataError
from distill.reaugkd.soft_labels import SoftLabels
from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.keys import KeyArray, first_occurrences
from embedcache.share.mirror import StreamedStore
from embedcache.sizes import readable
from embedcache.store import ShardStore

_QUEUE_STREAM = 2**31 - 3
"""Epoch number of the permutation that draws the rows of a queue; no training reaches it."""


@dataclass(frozen=True)
class DistillDataset:
    """Rows of a corpus and their targets.

    Attributes:
        corpus: the corpus.
        view: the view of it that the teacher has encoded; for the original text, the corpus itself.
        targets: the targets of ``rows``.
        rows: uint32, shape (n,); the training rows: distinct texts without held-out ones.
        held_out: uint32; rows kept out of training.
        selected: number of rows that satisfy ``where``; None without it.
        queue_rows: uint32; rows whose vectors a queue starts with, in the order they enter it.
        soft: soft labels of a classifier; None for losses without labels.
        order: windows that ``rows`` come in; None: all are shuffled together in every epoch.
    """

    corpus: Corpus
    view: Corpus
    targets: Targets
    rows: NDArray[np.uint32]
    held_out: NDArray[np.uint32]
    selected: int | None
    queue_rows: NDArray[np.uint32]
    soft: SoftLabels | None = None
    order: WindowOrder | None = None

    def __len__(self) -> int:
        """Return the number of training rows."""
        return len(self.rows)

    @property
    def teacher(self) -> CachedTeacher:
        """The first teacher."""
        return self.targets.teachers[0]

    def texts(self, rows: NDArray[np.integer]) -> list[str]:
        """Return the texts of corpus rows, in the view that the teacher has encoded."""
        return self.view.texts(rows)

    def targets_of(self, rows: NDArray[np.integer]) -> Vectors:
        """Return the targets of any corpus rows, float32."""
        return self.targets.lookup(self.view.keys_of(rows))


@dataclass(frozen=True)
class OpenedRows:
    """Distinct rows of a corpus, and the vectors of teachers that they are joined with by ``split``.

    Attributes:
        corpus, view, selected: as in a ``DistillDataset``.
        targets: the targets, not joined yet.
        target_dim: width to project them to; None: as they are.
        rows: uint32; the rows, ascending.
    """

    corpus: Corpus
    view: Corpus
    targets: Targets
    target_dim: int | None
    rows: NDArray[np.uint32]
    selected: int | None

    def split(
        self,
        held_out: int = 0,
        *,
        queue: int = 0,
        queue_apart: bool = False,
        seed: int = 0,
        cache_limit: int | None = None,
    ) -> DistillDataset:
        """Split the rows, and join them with their targets.

        Args:
            held_out: number of rows to keep out of training.
            queue: number of training rows that a queue starts with.
            queue_apart: do not train on those rows.
            seed: of held-out rows, those of the queue and the sample that a projection is fitted on; all are
                from the first window of the first epoch.
            cache_limit: most bytes of fetched shards of a remote; default: any number.

        Raises:
            ConfigError: if two shards are more than ``cache_limit``.
            DataError: if vectors are missing, or too few rows are left to train on.
        """
        rows, encoded, targets = self.rows, self.view, self.targets
        if held_out * 2 > len(rows):
            raise DataError(
                f"corpus {self.corpus.name!r} has {len(rows)} distinct texts"
                f"{'' if self.selected is None else ' among the rows selected'}; {held_out} held out leave "
                "too few to train on: use a larger corpus or a smaller evaluation.held_out"
            )
        order = None if cache_limit is None else make_order(cache_limit, targets, encoded, rows, seed)
        if order is not None and held_out + queue > (first := len(order.windows(0).window(0))):
            raise DataError(
                f"{held_out:,} held-out rows and {queue:,} that a queue starts with exceed the first window "
                f"({first:,} rows): give a larger --cache-limit, or a smaller --held-out or --queue"
            )
        held_rows, rest, rest_order = _split(rows, order, held_out, seed, HELD_OUT_STREAM)
        held_rows = np.sort(held_rows)
        queue_rows, others, others_order = _split(rest, rest_order, queue, seed, _QUEUE_STREAM)
        rows, order = (others, others_order) if queue_apart else (rest, rest_order)
        # Rows of a queue that are not set apart are among the training rows.
        also = np.sort(np.concatenate([held_rows, queue_rows])) if queue_apart else held_rows
        targets = targets.join(encoded, rows, also)
        if self.target_dim is not None:
            targets = targets.project(self.target_dim, seed, len(rows), order)
        return DistillDataset(
            self.corpus, encoded, targets, rows, held_rows, self.selected, queue_rows, order=order
        )


def open_rows(
    cache: Cache,
    *,
    corpus: str | None = None,
    teacher: str | Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
    target_dim: int | None = None,
    view: str = ORIGINAL,
    where: str | None = None,
    limit: int | None = None,
    open_store: Callable[[Contract], ShardStore] | None = None,
) -> OpenedRows:
    """Open a corpus of ``cache`` and the vectors of one or several teachers.

    Args:
        cache: the cache.
        corpus, teacher: names; optional where the cache holds only one.
        weights: relative weights of several teachers.
        target_dim: width to project the targets to; default: as wide as the teachers' vectors together.
        view: the view that the teacher has encoded.
        where: SQL predicate over the corpus's rows; only rows that satisfy it are trained on or held out. Its
            ``tokens`` and ``truncated`` are the first teacher's.
        limit: use the first N distinct rows only.
        open_store: opens the store of a contract; default: that of the cache.

    Raises:
        ConfigError: if the weights or ``target_dim`` do not fit the teachers.
        DataError: if no row satisfies ``where``.
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
    return OpenedRows(chosen, encoded, targets, target_dim, _distinct_rows(encoded, mask, limit), selected)


def make_order(
    limit: int, targets: Targets, corpus: Corpus, rows: NDArray[np.uint32], seed: int
) -> WindowOrder | None:
    """Return the order of the distinct rows of a corpus, held-out ones included; None without windows.

    Args:
        limit: most bytes of fetched shards that are kept at a time.
        targets: the targets, not joined with rows yet.
        corpus: the corpus, or the view of it that is encoded.
        rows: the rows, ascending.
        seed: of the order of shards.

    Raises:
        ConfigError: if two of the largest shards are more than the limit.
        DataError: if vectors are missing.
    """
    positions = targets.join(corpus, rows, rows[:0]).positions
    numbers, sizes, names = list[NDArray[np.int64]](), list[int](), list[str]()
    for store, places in zip(targets.stores, positions, strict=True):
        if isinstance(store, StreamedStore):
            numbers.append(store.shards_at(places.astype(np.int64)) + len(sizes))
            sizes += store.shard_sizes
            names += store.shard_names
    # Rows whose vectors are in the same shards are a group.
    together = np.zeros_like(numbers[0])
    for of_teacher in numbers:
        # Renumbered each time, so that the product stays small.
        together = np.unique(together * len(sizes) + of_teacher, return_inverse=True)[1]
    first = np.unique(together, return_index=True)[1].tolist()
    groups = [tuple(int(of_teacher[row]) for of_teacher in numbers) for row in first]
    everything = sum(sizes[shard] for shard in {shard for group in groups for shard in group})
    if everything <= limit:
        return None
    # The next window is fetched while one is trained on.
    room = limit // 2
    largest = max(sum(sizes[shard] for shard in group) for group in groups)
    if largest > room:
        raise ConfigError(
            f"{readable(limit)} has to hold two windows, and one row needs {readable(largest)} of shards: "
            f"give --cache-limit {readable(min(2 * largest, everything), up=True)} or more",
            "stream.limit",
        )
    return WindowOrder(together.astype(np.uint32), groups, sizes, names, room, seed)


def _split(
    rows: NDArray[np.uint32], order: WindowOrder | None, count: int, seed: int, stream: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], WindowOrder | None]:
    """Return ``count`` rows in the order they are drawn, and the other rows with their order."""
    if not count:
        return rows[:0], rows, order
    places = draw(order, len(rows), seed, stream, count)
    kept = np.ones(len(rows), dtype=np.bool_)
    kept[places] = False
    return rows[places], rows[kept], None if order is None else order.restricted(kept)


def _select(cache: Cache, corpus: Corpus, teacher: str, where: str) -> tuple[NDArray[np.bool_], int]:
    """Return the mask and number of rows that satisfy ``where``, which may use ``teacher``'s tokens."""
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


class _PickedKeys(Sequence[KeyArray]):
    """Keys of the rows selected by a mask, part by part on access."""

    def __init__(self, parts: Sequence[KeyArray], mask: NDArray[np.bool_]) -> None:
        self._parts, self._mask = parts, mask
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> KeyArray:  # type: ignore[override]  # slices are not needed
        return self._parts[number][self._mask[self._starts[number] : self._starts[number + 1]]]


def _distinct_rows(corpus: Corpus, mask: NDArray[np.bool_] | None, limit: int | None) -> NDArray[np.uint32]:
    """Return the first row of each text, at most ``limit`` of them."""
    parts: Sequence[KeyArray] = list(corpus.iter_keys())
    starts = [0, *accumulate(len(part) for part in parts)]
    fresh = first_occurrences(parts if mask is None else _PickedKeys(parts, mask))
    distinct = int(np.count_nonzero(fresh))
    rows = np.empty(distinct if limit is None else min(limit, distinct), dtype=np.uint32)
    done = seen = 0
    # Part by part: the numbers of all rows at once would take eight bytes a row.
    for start, end in pairwise(starts):
        inside = np.arange(start, end) if mask is None else start + np.flatnonzero(mask[start:end])
        found = inside[fresh[seen : seen + len(inside)]][: len(rows) - done]
        rows[done : done + len(found)] = found
        seen, done = seen + len(inside), done + len(found)
    return rows
