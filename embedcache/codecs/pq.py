"""The codec pq: product quantisation, one byte for every four components.

A vector is cut into sub-vectors. Each is stored as the number of the nearest of 256 centroids. The centroids,
the codebook, are trained on vectors of one teacher and stored in a file named by the sha256 of its bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs.base import Codec, Stored, Vectors, row_magnitudes
from embedcache.errors import CorruptCacheError, InputError, UnreadableError
from embedcache.fsio import read_regular, write_bytes

if TYPE_CHECKING:
    import faiss

NAME = "pq"
CENTROIDS = 256
LEAST_TRAINING_ROWS = CENTROIDS
MOST_TRAINING_ROWS = 65536
PASSES = 25
_LONGEST_SUB_VECTOR = 4
_BLOCK_ROWS = 1024
# Squared distances of larger components overflow float32.
_LIMIT = 1e18
# Codebook of vectors of a hundred thousand components.
_MOST_BYTES = 100 << 20
# Header that np.save writes. numpy's own reader trusts the shape in it.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f4', 'fortran_order': False, "
    rb"'shape': \(([1-9][0-9]{0,6}), 256, ([1-4])\), \} *\n",
    re.DOTALL,
)


class PQCodec(Codec):
    """Product quantisation with one codebook; made by ``train`` or ``load``.

    Attributes:
        centroids: codebook of m sub-vectors of s components each, float32, shape (m, 256, s).
    """

    name = NAME
    dtype = np.dtype(np.uint8)

    def __init__(self, centroids: NDArray[np.float32]) -> None:
        self.centroids = np.ascontiguousarray(centroids, dtype=np.float32)

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""
        return len(self.centroids) * int(self.centroids.shape[2])

    @cached_property
    def codebook(self) -> str:
        """Name (sha256) of the codebook's file."""
        return hashlib.sha256(self.codebook_bytes()).hexdigest()

    def codebook_bytes(self) -> bytes:
        """Return the codebook's file: an ``.npy`` of float32, shape (m, 256, s)."""
        buffer = io.BytesIO()
        np.save(buffer, self.centroids.astype("<f4", copy=False), allow_pickle=False)
        return buffer.getvalue()

    def width(self, dimension: int) -> int:
        """Return the bytes of a vector.

        Raises:
            InputError: if the codebook is for vectors of another width.
        """
        if dimension != self.dimension:
            raise InputError(
                f"the codebook {self.codebook[:12]} is for vectors of width {self.dimension}, not {dimension}"
            )
        return len(self.centroids)

    def encode(self, vectors: Vectors) -> Stored:
        """Return vectors (n, d) float32 as stored rows; see ``Codec.encode``."""
        self.width(vectors.shape[1])
        row_magnitudes(vectors, NAME, _LIMIT)
        codes: NDArray[np.uint8] = _quantizer(self.centroids).compute_codes(np.ascontiguousarray(vectors))
        return Stored(codes)

    def decode(self, stored: Stored) -> NDArray[np.floating]:
        """Return stored rows as float32 vectors (n, d)."""
        parts, _, length = self.centroids.shape
        table, rows = self.centroids.reshape(-1, length), len(stored)
        first = np.arange(parts) * CENTROIDS
        vectors = np.empty((rows, parts, length), np.float32)
        for start in range(0, rows, _BLOCK_ROWS):
            places = stored.vector[start : start + _BLOCK_ROWS] + first
            # "clip" lets numpy write into `out` without a copy.
            np.take(table, places, axis=0, out=vectors[start : start + _BLOCK_ROWS], mode="clip")
        return vectors.reshape(rows, self.dimension)


def stored_width(dimension: int) -> int:
    """Return the bytes of a vector of ``dimension`` components under any codebook."""
    return dimension // _sub_vector_length(dimension)


def refuse_too_few(rows: int) -> None:
    """Raise InputError if a codebook cannot be trained on so few vectors."""
    if rows < LEAST_TRAINING_ROWS:
        raise InputError(
            f"the codec pq is trained on at least {LEAST_TRAINING_ROWS} vectors, found {rows}. Use codec "
            "float16 or int8."
        )


