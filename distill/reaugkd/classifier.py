"""Classifier that searches a knowledge base.

>>> from distill import RetrievalAugmentedClassifier
>>> classifier = RetrievalAugmentedClassifier.from_folder("runs/sst2")  # doctest: +SKIP
>>> classifier.predict(["a fine film"])                                 # doctest: +SKIP
array(['1'], dtype='<U1')
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

from distill.data.labelled import label_numbers
from distill.errors import ConfigError, DataError
from distill.layout import KNOWLEDGE_BASE
from distill.reaugkd.index import Found
from distill.reaugkd.knowledge_base import KnowledgeBase, Probabilities
from distill.reaugkd.student import StudentFolder, open_student_folder
from distill.vectors import unit
from embedcache.codecs import Vectors
from embedcache.pairs import join_pair, split_pair
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_teacher

DEFAULT_K = 10
DEFAULT_BETA = 0.5
"""k and beta until they are chosen."""

Text: TypeAlias = str | tuple[str, str]
"""A text, or a pair of texts."""


@dataclass(frozen=True)
class Neighbour:
    """Neighbour that an answer is based on.

    Attributes:
        row: its row in the base.
        cosine: cosine with the student's vector.
        weight: its weight among the k neighbours, 0 to 1.
        label: its teacher's most likely label.
        probability: probability of that label.
        text: its text, or pair of texts; None if the base keeps no texts.
    """

    row: int
    cosine: float
    weight: float
    label: str
    probability: float
    text: Text | None


@dataclass(frozen=True)
class Answers:
    """Answers about n texts.

    Attributes:
        probabilities: shape (n, c).
        student: probabilities of the student alone, shape (n, c).
        found: neighbours; None without retrieval.
        encode_seconds: time of the student.
        search_seconds: time that retrieval added.
    """

    probabilities: Probabilities
    student: Probabilities
    found: Found | None
    encode_seconds: float
    search_seconds: float


class RetrievalAugmentedClassifier:
    """Classifier of texts, or of pairs of texts, with or without a knowledge base.

    The answer is ``beta * y_student + (1 - beta) * sum_k w_k y_k`` (ReAugKD, section 3.3).

    Args:
        encode: texts -> sentence vectors, float32 of shape (n, d), unscaled.
        head: classifier of these vectors.
        base: the knowledge base; None to answer without one.
        k: neighbours per text; default: as chosen by ``distill kb tune``, else 10.
        beta: weight of the student's own answer, 0 to 1; default: as chosen, else 0.5.

    Raises:
        ConfigError: if k or beta is out of range, or given without a base.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], Vectors],
        head: ClassifierHead,
        base: KnowledgeBase | None = None,
        *,
        k: int | None = None,
        beta: float | None = None,
    ) -> None:
        if base is None and (k is not None or beta is not None):
            raise ConfigError("k and beta need a knowledge base: build one with 'distill kb build'")
        chosen = base.header.chosen if base is not None else None
        self._encode, self.head, self.base = encode, head, base
        self.k = k if k is not None else chosen.k if chosen else DEFAULT_K
        self.beta = beta if beta is not None else chosen.beta if chosen else DEFAULT_BETA
        if self.k < 1 or not 0 <= self.beta <= 1:
            raise ConfigError(f"k {self.k}, beta {self.beta}: expected k above 0 and beta from 0 to 1")

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        retrieval: bool = True,
        k: int | None = None,
        beta: float | None = None,
        device: str = "auto",
        threads: int | None = None,
    ) -> RetrievalAugmentedClassifier:
        """Open a run, or a model folder with a classifier, and its knowledge base if it has one.

        Args:
            path: the run or the folder.
            retrieval: use the knowledge base.
            k: neighbours per text; default: as for the class.
            beta: weight of the student's own answer; default: as for the class.
            device: ``auto``, ``cpu``, ``cuda`` ...
            threads: CPU threads; default: all cores.

        Raises:
            ConfigError: if there is no such folder, or k and beta do not fit.
            DataError: if it holds no classifier, or the student cannot search the base.
            CorruptCacheError: if the classifier or the base is damaged.
            TeacherError: if the model cannot be loaded.
        """
        student = open_student_folder(path)
        base = student.base() if retrieval and (student.folder / KNOWLEDGE_BASE).is_dir() else None
        return cls(open_encoder(student, base, device, threads), student.head, base, k=k, beta=beta)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """Names of the labels, in the order of the probabilities, shape (c,)."""
        return np.array(self.head.labels)

    def predict_proba(self, texts: Sequence[Text]) -> Probabilities:
        """Return the probability of each label, shape (n, c)."""
        return self.answer(texts).probabilities

    def predict(self, texts: Sequence[Text]) -> NDArray[np.str_]:
        """Return the most likely label of each text, shape (n,)."""
        labels: NDArray[np.str_] = self.classes_[self.predict_proba(texts).argmax(axis=1)]
        return labels

    def score(self, texts: Sequence[Text], labels: Sequence[object]) -> float:
        """Return the accuracy, 0 to 1.

        Raises:
            DataError: if a label is unknown, or there is not one label per text.
        """
        if isinstance(labels, str) or len(labels) != len(texts) or not len(texts):
            raise DataError(f"{len(texts)} texts and {len(labels)} labels: expected a list of as many labels")
        gold = label_numbers(labels, self.head.labels, "labels")
        return float((self.predict_proba(texts).argmax(axis=1) == gold).mean())

    def neighbours(self, texts: Sequence[Text], k: int | None = None) -> list[list[Neighbour]]:
        """Return the neighbours of each text, the nearest first.

        Args:
            texts: the texts.
            k: at most this number per text; default: all that are used.

        Raises:
            ConfigError: if there is no knowledge base.
        """
        return self.describe(self.answer(texts).found, k)

    def describe(self, found: Found | None, k: int | None = None) -> list[list[Neighbour]]:
        """Return neighbours with label and text; see ``neighbours``."""
        base = self.base
        if base is None or found is None:
            raise ConfigError("no knowledge base: build one with 'distill kb build'")

        def neighbour(row: int, cosine: float, weight: float) -> Neighbour:
            soft = base.soft_labels[row]
            text = None if base.texts is None else split_pair(base.texts[row]) or base.texts[row]
            label = self.head.labels[int(soft.argmax())]
            return Neighbour(row, cosine, weight, label, float(soft.max()), text)

        return [
            [neighbour(int(row), float(c), float(w)) for row, c, w in zip(*one, strict=True) if row >= 0][:k]
            for one in zip(*found, base.weights(found[1]), strict=True)
        ]

    def vectors(self, texts: Sequence[Text]) -> Vectors:
        """Return the student's sentence vectors, float32 of shape (n, d).

        Raises:
            DataError: if ``texts`` is a single text, or holds anything but texts and pairs.
            InputError: if it holds pairs and the classifier was trained on single texts, or the reverse.
        """
        if isinstance(texts, str):
            raise DataError(f"a single text, {texts[:40]!r}: expected a list of texts")
        joined = [_joined(text) for text in texts]
        self.head.refuse_others(joined, "the classifier")
        return self._encode(joined)

    def answer(self, texts: Sequence[Text]) -> Answers:
        """Return probabilities, neighbours and times; errors as ``vectors``."""
        began = time.perf_counter()
        vectors = self.vectors(texts)
        student = softmax(self.head.logits(vectors).astype(np.float64), axis=1)
        encoded = time.perf_counter()
        if self.base is None:
            return Answers(student, student, None, encoded - began, 0.0)
        found = self.base.index.search(unit(vectors), self.k)
        mixed = self.beta * student + (1 - self.beta) * self.base.vote(found)
        return Answers(mixed, student, found, encoded - began, time.perf_counter() - encoded)


