"""Selection of the best checkpoint: scores on development pairs, held-out rows or labelled texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from distill.config.models import EvaluationConfig
from distill.data.dataset import DistillDataset
from distill.data.labelled import (
    FEWEST_SCORED,
    Columns,
    LabelledRows,
    one_source,
    read_labelled,
    refuse_few,
)
from distill.data.triples import Triples
from distill.errors import ConfigError
from distill.evaluation.own_pairs import known_test_set, read_pair_set
from distill.evaluation.pairs import MEASURES, Kind, PairSet, cosines, measure
from distill.reaugkd.head import LabelHead
from distill.students.build import forward
from distill.training.objectives import no_negatives
from distill.vectors import unit
from embedcache.codecs import Vectors
from embedcache.keys import key_array
from embedcache.teacher.batching import token_budget_batches
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Encode = Callable[[TokenizedTexts], Vectors]
Autocast = Callable[[], AbstractContextManager[Any]]

SCORES = {
    "dev_spearman": "Spearman on development pairs",
    "dev_average_precision": "average precision on development pairs",
    "dev_triplet_accuracy": "% of development triplets right",
    "held_out_near_pairs_spearman": "Spearman on held-out rows, paired with near and random ones",
    "held_out_retrieval_accuracy": "% of held-out anchors nearest to their positive",
    "dev_accuracy": "% right on development rows",
    "held_out_accuracy": "% right on held-out rows",
    "held_out_agreement": "% as the teacher on held-out rows",
    "dev_f1": "macro F1",
    "held_out_f1": "macro F1",
}
"""Name of a score, as ``metrics.jsonl`` and ``run.json`` have it -> the same in words."""

_BATCH_TOKENS = 8192
_MOST_HELD_OUT = 2000


class Selector(Protocol):
    """Scorer of a student in training."""

    @property
    def name(self) -> str:
        """Name of the score that checkpoints are chosen by; a key of ``SCORES``."""
        ...

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the scores by name, higher is better; not finite where the vectors are not.

        Args:
            encode: tokenised texts -> float32 vectors (n, d) of the student.
        """
        ...


@dataclass(frozen=True)
class PairSelector:
    """Agreement of the student's cosines with what pairs or triplets of texts ought to have.

    Attributes:
        texts: distinct texts, n of them.
        columns: int64, shape (rows,) each; the two texts of each pair, or three of each triplet.
        gold: float64, shape (rows,); scores, or labels 0 and 1.
        name: name of the score.
        kind: kind of the rows, as of ``distill.evaluation.pairs.PairSet``.
    """

    texts: TokenizedTexts
    columns: tuple[NDArray[np.int64], ...]
    gold: NDArray[np.float64]
    name: str
    kind: Kind = "scores"

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the measure of the kind, at most 1."""
        vectors = unit(encode(self.texts))
        return {self.name: measure(self.kind, self.gold, cosines([vectors[rows] for rows in self.columns]))}


def held_out_selector(dataset: DistillDataset, tokenizer: FastTokenizer) -> PairSelector | None:
    """Return the selector for the held-out rows of a dataset; None where there are too few.

    It compares the student's similarities with the targets'. Random pairs are nearly all unrelated, so every
    row is paired with its nearest neighbours among the targets, and with as many random rows.
    """
    rows = dataset.held_out
    if len(rows) < FEWEST_SCORED:
        return None
    # All pairs of them are compared, so their number is bounded; the rest is still there for evaluation.
    rows = rows[:: -(-len(rows) // _MOST_HELD_OUT)]
    texts = dataset.texts(rows)
    targets = unit(dataset.targets.lookup(key_array(texts)))
    first, second = _pairs(targets @ targets.T)
    gold = (targets[first] * targets[second]).sum(axis=1).astype(np.float64)
    return PairSelector(tokenizer(texts), (first, second), gold, "held_out_near_pairs_spearman")


def pair_selector(pairs: PairSet, tokenizer: FastTokenizer) -> PairSelector:
    """Return the selector for a development set of pairs or triplets."""
    place: dict[str, int] = {}
    columns = tuple(np.array([place.setdefault(t, len(place)) for t in column]) for column in pairs.texts)
    name = f"dev_{MEASURES[pairs.kind].replace(' ', '_')}"
    name = "dev_triplet_accuracy" if pairs.kind == "triplets" else name
    return PairSelector(tokenizer(list(place)), columns, pairs.gold, name, pairs.kind)


def read_dev_pairs(
    data: str, columns: Sequence[str | None] = (), rows: Sequence[str] | None = None
) -> PairSet:
    """Read the pairs or triplets of ``--dev``.

    Args:
        data: the file.
        columns: its three columns; those that are None are not given.
        rows: ``COLUMN=VALUE`` conditions.

    Raises:
        ConfigError: if they are those of a test set, or one or two columns are given.
        DataError, InputError: as ``distill.evaluation.pairs.read_pair_set``.
    """
    given = [column for column in columns if column is not None]
    if given and len(given) < 3:
        raise ConfigError(
            f"{', '.join(given)}: name all three columns, with --dev-text, --dev-text2 and --dev-label",
            "evaluation.text",
        )
    refuse_test_rows("evaluation.rows", rows or ())
    path = one_source(data)
    pairs = read_pair_set(path, given or None, rows or (), "--dev-text, --dev-text2 and --dev-label")
    if held_back := sum(subset.strip().lower() == "test" for subset in pairs.subsets):
        raise ConfigError(
            f"{held_back} of {len(pairs)} pairs of {Path(path).name} are of subset 'test'; a checkpoint "
            "chosen on them invalidates the test score. Give a copy without them",
            "evaluation.data",
        )
    if known := known_test_set(pairs):
        raise ConfigError(
            f"{Path(path).name} holds the pairs of {known}; a checkpoint chosen on them invalidates the test "
            "score. Give a development set (stsb_dev.tsv, say)",
            "evaluation.data",
        )
    return pairs


def read_dev(evaluation: EvaluationConfig, *, labelled: bool) -> PairSet | LabelledRows | None:
    """Read what ``--dev`` names, labelled rows for a classifier; None where it is not given.

    Raises:
        ConfigError: if the rows are those of a test set.
        DataError, InputError: as ``read_dev_pairs`` and ``distill.data.labelled.read_labelled``; if labelled
            rows are too few.
    """
    if evaluation.data is None:
        return None
    if not labelled:
        asked = (evaluation.text, evaluation.text2, evaluation.label)
        return read_dev_pairs(evaluation.data, asked, evaluation.rows)
    refuse_test_rows("evaluation.rows", evaluation.rows or ())
    columns = Columns(evaluation.text, evaluation.text2, evaluation.label, prefix="--dev-")
    rows = read_labelled(evaluation.data, columns, evaluation.rows or ())
    refuse_few(rows, f"evaluation.data: {evaluation.data}")
    return rows


def describe_test_name(path: str | Path | None) -> str:
    """Return a warning where a file to choose a checkpoint on is named like a test set; else nothing."""
    name = Path(path or "").name
    # A word, not any that holds it: latest_dev.tsv and testimonials_dev.tsv are not test sets.
    if re.search(r"(?<![^\W_])test(?![^\W_])", name.lower()) is None:
        return ""
    return f"{name} is named like a test set; scores on what is chosen on are no test scores"


def refuse_test_rows(key: str, rows: Sequence[str], chosen: str = "a checkpoint") -> None:
    """Raise ``ConfigError`` where the rows to choose a checkpoint on are those of a test set.

    Args:
        key: the setting that names them, for the message.
        rows: ``COLUMN=VALUE`` each.
        chosen: the object of the choice, for the message.
    """
    for row in rows:
        if row.partition("=")[2].strip().lower() == "test":
            raise ConfigError(
                f"{row} are rows of a test set; {chosen} chosen on them invalidates the test score. "
                "Give a development split, or leave it out",
                key,
            )


@dataclass(frozen=True)
class NearestSelector:
    """Share of anchors whose positive is nearer than all other held-out texts.

    Attributes:
        texts: the texts of all columns, one column after the other, n rows of each.
        left_out: bool, shape (n, candidates); see ``distill.training.objectives.no_negatives``.
    """

    texts: TokenizedTexts
    left_out: NDArray[np.bool_]
    name: str = "held_out_retrieval_accuracy"

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the share, 0 to 1."""
        vectors = F.normalize(torch.from_numpy(encode(self.texts)), dim=-1)
        rows = len(self.left_out)
        cosines = vectors[:rows] @ vectors[rows:].T
        if not bool(torch.isfinite(cosines).all()):
            return {self.name: float("nan")}
        own = cosines.diagonal().clone()
        cosines[torch.from_numpy(self.left_out)] = -torch.inf
        cosines.fill_diagonal_(-torch.inf)
        # Not "as near as": to a student whose vectors are all alike, everything is.
        return {self.name: float((own > cosines.max(dim=1).values).float().mean())}


