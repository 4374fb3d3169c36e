"""Semantic textual similarity: does the cosine of two sentences rank as people rank their likeness?

Reads tab-separated files with a header line and no quoting, columns ``subset, score, sentence1, sentence2``
(more are allowed), as ``NAME.tsv`` or ``NAME.tsv.gz``; where both lie in a folder the plain one is read.
A set's figure is ONE Spearman correlation over the pairs of all its subsets put together ("all"). Pearson and
the mean of the subsets' own Spearman correlations stand beside it.

Rows without a score, with a score that is no finite number, with an empty sentence or with the wrong number
of columns are skipped and counted. Correlations are reported times 100.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.encoding import unit_rows
from distill.evaluation.scores import PEARSON, SUBSET_MEAN, PairOutcomes, SetScore, SetScores
from distill.evaluation.tasks import NotThereError, Request, Subject
from distill.evaluation.testset import (
    describe_repeated_pairs,
    describe_skipped,
    find_test_file,
    read_test_file,
)


@dataclass(frozen=True)
class _Source:
    """Where a set lies: the file's name without ending, the subset to keep (None: all), its label."""

    stem: str
    subset: str | None
    label: str


STS_SETS: Mapping[str, _Source] = {
    **{f"sts{year}": _Source(f"sts{year}_test", None, f"STS{year}") for year in range(12, 17)},
    "stsb": _Source("stsb_test", None, "STS-B"),
    "sickr": _Source("sick", "test", "SICK-R"),
}
"""The seven sets of the field, in its order."""

COLUMNS = ("subset", "score", "sentence1", "sentence2")

# Cosines of float32 vectors are exact to about 1e-7: ranking by a spread below this would rank noise.
SMALLEST_SPREAD = 1e-6


