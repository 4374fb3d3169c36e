"""Semantic textual similarity in other languages, and across two of them.

Two families of sets, read from tab-separated files with a header line and no quoting, each also with ``.gz``:

- STS 2017: ``sts17_LANG1-LANG2.tsv`` (``score, sentence1, sentence2``; more columns are allowed), sentence1
  in LANG1 and sentence2 in LANG2. The field reports eight pairs (:data:`FIELD_PAIRS`); any other pair whose
  file is there is scored too.
- translated STS-B: ``stsb_mt_LANG.tsv`` (``split, score, sentence1, sentence2``), of which the split ``test``
  is scored as LANG-LANG. Rows of two such files are translations of one another, and of ``stsb_test.tsv``
  for English; so sentence1 of one and sentence2 of the other make a pair across languages, with the same
  score. English comes first, other languages in alphabetical order. Where the numbers of rows or any two
  scores differ, the files are not aligned, and their pair is left out with a note.

A figure is Spearman's rank correlation of cosine and score, times 100, with Pearson's beside it, as in the
``sts`` suite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from distill.errors import DataError
from distill.evaluation.old_sts import StsSet, parse_score, score_sts
from distill.evaluation.scores import SetScore, SetScores
from distill.evaluation.tasks import NotThereError, Request, Subject
from distill.evaluation.testset import (
    TestFile,
    describe_repeated_pairs,
    describe_skipped,
    find_test_file,
    read_test_file,
    stems_of,
)

FIELD_PAIRS = ("en-en", "ar-ar", "es-es", "en-ar", "en-es", "en-tr", "en-de", "en-fr")
"""The language pairs of STS 2017, in the order in which they are reported."""

_STS17, _TRANSLATED = "sts17_", "stsb_mt_"
_ENGLISH = "en"
_RAGGED = "wrong number of columns"


@dataclass(frozen=True)
class MultilingualTask:
    """The sets that are there.

    Attributes:
        data: the folder.
        sets: the sets: STS 2017 in the field's order, then translated STS-B.
        missing: pairs of the field whose files are not there.
        remarks: what else a reader must know.
    """

    data: Path
    sets: Sequence[StsSet]
    missing: Sequence[str]
    remarks: Sequence[str] = ()
    needs_teacher: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sets."""
        return tuple(dict.fromkeys(path for one in self.sets for path in one.files))

    @property
    def facts(self) -> dict[str, object]:
        """The folder, the number of distinct sentences, and the pairs of the field that are not there."""
        return {"data": str(self.data), "sentences": len(set(self.texts())), "missing": list(self.missing)}

    @property
    def notes(self) -> list[str]:
        """Sets that are not there, rows skipped, pairs that occur twice."""
        notes = list(self.remarks)
        if self.missing:
            pairs = ", ".join(pair.upper() for pair in self.missing)
            notes.append(f"STS 2017: not found: {pairs} ({_STS17}LANG1-LANG2.tsv)")
        for one in self.sets:
            if one.skipped:
                count, reasons = sum(one.skipped.values()), describe_skipped(Counter(one.skipped))
                notes.append(f"{_label(one.name)}: {count} rows skipped ({reasons})")
        repeats = {_label(one.name): describe_repeated_pairs(one.left, one.right) for one in self.sets}
        if any(repeats.values()):
            each = ", ".join(f"{label} {count}" for label, count in repeats.items() if count)
            notes.append(f"pairs that occur before in their file, each counts: {each}")
        return notes

    def texts(self) -> list[str]:
        """Return both sides of every pair."""
        return [text for one in self.sets for text in (*one.left, *one.right)]

    def test_items(self) -> dict[str, list[tuple[str, ...]]]:
        """Return the pairs of each set."""
        return {one.name: list(zip(one.left, one.right, strict=True)) for one in self.sets}

    def score(self, subject: Subject, notes: list[str]) -> SetScores:
        """Score every set; where both families are there, the note says each one's own average."""
        pick = subject.encoded.pick
        scores = {one.name: _plain(one, score_sts(one, pick(one.left), pick(one.right))) for one in self.sets}
        families = {
            "STS 2017": [score.value for name, score in scores.items() if name.startswith(_STS17)],
            "translated STS-B": [
                score.value for name, score in scores.items() if name.startswith(_TRANSLATED)
            ],
        }
        if all(families.values()):
            each = ", ".join(
                f"{sum(values) / len(values):.2f} over {len(values)} sets of {family}"
                for family, values in families.items()
            )
            notes.append(f"{subject.model.name}: average {each}")
        return SetScores(scores, len(self.sets) + len(self.missing))


def read(request: Request) -> MultilingualTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("sts-multilingual")
    there = [stem.removeprefix(_STS17) for stem in stems_of(folder, f"{_STS17}*-*")]
    known = [pair for pair in FIELD_PAIRS if pair in there]
    sets = [_read_sts17(folder, pair) for pair in (*known, *(p for p in there if p not in FIELD_PAIRS))]
    languages = [stem.removeprefix(_TRANSLATED) for stem in stems_of(folder, f"{_TRANSLATED}*")]
    translated, remarks = _read_translated(folder, languages)
    if not sets and not translated:
        raise NotThereError(
            f"{folder} holds no STS in other languages: looked for {_STS17}LANG1-LANG2.tsv and "
            f"{_TRANSLATED}LANG.tsv, each also with .gz"
        )
    missing = [pair for pair in FIELD_PAIRS if pair not in there]
    return MultilingualTask(folder, [*sets, *translated], missing, remarks)


