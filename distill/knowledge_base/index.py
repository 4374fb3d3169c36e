"""The nearest of many unit vectors: an HNSW graph (Malkov and Yashunin, 2018), and exact search to check it.

One thread builds the graph, so that the same vectors and settings give the same bytes: with several, the
order in which rows enter it depends on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import ConfigError
from embedcache.codecs import Vectors

if TYPE_CHECKING:
    import faiss

CODECS = ("float32", "float16", "int8")
"""How an index keeps vectors, the exact one first."""

UNSETTLED_EFFORT = 64
"""Candidates looked at in a search until something else is asked for or found out."""

_MOST_LINKS, _MOST_CANDIDATES = 1024, 10**7
"""More links take more room than vectors do; more candidates than rows find no more."""

_ROWS_AT_ONCE = 4096
"""Rows added between two reports of progress."""

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows (n, k) and their cosines (n, k), the nearest first; where there is none, row -1 and cosine -inf."""


@dataclass(frozen=True)
class IndexSettings:
    """How an index is built and searched.

    Attributes:
        m: links that a row keeps on each level but the lowest, which has twice as many.
        ef_construction: candidates looked at while a row is linked.
        ef_search: candidates looked at while a row is searched for, and at least as many as are asked for;
            None: :data:`UNSETTLED_EFFORT`, until :func:`distill.knowledge_base.effort.settle_effort` sets it.
        codec: one of :data:`CODECS`.
        is_settled: whether ``ef_search`` was found out and not asked for, so that it is found out again when
            rows are added; of an index that an older version built nobody says, and it stays.
    """

    m: int = 48
    ef_construction: int = 400
    ef_search: int | None = None
    codec: str = "float16"
    is_settled: bool = False

    def __post_init__(self) -> None:
        searched = UNSETTLED_EFFORT if self.ef_search is None else self.ef_search
        for option, value, least, most in (
            ("m", self.m, 2, _MOST_LINKS),
            ("ef-construction", self.ef_construction, 1, _MOST_CANDIDATES),
            ("ef-search", searched, 1, _MOST_CANDIDATES),
        ):
            if value < least:
                raise ConfigError(f"--{option} {value}: expected {least} at least")
            if value > most:
                raise ConfigError(f"--{option} {value}: expected {most:,} at most")
        if self.codec not in CODECS:
            raise ConfigError(f"--codec {self.codec!r}: choose one of {', '.join(CODECS)}")

    def to_json(self) -> dict[str, object]:
        """Return the settings as a JSON object."""
        return asdict(self)


class NeighbourIndex:
    """An index of unit vectors; made by :meth:`build` and :meth:`from_bytes`.

    Args:
        index: the faiss index.
        settings: how it was built.
    """

    def __init__(self, index: faiss.IndexHNSW, settings: IndexSettings) -> None:
        self._index: Any = index
        self.settings = settings
        self._index.hnsw.efSearch = settings.ef_search or UNSETTLED_EFFORT

    @classmethod
    def build(
        cls, vectors: Vectors, settings: IndexSettings, on_step: Callable[[int, int], None] | None = None
    ) -> NeighbourIndex:
        """Return an index of ``vectors``.

        Args:
            vectors: float32, shape (n, d), each of length one.
            settings: how to build it.
            on_step: told how many rows are in, and of how many.
        """
        import faiss

        width, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        if settings.codec == "float32":
            index: Any = faiss.IndexHNSWFlat(width, settings.m, metric)
        else:
            scalar = faiss.ScalarQuantizer
            # faiss's own types ask for a quantiser here; it takes the number of a kind of one.
            kept: Any = {"float16": scalar.QT_fp16, "int8": scalar.QT_8bit}[settings.codec]
            index = faiss.IndexHNSWSQ(width, kept, settings.m, metric)
            with _one_thread():
                index.train(vectors)
        index.hnsw.efConstruction = settings.ef_construction
        made = cls(index, settings)
        made.add(vectors, on_step)
        return made

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Width of a vector."""
        return int(self._index.d)

    def add(self, vectors: Vectors, on_step: Callable[[int, int], None] | None = None) -> None:
        """Add rows behind those that are there; arguments as for :meth:`build`."""
        with _one_thread():
            for start in range(0, len(vectors), _ROWS_AT_ONCE):
                part = np.ascontiguousarray(vectors[start : start + _ROWS_AT_ONCE], dtype=np.float32)
                self._index.add(part)
                if on_step is not None:
                    on_step(start + len(part), len(vectors))

    def search_with(self, ef_search: int) -> None:
        """Look at so many candidates in searches from now on, until that is found out anew."""
        self.settings = replace(self.settings, ef_search=ef_search, is_settled=True)
        self._index.hnsw.efSearch = ef_search

    def search(self, queries: Vectors, k: int) -> Found:
        """Return the nearest rows of unit vectors (n, d), as the graph finds them."""
        cosines, rows = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(self)))
        # What faiss gives for "none" is the smallest finite number, which would still have a weight.
        cosines[rows < 0] = -np.inf
        return rows, cosines

    def exact(self, queries: Vectors, k: int) -> Found:
        """Return the nearest rows of unit vectors (n, d) by comparing with every vector as it is kept."""
        import faiss

        queries = np.ascontiguousarray(queries, dtype=np.float32)
        cosines, rows = faiss.knn(
            queries, self.vectors(), min(k, len(self)), metric=faiss.METRIC_INNER_PRODUCT
        )
        return rows, cosines

    def vectors(self, rows: NDArray[np.int64] | None = None) -> Vectors:
        """Return the vectors of ``rows`` (default: all) as they are kept, float32 of shape (n, d)."""
        found: Vectors = (
            self._index.reconstruct_n(0, len(self))
            if rows is None
            else self._index.reconstruct_batch(rows.astype(np.int64))
        )
        return found

    def to_bytes(self) -> NDArray[np.uint8]:
        """Return the index as one block of bytes, which faiss reads as a file."""
        import faiss

        data: NDArray[np.uint8] = faiss.serialize_index(self._index)
        return data

    @classmethod
    def from_bytes(cls, data: bytes, settings: IndexSettings) -> NeighbourIndex:
        """Read an index back.

        Raises:
            ValueError: if the bytes are not those of an HNSW index.
        """
        import faiss

        try:
            index = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
        except RuntimeError as error:
            raise ValueError(f"faiss cannot read it ({str(error).splitlines()[0][:200]})") from error
        if not isinstance(index, faiss.IndexHNSW):
            raise ValueError(f"it is a faiss {type(index).__name__}, expected an HNSW index")
        return cls(index, settings)


@contextmanager
def _one_thread() -> Iterator[None]:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
