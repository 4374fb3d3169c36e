"""What the best checkpoint is chosen by: labelled pairs of a development set, or held-out rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from distill.data.dataset import DistillDataset
from distill.errors import ConfigError
from distill.evaluation.files import read_pairs
from distill.students.build import forward
from distill.vectors import unit
from embedcache.codecs import Vectors
from embedcache.keys import key_array
from embedcache.teacher.batching import token_budget_batches
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from sentence_transformers import SentenceTransformer

    Autocast = Callable[[], AbstractContextManager[Any]]

_BATCH_TOKENS = 8192
_MOST_HELD_OUT = 2000


class Selector(Protocol):
    """Scores a student; higher is better."""

    @property
    def name(self) -> str:
        """What the score is called."""
        ...

    def score(self, encode: Callable[[TokenizedTexts], Vectors]) -> float:
        """Return the score, given a function that encodes tokenised texts with the student."""
        ...

    def details(self) -> dict[str, float]:
        """Return what else was found out by the last score, to be logged beside it."""
        ...


@dataclass(frozen=True)
class PairSelector:
    """Spearman correlation of the student's cosines with what pairs of texts ought to have.

    Attributes:
        texts: distinct texts, n of them.
        first, second: which of the texts stand in each pair.
        gold: the order the pairs ought to have.
        name: what the score is called.
    """

    texts: TokenizedTexts
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    gold: NDArray[np.float64]
    name: str

    def score(self, encode: Callable[[TokenizedTexts], Vectors]) -> float:
        """Return the correlation, -1 to 1."""
        vectors = unit(encode(self.texts))
        return _correlation((vectors[self.first] * vectors[self.second]).sum(axis=1), self.gold)

    def details(self) -> dict[str, float]:
        """Return nothing."""
        return {}


def make_selector(data: str | None, dataset: DistillDataset, tokenizer: FastTokenizer) -> Selector | None:
    """Return the selector for ``data`` (a file of pairs) or, without one, for the dataset's held-out rows.

    Of held-out rows it compares the student's similarities with the targets'. Random pairs are nearly all
    unrelated, so every row is paired with its nearest neighbours among the targets as well: what a student
    has to get right is the order at the top.

    Returns None where there are neither; the last state of the run is then the best.

    Raises:
        ConfigError: if ``data`` is a test set or holds rows of one.
        DataError: if the file is not one of pairs with scores.
    """
    if data is not None:
        return pair_selector(data, tokenizer)
    rows = dataset.held_out
    if len(rows) < 10:
        return None
    # All pairs of them are compared, so their number is bounded; the rest is still there for evaluation.
    rows = rows[:: -(-len(rows) // _MOST_HELD_OUT)]
    texts = dataset.texts(rows)
    targets = unit(dataset.targets.lookup(key_array(texts)))
    first, second = _pairs(targets @ targets.T)
    gold = (targets[first] * targets[second]).sum(axis=1).astype(np.float64)
    return PairSelector(tokenizer(texts), first, second, gold, "held_out_spearman")


def pair_selector(data: str, tokenizer: FastTokenizer) -> PairSelector:
    """Return the selector for a file of scored pairs.

    Raises:
        ConfigError: if it is a test set or holds rows of one.
        DataError: if it is not one of pairs with scores.
    """
    path = Path(data)
    refuse_test_file(path)
    pairs = read_pairs(path, path.stem)
    if held_back := sum(subset.strip().lower() == "test" for subset in pairs.subsets):
        raise ConfigError(
            f"{held_back} of {len(pairs.subsets)} pairs of {path.name} are of subset "
            "'test'; a checkpoint chosen on them makes the test score worthless. Copy the file without "
            "those rows and give the copy",
            "evaluation.data",
        )
    place: dict[str, int] = {}
    first, second = (
        np.array([place.setdefault(t, len(place)) for t in side]) for side in (pairs.left, pairs.right)
    )
    gold = np.asarray(pairs.scores, dtype=np.float64)
    return PairSelector(tokenizer(list(place)), first, second, gold, "dev_spearman")


def refuse_test_file(path: Path, option: str = "evaluation.data", chosen: str = "a checkpoint") -> None:
    """Raise :class:`ConfigError` where the file to choose a checkpoint on is called as a test set is.

    Args:
        path: the file.
        option: what it was given with, for the message.
        chosen: what is to be chosen on it.
    """
    # A word that begins with "test", not any that holds it: latest_dev.tsv is no test set.
    if re.search(r"(?<![a-z])test", path.name.lower()):
        raise ConfigError(
            f"{path.name} looks like a test set; {chosen} chosen on a test set makes its score worthless. "
            "Choose on a development set (stsb_dev.tsv, say)",
            option,
        )


def _pairs(
    similarity: NDArray[np.float32], neighbours: int = 5, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = len(similarity)
    near = np.argsort(-(similarity - 4 * np.eye(n, dtype=np.float32)), axis=1, kind="stable")[
        :, : min(neighbours, n - 1)
    ]
    first = np.repeat(np.arange(n), near.shape[1])
    # As many pairs at random distances keep the scale anchored.
    shift = np.random.default_rng(seed).integers(1, n, size=len(first))
    return np.concatenate([first, first]), np.concatenate([near.reshape(-1), (first + shift) % n])


class StudentEncoder:
    """Encodes tokenised texts with the student that is being trained, in eval mode.

    Args:
        model: the student.
        tokenizer: its tokenizer.
        device: where it is.
        autocast: makes the mixed-precision context of the run.
    """

    def __init__(
        self, model: SentenceTransformer, tokenizer: FastTokenizer, device: torch.device, autocast: Autocast
    ) -> None:
        self._model, self._tokenizer, self._device, self._autocast = model, tokenizer, device, autocast

    def __call__(self, texts: TokenizedTexts) -> Vectors:
        """Return the vectors, float32 of shape (n, d), in order."""
        from embedcache.teacher.encode import padded_features

        out: Vectors | None = None
        self._model.eval()
        try:
            for rows in token_budget_batches(texts.lengths, _BATCH_TOKENS):
                features = padded_features(texts, rows, self._tokenizer)
                features = {name: value.to(self._device) for name, value in features.items()}
                types = None if texts.first is None else features.get("token_type_ids")
                ids, mask = features["input_ids"], features["attention_mask"]
                with torch.no_grad(), self._autocast():
                    vectors = forward(self._model, ids, mask, types).float().cpu().numpy()
                if out is None:
                    out = np.empty((len(texts.lengths), vectors.shape[1]), dtype=np.float32)
                out[rows] = vectors
        finally:
            self._model.train()
        return np.empty((0, 0), dtype=np.float32) if out is None else out


def _correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    # A student whose similarities are all alike ranks nothing; spearmanr would say NaN and warn.
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b).statistic)