@dataclass(frozen=True)
class StsSet:
    """The scored pairs of one set, in file order.

    ``skipped`` counts the rows left out, by reason; ``files`` are where the pairs are from.
    """

    name: str
    subsets: tuple[str, ...]
    scores: tuple[float, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    # Where they lie is no part of what they are.
    files: tuple[Path, ...] = field(default=(), compare=False)


def load_sts(folder: str | Path, name: str) -> StsSet | None:
    """Read the set ``name`` (a key of :data:`STS_SETS`) from ``folder``; None where its file is not there.

    Raises:
        DataError: if ``name`` is no set, or the file is damaged, lacks a column or holds no scored pair.
    """
    if name not in STS_SETS:
        raise DataError(f"no STS set is called {name!r}; there are {', '.join(STS_SETS)}")
    source = STS_SETS[name]
    path = find_test_file(folder, source.stem)
    return None if path is None else read_pairs(path, name, source.subset)


def read_pairs(path: str | Path, name: str, subset: str | None = None) -> StsSet:
    """Read a file of scored pairs as the set ``name``; only the rows of ``subset`` where one is given.

    Raises:
        DataError: if the file is not there, is damaged, lacks a column or holds no scored pair.
    """
    file = read_test_file(path, COLUMNS)
    skipped = file.skipped
    kept: list[tuple[str, float, str, str]] = []
    for group, score, left, right in file.rows:
        if subset is not None and group != subset:
            continue
        value, fault = parse_score(score)
        if not fault and not (left.strip() and right.strip()):
            fault = "empty sentence"
        if fault:
            skipped[fault] += 1
        else:
            kept.append((group, value, left, right))
    if not kept:
        among = f" of subset {subset!r}" if subset else ""
        raise DataError(
            f"{path} holds no scored pair{among} in {file.lines} rows (skipped: {describe_skipped(skipped)})"
        )
    groups, scores, lefts, rights = zip(*kept, strict=True)
    return StsSet(name, groups, scores, lefts, rights, dict(skipped), (Path(path),))


def score_sts(sts: StsSet, left: NDArray[np.float32], right: NDArray[np.float32]) -> SetScore:
    """Score one set from the vectors of its pairs, each (pairs, d).

    Raises:
        DataError: if no correlation is defined: fewer than two pairs, or all scores or all cosines equal.
    """
    cosines = np.einsum("ij,ij->i", unit_rows(left), unit_rows(right))
    gold = np.asarray(sts.scores)
    if len(gold) < 2 or np.ptp(gold) == 0:
        raise DataError(
            f"{sts.name}: {len(gold)} pairs whose scores are all equal cannot be ranked; check the file"
        )
    if np.ptp(cosines) < SMALLEST_SPREAD:
        raise DataError(
            f"{sts.name}: the cosines of all {len(gold)} pairs are equal ({cosines[0]:.6f}); "
            "the model has collapsed to one vector, so train it again with another loss or a lower rate"
        )
    subsets = np.asarray(sts.subsets)
    by_subset = [
        _spearman(gold[mask], cosines[mask]) for mask in (subsets == s for s in dict.fromkeys(sts.subsets))
    ]
    defined = [value for value in by_subset if value is not None]
    overall = _spearman(gold, cosines)
    assert overall is not None  # noqa: S101 - both spreads were checked above
    return SetScore(
        label=STS_SETS[sts.name].label if sts.name in STS_SETS else sts.name,
        measure="spearman",
        value=overall,
        items=len(gold),
        skipped=sum(sts.skipped.values()),
        others={
            PEARSON: 100 * float(np.corrcoef(gold, cosines)[0, 1]),
            # Not defined where a subset has fewer than two pairs, or all its scores are equal.
            SUBSET_MEAN: sum(defined) / len(defined) if len(defined) == len(by_subset) else None,
        },
        outcomes=PairOutcomes(gold, cosines, np.unique(subsets, return_inverse=True)[1].astype(np.float64)),
    )


@dataclass(frozen=True)
class StsTask:
    """The sets that are there.

    Attributes:
        data: the folder.
        sets: the sets, in the field's order.
        missing: names of those that are not there.
    """

    data: Path
    sets: Sequence[StsSet]
    missing: Sequence[str]
    needs_teacher: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sets."""
        return tuple(dict.fromkeys(path for one in self.sets for path in one.files))

    @property
    def facts(self) -> dict[str, object]:
        """The folder, the number of distinct sentences, and the sets that are not there."""
        return {"data": str(self.data), "sentences": len(set(self.texts())), "missing": list(self.missing)}

    @property
    def notes(self) -> list[str]:
        """Sets that are not there, rows skipped."""
        return _set_notes(self.sets, self.missing)

    def texts(self) -> list[str]:
        """Return both sides of every pair."""
        return [text for sts in self.sets for text in (*sts.left, *sts.right)]

    def test_items(self) -> dict[str, list[tuple[str, ...]]]:
        """Return the pairs of each set."""
        return {one.name: list(zip(one.left, one.right, strict=True)) for one in self.sets}

    def score(self, subject: Subject, notes: list[str]) -> SetScores:
        """Score every set."""
        pick = subject.encoded.pick
        scores = {sts.name: score_sts(sts, pick(sts.left), pick(sts.right)) for sts in self.sets}
        return SetScores(scores, len(STS_SETS))


def read(request: Request) -> StsTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none of the sets.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("sts")
    loaded = {name: load_sts(folder, name) for name in STS_SETS}
    sets = [sts for sts in loaded.values() if sts is not None]
    if not sets:
        wanted = ", ".join(f"{source.stem}.tsv" for source in STS_SETS.values())
        raise NotThereError(f"{folder} holds none of the STS files: looked for {wanted}, each also with .gz")
    return StsTask(folder, sets, [name for name, sts in loaded.items() if sts is None])


def _set_notes(sets: Sequence[StsSet], missing: Sequence[str]) -> list[str]:
    notes = []
    if missing:
        files = ", ".join(f"{STS_SETS[name].label} ({STS_SETS[name].stem}.tsv)" for name in missing)
        notes.append(f"average over {len(sets)} of {len(STS_SETS)} sets; not found: {files}")
    for sts in sets:
        if sts.skipped:
            count, reasons = sum(sts.skipped.values()), describe_skipped(Counter(sts.skipped))
            notes.append(f"{STS_SETS[sts.name].label}: {count} rows skipped ({reasons})")
        if repeats := describe_repeated_pairs(sts.left, sts.right):
            # The field's figures count them, so leaving them out would give others.
            label = STS_SETS[sts.name].label
            notes.append(f"{label}: pairs that occur before in the file, each counts: {repeats}")
    return notes


def _spearman(gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(cosines) == 0:
        return None
    return 100 * float(spearmanr(gold, cosines).statistic)


def parse_score(cell: str) -> tuple[float, str]:
    """Return the score of a cell and, where there is none to use, why not (else an empty string)."""
    if not cell.strip():
        return math.nan, "no score"
    try:
        value = float(cell)
    except ValueError:
        return math.nan, "score is not a number"
    if math.isnan(value):
        return math.nan, "no score"
    return value, "" if math.isfinite(value) else "score is not finite"