def nearest_selector(held_out: Triples | None, tokenizer: FastTokenizer) -> NearestSelector | None:
    """Return the selector for held-out triples or pairs; None where there are too few."""
    if held_out is None or len(held_out) < FEWEST_SCORED:
        return None
    # All are compared with each other, so their number is bounded.
    chosen = held_out.take(np.arange(0, len(held_out), -(-len(held_out) // _MOST_HELD_OUT)))
    codes = torch.from_numpy(chosen.codes())
    left_out = no_negatives(codes[:, 0], codes[:, 1], codes[:, 1:].T.reshape(-1))
    return NearestSelector(
        tokenizer([text for column in chosen.columns for text in column]), left_out.numpy()
    )


@dataclass(frozen=True)
class ClassSelector:
    """Accuracy of the student's classifier on labelled texts, and the macro F1.

    Attributes:
        texts: n texts.
        labels: int64, shape (n,); their labels.
        head: the classifier, in the state it is trained in.
        rows: origin of the texts; the names of the scores begin with it.
        measure: ``accuracy``, or ``agreement`` where the labels are a teacher's answers.
    """

    texts: TokenizedTexts
    labels: NDArray[np.int64]
    head: LabelHead
    rows: Literal["dev", "held_out"]
    measure: Literal["accuracy", "agreement"] = "accuracy"

    @property
    def name(self) -> str:
        """Name of the accuracy."""
        return f"{self.rows}_{self.measure}"

    def score(self, encode: Encode) -> dict[str, float]:
        """Return accuracy and macro F1, 0 to 1."""
        from sklearn.metrics import accuracy_score, f1_score

        logits = self.head.kept().logits(encode(self.texts))
        if not np.isfinite(logits).all():
            return {self.name: float("nan")}
        predicted = logits.argmax(axis=1)
        return {
            self.name: float(accuracy_score(self.labels, predicted)),
            f"{self.rows}_f1": float(f1_score(self.labels, predicted, average="macro")),
        }


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
    """Encoder of tokenised texts with the student in training, in eval mode.

    Args:
        model: the student.
        tokenizer: its tokenizer.
        device: its device.
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
