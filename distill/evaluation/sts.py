"""Semantic textual similarity: Spearman's correlation of the cosine of two sentences and their gold score.

A set's figure is one correlation over the pairs of all its subsets ("all"), times 100; Pearson's, and the
mean of the subsets' own Spearman correlations, stand beside it.

``sts`` reads STS12-16, STS-B and SICK-R. ``sts-multilingual`` reads STS 2017 (``sts17_LANG1-LANG2``) and the
translations of STS-B (``stsb_mt_LANG``, split ``test``). Rows of two translations, and of ``stsb_test`` for
English, are the same pair, so sentence1 of one and sentence2 of the other make a pair across languages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.files import (
    PAIR_COLUMNS,
    ScoredPairs,
    count_repeats,
    find_file,
    find_stems,
    items_digest,
    parse_score,
    read_pairs,
    read_rows,
    require_folder,
    scored_pairs,
    skipped_note,
)
from distill.evaluation.models import Encode, unit_rows
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Items, NotThereError, SuiteFile, SuiteOptions, register_suite

STS_SETS: dict[str, tuple[str, str | None, str]] = {
    **{f"sts{year}": (f"sts{year}_test", None, f"STS{year}") for year in range(12, 17)},
    "stsb": ("stsb_test", None, "STS-B"),
    "sickr": ("sick", "test", "SICK-R"),
}
"""Set -> file, subset of it that is read (None: all), label; in the order of the field."""

FIELD_PAIRS = ("en-en", "ar-ar", "es-es", "en-ar", "en-es", "en-tr", "en-de", "en-fr")
"""Language pairs of STS 2017 in the order of the field; other pairs follow."""

SMALLEST_SPREAD = 1e-6
"""Cosines of float32 vectors are exact to about 1e-7: ranking a smaller spread would rank noise."""

_STS17, _TRANSLATED, _ENGLISH = "sts17_", "stsb_mt_", "stsb_test"
_SIDE = PAIR_COLUMNS[1:]


def score_pairs(sts: ScoredPairs, left: NDArray[np.float32], right: NDArray[np.float32]) -> Figure:
    """Score a set from the vectors of its pairs, each (pairs, d).

    Raises:
        DataError: if no correlation is defined: fewer than two pairs, or all scores or all cosines equal.
    """
    cosines = np.einsum("ij,ij->i", unit_rows(left), unit_rows(right))
    gold = np.asarray(sts.scores, np.float64)
    if len(gold) < 2 or np.ptp(gold) == 0:
        raise DataError(f"{sts.label}: {len(gold)} pairs with equal scores cannot be ranked; check the file")
    if np.ptp(cosines) < SMALLEST_SPREAD:
        raise DataError(
            f"{sts.label}: all {len(gold)} cosines are equal ({cosines[0]:.6f}), the model has collapsed to "
            "one vector; train it again with another loss or a lower learning rate"
        )
    others = {"pearson": 100 * float(np.corrcoef(gold, cosines)[0, 1])}
    if sts.subsets:
        subsets = np.asarray(sts.subsets)
        of_subsets = [
            _spearman(gold[subsets == one], cosines[subsets == one]) for one in dict.fromkeys(sts.subsets)
        ]
        if None not in of_subsets:
            others["spearman_mean_of_subsets"] = float(
                np.mean([one for one in of_subsets if one is not None])
            )
    return Figure(
        value=_spearman(gold, cosines) or 0.0,
        measure="spearman",
        items=len(gold),
        others=others,
        outcomes=Outcomes.of_pairs(gold, cosines, items_digest(sts.pairs)),
        label=sts.label,
        skipped=sum(sts.skipped.values()),
    )


def read_sts(data: Path) -> list[ScoredPairs]:
    """Read the sets of ``sts`` in a folder.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read.
    """
    there = {name: find_file(data, stem) for name, (stem, _, _) in STS_SETS.items()}
    sets = [
        read_pairs(path, name, STS_SETS[name][2], STS_SETS[name][1]) for name, path in there.items() if path
    ]
    if not sets:
        stems = ", ".join(f"{stem}.tsv" for stem, _, _ in STS_SETS.values())
        raise NotThereError(f"{data} holds none of the STS files ({stems}, each also .gz)")
    return sets


def read_multilingual(data: Path) -> tuple[list[ScoredPairs], list[str]]:
    """Read the sets of ``sts-multilingual`` in a folder, and why languages were not paired.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read.
    """
    there = [stem.removeprefix(_STS17) for stem in find_stems(data, f"{_STS17}*-*")]
    ordered = [
        *(pair for pair in FIELD_PAIRS if pair in there),
        *(pair for pair in there if pair not in FIELD_PAIRS),
    ]
    sets = []
    for pair in ordered:
        scores, skipped = _read_side(data, _STS17 + pair)
        sets.append(_across(_STS17 + pair, f"STS17 {pair.upper()}", scores, scores, skipped))
    languages = [stem.removeprefix(_TRANSLATED) for stem in find_stems(data, f"{_TRANSLATED}*")]
    sides = {one: _read_side(data, _TRANSLATED + one, split="test") for one in languages}
    if languages and "en" not in sides and find_file(data, _ENGLISH):
        sides["en"] = _read_side(data, _ENGLISH)
    if not sets and not sides:
        raise NotThereError(
            f"{data} holds no {_STS17}LANG1-LANG2.tsv and no {_TRANSLATED}LANG.tsv, each also .gz"
        )
    order = sorted(sides, key=lambda name: (name != "en", name))
    # English by itself is a set of the sts suite, unless it has a file here.
    pairs = [(one, one) for one in order if one in languages] + list(combinations(order, 2))
    notes = []
    for first, second in pairs:
        (left, skipped), (right, skipped_too) = sides[first], sides[second]
        label = f"STS-B {first.upper()}-{second.upper()}"
        if first != second and (fault := _misaligned(left, right, skipped, skipped_too)):
            notes.append(f"no translated {label}: {fault}")
        else:
            sets.append(_across(f"{_TRANSLATED}{first}-{second}", label, left, right, skipped))
    return sets, notes


@register_suite(
    "sts",
    summary="similarity of sentence pairs as people judge it: STS12-16, STS-B, SICK-R",
    files=[
        SuiteFile(stem, PAIR_COLUMNS, (label,), f"subset {subset}" if subset else "")
        for stem, subset, label in STS_SETS.values()
    ],
    items=lambda data, options: _items(read_sts(require_folder(data, "sts"))),
)
def sts(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score the seven English sets."""
    sets = read_sts(require_folder(data, "sts"))
    missing = [name for name in STS_SETS if name not in {one.name for one in sets}]
    notes = []
    if missing:
        files = ", ".join(f"{STS_SETS[name][2]} ({STS_SETS[name][0]}.tsv)" for name in missing)
        notes.append(f"average over {len(sets)} of {len(STS_SETS)} sets; not found: {files}")
    return _score(encode, data, sets, notes, missing)


