"""Suites of labelled sets, each answered by a classifier on frozen vectors.

A set's parts say how it is scored. One part: nested folds over all of it. ``train`` and ``test``: folds of
the training examples choose the strength of the penalty. ``train``, ``dev`` and ``test``: the dev examples
choose it. A set's figure is its accuracy, in per cent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.classifier import (
    FOLDS,
    STRENGTHS,
    Answers,
    answer_by_dev,
    answer_by_folds,
    answer_by_nested_folds,
)
from distill.evaluation.encoding import Encoded, Progress, silent
from distill.evaluation.labelled import Examples, describe_labels, describe_leak, describe_repetitions
from distill.evaluation.scores import MeanOutcomes, RatioOutcomes, SetScore, SetScores
from distill.evaluation.tasks import Subject
from distill.evaluation.testset import describe_skipped

ALL, TRAIN, DEV, TEST = "all", "train", "dev", "test"
"""The parts of a set."""

PairFeatures = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class LabelledSet:
    """One set with its examples read.

    Attributes:
        name: key in results.
        label: how tables call it.
        parts: its examples: :data:`ALL`, or :data:`TRAIN` and :data:`TEST`, with :data:`DEV` or without.
        pairs: makes the features of a pair from the vectors of its texts; None where an example is one text.
        positive: the label whose F1 stands beside the accuracy; None for no F1.
        skipped: rows left out, by reason.
        remarks: what a reader must know of how the set was put together.
        files: where the examples are from.
    """

    name: str
    label: str
    parts: Mapping[str, Examples]
    pairs: PairFeatures | None = None
    positive: str | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Check that there is something to tell apart.

        Raises:
            DataError: if fewer than two labels are frequent enough to be learnt.
        """
        least = 1 if DEV in self.parts else FOLDS
        counts = Counter(self.learnt.labels)
        if sum(count >= least for count in counts.values()) < 2:
            found = ", ".join(f"{label!r} {count}" for label, count in counts.most_common(5))
            raise DataError(
                f"{self.label}: expected two labels with at least {least} examples each to learn from, "
                f"found {found}; check the file"
            )

    @property
    def learnt(self) -> Examples:
        """The examples that classifiers learn from."""
        return self.parts[ALL if ALL in self.parts else TRAIN]

    @property
    def scored(self) -> Examples:
        """The examples whose answers count."""
        return self.parts[ALL if ALL in self.parts else TEST]

    def notes(self) -> list[str]:
        """Return what a reader must know: rows left out, rare labels, repetitions, leaks."""
        lines = list(self.remarks)
        if self.skipped:
            reasons = describe_skipped(Counter(self.skipped))
            lines.append(f"{sum(self.skipped.values())} rows skipped ({reasons})")
        lines += describe_labels(self.learnt, self.scored)
        if self.scored is self.learnt:
            # In folds, a repetition may be learnt from in one and scored in another.
            lines += describe_repetitions(self.learnt)
        else:
            for part, examples in self.parts.items():
                lines += [f"{part}: {line}" for line in describe_repetitions(examples)]
            lines += describe_leak(self.learnt, self.scored)
        return [f"{self.label}: {line}" for line in lines]


