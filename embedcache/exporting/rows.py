"""Rows to export: which ones, and their texts and vectors in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus
from embedcache.errors import InputError, MissingVectorsError
from embedcache.keys import first_occurrences
from embedcache.progress import Progress
from embedcache.querying import select_rows
from embedcache.store import Positions, ShardStore

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 16384


@dataclass(frozen=True)
class Rows:
    """Rows of a corpus or view that have a vector.

    Attributes:
        corpus: the corpus.
        texts: the corpus, or its view.
        teacher: the teacher.
        store: its vectors.
        numbers: the rows, ascending; int64, shape (n,).
        positions: positions of their vectors in the store.
        missing: rows left out because they have no vector.
    """

    corpus: Corpus
    texts: Corpus
    teacher: CachedTeacher
    store: ShardStore
    numbers: NDArray[np.int64]
    positions: Positions
    missing: int

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.numbers)

    @property
    def dimension(self) -> int:
        """Components of a vector."""
        return self.store.contract.dimension

    def distinct(self) -> Rows:
        """Return the first row of each distinct text."""
        first = first_occurrences([self.texts.keys_of(self.numbers)])
        return replace(self, numbers=self.numbers[first], positions=self.positions[first])

    def blocks(self) -> Iterator[slice]:
        """Yield the slices of ``numbers`` that are read at a time."""
        for start in range(0, len(self), BATCH_ROWS):
            yield slice(start, start + BATCH_ROWS)

    def batches(self, progress: Progress) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Yield rows and their vectors, float32 of shape (m, d)."""
        for block in self.blocks():
            yield self.numbers[block], self.store.vectors(self.positions[block])
            progress.advance(len(self.numbers[block]))

    @property
    def fields(self) -> list[pa.Field]:
        """Columns beside the vectors: ``row``, ``text``, ``id`` and ``label`` where there are any."""
        import pyarrow as pa

        types = {"row": "int64", "text": "string", **self.texts.info.types}
        return [pa.field(name, pa.type_for_alias(types[name])) for name in _COLUMNS if name in types]

    def columns(self, numbers: NDArray[np.int64]) -> list[pa.Array]:
        """Return the columns of ``fields`` for some rows."""
        import pyarrow as pa

        return [pa.array(_COLUMNS[field.name](self.texts, numbers), field.type) for field in self.fields]

    @property
    def schema(self) -> pa.Schema:
        """Schema of ``tables``: ``fields``, and ``vector``, float32 of fixed size."""
        import pyarrow as pa

        return pa.schema([*self.fields, pa.field("vector", pa.list_(pa.float32(), self.dimension))])

    def tables(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        """Yield rows with their vectors as Arrow batches."""
        import pyarrow as pa

        for numbers, vectors in self.batches(progress):
            vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dimension)
            yield pa.record_batch([*self.columns(numbers), vector], schema=self.schema)


_COLUMNS: dict[str, Callable[[Corpus, NDArray[np.int64]], Any]] = {
    "row": lambda texts, numbers: numbers,
    "text": Corpus.texts,
    "id": Corpus.ids,
    "label": Corpus.labels,
}


def rows_to_export(
    cache: Cache,
    corpus: str | None = None,
    view: str | None = None,
    teacher: str | None = None,
    where: str | None = None,
    *,
    skip_missing: bool = False,
) -> Rows:
    """Return the rows that are exported; arguments and errors as ``embedcache.export``."""
    chosen, known = cache.corpus(corpus), cache.teacher(teacher)
    texts, store = chosen.view(view) if view else chosen, cache.store(known.contract)
    numbers = np.arange(len(chosen))
    if where is not None:
        numbers = select_rows(cache, chosen.name, where, teacher=known.contract.id)
    positions = store.locate(texts.keys_of(numbers))
    has_vector = positions >= 0
    missing = int(np.count_nonzero(~has_vector))
    if missing and not skip_missing:
        build = f"embedcache build{f' --embed-views {view}' if view else ''}"
        raise MissingVectorsError(
            f"{missing} of {len(numbers)} rows of {texts.title} have no vector of teacher {known.name!r}: "
            f"encode them with '{build}', or leave them out with --skip-missing"
        )
    if len(numbers) == missing:
        raise InputError(f"no rows to export: {len(numbers)} of {texts.title}, {missing} without a vector")
    return Rows(chosen, texts, known, store, numbers[has_vector], positions[has_vector], missing)
