"""A classifier that asks a knowledge base: a student's folder and the base in it, as one thing.

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
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.classification.labels import label_numbers
from distill.classification.score import accuracy
from distill.errors import ConfigError, DataError
from distill.knowledge_base.base import KnowledgeBase, read_base
from distill.knowledge_base.index import Found
from distill.knowledge_base.student import (
    ClassifierFolder,
    load_student,
    open_folder,
    refuse_other_encoder,
    refuse_other_origin,
)
from distill.knowledge_base.vote import Probabilities, mixed, neighbour_vote, neighbour_weights, softmax
from distill.vectors import unit
from embedcache.codecs import Vectors
from embedcache.pairs import join_pair, split_pair
from embedcache.teacher.classifier import ClassifierHead

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

DEFAULT_K = 10
"""Neighbours asked where nothing was chosen; the paper's overhead is given for so many."""

DEFAULT_BETA = 0.5
"""What the student's own answer counts for where nothing was chosen."""

Text: TypeAlias = str | tuple[str, str]
"""A text, or the two texts of a pair."""


@dataclass(frozen=True)
class Neighbour:
    """A text of the knowledge base that spoke for an answer.

    Attributes:
        row: its row in the base.
        cosine: how near it is, -1 to 1.
        weight: what it counted for among the neighbours asked, 0 to 1.
        label: the label its teacher thought the likeliest.
        probability: how likely its teacher thought that label.
        text: the text, of a pair both; None where the base does not keep the texts.
    """

    row: int
    cosine: float
    weight: float
    label: str
    probability: float
    text: Text | None


@dataclass(frozen=True)
class Answers:
    """What is known of n texts.

    Attributes:
        probabilities: shape (n, c).
        student: those of the student alone, shape (n, c).
        found: the neighbours asked; None where none were.
        encode_seconds: time the student took.
        search_seconds: time that asking neighbours added.
    """

    probabilities: Probabilities
    student: Probabilities
    found: Found | None
    encode_seconds: float
    search_seconds: float


