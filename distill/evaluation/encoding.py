"""Sentences to vectors, each distinct sentence once per model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distill.errors import DataError
from distill.evaluation.evaluated_model import EvaluatedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK = 8192
"""Sentences handed to a model at once: often enough for a progress line, too many to cost speed."""

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, sentences done, sentences in all)."""


def silent(task: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Encoded:
    """Distinct sentences and their vectors.

    Attributes:
        rows: sentence -> row of ``vectors``.
        vectors: (n, d) float32, finite, no row zero.
        recalled: how many of them came from a cache.
        seconds: wall time the model took for the others.
        kept: what became of the vectors encoded now, where they were to be stored; "" where not.
    """

    rows: Mapping[str, int]
    vectors: NDArray[np.float32]
    recalled: int
    seconds: float
    kept: str = ""

    @property
    def encoded_now(self) -> int:
        """How many sentences the model encoded."""
        return len(self.rows) - self.recalled

    @property
    def sentences_per_second(self) -> float | None:
        """Distinct sentences per second of wall time; None unless the model encoded all of them."""
        return None if self.recalled or not self.rows else len(self.rows) / self.seconds

    def pick(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, (len(texts), d); KeyError where one was not encoded."""
        picked: NDArray[np.float32] = self.vectors[[self.rows[text] for text in texts]]
        return picked


def encode_distinct(model: EvaluatedModel, texts: Iterable[str], progress: Progress = silent) -> Encoded:
    """Encode each distinct sentence of ``texts`` once; those that the model can recall are not encoded.

    Vectors that were stored are returned as stored, so that the next evaluation finds the same figures.

    Raises:
        DataError: if a vector is zero or not finite; the sentence is named.
    """
    import numpy as np

    distinct = list(dict.fromkeys(texts))
    known = model.recall(distinct) if model.recall is not None and distinct else {}
    # Longest first: chunks are then even in length, and a model too large for the memory fails at once.
    fresh = sorted((text for text in distinct if text not in known), key=len, reverse=True)
    parts = [np.stack(list(known.values()))] if known else []
    start = time.perf_counter()
    for first in range(0, len(fresh), CHUNK):
        progress(model.name, first, len(fresh))
        parts.append(model.encode(fresh[first : first + CHUNK]))
    seconds = max(time.perf_counter() - start, 1e-9)
    if fresh:
        progress(model.name, len(fresh), len(fresh))
    ordered = [*known, *fresh]
    vectors = np.concatenate(parts) if parts else np.empty((0, model.dimension), np.float32)
    require_usable(vectors, ordered, model.name)
    rows = {text: row for row, text in enumerate(ordered)}
    kept = ""
    if fresh and model.keep is not None and model.recall is not None:
        kept = model.keep()
        for text, vector in model.recall(fresh).items():
            vectors[rows[text]] = vector
    return Encoded(rows, vectors, len(known), seconds, kept)


def require_usable(vectors: NDArray[np.float32], texts: Sequence[str], name: str) -> None:
    """Check that every row of ``vectors``, (n, d), has a direction.

    Raises:
        DataError: if a row is zero or not finite; the sentence it belongs to is named.
    """
    import numpy as np

    finite = np.all(np.isfinite(vectors), axis=1)
    bad = ~finite | ~np.any(vectors, axis=1)
    if bad.any():
        row = int(bad.argmax())
        fault = "a zero vector" if finite[row] else "a vector with NaN or infinity"
        raise DataError(
            f"{name} gave {fault} for {int(bad.sum())} of {len(texts)} sentences, "
            f"first for {shorten(texts[row])}: "
            "cosines need finite, non-zero vectors; check the model's weights and its compute dtype"
        )


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ``vectors``, (n, d), scaled to length one, in float64."""
    import numpy as np

    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def shorten(text: str, width: int = 60) -> str:
    """Return ``text`` quoted and cut to ``width`` characters, for messages."""
    return repr(text if len(text) <= width else text[: width - 1] + "…")
