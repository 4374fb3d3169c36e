"""Semantic textual similarity: does the cosine of two sentences rank as people rank their likeness?

Reads tab-separated files with a header line and no quoting, columns ``subset, score, sentence1, sentence2``
(more are allowed), as ``NAME.tsv`` or ``NAME.tsv.gz``; where both lie in a folder the plain one is read.
A set's figure is ONE Spearman correlation over the pairs of all its subsets put together ("all"). Pearson and
the mean of the subsets' own Spearman correlations stand beside it.

Rows without a score, with a score that is no finite number, with an empty sentence or with the wrong number
of columns are skipped and counted. Correlations are reported times 100.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError, DistillError
from distill.evaluation.tasks import (
    Encoded,
    EvaluationResult,
    ModelReport,
    Request,
    encode_distinct,
    unit_rows,
)
from embedcache.errors import EmbedCacheError


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
    """The scored pairs of one set, in file order; ``skipped`` counts the rows left out, by reason."""

    name: str
    subsets: tuple[str, ...]
    scores: tuple[float, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StsScore:
    """Correlations of one model on one set, times 100.

    Attributes:
        spearman: over all pairs.
        pearson: over all pairs.
        spearman_mean_of_subsets: mean over the subsets; None where a subset has no correlation of its own
            (fewer than two pairs, or all scores equal).
        pairs: pairs scored.
        skipped: rows of the file that were left out.
    """

    spearman: float
    pearson: float
    spearman_mean_of_subsets: float | None
    pairs: int
    skipped: int

    def to_json(self) -> dict[str, object]:
        """Return the score as a JSON object, correlations with 4 decimals."""
        mean = self.spearman_mean_of_subsets
        return {
            "spearman": round(self.spearman, 4),
            "pearson": round(self.pearson, 4),
            "spearman_mean_of_subsets": None if mean is None else round(mean, 4),
            "pairs": self.pairs,
            "skipped": self.skipped,
        }


@dataclass(frozen=True)
class StsScores:
    """One model on every set that is there; ``retention`` is its average in per cent of the teacher's."""

    sets: Mapping[str, StsScore]
    retention: float | None = None

    @property
    def average(self) -> float:
        """Mean Spearman, times 100, over the sets that are there."""
        return sum(score.spearman for score in self.sets.values()) / len(self.sets)

    def to_json(self) -> dict[str, object]:
        """Return ``sets``, ``average``, ``sets_scored``, ``sets_of``, ``retention`` (per cent, or None)."""
        return {
            "sets": {name: score.to_json() for name, score in self.sets.items()},
            "average": round(self.average, 4),
            "sets_scored": len(self.sets),
            "sets_of": len(STS_SETS),
            "retention": None if self.retention is None else round(self.retention, 2),
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return one row per correlation, one column per set."""
        measures: dict[str, list[float | None]] = {
            "Spearman": [score.spearman for score in self.sets.values()],
            "Pearson": [score.pearson for score in self.sets.values()],
            "Spearman, mean of subsets": [score.spearman_mean_of_subsets for score in self.sets.values()],
        }
        labels = [STS_SETS[name].label for name in self.sets]
        return [(m, dict(zip(labels, map(_cell, values), strict=True))) for m, values in measures.items()]

    def summary(self) -> dict[str, str]:
        """Return the average, named with the number of sets it is over, and the retention."""
        retention = "-" if self.retention is None else f"{self.retention:.2f} %"
        return {f"average of {len(self.sets)}/{len(STS_SETS)}": f"{self.average:.2f}", "retention": retention}


def load_sts(folder: str | Path, name: str) -> StsSet | None:
    """Read the set ``name`` (a key of :data:`STS_SETS`) from ``folder``; None where its file is not there.

    Raises:
        DataError: if ``name`` is no set, or the file is damaged, lacks a column or holds no scored pair.
    """
    if name not in STS_SETS:
        raise DataError(f"no STS set is called {name!r}; there are {', '.join(STS_SETS)}")
    source = STS_SETS[name]
    path = next((p for p in _candidates(Path(folder), source) if p.is_file()), None)
    return None if path is None else read_pairs(path, name, source.subset)


def read_pairs(path: str | Path, name: str, subset: str | None = None) -> StsSet:
    """Read a file of scored pairs as the set ``name``; only the rows of ``subset`` where one is given.

    Raises:
        DataError: if the file is not there, is damaged, lacks a column or holds no scored pair.
    """
    path = Path(path)
    lines = _read_lines(path)
    header = lines[0].split("\t")
    lacking = [column for column in COLUMNS if column not in header]
    if lacking:
        raise DataError(
            f"{path} has the columns {', '.join(header)}; {', '.join(lacking)} not found, "
            f"expected {', '.join(COLUMNS)}, tab-separated, in a header line"
        )
    places = [header.index(column) for column in COLUMNS]
    skipped: Counter[str] = Counter()
    kept: list[tuple[str, float, str, str]] = []
    for line in lines[1:]:
        cells = line.split("\t")
        if len(cells) != len(header):
            skipped["wrong number of columns"] += 1
            continue
        group, score, left, right = (cells[place] for place in places)
        if subset is not None and group != subset:
            continue
        value, fault = _score(score)
        if not fault and not (left.strip() and right.strip()):
            fault = "empty sentence"
        if fault:
            skipped[fault] += 1
        else:
            kept.append((group, value, left, right))
    if not kept:
        among = f" of subset {subset!r}" if subset else ""
        counted = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "none"
        raise DataError(f"{path} holds no scored pair{among} in {len(lines) - 1} rows (skipped: {counted})")
    groups, scores, lefts, rights = zip(*kept, strict=True)
    return StsSet(name, groups, scores, lefts, rights, dict(skipped))


def score_sts(sts: StsSet, left: NDArray[np.float32], right: NDArray[np.float32]) -> StsScore:
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
    return StsScore(
        spearman=overall,
        pearson=100 * float(np.corrcoef(gold, cosines)[0, 1]),
        spearman_mean_of_subsets=sum(defined) / len(defined) if len(defined) == len(by_subset) else None,
        pairs=len(gold),
        skipped=sum(sts.skipped.values()),
    )


def run(request: Request) -> EvaluationResult:
    """Score every model, and the teacher beside them, on the sets in ``request.data``.

    Raises:
        DataError: if no data folder is given, it holds none of the sets, or a set cannot be read.
    """
    if request.text_column is not None or request.limit is not None:
        raise DataError("the sts suite scores whole sets: leave out --text-column and --limit")
    if request.cache is not None:
        raise DataError("the sts suite reads no cache: leave out --cache, or choose --suite fidelity")
    sets, missing = _load_all(request.data)
    notes = _set_notes(sets, missing)
    texts = [text for sts in sets for text in (*sts.left, *sts.right)]
    teacher = _teacher_report(request, sets, texts, notes)
    teacher_scores = teacher[1] if teacher else None
    reports = [teacher[0]] if teacher else []
    if teacher_scores is not None and teacher_scores.average <= 0:
        notes.append("no retention: the teacher's average is not above zero, so a share of it says nothing")
    for spec in request.models:
        if teacher and request.teacher is not None and spec == request.teacher.spec:
            continue
        model = request.load(spec)
        encoded = encode_distinct(model, texts, request.progress)
        scores = _with_retention(_score_all(sets, encoded), teacher_scores)
        reports.append(ModelReport.of(model, "model", encoded.sentences_per_second, scores))
    facts: dict[str, object] = {
        "data": str(request.data),
        "teacher": teacher[0].name if teacher else None,
        "sentences": len(set(texts)),
        "missing": missing,
    }
    return EvaluationResult("sts", tuple(reports), facts, tuple(notes))


def _candidates(folder: Path, source: _Source) -> tuple[Path, Path]:
    return folder / f"{source.stem}.tsv", folder / f"{source.stem}.tsv.gz"


def _load_all(data: Path | None) -> tuple[list[StsSet], list[str]]:
    if data is None:
        raise DataError("the sts suite needs a folder of test files: give --data DIR")
    if not data.is_dir():
        raise DataError(f"no folder {data}: give --data the folder that holds the STS test files")
    loaded = {name: load_sts(data, name) for name in STS_SETS}
    sets = [sts for sts in loaded.values() if sts is not None]
    if not sets:
        wanted = ", ".join(f"{source.stem}.tsv" for source in STS_SETS.values())
        raise DataError(f"{data} holds none of the STS files: looked for {wanted}, each also with .gz")
    return sets, [name for name, sts in loaded.items() if sts is None]


def _set_notes(sets: Sequence[StsSet], missing: Sequence[str]) -> list[str]:
    notes = []
    if missing:
        files = ", ".join(f"{STS_SETS[name].label} ({STS_SETS[name].stem}.tsv)" for name in missing)
        notes.append(f"average over {len(sets)} of {len(STS_SETS)} sets; not found: {files}")
    for sts in sets:
        if sts.skipped:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(sts.skipped.items()))
            notes.append(f"{STS_SETS[sts.name].label}: {sum(sts.skipped.values())} rows skipped ({reasons})")
    return notes


def _teacher_report(
    request: Request, sets: Sequence[StsSet], texts: Sequence[str], notes: list[str]
) -> tuple[ModelReport, StsScores] | None:
    choice = request.teacher
    if choice is None:
        return None
    try:
        model = request.load_teacher()
    except (DistillError, EmbedCacheError) as error:
        # A teacher nobody asked for is a service; its absence must not cost the models their scores.
        if not choice.implied:
            raise
        notes.append(f"no retention: the run's teacher {choice.name} is not usable: {error}")
        return None
    encoded = encode_distinct(model, texts, request.progress)
    scores = _score_all(sets, encoded)
    scores = _with_retention(scores, scores)
    return ModelReport.of(model, "teacher", encoded.sentences_per_second, scores), scores


def _score_all(sets: Sequence[StsSet], encoded: Encoded) -> StsScores:
    return StsScores(
        {sts.name: score_sts(sts, encoded.pick(sts.left), encoded.pick(sts.right)) for sts in sets}
    )


def _with_retention(scores: StsScores, teacher: StsScores | None) -> StsScores:
    if teacher is None or teacher.average <= 0:
        return scores
    return replace(scores, retention=100 * scores.average / teacher.average)


def _spearman(gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(cosines) == 0:
        return None
    return 100 * float(spearmanr(gold, cosines).statistic)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _read_lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path} line {line} is not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from error
    # Only "\n" ends a row: str.splitlines would also cut at the exotic separators that texts contain.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _score(cell: str) -> tuple[float, str]:
    """Return the score and, where there is none to use, why not."""
    if not cell.strip():
        return math.nan, "no score"
    try:
        value = float(cell)
    except ValueError:
        return math.nan, "score is not a number"
    if math.isnan(value):
        return math.nan, "no score"
    return value, "" if math.isfinite(value) else "score is not finite"
