"""Fidelity: likeness of a model's vectors to its teacher's, on sentences without labels.

Cosines to the teacher's vectors exist only where both are equally wide. Two figures compare the geometry
at any widths: Spearman's correlation of all pairwise similarities, and the share of common nearest
neighbours. Both take at most ``SAMPLE`` sentences, chosen by seed, because they grow with the square.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.models import Encode, Vectors
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import NotThereError, SuiteOptions, register_suite
from distill.layout import HELD_OUT
from distill.vectors import unit_rows

SAMPLE = 2000
"""Sentences whose pairwise similarities are compared."""

NEIGHBOURS = 10
"""Nearest neighbours compared; at most half of the other sentences, or any two models would agree."""

_SMALLEST_SPREAD = 1e-6  # below this, similarities of float32 vectors differ by rounding alone
_FEWEST, _FEW = 3, 100  # with two sentences there is one similarity, and nothing to rank
_MOST_DRAWN = 20_000  # the interval of a mean of more cosines is narrower than its last digit


def compare_vectors(
    student: Vectors, teacher: Vectors, *, cosines: bool = True, seed: int = 0
) -> dict[str, Figure]:
    """Compare a student's vectors, (n, d_S), with the teacher's, (n, d_T), of the same n sentences.

    Args:
        student, teacher: the vectors.
        cosines: compare vector by vector as well, if they are equally wide.
        seed: choice of the sample.

    Raises:
        DataError: if there are fewer than three sentences, or one side gives every sentence the same vector.
    """
    rows = len(teacher)
    if len(student) != rows or rows < _FEWEST:
        raise DataError(f"fidelity needs at least {_FEWEST} sentences (found: {min(rows, len(student))})")
    found: dict[str, Figure] = {}
    if cosines and student.shape[1] == teacher.shape[1]:
        own = np.einsum("ij,ij->i", unit_rows(student), unit_rows(teacher))
        drawn = Outcomes(own) if rows <= _MOST_DRAWN else None
        found["cosine_mean"] = Figure(float(own.mean()), "mean cosine", items=rows, outcomes=drawn)
        found["cosine_p05"] = Figure(float(np.percentile(own, 5)), "5th percentile of cosines", items=rows)
        found["cosine_worst"] = Figure(float(own.min()), "smallest cosine", items=rows)
    sample = np.arange(rows)
    if rows > SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(rows, SAMPLE, replace=False))
    unit = [unit_rows(vectors[sample]) for vectors in (student, teacher)]
    similarities = [vectors @ vectors.T for vectors in unit]
    count = len(sample)
    # No intervals: sentences share pairs and neighbours, and draws of sentences would give too narrow ones.
    found["similarity_spearman"] = Figure(
        _similarity_spearman(*similarities), "spearman of similarities", items=count
    )
    common = _nearest(similarities[0]) & _nearest(similarities[1])
    overlap = 100 * float((common.sum(axis=1) / _neighbours(count)).mean())
    found["neighbour_overlap"] = Figure(overlap, "% of neighbours in common", items=count)
    return found


@register_suite(
    "fidelity",
    summary="likeness to the teacher's vectors on unlabelled sentences",
    options=("seed", "limit", "text_column"),
    needs_teacher=True,
)
def fidelity(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Compare a model with its teacher on the sentences of a file."""
    if options.teacher is None:
        raise NotThereError("fidelity is to a teacher, and no run given names one: give --teacher")
    read, notes = read_sentences(data, options)
    sentences = list(dict.fromkeys(read))
    alike = options.model is None or options.model.in_target_space
    vectors, teacher = encode(sentences), options.teacher(sentences)
    figures = compare_vectors(vectors, teacher, cosines=alike, seed=options.seed)
    notes = [f"{len(sentences)} distinct sentences", *notes]
    if len(sentences) < _FEW:
        notes.append(
            f"{len(sentences)} sentences are few for stable figures; give {_FEW} or more with --data"
        )
    if not alike:
        notes.append("no cosine to the teacher: the student's vectors are not in its space")
    elif "cosine_mean" not in figures:
        notes.append(f"no cosine to the teacher: vectors are {vectors.shape[1]} and {teacher.shape[1]} wide")
    settings = {"data": str(data), "sentences": len(sentences), "seed": options.seed}
    return SuiteResult(figures, headline="similarity_spearman", notes=tuple(notes), settings=settings)


def read_sentences(data: Path, options: SuiteOptions) -> tuple[list[str], list[str]]:
    """Read the sentences of a file (or the held-out texts of a run), and notes on rows left out.

    Raises:
        NotThereError: if a run held out nothing.
        DataError, InputError: if they cannot be read.
    """
    if data.name == HELD_OUT:
        if not data.is_file():
            raise NotThereError(f"{data.parent} held out no sentences; give --data FILE")
        lines = data.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return [json.loads(line) for line in lines if line][: options.limit], []
    if data.is_dir():
        raise DataError(f"{data} is a folder; fidelity reads sentences from a file: give --data FILE")
    from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
    from embedcache.corpus.sources import expand_sources

    report = ReadReport()
    wanted = ReadOptions(text_column=options.text_column, limit=options.limit)
    texts = [text for batch in read_batches(expand_sources([data]), wanted, report) for text in batch.texts]
    skipped = report.describe_skipped()
    return texts, [f"rows skipped: {skipped}"] if skipped else []


def _similarity_spearman(student: NDArray[np.float64], teacher: NDArray[np.float64]) -> float:
    """Return Spearman's correlation of two matrices of similarities, times 100."""
    from scipy.stats import spearmanr

    above_diagonal = np.triu_indices(len(teacher), 1)
    pairs = {"student": student[above_diagonal], "teacher": teacher[above_diagonal]}
    for side, values in pairs.items():
        if np.ptp(values) < _SMALLEST_SPREAD:
            raise DataError(
                f"the {side} gives every sentence the same vector, so there is nothing to compare"
            )
    return 100 * float(spearmanr(pairs["student"], pairs["teacher"]).statistic)


def _neighbours(rows: int) -> int:
    return max(1, min(NEIGHBOURS, (rows - 1) // 2))


def _nearest(similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (n, n) booleans: nearest neighbours of each row's sentence."""
    count = _neighbours(len(similarities))
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    nearest = np.zeros(others.shape, dtype=np.bool_)
    np.put_along_axis(nearest, np.argpartition(-others, count - 1, axis=1)[:, :count], True, axis=1)
    return nearest
