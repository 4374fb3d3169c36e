"""Classifier on top of an encoder: a linear map from sentence vectors to one logit per label.

Its two files lie beside the encoder's own, so the folder stays a sentence-transformers folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, UnreadableError
from embedcache.fsio import canonical_json, read_sealed_json, sha256_file, write_bytes, write_sealed_json
from embedcache.pairs import SEPARATOR, Reads
from embedcache.teacher.options import LOGITS

CLASSIFIER = "classifier.json"
WEIGHTS = "classifier.safetensors"


@dataclass(frozen=True)
class ClassifierHead:
    """Linear classifier of sentence vectors.

    Attributes:
        labels: names of the c labels, in the order of the logits.
        weight: float32, shape (c, d).
        bias: float32, shape (c,).
        reads: ``texts`` or ``pairs``, as it was taught; None if unknown or both.

    Raises:
        InputError: if there are fewer than two labels, or the shapes differ from these.
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
        """Width d of the vectors it takes."""
        return int(self.weight.shape[1])

    @property
    def digest(self) -> str:
        """The sha256 of weight and bias."""
        return hashlib.sha256(
            b"".join(a.astype("<f4").tobytes() for a in (self.weight, self.bias))
        ).hexdigest()

    def logits(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Logits of sentence vectors (n, d), float32 of shape (n, c)."""
        found: NDArray[np.float32] = vectors.astype(np.float32) @ self.weight.T + self.bias
        return found

    def refuse_others(self, texts: Sequence[str], whose: str) -> None:
        """Refuse pairs for a classifier taught on single texts, and the other way round.

        Args:
            texts: the texts, pairs joined.
            whose: name of the classifier in the message.

        Raises:
            InputError: if there is such a text; the first one is named.
        """
        for text in texts if self.reads else ():
            if (SEPARATOR in text) != (self.reads == "pairs"):
                shown = text[:60].replace(SEPARATOR, " + ")
                found, remedy = "a single text", "give the second text of each as well"
                if SEPARATOR in text:
                    found, remedy = "a pair", "leave the second texts out"
                raise InputError(f"{whose} was taught on {self.reads}, found {found}: {shown!r}; {remedy}")

    def write(self, folder: Path) -> None:
        """Write the classifier into a model's folder.

        Raises:
            StorageError: if it cannot be written.
        """
        from safetensors.numpy import save

        write_bytes(folder / WEIGHTS, save({"weight": self.weight, "bias": self.bias}))
        described = {"labels": list(self.labels), "weights": sha256_file(folder / WEIGHTS)}
        write_sealed_json(folder / CLASSIFIER, described | ({"reads": self.reads} if self.reads else {}))

    @classmethod
    def read(cls, folder: Path) -> ClassifierHead | None:
        """Read the classifier in a model's folder; None if there is none.

        Raises:
            CorruptCacheError: if one of its two files is damaged or missing, or they do not belong together.
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
        except UnreadableError:
            raise
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, InputError) as error:
            raise CorruptCacheError(
                f"the classifier in {folder} is damaged ({str(error)[:200]}): copy the model again"
            ) from error


def logits_contract(contract: Contract, head: ClassifierHead) -> Contract:
    """Contract of a classifier's logits.

    A classifier takes whole, unscaled vectors, so the vectors' own scaling and truncation do not change it.

    Args:
        contract: contract of the same model's vectors.
        head: the classifier.
    """
    entry = {"type": "Classifier", "labels": list(head.labels), "weights": head.digest}
    return replace(
        contract,
        output=LOGITS,
        dimension=len(head.labels),
        normalize=False,
        truncate_dim=None,
        modules=canonical_json([*modules_of(contract), entry]).decode(),
    )


def modules_of(contract: Contract) -> list[dict[str, Any]]:
    """Entries of a contract's modules after the pooling."""
    found: list[dict[str, Any]] = json.loads(contract.modules) if contract.modules else []
    return found


def logits_name(name: str) -> str:
    """Name of a teacher's logits in a cache."""
    return f"{name}.{LOGITS}"
