"""The user's own pairs and triplets, read from any table: the suite ``pairs``, and the sets of ``--dev``."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np

from distill.errors import DataError
from distill.evaluation.files import (
    describe_skipped,
    parse_score,
)
from distill.evaluation.models import Encode
from distill.evaluation.pairs import Kind, PairSet, score_sets
from distill.evaluation.result import SuiteResult
from distill.evaluation.task import (
    PAIRS,
    Items,
    NotThereError,
    Suite,
    SuiteOptions,
    register_suite,
    suites,
)
from embedcache.corpus.columns import Columns
from embedcache.corpus.folding import fold
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import RowConditions, text_problem
from embedcache.corpus.sources import STDIN, Source, find_sources, format_of
from embedcache.corpus.url_files import UrlFile
from embedcache.errors import InputError

SIDES = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("sentence_1", "sentence_2"),
    ("text_1", "text_2"),
    ("sentence_a", "sentence_b"),
    ("question1", "question2"),
    ("query", "document"),
    ("query", "passage"),
)
"""Usual names of the columns of two texts, in any case."""

SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "label", "is_duplicate")
"""Usual names of the score or label column."""

TRIPLETS = (("anchor", "positive", "negative"), ("query", "positive", "negative"))
"""Usual names of the columns of triplets."""

_SKETCH = 12
_TEST_SETS = {
    "STS-B test": "0025b53c 00ad3296 00c1c97a 0123f104 01711f84 01787cfa 01ac668d 02135ca1 0278affb 02973e36 "
    "029ae213 0301f01d",
    "SICK-R test": "000c697b 00114e94 00306565 003b2347 004cc04e 0053f268 00546c34 005bd477 005c7e5f "
    "006823cd 00686b58 006ee57c",
}
"""Public test sets that have a development set -> the smallest hashes of their pairs."""

_SUBSET = "subset"
_TRUTHS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
_NUMBER = re.compile(r"[-+]?[\d.,\s%]+")


def read_pair_sets(given: object, columns: Sequence[str] | None = None) -> list[PairSet]:
    """Read pairs or triplets.

    Args:
        given: a file or several (TSV, CSV, JSONL, Parquet or Arrow, compressed or not), or rows in memory: a
            data frame or a list of dictionaries; or a dictionary of name -> one of these.
        columns: columns of the two texts and the score, or of anchor, positive and negative; default, and of
            files that lack them: those with a usual name.

    Raises:
        InputError: if a file or a column is missing or cannot be read.
        DataError: if the columns are not plain, or the rows cannot be ranked.
    """
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        tables = [(name, source) for name, one in given.items() for source in find_sources(one)]
        named = [(name, read_pair_set(one, columns, of_some=len(tables) > 1)) for name, one in tables]
        return [replace(one, name=name, label=name) for name, one in named]
    if isinstance(given, (list, tuple)) and not all(
        isinstance(one, (str, os.PathLike, dict)) for one in given
    ):
        raise DataError('several tables need names: give {"NAME": TABLE, ...}')
    # A list of one path and a path mean the same, as for a build.
    sources = find_sources(given)
    of_some = len(sources) > 1
    sets = [read_pair_set(source, columns, of_some=of_some) for source in sources]
    names = Counter(one.name for one in sets)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise DataError(f"two files of pairs are called {repeated[0]!r}; rename one")
    return sets


def read_pair_set(
    source: Source,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] = (),
    option: str = "--columns A,B,SCORE",
    *,
    of_some: bool = False,
) -> PairSet:
    """Read one set of pairs or triplets.

    Args:
        source: the file or rows.
        columns: as for ``read_pair_sets``.
        rows: ``COLUMN=VALUE`` each; rows for which not all of them hold are left out.
        option: the option that gives ``columns``, for messages.
        of_some: True if several files share ``columns``: a file with none of them is read by the usual names.

    Raises:
        InputError, DataError: as ``read_pair_sets``.
    """
    if source == STDIN:
        raise DataError("pairs are not read from standard input: give a file")
    if (kind := format_of(source)) == "text":
        raise DataError(f"{source} is plain text; expected a table of two texts and a score a row")
    if columns is not None and len(columns) != 3:
        raise DataError(
            f"columns {', '.join(columns)}: expected three: two texts and a score, or anchor, positive and "
            "negative"
        )
    conditions, skipped = RowConditions(rows), Counter[str]()
    chosen = list[str]()
    asked = Columns(choose=partial(_choose, tuple(columns or ()), option, conditions, chosen, of_some))
    kept = []
    with raw_rows(source, kind, asked) as found:
        for row in filter(conditions.hold, found):
            cells = (row[1], *row[4 : len(row) - len(conditions.columns)])
            if problem := text_problem(cells[0]) or text_problem(cells[1]):
                skipped[f"{problem.value} text"] += 1
            else:
                kept.append(cells)
    if not kept and conditions.not_asked:
        raise DataError(f"{source}: {conditions.describe_none()}")
    name = source.name.split(".")[0] if isinstance(source, (Path, UrlFile)) else "pairs"
    return _pair_set(name, str(source), kept, skipped, chosen[-1] if chosen else "")


def _choose(
    given: tuple[str, ...],
    option: str,
    conditions: RowConditions,
    chosen: list[str],
    of_some: bool,
    found: Sequence[str],
    name: str,
) -> Columns:
    """Return the columns of a file that are read: those given, or those with usual names.

    ``chosen`` receives the three names.
    """
    if of_some and not {*given} & {*found}:
        given = ()
    by_name = {column.casefold(): column for column in found}
    known = [(*sides, score) for sides in SIDES for score in SCORES] + list(TRIPLETS)
    there = [names for names in known if all(one in by_name for one in names)]
    # Of several columns of scores the first is taken; which of several texts are meant is not plain.
    is_usual = len({names[:2] for names in there}) == 1
    if not given:
        if not is_usual:
            raise InputError(
                f"{name}: cannot tell which columns hold two texts and a score; found: "
                f"{', '.join(found)[:200]}; expected sentence1, sentence2, score or anchor, positive, "
                f"negative; name three with {option}"
            )
        given = tuple(by_name[one] for one in there[0])
    chosen[:] = given
    first, *others = given
    more = [(option, column) for column in others]
    if _SUBSET in by_name:
        more.append((option, by_name[_SUBSET]))
    return Columns(first, text_option=option, more=(*more, *conditions.columns))


def _pair_set(
    name: str, where: str, rows: Sequence[tuple[object, ...]], skipped: Counter[str], column: str
) -> PairSet:
    """Return the set of rows; ``column`` is the name of the third column."""
    kind: Kind = "scores"
    third = [_number(row[2]) for row in rows]
    is_negative = column.casefold() in {names[2] for names in TRIPLETS}
    if rows and not any(map(math.isfinite, third)):
        cells = [row[2] for row in rows]
        if not is_negative and (column.casefold() in SCORES or not _are_texts(cells)):
            raise DataError(
                f"{where}: no row has a usable score: {column} is {str(cells[0])[:40]!r} in the first; "
                "expected numbers such as 4.2, or 0 and 1"
            )
        kind, third = "triplets", [math.nan if text_problem(row[2]) else 1.0 for row in rows]
    whole = [(row, value) for row, value in zip(rows, third, strict=True) if math.isfinite(value)]
    if lost := len(rows) - len(whole):
        skipped["no usable negative" if kind == "triplets" else "no usable score"] += lost
    gold = np.array([value for _, value in whole], np.float64)
    if len(gold) < 2 or (kind == "scores" and np.ptp(gold) == 0):
        also = f" (skipped: {describe_skipped(skipped)})" if skipped else ""
        raise DataError(
            f"{where}: {len(gold)} rows with {'equal scores' if len(gold) else 'a score or a negative'} "
            f"cannot be ranked{also}; check the file and its columns"
        )
    if kind == "scores" and set(gold.tolist()) == {0.0, 1.0}:
        kind = "labels"
    columns = list(zip(*(row for row, _ in whole), strict=True))
    texts = tuple([str(text) for text in column] for column in columns[: 3 if kind == "triplets" else 2])
    subsets = tuple(map(str, columns[3])) if len(columns) > 3 else ()
    return PairSet(name, kind, texts, gold, subsets, skipped)


def _number(cell: object) -> float:
    """Return a score or a truth value; NaN of anything else."""
    if isinstance(cell, str):
        return _TRUTHS.get(cell.strip().lower(), parse_score(cell))
    return float(cell) if isinstance(cell, (bool, int, float, Decimal)) else math.nan


def _are_texts(cells: Sequence[object]) -> bool:
    """Return True if cells look like negatives: mostly distinct texts, no numbers."""
    if any(isinstance(cell, str) and _NUMBER.fullmatch(cell.strip()) for cell in cells):
        return False
    return 2 * len({cell for cell in cells if isinstance(cell, str)}) > len(cells)


def known_test_set(own: PairSet) -> str | None:
    """Return the public test set that most of these pairs come from; None otherwise."""
    there = {_pair_hash(pair) for pair in own.items}
    for name, sketch in _TEST_SETS.items():
        if 2 * sum(one in there for one in sketch.split()) > _SKETCH:
            return name
    return None


def _pair_hash(pair: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(map(fold, pair[:2]))).encode()).hexdigest()[:8]


def pairs_suite(sets: Sequence[PairSet]) -> Suite:
    """Return the suite that scores the user's own sets."""
    items: Items = {one.name: one.items for one in sets}
    version = hashlib.sha256(" ".join(f"{one.name} {one.digest}" for one in sets).encode()).hexdigest()
    return replace(
        suites()[PAIRS],
        run=lambda encode, data, options: score_sets(encode, sets),
        items=lambda data, options: items,
        version=lambda: version,
    )


@register_suite(PAIRS, summary="pairs or triplets of your own, from --pairs FILE", on_request=True)
def pairs(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score the files of ``--pairs``."""
    raise NotThereError("the pairs suite scores files of yours: give --pairs FILE")
