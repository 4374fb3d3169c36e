"""Targets of a student: the cached vectors of one or several teachers for its training rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distill.data.combination import Combination
from distill.data.windows import WindowOrder, draw
from distill.errors import ConfigError, DataError
from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.keys import KeyArray
from embedcache.store import ShardStore

SAMPLE_ROWS = 100_000
"""Most training rows that a projection is fitted on."""

_SAMPLE_STREAM = 2**31 - 2
"""Epoch number of the permutation that draws them; no training reaches it."""

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Targets:
    """Targets of n training rows.

    Attributes:
        teachers: the teachers; students are built from the first.
        stores: their vectors.
        combination: combination of the vectors into targets; None for one teacher's vectors as stored.
        positions: position of each row's vector in each store, arrays of shape (n,).
    """

    teachers: tuple[CachedTeacher, ...]
    stores: tuple[ShardStore, ...]
    combination: Combination | None
    positions: tuple[NDArray[np.integer], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The teachers' names."""
        return tuple(teacher.name for teacher in self.teachers)

    @property
    def contracts(self) -> tuple[Contract, ...]:
        """The teachers' contracts."""
        return tuple(teacher.contract for teacher in self.teachers)

    @property
    def dimension(self) -> int:
        """Width of a target."""
        return self.contracts[0].dimension if self.combination is None else self.combination.dimension

    def gather(self, indices: NDArray[np.integer]) -> NDArray[np.floating]:
        """Return the targets of training rows, (len(indices), ``dimension``), in the order asked.

        They are float32, but for one teacher's vectors as stored, which have the store's dtype.

        Raises:
            DataError: if a vector cannot be combined; see ``Combination.apply``.
        """
        places = self._places(indices)
        return self._at(places) if self.combination else self.stores[0].gather(places[0])

    def lookup(self, keys: KeyArray) -> Vectors:
        """Return the targets of any texts by their keys, float32.

        Raises:
            DataError: if a vector cannot be combined; see ``Combination.apply``.
            IndexError: if a store lacks a key.
        """
        return self._at([store.locate(keys) for store in self.stores])

    def _places(self, indices: NDArray[np.integer]) -> list[NDArray[np.int64]]:
        return [positions[indices].astype(np.int64) for positions in self.positions]

    def _at(self, places: Sequence[NDArray[np.int64]]) -> Vectors:
        vectors = [store.vectors(place) for store, place in zip(self.stores, places, strict=True)]
        return self.combination.apply(vectors) if self.combination else vectors[0]

    def join(self, corpus: Corpus, rows: NDArray[np.uint32], also: NDArray[np.uint32]) -> Targets:
        """Return the targets of ``rows`` of a corpus.

        Args:
            corpus: the corpus.
            rows: the training rows, ascending.
            also: other rows that need vectors, ascending.

        Raises:
            DataError: if vectors are missing; it names the teacher, their number and what to run.
        """
        parts = list(corpus.iter_keys())
        found = []
        for teacher, store in zip(self.teachers, self.stores, strict=True):
            positions, missing = _locate(store, parts, rows)
            if missing := missing + _locate(store, parts, also)[1]:
                raise _missing(missing, len(rows) + len(also), corpus, teacher.name)
            found.append(positions)
        return replace(self, positions=tuple(found))

    def project(self, dimension: int, seed: int, rows: int, order: WindowOrder | None = None) -> Targets:
        """Return the targets projected to ``dimension``, fitted on a sample of the rows drawn by ``seed``.

        Args:
            dimension: the width.
            seed: draws the sample.
            rows: number of training rows.
            order: draws it from the first window of this order; default: from all rows.

        Raises:
            ConfigError: if the sample spans fewer directions than that.
        """
        assert self.combination is not None  # noqa: S101 - opened for a projection
        chosen = np.sort(draw(order, rows, seed, _SAMPLE_STREAM, SAMPLE_ROWS))

        def sample() -> Iterator[Vectors]:
            for start in range(0, len(chosen), _ROWS_AT_ONCE):
                part = chosen[start : start + _ROWS_AT_ONCE]
                yield self._at(self._places(part))

        return replace(self, combination=self.combination.fitted(sample(), dimension))


def open_targets(
    cache: Cache,
    names: Sequence[str | None],
    weights: Sequence[float] | None = None,
    target_dim: int | None = None,
    open_store: Callable[[Contract], ShardStore] | None = None,
) -> Targets:
    """Return the vectors of the teachers called ``names``, of no rows yet.

    Args:
        cache: the cache.
        names: names or contract ids; None stands for the only teacher there is.
        weights: relative weights of the teachers; default: equal.
        target_dim: width that targets will be projected to.
        open_store: opens the store of a contract; default: that of the cache.

    Raises:
        ConfigError: if a teacher is named twice, or the weights or ``target_dim`` do not fit the teachers.
        InputError: if there is no such teacher.
    """
    teachers = tuple(cache.teacher(name) for name in names)
    contracts = [teacher.contract.id for teacher in teachers]
    if twice := next((t.name for n, t in enumerate(teachers) if t.contract.id in contracts[:n]), None):
        raise ConfigError(f"{twice!r} has the contract of another teacher named; name each once", "teacher")
    widths = [teacher.contract.dimension for teacher in teachers]
    if weights is not None and len(weights) != len(teachers):
        raise ConfigError(f"{len(weights)} given for {len(teachers)} teachers", "teacher_weights")
    if target_dim is not None and target_dim > sum(widths):
        raise ConfigError(
            f"{target_dim} exceeds the teachers' {sum(widths)} dimensions; give less, or leave it out",
            "target_dim",
        )
    combination = None
    if len(teachers) > 1 or target_dim is not None:
        combination = Combination.of([t.name for t in teachers], widths, weights or [1.0] * len(teachers))
    stores = tuple((open_store or cache.store)(teacher.contract) for teacher in teachers)
    return Targets(teachers, stores, combination)


def _missing(count: int, total: int, corpus: Corpus, teacher: str) -> DataError:
    texts, option = corpus.title, ""
    if isinstance(corpus, View):
        texts = f"view {corpus.name!r} of corpus {corpus.of.name!r}"
        option = f" with '--embed-views {corpus.name}'"
    return DataError(
        f"{count} of {total} texts of {texts} have no vector of teacher {teacher!r}: run 'embedcache build' "
        f"for this corpus and teacher{option}"
    )


def _locate(
    store: ShardStore, parts: Sequence[KeyArray], rows: NDArray[np.uint32]
) -> tuple[NDArray[np.integer], int]:
    """Return the positions of the vectors of ascending ``rows``, in four bytes if they fit, and how many are
    missing.
    """
    positions: NDArray[np.integer] = np.empty(len(rows), dtype=np.uint32)
    first_rows = np.cumsum([0, *(len(part) for part in parts)])
    # Of the rows' own dtype: searching for wider numbers would first widen every row.
    edges = np.searchsorted(rows, first_rows.astype(rows.dtype))
    missing = 0
    for number, part in enumerate(parts):
        inside = slice(edges[number], edges[number + 1])
        found = store.locate(part[rows[inside] - first_rows[number]])
        missing += int((found < 0).sum())
        if len(found) and found.max() > np.iinfo(positions.dtype).max:
            positions = positions.astype(np.int64)
        positions[inside] = found
    return positions, missing