def train(vectors: Vectors, *, seed: int = 0) -> PQCodec:
    """Train a codebook on vectors of one teacher by k-means in every sub-vector.

    The same vectors and seed give the same codebook for any number of threads.

    Args:
        vectors: float32, shape (n, d); 65,536 are drawn where there are more.
        seed: seed of the draw and of the first centroids.

    Raises:
        InputError: for fewer than 256 vectors, or values that are not finite or above 1e18.
    """
    refuse_too_few(len(vectors))
    generator = np.random.default_rng(seed)
    if len(vectors) > MOST_TRAINING_ROWS:
        vectors = vectors[np.sort(generator.choice(len(vectors), MOST_TRAINING_ROWS, replace=False))]
    vectors = np.ascontiguousarray(vectors)
    row_magnitudes(vectors, NAME, _LIMIT)
    length = _sub_vector_length(vectors.shape[1])
    first = vectors[np.sort(generator.choice(len(vectors), CENTROIDS, replace=False))]
    centroids = np.ascontiguousarray(first.reshape(CENTROIDS, -1, length).swapaxes(0, 1))
    codes: NDArray[np.uint8] | None = None
    for _ in range(PASSES):
        # faiss's own training searches one sub-vector at a time and takes seven times as long.
        nearest = _quantizer(centroids).compute_codes(vectors)
        if codes is not None and np.array_equal(nearest, codes):
            break
        codes = nearest
        centroids = _means(vectors, nearest, centroids)
    return PQCodec(centroids)


def save(folder: Path, codec: PQCodec) -> Path:
    """Write the codebook into ``folder``, named by the sha256 of its bytes, and return its path.

    Raises:
        StorageError: if the folder cannot be written.
    """
    target = folder / f"{codec.codebook}.npy"
    write_bytes(target, codec.codebook_bytes())
    return target


def load(folder: Path, sha256: str) -> PQCodec:
    """Read a codebook by its name.

    Raises:
        CorruptCacheError: if it is missing, or not what ``save`` wrote under that name.
    """
    path = folder / f"{sha256}.npy"
    try:
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError("its name is not a sha256")
        data = read_regular(path, _MOST_BYTES)
        header = _HEADER.match(data)
        if hashlib.sha256(data).hexdigest() != sha256 or header is None:
            raise ValueError("its bytes are not those of its name, or no codebook")
        shape = (int(header[1]), CENTROIDS, int(header[2]))
        centroids = np.frombuffer(data, "<f4", offset=header.end()).reshape(shape)
        if not (np.abs(centroids) <= _LIMIT).all():  # NaN is not
            raise ValueError(f"it holds numbers that are not finite, or above {_LIMIT:g}")
    except UnreadableError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptCacheError(
            f"the pq codebook {sha256[:80]!r} in {folder} is damaged or missing ({error}). Copy it again "
            "from where its shards are."
        ) from error
    return PQCodec(centroids)


def _sub_vector_length(dimension: int) -> int:
    return max(length for length in range(1, _LONGEST_SUB_VECTOR + 1) if dimension % length == 0)


def _quantizer(centroids: NDArray[np.float32]) -> faiss.ProductQuantizer:
    import faiss

    parts, _, length = centroids.shape
    quantizer = faiss.ProductQuantizer(parts * length, parts, 8)
    faiss.copy_array_to_vector(centroids.reshape(-1), quantizer.centroids)
    return quantizer


def _means(vectors: Vectors, codes: NDArray[np.uint8], centroids: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of the sub-vectors of each code; a centroid without sub-vectors stays."""
    parts, _, length = centroids.shape
    counts = np.zeros(parts * CENTROIDS)
    sums = np.zeros((length, parts * CENTROIDS))
    first = np.arange(parts) * CENTROIDS
    for start in range(0, len(vectors), _BLOCK_ROWS):
        places = (codes[start : start + _BLOCK_ROWS] + first).reshape(-1)
        block = vectors[start : start + _BLOCK_ROWS].reshape(-1, length)
        counts += np.bincount(places, minlength=len(counts))
        for component in range(length):
            sums[component] += np.bincount(places, block[:, component], minlength=len(counts))
    moved = np.where(counts > 0, sums / np.maximum(counts, 1), centroids.reshape(-1, length).T)
    return np.ascontiguousarray(moved.T, dtype=np.float32).reshape(centroids.shape)