@dataclass(frozen=True)
class _Side:
    """The rows (score, sentence1, sentence2) of one language, in the file's order."""

    path: Path
    rows: Sequence[tuple[str, ...]]
    ragged: int


def _read_sts17(folder: Path, pair: str) -> StsSet:
    path = find_test_file(folder, _STS17 + pair)
    if path is None:
        raise DataError(f"{folder / _STS17}{pair}.tsv is no longer there")
    file = read_test_file(path, ("score", "sentence1", "sentence2"))
    return _scored(_STS17 + pair, _Side(path, file.rows, file.skipped[_RAGGED]))


def _read_translated(folder: Path, languages: Sequence[str]) -> tuple[list[StsSet], list[str]]:
    """Return the sets of translated STS-B, and what kept two languages from being paired."""
    sides: dict[str, _Side] = {}
    english = find_test_file(folder, "stsb_test") if _ENGLISH not in languages else None
    if english is not None and languages:
        file = read_test_file(english, ("score", "sentence1", "sentence2"))
        sides[_ENGLISH] = _Side(english, file.rows, file.skipped[_RAGGED])
    for language in sorted(languages, key=lambda name: (name != _ENGLISH, name)):
        path = find_test_file(folder, _TRANSLATED + language)
        if path is not None:
            sides[language] = _test_side(read_test_file(path, ("split", "score", "sentence1", "sentence2")))
    # English by itself is a set of the sts suite.
    sets = [
        _scored(f"{_TRANSLATED}{language}-{language}", side)
        for language, side in sides.items()
        if side.path != english
    ]
    remarks = []
    for (first, left), (second, right) in combinations(sides.items(), 2):
        if fault := _misaligned(left, right):
            remarks.append(f"no translated STS-B {first.upper()}-{second.upper()}: {fault}")
        else:
            sets.append(_scored(f"{_TRANSLATED}{first}-{second}", left, right))
    return sets, remarks


def _test_side(file: TestFile) -> _Side:
    return _Side(file.path, [row[1:] for row in file.rows if row[0] == "test"], file.skipped[_RAGGED])


def _misaligned(left: _Side, right: _Side) -> str:
    """Return why the rows of two languages are not translations of one another; empty where they may be."""
    for side in (left, right):
        if side.ragged:
            # A row that could not be read may be of any split, so the places of the others are not known.
            return f"{side.path} has {side.ragged} rows with a {_RAGGED}, so rows cannot be aligned"
    if len(left.rows) != len(right.rows):
        return f"{left.path} has {len(left.rows)} rows, {right.path} {len(right.rows)}: not aligned"
    scores = [
        (parse_score(a[0])[0], parse_score(b[0])[0]) for a, b in zip(left.rows, right.rows, strict=True)
    ]
    # Where one of them is not labelled, nothing contradicts; the row is skipped later.
    differing = [row for row, (a, b) in enumerate(scores) if math.isfinite(a) and math.isfinite(b) and a != b]
    if differing:
        return (
            f"{len(differing)} scores of {left.path} and {right.path} differ, first in row "
            f"{differing[0] + 1}: not aligned"
        )
    return ""


def _scored(name: str, left: _Side, right: _Side | None = None) -> StsSet:
    """Return the set of sentence1 of ``left`` with sentence2 of ``right`` (None: of the same file)."""
    right = right or left
    skipped: Counter[str] = Counter({_RAGGED: left.ragged} if left.ragged else {})
    kept: list[tuple[float, str, str]] = []
    for one, other in zip(left.rows, right.rows, strict=True):
        value, fault = parse_score(one[0])
        fault = fault or parse_score(other[0])[1]
        if not fault and not (one[1].strip() and other[2].strip()):
            fault = "empty sentence"
        if fault:
            skipped[fault] += 1
        else:
            kept.append((value, one[1], other[2]))
    if not kept:
        paths = dict.fromkeys((str(left.path), str(right.path)))
        reasons = describe_skipped(skipped)
        raise DataError(f"{' and '.join(paths)}: no scored pair for {_label(name)} (skipped: {reasons})")
    scores, lefts, rights = zip(*kept, strict=True)
    files = tuple({left.path: None, right.path: None})
    return StsSet(name, (name,) * len(kept), scores, lefts, rights, dict(skipped), files)


def _plain(one: StsSet, score: SetScore) -> SetScore:
    """Return ``score`` labelled; there are no subsets, so their mean is left out."""
    return replace(score, label=_label(one.name), others={"pearson": score.others["pearson"]})


def _label(name: str) -> str:
    """Return ``STS17 EN-DE`` or ``STS-B EN-DE``."""
    family = "STS17" if name.startswith(_STS17) else "STS-B"
    return f"{family} {name.rpartition('_')[2].upper()}"
