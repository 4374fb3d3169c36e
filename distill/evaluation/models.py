"""Sentence encoders with their facts for reports, and sizes of saved weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from embedcache.progress import NO_PROGRESS, Progress

if TYPE_CHECKING:
    from embedcache.cache import Cache
    from embedcache.contract import Contract

Vectors: TypeAlias = NDArray[np.float32]

Encode: TypeAlias = Callable[[Sequence[str]], Vectors]
"""Takes n sentences to their vectors, float32 of shape (n, d)."""

CHUNK = 8192
"""Sentences handed to a model at once."""


class Model:
    """A sentence encoder with what reports say of it; subclasses load it when it has to encode.

    Args:
        name: its name in reports.
        encoder: takes n texts to (n, d) vectors.

    Attributes:
        run: folder of the run that it is the student of.
        in_target_space: its vectors are comparable with its teacher's, number by number.
        parameters: their number, if a run's record says it.
        parts: models whose vectors it combines.
        notes: remarks on its vectors.
        progress: progress of the encoding.
        spec: spec as typed.
        recalled, encoded: vectors taken from a cache, and encoded, so far.
    """

    def __init__(self, name: str, encoder: Encode) -> None:
        self.name, self.encoder = name, encoder
        self.run: Path | None = None
        self.in_target_space = True
        self.parameters: int | None = None
        self.parts: Sequence[Model] = ()
        self.notes: list[str] = []
        self.progress: Progress = NO_PROGRESS
        self.spec = ""
        self.recalled = self.encoded = 0
        self._width: int | None = None
        self._cached: tuple[Cache, Contract] | None = None
        self._codec = ""
        self._kept: dict[tuple[str, ...], Vectors] | None = None

    def keep_vectors(self) -> None:
        """Keep the vectors of each call in memory, and give them again for the same texts."""
        self._kept = {}

    def identity(self) -> str | None:
        """Return its identity in stored results; None: its results are not stored."""
        contract = self.contract()
        return None if contract is None else f"contract {contract.id}{self._codec}"

    def contract(self) -> Contract | None:
        """Return the contract of its vectors; None if it has none."""
        return None

    def locate(self) -> Path | None:
        """Return the folder or graph it is loaded from; None: in memory, behind a server, or elsewhere."""
        return None

    def recall_from(self, opened: Cache, contract: Contract) -> None:
        """Take vectors from a cache where it holds them; a lossy codec is part of the identity."""
        codec = opened.store(contract).codec_name
        self._cached, self._codec = (opened, contract), "" if codec.startswith("float") else f" {codec}"

    def _recall(self, texts: Sequence[str]) -> dict[str, Vectors]:
        if self._cached is None or not texts:
            return {}
        opened, contract = self._cached
        is_there, vectors = opened.find(texts, contract)
        held = np.flatnonzero(is_there).tolist()
        return {texts[row]: vector for row, vector in zip(held, vectors, strict=True)}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, (n, d) float32; a text that repeats is encoded once.

        Vectors are not kept between calls of other texts. Their last bits depend on the batch, so a kept one
        would depend on earlier calls.

        Raises:
            DataError: if a vector is zero or not finite, or the encoder returns another shape.
        """
        if self._kept is None:
            return self._encode(texts)
        call = tuple(texts)
        if call not in self._kept:
            self._kept[call] = self._encode(texts)
        return self._kept[call]

    def _encode(self, texts: Sequence[str]) -> Vectors:
        distinct = list(dict.fromkeys(texts))
        known = self._recall(distinct)
        vectors = dict(known)
        # Longest first: chunks are even in length, and a model too large for the memory fails at once.
        fresh = sorted((text for text in distinct if text not in known), key=len, reverse=True)
        self.progress.phase(f"encode with {self.name}", len(fresh), "sentences")
        for first in range(0, len(fresh), CHUNK):
            chunk = fresh[first : first + CHUNK]
            vectors.update(zip(chunk, self._checked(chunk), strict=True))
            self.progress.advance(len(chunk))
        self.recalled += len(known)
        self.encoded += len(fresh)
        if not distinct:
            return np.empty((0, 0), np.float32)
        self._width = len(vectors[distinct[0]])
        return np.stack([vectors[text] for text in texts])

    @property
    def dimension(self) -> int | None:
        """Width of its vectors; None if it is not known before it encodes."""
        if self._width is not None:
            return self._width
        contract = self.contract()
        return None if contract is None else contract.dimension

    @property
    def size(self) -> tuple[int | None, float | None]:
        """Number of parameters, and megabytes of saved weights (10^6 bytes); None if unknown."""
        if self.parts:
            parameters, megabytes = zip(*(part.size for part in self.parts), strict=True)
            return None if None in parameters else sum(parameters), None if None in megabytes else sum(
                megabytes
            )
        if (source := self.locate()) is None:
            return self.parameters, None
        if source.is_file():
            return self.parameters, source.stat().st_size / 1e6
        return self.parameters or saved_parameters(source), weight_bytes(source) / 1e6

    def _checked(self, texts: Sequence[str]) -> Vectors:
        vectors = np.asarray(self.encoder(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DataError(
                f"{self.name} returned shape {vectors.shape} for {len(texts)} sentences, expected (n, d)"
            )
        bad = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            fault = "a zero vector" if not vectors[row].any() else "a vector with NaN or infinity"
            raise DataError(
                f"{self.name} gave {fault} for {int(bad.sum())} of {len(texts)} sentences, first for "
                f"{texts[row][:60]!r}; check the model's weights and its compute dtype"
            )
        return vectors


Spec: TypeAlias = str | os.PathLike[str] | Model


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weights saved in a model's folder, in the format that is loaded."""
    return sum(path.stat().st_size for path in _weights(folder))


def saved_parameters(folder: Path) -> int | None:
    """Return the number of parameters saved in a model's folder; None unless all are in safetensors."""
    from safetensors import safe_open

    files = _weights(folder)
    if not files or any(path.suffix != ".safetensors" for path in files):
        return None
    total = 0
    for path in files:
        with safe_open(path, "np") as file:
            tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 - it is not a mapping
            floats = [one for one in tensors if one.get_dtype().startswith(("F", "BF"))]
            total += sum(math.prod(one.get_shape()) for one in floats)
    return total


def _weights(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place in (folder, *(sub for sub in sorted(folder.iterdir()) if sub.is_dir())):
        found += sorted(place.glob("*.safetensors")) or sorted(place.glob("pytorch_model*.bin"))
    return found
