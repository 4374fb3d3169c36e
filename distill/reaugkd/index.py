"""Nearest neighbours among unit vectors: an HNSW graph (Malkov and Yashunin, 2018) beside exact search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from embedcache.codecs import Vectors
from embedcache.progress import NO_PROGRESS, Progress

EFFORTS = (32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Values of ``ef_search`` that are tried, the fastest first."""

WANTED_RECALL = 0.99
USUAL_EFFORT = 256
"""``ef_search`` without enough queries to measure it on."""

FEWEST_QUERIES = 100
"""Queries to measure on; with fewer, a single missed neighbour would decide."""

_NEIGHBOURS = 10
_ROWS_AT_ONCE = 4096

Found: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows (n, k) and their cosines (n, k), the nearest first; row -1 and cosine -inf where there is none."""


class IndexSettings(BaseModel):
    """Settings of a graph, as the header of a knowledge base holds them.

    Attributes:
        m: links of a row per level, twice as many on the lowest.
        ef_construction: candidates examined to link a row.
        ef_search: candidates examined in a search; None: to be measured.
        codec: storage of vectors.
        is_settled: ``ef_search`` was measured, and is again after rows are added.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    m: int = Field(default=48, ge=2, le=1024)
    ef_construction: int = Field(default=400, ge=1, le=10**7)
    ef_search: int | None = Field(default=None, ge=1, le=10**7)
    codec: Literal["float32", "float16", "int8"] = "float16"
    is_settled: bool = False


class NeighbourIndex:
    """Index of n unit vectors of width d; made by ``build`` and ``from_bytes``.

    One thread adds rows, so the same vectors and settings give the same bytes.

    Args:
        index: the faiss index.
        settings: its settings.
    """

    def __init__(self, index: Any, settings: IndexSettings) -> None:
        self._index = index
        self.search_with(settings)

    @classmethod
    def build(cls, vectors: Vectors, settings: IndexSettings) -> NeighbourIndex:
        """Build an index of unit vectors, float32 of shape (n, d); n may be 0."""
        import faiss

        kinds: dict[str, Any] = {
            "float16": faiss.ScalarQuantizer.QT_fp16,
            "int8": faiss.ScalarQuantizer.QT_8bit,
        }
        width, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        index: Any = (
            faiss.IndexHNSWFlat(width, settings.m, metric)
            if settings.codec == "float32"
            else faiss.IndexHNSWSQ(width, kinds[settings.codec], settings.m, metric)
        )
        index.hnsw.efConstruction = settings.ef_construction
        made = cls(index, settings)
        made.add(vectors)
        return made

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Width d of a vector."""
        return int(self._index.d)

    def search_with(self, settings: IndexSettings) -> None:
        """Search with other settings."""
        self.settings = settings
        self._index.hnsw.efSearch = settings.ef_search or USUAL_EFFORT

    def add(self, vectors: Vectors, progress: Progress = NO_PROGRESS) -> None:
        """Append rows.

        Args:
            vectors: unit vectors, float32 of shape (n, d).
            progress: progress over the rows.
        """
        progress.phase("link", len(vectors))
        with _one_thread():
            for start in range(0, len(vectors), _ROWS_AT_ONCE):
                if not self._index.is_trained:
                    self._index.train(vectors)
                part = np.ascontiguousarray(vectors[start : start + _ROWS_AT_ONCE], dtype=np.float32)
                self._index.add(part)
                progress.advance(len(part))

    def search(self, queries: Vectors, k: int) -> Found:
        """Return the k nearest rows of unit vectors (n, d) that the graph finds."""
        cosines, rows = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(self)))
        # faiss marks a missing neighbour with the smallest finite number, which would still get a weight.
        cosines[rows < 0] = -np.inf
        return rows, cosines

    def exact(self, queries: Vectors, k: int) -> Found:
        """Return the k nearest rows of unit vectors (n, d), compared with every stored vector."""
        import faiss

        metric = faiss.METRIC_INNER_PRODUCT
        cosines, rows = faiss.knn(
            np.ascontiguousarray(queries, dtype=np.float32), self.vectors(), min(k, len(self)), metric=metric
        )
        return rows, cosines

    def vectors(self) -> Vectors:
        """Return the stored vectors, float32 of shape (n, d)."""
        found: Vectors = self._index.reconstruct_n(0, len(self))
        return found

    def recall(self, queries: Vectors, k: int) -> float:
        """Return the share of the k nearest rows of unit vectors (n, d), n > 0, that the graph finds."""
        rows, nearest = self.search(queries, k)[0], self.exact(queries, k)[0]
        return share_found(rows, nearest)

    def settle(self, queries: Vectors) -> float | None:
        """Set ``ef_search`` to the smallest of ``EFFORTS`` that finds 99 % of the ten nearest.

        The queries must not be in the index: its own rows, slightly moved, are found far more easily.

        Args:
            queries: unit vectors, float32 of shape (n, d).

        Returns:
            The recall, below 0.99 only at the largest ``ef_search``. None for fewer queries than
            ``FEWEST_QUERIES``: then an earlier setting stays, and the first one is ``USUAL_EFFORT``.
        """
        settings = self.settings
        if len(queries) < FEWEST_QUERIES:
            effort = settings.ef_search or USUAL_EFFORT
            self.search_with(settings.model_copy(update={"ef_search": effort, "is_settled": True}))
            return None
        nearest, _ = self.exact(queries, _NEIGHBOURS)
        recall = 0.0
        for effort in EFFORTS:
            self.search_with(settings.model_copy(update={"ef_search": effort, "is_settled": True}))
            recall = share_found(self.search(queries, _NEIGHBOURS)[0], nearest)
            if recall >= WANTED_RECALL:
                break
        return recall

    def to_bytes(self) -> bytes:
        """Return the index in the format of a faiss file."""
        import faiss

        return bytes(faiss.serialize_index(self._index).tobytes())

    @classmethod
    def from_bytes(cls, data: bytes, settings: IndexSettings) -> NeighbourIndex:
        """Read an index of unknown origin.

        Raises:
            ValueError: if the bytes are not an HNSW index, or a link leads outside of it.
        """
        import faiss

        try:
            index: Any = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
        except RuntimeError as error:
            raise ValueError(f"faiss cannot read the index ({str(error).splitlines()[0][:200]})") from error
        if not isinstance(index, faiss.IndexHNSW):
            raise ValueError(f"the index is a faiss {type(index).__name__}, expected HNSW")
        # faiss follows links without checking them.
        graph: Any = index.hnsw
        links, rows = faiss.vector_to_array(graph.neighbors), int(index.ntotal)
        outside = (links < -1).any() or (links >= rows).any() or not -1 <= graph.entry_point < rows
        if outside or int(index.storage.ntotal) != rows:
            raise ValueError(f"the index has links outside of its {rows} rows")
        return cls(index, settings)


def share_found(rows: NDArray[np.int64], nearest: NDArray[np.int64]) -> float:
    """Return the share of the nearest rows (n, k) that are among ``rows`` (n, k), 0 to 1."""
    return float((rows[:, :, None] == nearest[:, None, :]).any(axis=2).mean())


@contextmanager
def _one_thread() -> Iterator[None]:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
