"""Combination of several teachers' vectors into one target, and projection of targets to a smaller width.

Each teacher's vector is scaled to length one and multiplied by the square root of the teacher's share, and
the results are concatenated. The cosine of two such targets is the mean of the teachers' cosines, weighted by
their shares.

A projection keeps the first singular vectors of a sample of targets, uncentred: students learn cosines, which
are inner products about the origin, and these singular vectors preserve inner products best (Eckart and
Young). Projected targets are scaled to length one again.
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

_METADATA_KEY = "targets"


@dataclass(frozen=True, eq=False)
class Combination:
    """Map from the vectors of one or several teachers to targets of length one.

    Attributes:
        names: the teachers' names, in the order of their vectors.
        widths: the widths of their vectors.
        shares: their weights, which sum to one.
        projection: float32, shape (sum of widths, d), orthonormal columns; None without a projection.
        energy: share of the sample's squared length that the projection kept, 0 to 1; None without one.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    shares: tuple[float, ...]
    projection: Vectors | None = None
    energy: float | None = None

    @classmethod
    def of(cls, names: Sequence[str], widths: Sequence[int], weights: Sequence[float]) -> Combination:
        """Return the combination of teachers with relative weights."""
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
        """Return this combination followed by the best projection to ``dimension`` for a sample.

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
        # Smaller values are rounding errors.
        rank = int((values > values[-1] * len(values) * np.finfo(np.float64).eps).sum())
        if dimension > rank:
            raise ConfigError(
                f"{dimension}, and the vectors of {rows} sampled training rows span {rank} directions: give "
                "a smaller target_dim, or train on more rows",
                "target_dim",
            )
        kept = directions[:, ::-1][:, :dimension]
        # The sign of an eigenvector is arbitrary.
        signs = np.sign(kept[np.abs(kept).argmax(axis=0), np.arange(dimension)])
        energy = float(values[-dimension:].sum() / values.sum())
        projection = np.ascontiguousarray(kept * signs, dtype=np.float32)
        return replace(self, projection=projection, energy=energy)

    def save(self, folder: Path) -> None:
        """Write the combination to ``folder``, for comparisons of a student with its targets.

        Raises:
            StorageError: if it cannot be written.
        """
        facts = {name: getattr(self, name) for name in ("names", "widths", "shares", "energy")}
        tensors = {} if self.projection is None else {"projection": self.projection}
        write_bytes(folder / TARGETS, save(tensors, {_METADATA_KEY: json.dumps(facts)}))

    @classmethod
    def load(cls, folder: Path) -> Combination:
        """Read the combination that ``save`` wrote into ``folder``.

        Raises:
            DataError: if it is missing or damaged.
        """
        path = folder / TARGETS
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {})[_METADATA_KEY])
                projection = file.get_tensor("projection") if "projection" in file.keys() else None  # noqa: SIM118
            names, widths, shares = (tuple(facts[name]) for name in ("names", "widths", "shares"))
            found = cls(names, widths, shares, projection, facts["energy"])
            if projection is not None and len(projection) != sum(found.widths):
                raise ValueError(f"a projection of {len(projection)} components, not {sum(found.widths)}")
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"cannot read the run's targets from {path} ({type(error).__name__}: {error}): restore it "
                "from a copy of the run, or compare with one teacher by --teacher"
            ) from error
        return found


def _product(vectors: Vectors, projection: Vectors) -> Vectors:
    """Return ``vectors @ projection`` with bits that do not depend on the other rows.

    On some processors the order of summation depends on a row's position, so rows are multiplied singly.
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
            f"{lost} of {len(wide)} vectors of {name} are zero or not finite, so they cannot be combined or "
            "projected: find them with 'embedcache doctor', and remove their texts"
        )
    unit: Vectors = wide / norms
    return unit