class RetrievalAugmentedClassifier:
    """A classifier of texts, or of pairs of texts, with a knowledge base or without.

    Args:
        encode: texts -> sentence vectors, float32 of shape (n, d), not scaled.
        head: the classifier on top of them.
        base: the knowledge base; None to answer without one.
        k: neighbours to ask; default: as chosen by ``distill kb tune``, else 10.
        beta: what the student's own answer counts for, 0 to 1; default: as chosen, else 0.5.

    Raises:
        ConfigError: if k or beta are out of range, or given without a base.
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
            raise ConfigError(
                "k and beta are of a knowledge base, and there is none: make one with 'distill kb build', or "
                "leave them out"
            )
        chosen = base.chosen if base is not None else None
        self._encode, self._head, self.base = encode, head, base
        self.k = k if k is not None else chosen.k if chosen else DEFAULT_K
        self.beta = beta if beta is not None else chosen.beta if chosen else DEFAULT_BETA
        if self.k < 1:
            raise ConfigError(f"k {self.k}: expected 1 neighbour at least")
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"beta {self.beta}: expected 0 to 1")

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
        """Open a run, or a model folder with a classifier, and the knowledge base in it where there is one.

        Args:
            path: the run or the folder.
            retrieval: whether to ask the knowledge base.
            k, beta: as for the class.
            device: where the student runs: ``auto``, ``cpu``, ``cuda`` ...
            threads: CPU threads; default: all cores.

        Raises:
            ConfigError: if there is no such folder, or k and beta do not fit.
            DataError: if it holds no classifier, or the base is not one that this student can ask.
            CorruptCacheError: if the classifier or the base is damaged.
            TeacherError: if the model cannot be loaded.
        """
        student = open_folder(path)
        base = read_base(student.folder) if retrieval else None
        if base is not None:
            what = f"the knowledge base in {student.folder}"
            refuse_other_origin(student, base.origin, base.index.dimension, what)
        return cls(open_encoder(student, base, device, threads), student.head, base, k=k, beta=beta)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The names of the labels, in the order of the probabilities, shape (c,)."""
        return np.array(self._head.labels)

    def predict_proba(self, texts: Sequence[Text]) -> Probabilities:
        """Return the probability of each label, shape (n, c)."""
        return self.answer(texts).probabilities

    def predict(self, texts: Sequence[Text]) -> NDArray[np.str_]:
        """Return the likeliest label of each text, shape (n,)."""
        labels: NDArray[np.str_] = self.classes_[self.predict_proba(texts).argmax(axis=1)]
        return labels

    def score(self, texts: Sequence[Text], labels: Sequence[object]) -> float:
        """Return the share of texts whose label is right, 0 to 1.

        Raises:
            DataError: if there is not one label for each text, or no text, or a label is not one that the
                classifier knows.
        """
        if isinstance(labels, str) or len(labels) != len(texts) or not len(texts):
            found = "one label" if isinstance(labels, str) else f"{len(labels):,} labels"
            raise DataError(f"{found} for {len(texts):,} texts: expected a label for each, and one at least")
        numbers = label_numbers(labels, self._head.labels, "labels")
        return accuracy(self.predict_proba(texts).argmax(axis=1), numbers)

    def neighbours(self, texts: Sequence[Text], k: int | None = None) -> list[list[Neighbour]]:
        """Return the neighbours asked about each text, the weightiest first.

        Args:
            texts: the texts.
            k: how many to return, of those asked; default: all.

        Raises:
            ConfigError: if there is no knowledge base.
        """
        base = self._require_base()
        return self.describe(base.index.search(unit(self.vectors(texts)), self.k), k)

    def describe(self, found: Found, k: int | None = None) -> list[list[Neighbour]]:
        """Return what is known of the neighbours found; see :meth:`neighbours`."""
        base = self._require_base()
        rows, cosines = found
        weights = neighbour_weights(cosines, base.tau)
        return [
            [
                self._neighbour(base, int(row), float(cosine), float(weight))
                for row, cosine, weight in zip(*of_text, strict=True)
                if row >= 0
            ][:k]
            for of_text in zip(rows, cosines, weights, strict=True)
        ]

    def vectors(self, texts: Sequence[Text]) -> Vectors:
        """Return the student's sentence vectors, float32 of shape (n, d).

        Raises:
            DataError: if ``texts`` is one text, or holds what is neither a text nor a pair.
            InputError: if it holds pairs and the classifier was taught on single texts, or the other way
                round.
        """
        if isinstance(texts, str):
            raise DataError(f"one text given, {texts[:40]!r}: expected a list; put it into one")
        joined = [_joined(text) for text in texts]
        self._head.refuse_others(joined, "the classifier")
        return self._encode(joined)

    def answer(self, texts: Sequence[Text]) -> Answers:
        """Return all that is known of texts, with the time it took."""
        began = time.perf_counter()
        vectors = self.vectors(texts)
        student = softmax(self._head.logits(vectors))
        encoded = time.perf_counter()
        if self.base is None or not len(vectors):
            return Answers(student, student, None, encoded - began, 0.0)
        found = self.base.index.search(unit(vectors), self.k)
        voted = neighbour_vote(found[1], self.base.soft_labels[found[0]], self.base.tau)
        probabilities = mixed(student, voted, self.beta)
        return Answers(probabilities, student, found, encoded - began, time.perf_counter() - encoded)

    def _neighbour(self, base: KnowledgeBase, row: int, cosine: float, weight: float) -> Neighbour:
        soft = base.soft_labels[row]
        best = int(soft.argmax())
        text = None if base.texts is None else split_pair(base.texts[row]) or base.texts[row]
        return Neighbour(row, cosine, weight, self._head.labels[best], float(soft[best]), text)

    def _require_base(self) -> KnowledgeBase:
        if self.base is None:
            raise ConfigError("there is no knowledge base to ask: make one with 'distill kb build'")
        return self.base


def _joined(text: object) -> str:
    """Return a text, or the two of a pair as one."""
    if isinstance(text, str):
        return text
    if isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return join_pair(*text)
    raise DataError(f"{text!r} is no text: expected a str, or for a pair a tuple of two")


def student_encoder(
    folder: Path, device: str = "auto", threads: int | None = None
) -> Callable[[Sequence[str]], Vectors]:
    """Return what turns texts into a student's sentence vectors, float32 of shape (n, d).

    Raises:
        TeacherError: if the model cannot be loaded.
        InputError: if ``threads`` is below 1.
    """
    return _encode_with(load_student(folder, device), threads)


def open_encoder(
    student: ClassifierFolder, base: KnowledgeBase | None, device: str = "auto", threads: int | None = None
) -> Callable[[Sequence[str]], Vectors]:
    """Return what :func:`student_encoder` does, of a student that is to ask a knowledge base.

    Raises:
        DataError: if the base's vectors are the student's own and were given otherwise than it gives them.
        TeacherError, InputError: as :func:`student_encoder`.
    """
    loaded = load_student(student.folder, device)
    if base is not None:
        what = f"the knowledge base in {student.folder}"
        refuse_other_encoder(student, base.origin, loaded.contract, what)
    return _encode_with(loaded, threads)


def _encode_with(student: Teacher, threads: int | None) -> Callable[[Sequence[str]], Vectors]:
    from embedcache.teacher.encode import Encoder

    # What is in a vector's last bits may be seen in a probability: in full precision, as it was trained.
    encoder = Encoder(student, compute_dtype="float32", threads=threads)
    return lambda texts: encoder.encode(texts).vectors
