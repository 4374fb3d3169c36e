"""Semantic textual similarity: Spearman's correlation of cosines and gold scores of sentence pairs.

A set's figure is one correlation over the pairs of all its subsets ("all"), times 100; Pearson's, and the
mean of the subsets' own Spearman correlations, stand beside it.

``sts`` reads STS12-16, STS-B and SICK-R. ``sts-multilingual`` reads STS 2017 (``sts17_LANG1-LANG2``) and the
translations of STS-B (``stsb_mt_LANG``, split ``test``). Rows of two translations, and of ``stsb_test`` for
English, are the same pair, so sentence1 of one and sentence2 of the other make a pair across languages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from distill.evaluation.files import (
    Row,
    find_file,
    find_files,
    parse_score,
    read_rows,
)
from distill.evaluation.models import Encode
from distill.evaluation.pairs import PAIR_COLUMNS, PairSet, read_pairs, score_sets, scored_pairs
from distill.evaluation.result import SuiteResult
from distill.evaluation.task import Items, NotThereError, SuiteFile, SuiteOptions, register_suite

STS_SETS: dict[str, tuple[str, str | None, str]] = {
    **{f"sts{year}": (f"sts{year}_test", None, f"STS{year}") for year in range(12, 17)},
    "stsb": ("stsb_test", None, "STS-B"),
    "sickr": ("sick", "test", "SICK-R"),
}
"""Set -> file, subset of it that is read (None: all), label; in the order of the field."""

FIELD_PAIRS = ("en-en", "ar-ar", "es-es", "en-ar", "en-es", "en-tr", "en-de", "en-fr")
"""Language pairs of STS 2017 in the order of the field; other pairs follow."""

_STS17, _TRANSLATED = "sts17_", "stsb_mt_"
_SIDE = PAIR_COLUMNS[1:]


def read_sts(data: Path) -> list[PairSet]:
    """Read the sets of ``sts`` in a folder.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read.
    """
    sets = [
        read_pairs(path, name, label, subset)
        for name, (stem, subset, label) in STS_SETS.items()
        if (path := find_file(data, stem))
    ]
    if not sets:
        stems = ", ".join(f"{stem}.tsv" for stem, _, _ in STS_SETS.values())
        raise NotThereError(f"{data} holds none of the STS files ({stems}, each also .gz)")
    return sets


def read_multilingual(data: Path) -> tuple[list[PairSet], list[str]]:
    """Read the sets of ``sts-multilingual`` in a folder, and why languages were not paired.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read.
    """
    there = {stem.removeprefix(_STS17): path for stem, path in find_files(data, f"{_STS17}*-*").items()}
    sets = []
    for pair in sorted(there, key=lambda pair: [*FIELD_PAIRS, pair].index(pair)):
        rows, skipped = read_rows(there[pair], _SIDE)
        sets.append(_across(_STS17 + pair, f"STS17 {pair.upper()}", rows, rows, skipped))
    sides: dict[str, tuple[list[Row], Counter[str]]] = {}
    for stem, path in find_files(data, f"{_TRANSLATED}*").items():
        rows, skipped = read_rows(path, ("split", *_SIDE))
        sides[stem.removeprefix(_TRANSLATED)] = [row[1:] for row in rows if row[0] == "test"], skipped
    pairs = [(one, one) for one in _order(sides)]
    # English by itself is a set of the sts suite, unless it has a file here.
    if sides and "en" not in sides and (english := find_file(data, "stsb_test")):
        sides["en"] = read_rows(english, _SIDE)
    if not sets and not sides:
        raise NotThereError(
            f"{data} holds no {_STS17}LANG1-LANG2.tsv and no {_TRANSLATED}LANG.tsv, each also .gz"
        )
    notes = []
    for first, second in [*pairs, *combinations(_order(sides), 2)]:
        (left, skipped), (right, ragged) = sides[first], sides[second]
        label = f"STS-B {first.upper()}-{second.upper()}"
        # A row that cannot be read may be of any split, so the places of the others are unknown.
        if first != second and (skipped or ragged or not _is_aligned(left, right)):
            notes.append(f"no translated {label}: the rows of the two files are not aligned")
        else:
            sets.append(_across(f"{_TRANSLATED}{first}-{second}", label, left, right, skipped))
    return sets, notes


def _order(languages: Iterable[str]) -> list[str]:
    return sorted(languages, key=lambda name: (name != "en", name))


def _is_aligned(left: Sequence[Row], right: Sequence[Row]) -> bool:
    """Return True if the rows of two languages may be translations of one another: their scores agree."""
    if len(left) != len(right):
        return False
    scores = ((parse_score(a[0]), parse_score(b[0])) for a, b in zip(left, right, strict=True))
    return not any(math.isfinite(a) and math.isfinite(b) and a != b for a, b in scores)


def _across(
    name: str, label: str, left: Sequence[Row], right: Sequence[Row], skipped: Counter[str]
) -> PairSet:
    """Return the set of sentence1 of ``left`` with sentence2 of ``right``."""
    rows = [
        # A score that one side lacks does not count.
        ("", a[0] if math.isfinite(parse_score(b[0])) else b[0], a[1], b[2])
        for a, b in zip(left, right, strict=True)
    ]
    return replace(scored_pairs(name, label, rows, Counter(skipped)), subsets=())


def _items(sets: Sequence[PairSet]) -> Items:
    return {one.name: one.items for one in sets}


@register_suite(
    "sts",
    summary="similarity of sentence pairs as people judge it: STS12-16, STS-B, SICK-R",
    files=[SuiteFile(stem, PAIR_COLUMNS) for stem, _, _ in STS_SETS.values()],
    items=lambda data, options: _items(read_sts(data)),
)
def sts(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score the seven English sets."""
    sets = read_sts(data)
    missing = [name for name in STS_SETS if name not in {one.name for one in sets}]
    notes = []
    if missing:
        files = ", ".join(f"{STS_SETS[name][2]} ({STS_SETS[name][0]}.tsv)" for name in missing)
        notes.append(f"average over {len(sets)} of {len(STS_SETS)} sets; not found: {files}")
    return score_sets(encode, sets, notes, settings={"data": str(data)}, missing=tuple(missing))


@register_suite(
    "sts-multilingual",
    summary="similarity in other languages and across two: STS 2017, translated STS-B",
    files=[
        SuiteFile("sts17_LANG1-LANG2", _SIDE),
        SuiteFile("stsb_mt_LANG", ("split", *_SIDE)),
        SuiteFile("stsb_test", _SIDE),
    ],
    items=lambda data, options: _items(read_multilingual(data)[0]),
)
def sts_multilingual(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score pairs of other languages; where both families exist, a note gives the average of each."""
    sets, notes = read_multilingual(data)
    missing = [pair for pair in FIELD_PAIRS if f"{_STS17}{pair}" not in {one.name for one in sets}]
    if missing:
        notes.append(f"STS 2017: not found: {', '.join(missing).upper()} ({_STS17}LANG1-LANG2.tsv)")
    result = score_sets(encode, sets, notes, settings={"data": str(data)}, missing=tuple(missing))
    means = []
    for family, prefix in (("STS 2017", _STS17), ("translated STS-B", _TRANSLATED)):
        values = [figure.value for name, figure in result.figures.items() if name.startswith(prefix)]
        means += [f"{np.mean(values):.2f} over {len(values)} sets of {family}"] if values else []
    return replace(result, notes=(*result.notes, f"average {', '.join(means)}")) if means[1:] else result
