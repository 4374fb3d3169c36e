"""Fidelity: how closely a model's vectors follow its teacher's, on sentences without labels.

Cosines to the teacher's vectors say how well the vectors themselves were copied; they exist only where both
are equally wide. What a user of sentence vectors sees is their geometry, so two figures compare that,
whatever the widths: the Spearman correlation of all pairwise similarities, and the share of common nearest
neighbours. Both take at most :data:`SAMPLE` sentences, chosen by seed, because they grow with the square.

Intervals are drawn over sentences. The worst cosine has none, as no draw has a worse one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from distill.digests import data_files
from distill.errors import DataError
from distill.evaluation.encoding import unit_rows
from distill.evaluation.record import is_in_target_space
from distill.evaluation.scores import PercentileOutcomes, WholeScores, rounded
from distill.evaluation.sentences import Sentences, read_sentences
from distill.evaluation.tasks import NotThereError, Request, Subject

SAMPLE = 2000
"""Sentences whose pairwise similarities are compared."""

NEIGHBOURS = 10
"""Nearest neighbours compared; never more than half of the other sentences, or any two models would agree."""

FEW = 100
"""Figures of fewer sentences say little, and the report says so."""

SMALLEST_SPREAD = 1e-6  # below this, similarities of float32 vectors differ by rounding alone
# The interval of the mean of more cosines is narrower than anybody reads a figure, and takes long to draw.
_MOST_DRAWN = 20_000
_FEWEST = 3  # with two sentences there is one similarity, and nothing to rank


@dataclass(frozen=True)
class FidelityScores(WholeScores):
    """One model's likeness to its teacher.

    Attributes:
        cosine_mean: mean cosine of model's to teacher's vector; None where the widths differ, or the
            model's vectors are not to be like the teacher's.
        cosine_p05: 5th percentile of those cosines.
        cosine_worst: smallest of those cosines.
        similarity_spearman: Spearman correlation, times 100, of the two matrices of pairwise cosines.
        neighbour_overlap: per cent of nearest neighbours in common, mean over sentences.
    """

    cosine_mean: float | None
    cosine_p05: float | None
    cosine_worst: float | None
    similarity_spearman: float
    neighbour_overlap: float

    @property
    def headline(self) -> None:
        """None: likeness is measured against the teacher already, a share of its own says nothing."""

    def to_json(self) -> dict[str, object]:
        """Return ``cosine`` (``mean``, ``p05``, ``worst``; or null), the geometry's two, and intervals."""
        cosine = {"mean": self.cosine_mean, "p05": self.cosine_p05, "worst": self.cosine_worst}
        there = {name: round(value, 6) for name, value in cosine.items() if value is not None}
        return {
            "cosine": there or None,
            "similarity_spearman": round(self.similarity_spearman, 4),
            "neighbour_overlap": round(self.neighbour_overlap, 4),
            "intervals": {name: rounded(ends, 6) for name, ends in self.intervals.items()},
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return nothing: the summary says it all."""
        return []

    def figures(self) -> dict[str, float | None]:
        """Return the five figures."""
        return {
            "cosine": self.cosine_mean,
            "5th pct": self.cosine_p05,
            "worst": self.cosine_worst,
            "similarity rho": self.similarity_spearman,
            "neighbours": self.neighbour_overlap,
        }

    def summary(self) -> dict[str, str]:
        """Return the five figures."""

        def cell(value: float | None) -> str:
            return "-" if value is None else f"{value:.4f}"

        return {
            "cosine": cell(self.cosine_mean),
            "5th pct": cell(self.cosine_p05),
            "worst": cell(self.cosine_worst),
            "similarity rho": f"{self.similarity_spearman:.2f}",
            "neighbours": f"{self.neighbour_overlap:.2f} %",
        }


def score_fidelity(
    student: NDArray[np.float32], teacher: NDArray[np.float32], *, cosines: bool = True, seed: int = 0
) -> FidelityScores:
    """Compare a student's vectors, (n, d_S), with the teacher's, (n, d_T), of the same n sentences.

    Args:
        student, teacher: the vectors.
        cosines: whether one of them is to be like the other, so that their cosine says something.
        seed: chooses the sample.

    Raises:
        DataError: if there are fewer than three sentences, or one side gives every sentence the same vector.
    """
    rows = len(teacher)
    if len(student) != rows or rows < _FEWEST:
        raise DataError(
            f"{len(student)} student and {rows} teacher vectors: expected as many of each, at least {_FEWEST}"
        )
    own: NDArray[np.float64] | None = None
    if cosines and student.shape[1] == teacher.shape[1]:
        own = np.einsum("ij,ij->i", unit_rows(student), unit_rows(teacher))
    sample = np.arange(rows)
    if rows > SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(rows, SAMPLE, replace=False))
    similarities = [_similarities(vectors[sample]) for vectors in (student, teacher)]
    spearman, of_sentences = _similarity_spearman(*similarities)
    overlaps = _neighbour_overlaps(*similarities)
    outcomes: dict[str, NDArray[np.float64] | PercentileOutcomes] = {}
    if own is not None and rows <= _MOST_DRAWN:
        outcomes = {"cosine_mean": own, "cosine_p05": PercentileOutcomes(own, 5)}
    return FidelityScores(
        cosine_mean=None if own is None else float(own.mean()),
        cosine_p05=None if own is None else float(np.percentile(own, 5)),
        cosine_worst=None if own is None else float(own.min()),
        similarity_spearman=spearman,
        neighbour_overlap=float(overlaps.mean()),
        # None of neighbours: sentences share them, and draws of sentences would give too narrow an interval.
        outcomes={**outcomes, "similarity_spearman": of_sentences},
    )


@dataclass(frozen=True)
class FidelityTask:
    """Sentences on which vectors are compared with the teacher's.

    Attributes:
        sentences: the sentences.
        teacher: the teacher's name.
        seed: chooses the sample.
        files: the file that was given.
    """

    sentences: Sentences
    teacher: str
    seed: int
    files: tuple[Path, ...] = ()
    needs_teacher: ClassVar[bool] = True

    @property
    def settings(self) -> dict[str, object]:
        """The seed of the sample; how many sentences were read, and of which column, the sentences tell."""
        return {"seed": self.seed}

    @property
    def facts(self) -> dict[str, object]:
        """The sentences' source and count, and how many are compared pairwise."""
        count = len(self.sentences.texts)
        return {
            "data": self.sentences.source,
            "sentences": count,
            "duplicates": self.sentences.duplicates,
            "compared_pairwise": min(count, SAMPLE),
            "neighbours": _neighbours(min(count, SAMPLE)),
        }

    @property
    def notes(self) -> list[str]:
        """How many sentences, and what was left out."""
        return _notes(self.sentences)

    def texts(self) -> list[str]:
        """Return the sentences."""
        return self.sentences.texts

    def score(self, subject: Subject, notes: list[str]) -> FidelityScores:
        """Compare one model with the teacher; the teacher itself is, by definition, fully like itself."""
        if subject.is_teacher:
            return FidelityScores(1.0, 1.0, 1.0, 100.0, 100.0)
        if subject.teacher is None:
            raise DataError("fidelity is to a teacher: give --teacher")
        texts = self.sentences.texts
        alike = is_in_target_space(subject.spec)
        teacher = subject.teacher.encoded.pick(texts)
        scores = score_fidelity(subject.encoded.pick(texts), teacher, cosines=alike, seed=self.seed)
        if not alike:
            notes.append(
                f"{subject.model.name}: no cosine to the teacher, whose vectors its own were like only "
                "behind a head that is not part of it"
            )
        elif scores.cosine_mean is None:
            notes.append(
                f"{subject.model.name}: no cosine to the teacher, its vectors are {subject.model.dimension} "
                f"wide and the teacher's {teacher.shape[1]}"
            )
        return scores


def read(request: Request) -> FidelityTask:
    """Read the sentences of the request's file, or those that its runs held out.

    Raises:
        NotThereError: if neither is there.
        DataError: if there is no teacher, or there are too few sentences.
    """
    if request.teacher is None:
        raise NotThereError(
            "fidelity is to a teacher, and no model given is a run that names one: give --teacher"
        )
    sentences = read_sentences(request)
    if len(sentences.texts) < _FEWEST:
        raise DataError(
            f"{sentences.source} holds {len(sentences.texts)} distinct sentences, expected at least {_FEWEST}"
        )
    return FidelityTask(sentences, request.teacher, request.seed, tuple(data_files(request.data)))


def _notes(sentences: Sentences) -> list[str]:
    count = len(sentences.texts)
    notes = [f"{count} distinct sentences"]
    if count < FEW:
        notes.append(
            f"{count} sentences are few: another draw of as many would give other figures; give {FEW} or "
            "more with --data"
        )
    if count > SAMPLE:
        notes.append(f"similarities and neighbours on {SAMPLE} of them, chosen by seed")
    if sentences.note:
        notes.append(sentences.note)
    if sentences.duplicates:
        notes.append(f"{sentences.duplicates} repeated sentences counted once")
    if sentences.skipped:
        notes.append(f"rows skipped: {sentences.skipped}")
    return notes


def _similarities(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    unit = unit_rows(vectors)
    similarities: NDArray[np.float64] = unit @ unit.T
    return similarities


def _similarity_spearman(
    student: NDArray[np.float64], teacher: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return Spearman's correlation of two matrices of similarities, and (n,) what rests on each sentence."""
    from scipy.stats import rankdata, spearmanr

    above_diagonal = np.triu_indices(len(teacher), 1)
    pairs = {"student": student[above_diagonal], "teacher": teacher[above_diagonal]}
    for side, values in pairs.items():
        if np.ptp(values) < SMALLEST_SPREAD:
            raise DataError(
                f"all similarities of the {side}'s vectors are equal ({values[0]:.6f}): "
                "it gives every sentence the same vector, so there is nothing to compare"
            )
    figure = 100 * float(spearmanr(pairs["student"], pairs["teacher"]).statistic)
    # Spearman's is 12 E[F G] - 3 of two grades, where F and G are themselves means over pairs: a pair takes
    # part in the product and in the grades of all pairs that are no less similar.
    grades = [rankdata(values) / len(values) for values in (pairs["student"], pairs["teacher"])]
    own = grades[0] * grades[1] + _mean_of_no_less(*grades) + _mean_of_no_less(*reversed(grades))
    of_pairs = np.zeros_like(student)
    of_pairs[above_diagonal] = own - own.mean()
    parts = (of_pairs.sum(axis=0) + of_pairs.sum(axis=1)) / (len(student) - 1)
    return figure, figure + 100 * 12 * 2 * (parts - parts.mean())


def _mean_of_no_less(grades: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for every item the sum of ``values`` over items whose grade is no less, by the number of all."""
    order = np.argsort(-grades, kind="stable")
    means = np.empty_like(values)
    means[order] = np.cumsum(values[order]) / len(values)
    return means


def _neighbours(rows: int) -> int:
    return max(1, min(NEIGHBOURS, (rows - 1) // 2))


def _neighbour_overlaps(student: NDArray[np.float64], teacher: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n,) the per cent of each sentence's neighbours that both have."""
    common = _nearest(student) & _nearest(teacher)
    overlaps: NDArray[np.float64] = 100 * common.sum(axis=1) / _neighbours(len(teacher))
    return overlaps


def _nearest(similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (n, n) booleans: which sentences are the nearest neighbours of each row's sentence."""
    count = _neighbours(len(similarities))
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    nearest = np.zeros(others.shape, dtype=np.bool_)
    np.put_along_axis(nearest, np.argpartition(-others, count - 1, axis=1)[:, :count], True, axis=1)
    return nearest
