"""The classifier on top of an encoder: a linear map from sentence vectors to one logit a label.

It lies beside the encoder's own files, so that the folder stays an ordinary model folder: who knows nothing
of it opens the encoder alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, sha256_file, write_bytes, write_sealed_json
from embedcache.pairs import SEPARATOR, Reads

CLASSIFIER = "classifier.json"
WEIGHTS = "classifier.safetensors"


@dataclass(frozen=True)
class ClassifierHead:
    """A linear classifier of sentence vectors.

    Attributes:
        labels: the names of the c labels, in the order of the logits.
        weight: float32, shape (c, d).
        bias: float32, shape (c,).
        reads: what it was taught on; None where that is not known, or it was both.
    """

    labels: tuple[str, ...]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    reads: Reads | None = None

    def __post_init__(self) -> None:
        if len(set(self.labels)) != len(self.labels) or len(self.labels) < 2:
            raise InputError(f"a classifier needs two or more different labels, found {list(self.labels)}")
        if self.weight.shape[:1] != (len(self.labels),) or self.bias.shape != (len(self.labels),):
            raise InputError(
                f"a classifier of {len(self.labels)} labels has weights of shape {self.weight.shape} and a "
                f"bias of shape {self.bias.shape}: expected (labels, width) and (labels,)"
            )

    @property
    def dimension(self) -> int:
        """d, the width of the vectors it takes."""
        return int(self.weight.shape[1])

    @property
    def digest(self) -> str:
        """The sha256 of weight and bias: two trainings do not end with the same classifier."""
        return hashlib.sha256(
            b"".join(a.astype("<f4").tobytes() for a in (self.weight, self.bias))
        ).hexdigest()

    def logits(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the logits of sentence vectors (n, d), float32 of shape (n, c)."""
        found: NDArray[np.float32] = vectors.astype(np.float32) @ self.weight.T + self.bias
        return found

    def refuse_others(self, texts: Sequence[str], whose: str) -> None:
        """See that ``texts`` are what the classifier was taught on: single texts, or pairs.

        Args:
            texts: the texts, pairs joined.
            whose: what messages call the classifier.

        Raises:
            InputError: if one is not; it is named.
        """
        if self.reads is None:
            return
        for text in texts:
            if (SEPARATOR in text) != (self.reads == "pairs"):
                found = "a pair" if SEPARATOR in text else "a single text"
                raise InputError(
                    f"{whose} was taught on {'pairs of' if self.reads == 'pairs' else 'single'} texts, found "
                    f"{found}: {text[:60].replace(SEPARATOR, ' + ')!r}; "
                    + (
                        "give both texts of each row, in a file with a second column"
                        if self.reads == "pairs"
                        else "give one text a row"
                    )
                )

    def write(self, folder: Path) -> None:
        """Write it into a model's folder.

        Raises:
            StorageError: if it cannot be written.
        """
        from safetensors.numpy import save

        write_bytes(folder / WEIGHTS, save({"weight": self.weight, "bias": self.bias}))
        described: dict[str, object] = {
            "labels": list(self.labels),
            "weights": sha256_file(folder / WEIGHTS),
        }
        if self.reads is not None:
            described["reads"] = self.reads
        write_sealed_json(folder / CLASSIFIER, described)

    @classmethod
    def read(cls, folder: Path) -> ClassifierHead | None:
        """Return the classifier in a model's folder; None where there is none.

        Raises:
            CorruptCacheError: if a file of it is damaged, or they do not belong together.
        """
        if not (folder / CLASSIFIER).exists():
            return None
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            described = read_sealed_json(folder / CLASSIFIER)
            if described["weights"] != sha256_file(folder / WEIGHTS):
                raise ValueError(f"{WEIGHTS} is not the file it was written with")
            tensors = load_file(folder / WEIGHTS)
            if (reads := described.get("reads")) not in (None, *get_args(Reads)):
                raise ValueError(f"it reads {reads!r}, expected {' or '.join(get_args(Reads))}")
            return cls(tuple(described["labels"]), tensors["weight"], tensors["bias"], reads)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, InputError) as error:
            raise CorruptCacheError(
                f"the classifier in {folder} is damaged ({str(error)[:200]}): copy the model again"
            ) from error