@register_suite(
    "sts-multilingual",
    summary="similarity in other languages and across two: STS 2017, translated STS-B",
    files=[
        SuiteFile("sts17_LANG1-LANG2", _SIDE, ("STS 2017",)),
        SuiteFile(
            "stsb_mt_LANG",
            ("split", *_SIDE),
            ("translated STS-B",),
            "split test; rows of two languages and of stsb_test are aligned",
        ),
        SuiteFile("stsb_test", _SIDE, ("translated STS-B",), "English side"),
    ],
    items=lambda data, options: _items(read_multilingual(require_folder(data, "sts-multilingual"))[0]),
)
def sts_multilingual(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score pairs of other languages; where both families are there, a note says each one's average."""
    sets, notes = read_multilingual(require_folder(data, "sts-multilingual"))
    missing = [pair for pair in FIELD_PAIRS if f"{_STS17}{pair}" not in {one.name for one in sets}]
    if missing:
        notes.append(f"STS 2017: not found: {', '.join(missing).upper()} ({_STS17}LANG1-LANG2.tsv)")
    result = _score(encode, data, sets, notes, missing)
    families = {
        family: [figure.value for name, figure in result.figures.items() if name.startswith(prefix)]
        for family, prefix in (("STS 2017", _STS17), ("translated STS-B", _TRANSLATED))
    }
    if not all(families.values()):
        return result
    means = ", ".join(
        f"{np.mean(values):.2f} over {len(values)} sets of {one}" for one, values in families.items()
    )
    return replace(result, notes=(*result.notes, f"average {means}"))


def _score(
    encode: Encode, data: Path, sets: Sequence[ScoredPairs], notes: list[str], missing: Sequence[str]
) -> SuiteResult:
    texts = list(dict.fromkeys(text for one in sets for text in (*one.left, *one.right)))
    vectors, row = encode(texts), {text: number for number, text in enumerate(texts)}
    figures = {}
    for one in sets:
        left, right = (vectors[[row[text] for text in side]] for side in (one.left, one.right))
        figures[one.name] = score_pairs(one, left, right)
        notes += skipped_note(one.label, one.skipped)
    repeats = {one.label: count_repeats(one.pairs) for one in sets}
    if any(repeats.values()):
        each = ", ".join(f"{label} {count}" for label, count in repeats.items() if count)
        notes.append(f"pairs that occur before in their file, each counts: {each}")
    settings = {"data": str(data), "sentences": len(texts)}
    return SuiteResult(figures, notes=tuple(notes), settings=settings, missing=tuple(missing))


def _items(sets: Sequence[ScoredPairs]) -> Items:
    return {one.name: one.pairs for one in sets}


def _spearman(gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(gold) < 2 or np.ptp(gold) == 0 or np.ptp(cosines) == 0:
        return None
    return 100 * float(spearmanr(gold, cosines).statistic)


_Side = Sequence[tuple[str, ...]]


def _read_side(data: Path, stem: str, split: str | None = None) -> tuple[_Side, Counter[str]]:
    """Return the rows (score, sentence1, sentence2) of one language, of one split if the file has splits."""
    path = find_file(data, stem)
    if path is None:
        raise DataError(f"{data / stem}.tsv is gone; fetch it again")
    file = read_rows(path, (*(["split"] if split else []), *_SIDE))
    rows = [row[-3:] for row in file.rows if split is None or row[0] == split]
    return rows, file.skipped


def _misaligned(left: _Side, right: _Side, skipped: Counter[str], skipped_too: Counter[str]) -> str:
    """Return why the rows of two languages are not translations of one another; "" if they may be."""
    if skipped or skipped_too:
        # A row that cannot be read may be of any split, so the places of the others are unknown.
        return "a file has rows with a wrong number of columns, so rows cannot be aligned"
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} rows: not aligned"
    scores = [(parse_score(a[0])[0], parse_score(b[0])[0]) for a, b in zip(left, right, strict=True)]
    differing = sum(math.isfinite(a) and math.isfinite(b) and a != b for a, b in scores)
    return f"{differing} scores differ: not aligned" if differing else ""


def _across(name: str, label: str, left: _Side, right: _Side, skipped: Counter[str]) -> ScoredPairs:
    """Return the set of sentence1 of ``left`` with sentence2 of ``right``."""
    rows = [
        # A score that one side lacks is no score.
        ("", a[0] if not parse_score(b[0])[1] else b[0], a[1], b[2])
        for a, b in zip(left, right, strict=True)
    ]
    pairs = scored_pairs(name, label, rows, Counter(skipped), label)
    return replace(pairs, subsets=())