def open_encoder(
    student: StudentFolder,
    base: KnowledgeBase | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Callable[[Sequence[str]], Vectors]:
    """Load a student and return its function from texts to sentence vectors, float32 of shape (n, d).

    Raises:
        DataError: if the base holds the student's own vectors of other settings.
        TeacherError: if the model cannot be loaded.
    """
    loaded = load_teacher(student.folder, name="student", device=device)
    if base is not None:
        where = f"the knowledge base in {student.folder}"
        student.check_encoder(base.header.origin, loaded.contract, where)
    # In full precision: the last bits of a vector show in a probability.
    encoder = Encoder(loaded, compute_dtype="float32", threads=threads)
    return lambda texts: encoder.encode(texts).vectors


def score_labels(
    gold: NDArray[np.int64], predicted: NDArray[np.int64], names: Sequence[str]
) -> dict[str, Any]:
    """Score predicted label numbers of shape (n,), n > 0.

    Returns:
        ``rows``, ``accuracy``, ``macro_f1``, ``matthews`` (Matthews' correlation, the measure of CoLA) and
        ``labels``: name -> ``precision``, ``recall``, ``f1`` and ``rows``.
    """
    each = precision_recall_fscore_support(gold, predicted, labels=range(len(names)), zero_division=0)
    columns = zip(*(figure.tolist() for figure in each), strict=True)
    return {
        "rows": len(gold),
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, average="macro")),
        "matthews": float(matthews_corrcoef(gold, predicted)),
        "labels": {
            name: dict(zip(("precision", "recall", "f1", "rows"), column, strict=True))
            for name, column in zip(names, columns, strict=True)
        },
    }


def _joined(text: object) -> str:
    if isinstance(text, str):
        return text
    if isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return join_pair(*text)
    raise DataError(f"{text!r} is not a text: expected a str, or a tuple of two for a pair")