@dataclass(frozen=True)
class ClassificationTask:
    """The sets of a suite that are there.

    Attributes:
        data: the folder.
        sets: the sets, in the suite's order.
        missing: label -> the files looked for, of the sets that are not there.
        seed: which examples share a fold.
        progress: called before each set, since classifiers take a while.
    """

    data: Path
    sets: Sequence[LabelledSet]
    missing: Mapping[str, str]
    seed: int = 0
    progress: Progress = silent
    needs_teacher: ClassVar[bool] = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sets."""
        return tuple(dict.fromkeys(path for one in self.sets for path in one.files))

    @property
    def settings(self) -> dict[str, object]:
        """The seed of the folds and of what is drawn; which examples were drawn, their sentences tell."""
        return {"seed": self.seed}

    @property
    def facts(self) -> dict[str, object]:
        """The folder, how many distinct sentences, the sets that are not there, the seed of the folds."""
        return {
            "data": str(self.data),
            "sentences": len(set(self.texts())),
            "missing": list(self.missing),
            "seed": self.seed,
        }

    @cached_property
    def notes(self) -> list[str]:
        """Sets that are not there, and what is to be known of the others."""
        notes = []
        if self.missing:
            files = ", ".join(f"{label} ({wanted})" for label, wanted in self.missing.items())
            notes.append(
                f"average over {len(self.sets)} of {len(self.sets) + len(self.missing)} sets; "
                f"not found: {files}"
            )
        return [*notes, *(line for one in self.sets for line in one.notes())]

    def texts(self) -> list[str]:
        """Return the texts of all parts."""
        return [
            text
            for one in self.sets
            for examples in one.parts.values()
            for texts in examples.texts
            for text in texts
        ]

    def test_items(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Return the examples whose answers count, by set."""
        return {one.name: one.scored.texts for one in self.sets}

    def score(self, subject: Subject, notes: list[str]) -> SetScores:
        """Score every set; a note names the strengths that were chosen."""
        scores = {}
        chosen = []
        for done, one in enumerate(self.sets):
            self.progress(f"{subject.model.name}: classifiers", done, len(self.sets))
            scores[one.name], answers = score_set(one, subject.encoded, self.seed)
            chosen.append(f"{one.label} {_span(answers.strengths)}")
            if answers.unfinished:
                notes.append(
                    f"{subject.model.name}, {one.label}: {answers.unfinished} fits were stopped before they "
                    "had converged"
                )
        self.progress(f"{subject.model.name}: classifiers", len(self.sets), len(self.sets))
        notes.append(f"{subject.model.name}: C chosen: {', '.join(chosen)}")
        return SetScores(scores, len(self.sets) + len(self.missing))


def score_set(one: LabelledSet, encoded: Encoded, seed: int) -> tuple[SetScore, Answers]:
    """Score one set from the vectors of its texts."""
    names = sorted({label for examples in one.parts.values() for label in examples.labels})
    number = {label: place for place, label in enumerate(names)}
    features = {part: _features(one, examples, encoded) for part, examples in one.parts.items()}
    labels = {
        part: np.array([number[label] for label in examples.labels]) for part, examples in one.parts.items()
    }
    if ALL in one.parts:
        answers = answer_by_nested_folds(features[ALL], labels[ALL], seed)
    elif DEV in one.parts:
        learnt, dev = (features[TRAIN], labels[TRAIN]), (features[DEV], labels[DEV])
        answers = answer_by_dev(*learnt, *dev, features[TEST], seed)
    else:
        answers = answer_by_folds(features[TRAIN], labels[TRAIN], features[TEST], seed)
    gold = labels[ALL if ALL in one.parts else TEST]
    right = (answers.predicted == gold).astype(np.float64)
    parts = {}
    if one.positive is not None:
        parts["f1"] = f1_parts(gold, answers.predicted, number.get(one.positive, -1))
    score = SetScore(
        label=one.label,
        measure="accuracy",
        value=100 * float(right.mean()),
        items=len(right),
        skipped=sum(one.skipped.values()),
        others={name: _ratio(part) for name, part in parts.items()},
        outcomes=MeanOutcomes(right, parts),
    )
    return score, answers


def f1(gold: NDArray[np.int64], predicted: NDArray[np.int64], positive: int) -> float | None:
    """Return F1 of the label ``positive``, times 100; None where it neither occurs nor was answered."""
    return _ratio(f1_parts(gold, predicted, positive))


def f1_parts(gold: NDArray[np.int64], predicted: NDArray[np.int64], positive: int) -> RatioOutcomes:
    """Return what each example adds to F1 of ``positive``: twice the hits by what is so or answered so."""
    there, said = (gold == positive).astype(np.float64), (predicted == positive).astype(np.float64)
    return RatioOutcomes(2 * there * said, there + said)


def _ratio(parts: RatioOutcomes) -> float | None:
    whole = parts.below.sum()
    return 100 * float(parts.above.sum() / whole) if whole else None


def _features(one: LabelledSet, examples: Examples, encoded: Encoded) -> NDArray[np.float32]:
    sides = [encoded.pick(side) for side in zip(*examples.texts, strict=True)]
    return sides[0] if one.pairs is None else one.pairs(sides[0], sides[1])


def _span(strengths: Sequence[float]) -> str:
    low, high = min(strengths), max(strengths)
    span = f"{low:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
    # Beyond an end that was chosen there may be a better strength.
    return f"{span} (an end of the grid)" if low == STRENGTHS[0] or high == STRENGTHS[-1] else span
