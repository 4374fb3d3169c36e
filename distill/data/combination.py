"""How vectors of several teachers become one target, and how a wide target becomes a narrower one.

Each teacher's vector is scaled to length one and multiplied by the square root of the teacher's share, and
the results are laid side by side. The cosine of two such targets is the mean of the teachers' cosines,
weighted by their shares.

A projection keeps the directions that carry most of a sample of these targets: the singular vectors of the
sample as it is, not of its differences from the mean. What a student has to learn are the targets' cosines,
which are inner products about the origin, and the uncentred vectors are the ones that keep inner products
best (Eckart and Young); moving the origin to the mean would change every one of them. Projected targets are
scaled to length one again, so all combined targets are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from distill.errors import ConfigError, DataError
from distill.layout import TARGETS
from embedcache.codecs import Vectors
from embedcache.fsio import write_bytes

_VERSION = 1
_METADATA_KEY = "targets"


@dataclass(frozen=True, eq=False)
class Combination:
    """How vectors of one or several teachers become targets of length one.

    Attributes:
        names: the teachers' names, in the order of their vectors.
        widths: the widths of their vectors.
        shares: what each counts for; they sum up to one.
        projection: float32, shape (sum of widths, d), orthonormal columns; None where nothing is projected.
        energy: share of the sample's squared length that the projection kept, 0 to 1; None without one.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    shares: tuple[float, ...]
    projection: Vectors | None = None
    energy: float | None = None

    @classmethod
    def of(cls, names: Sequence[str], widths: Sequence[int], weights: Sequence[float]) -> Combination:
        """Return the combination of teachers whose shares stand to each other as ``weights`` do."""
        total = sum(weights)
        return cls(tuple(names), tuple(widths), tuple(weight / total for weight in weights))

    @property
    def dimension(self) -> int:
        """Width of a target."""
        return sum(self.widths) if self.projection is None else self.projection.shape[1]

    def apply(self, vectors: Sequence[Vectors]) -> Vectors:
        """Return the targets, float32 of shape (n, ``dimension``), rows of length one.

        Args:
            vectors: one array (n, width) a teacher, of the same n texts.

        Raises:
            DataError: if a vector is zero or not finite, which leaves it without a direction.
        """
        scaled = [
            _unit(part, name) * np.float32(np.sqrt(share))
            for part, name, share in zip(vectors, self.names, self.shares, strict=True)
        ]
        joined: Vectors = np.concatenate(scaled, axis=1)
        if self.projection is None:
            return joined
        return _unit(_product(joined, self.projection), " + ".join(self.names))

    def fitted(self, sample: Iterable[Vectors], dimension: int) -> Combination:
        """Return this combination followed by the projection to ``dimension`` that suits a sample best.

        Args:
            sample: targets of this combination, in arrays of shape (m, ``self.dimension``).
            dimension: width after projection.

        Raises:
            ConfigError: if the sample spans fewer directions than that.
        """
        moments = np.zeros((self.dimension, self.dimension))
        rows = 0
        for part in sample:
            wide = part.astype(np.float64)
            moments += wide.T @ wide
            rows += len(part)
        values, directions = np.linalg.eigh(moments)
        # Below this, values are the rounding of the sums above.
        rank = int((values > values[-1] * len(values) * np.finfo(np.float64).eps).sum())
        if dimension > rank:
            raise ConfigError(
                f"{dimension} is more than the {rank} directions that the vectors of {rows} "
                "sampled training rows span: give a smaller target_dim, or train on more rows",
                "target_dim",
            )
        kept = directions[:, ::-1][:, :dimension]
        # A direction and its opposite serve alike; which one the solver finds is an accident.
        signs = np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(dimension)])
        energy = float(values[-dimension:].sum() / values.sum())
        projection = np.ascontiguousarray(kept * signs, dtype=np.float32)
        return replace(self, projection=projection, energy=energy)

    def save(self, folder: Path) -> None:
        """Write the combination to ``folder``, for those who compare a student with its targets.

        Raises:
            StorageError: if it cannot be written.
        """
        facts = {
            "version": _VERSION,
            "names": self.names,
            "widths": self.widths,
            "shares": self.shares,
            "energy": self.energy,
        }
        tensors = {} if self.projection is None else {"projection": self.projection}
        write_bytes(folder / TARGETS, save(tensors, {_METADATA_KEY: json.dumps(facts)}))

    @classmethod
    def load(cls, folder: Path) -> Combination:
        """Read what :meth:`save` wrote into ``folder``.

        Raises:
            DataError: if it is not there or damaged.
        """
        path = folder / TARGETS
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {})[_METADATA_KEY])
                projection = file.get_tensor("projection") if "projection" in file.keys() else None  # noqa: SIM118
            if facts["version"] != _VERSION:
                raise ValueError(f"format version {facts['version']}, expected {_VERSION}")
            found = cls(
                tuple(str(name) for name in facts["names"]),
                tuple(int(width) for width in facts["widths"]),
                tuple(float(share) for share in facts["shares"]),
                projection,
                None if facts["energy"] is None else float(facts["energy"]),
            )
            found._check()
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} does not say how the run's targets were combined ({type(error).__name__}: {error}): "
                "restore it from another copy of the run, or give --teacher to compare with one teacher"
            ) from error
        return found

    def _check(self) -> None:
        if not 0 < len(self.names) == len(self.widths) == len(self.shares):
            raise ValueError(
                f"{len(self.names)} names, {len(self.widths)} widths and {len(self.shares)} shares"
            )
        if min(self.widths) < 1 or min(self.shares) <= 0 or not np.isclose(sum(self.shares), 1):
            raise ValueError(f"widths {self.widths} and shares {self.shares}")
        matrix = self.projection
        if matrix is not None and (
            matrix.dtype != np.float32 or matrix.ndim != 2 or len(matrix) != sum(self.widths)
        ):
            raise ValueError(f"a projection {matrix.dtype} {matrix.shape} of vectors {sum(self.widths)} wide")
        if matrix is not None and not (matrix.shape[1] and np.isfinite(matrix).all()):
            raise ValueError("a projection that is empty or not finite")


def _product(vectors: Vectors, projection: Vectors) -> Vectors:
    """Return ``vectors @ projection``, each row the same bits whichever other rows it is computed with.

    In a product of many rows the order of a sum hangs on where a row stands, on some processors: each is
    multiplied by itself.
    """
    found: Vectors = np.matmul(vectors[:, None, :], projection)[:, 0]
    return found


def _unit(vectors: NDArray[np.floating], name: str) -> Vectors:
    """Return rows (n, d) scaled to length one, float32.

    Raises:
        DataError: if a row has no direction.
    """
    wide = vectors.astype(np.float32)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    lost = int((~np.isfinite(norms) | (norms == 0)).sum())
    if lost:
        raise DataError(
            f"{lost} of {len(wide)} vectors of {name} are zero or not finite and have no direction, which "
            "targets that are combined or projected need: find them with 'embedcache doctor', and leave "
            "their texts out"
        )
    unit: Vectors = wide / norms
    return unit
