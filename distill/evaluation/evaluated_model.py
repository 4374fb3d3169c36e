"""A model as evaluations see it: what it is called, how large it is, and how it turns texts into vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.store.base import VectorBatch

    Encoder = Callable[[Sequence[str]], NDArray[np.float32]]
    Recall = Callable[[Sequence[str]], Mapping[str, NDArray[np.float32]]]


@dataclass(frozen=True)
class EvaluatedModel:
    """A model with what a report says about it.

    Attributes:
        name: how reports call it.
        parameters: number of parameters; None where that is not known.
        megabytes: size of the weights as saved on disk, in units of 10^6 bytes; None where not known.
        dimension: width of its vectors.
        encoder: texts -> (n, dimension) vectors.
        contract: the contract of its vectors, where it has one.
        recall: texts -> the vectors that are already there, by text; None where there is no such store.
        whole: loads the model itself, where it is not loaded unless it has to encode.
        encode_rows: texts -> what a cache stores of them: vectors, tokens, truncation and how they were
            computed; None where the model does not tell.
        keep: stores what was encoded where ``recall`` looks, and returns what a reader must know of it; None
            where nothing is to be stored.
        source: the folder, or the ONNX graph, that it was loaded from; None where it is in memory only.
    """

    name: str
    parameters: int | None
    megabytes: float | None
    dimension: int
    encoder: Encoder
    contract: Contract | None = None
    recall: Recall | None = None
    whole: Callable[[], EvaluatedModel] | None = None
    encode_rows: Callable[[Sequence[str]], VectorBatch] | None = None
    keep: Callable[[], str] | None = None
    source: Path | None = None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, (len(texts), dimension), float32.

        Raises:
            DataError: if the encoder returns another shape.
        """
        import numpy as np

        vectors: NDArray[np.float32] = np.asarray(self.encoder(texts), dtype=np.float32)
        if vectors.shape != (len(texts), self.dimension):
            raise DataError(
                f"{self.name} returned vectors of shape {vectors.shape} for {len(texts)} sentences, "
                f"expected {(len(texts), self.dimension)}; mend its encoder or its stated dimension"
            )
        return vectors
