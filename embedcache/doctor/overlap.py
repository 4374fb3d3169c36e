"""Overlap: texts of evaluation sets that would be trained on, and texts that differ only in spelling."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import View
from embedcache.doctor.findings import EXAMPLES, Finding, judge
from embedcache.doctor.scan import DistinctRows
from embedcache.errors import InputError, MissingInputError
from embedcache.folding import fold
from embedcache.progress import Progress

SECTION = "overlap"
FORMATS = (".txt", ".tsv", ".csv", ".jsonl")
_SPLIT_COLUMNS = ("split", "subset")
_TRAINING = re.compile(r"(?:^|[\W_])train(?:ing)?(?![a-z])", re.IGNORECASE)
# Scripts that put no blanks between words begin with Thai.
_FIRST_WITHOUT_BLANKS = "\u0e00"


def read_evaluation_sets(paths: Iterable[str | Path]) -> dict[str, list[str]]:
    """Read the distinct texts of evaluation sets, by file name.

    Every value of several words is a text. Training rows (``train`` in a column ``split`` or ``subset``) and
    training files (``train`` in the name) are left out.

    Args:
        paths: plain text, TSV, CSV or JSONL files, also with ``.gz``; of a folder, all such files.

    Raises:
        MissingInputError: if one is missing.
        InputError: if a file cannot be read, or has no text to test on.
    """
    sets: dict[str, list[str]] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise MissingInputError(f"{path}: no such evaluation set")
        files = [path]
        if path.is_dir():
            files = [one for one in sorted(path.rglob("*")) if _ending(one) in FORMATS and one.is_file()]
        found = {}
        for file in files:
            if texts := _read_texts(file):
                found[str(file.relative_to(path)) if path.is_dir() else file.name] = texts
        if not found:
            raise InputError(f"{path}: no texts to test on, expected values of several words")
        sets |= found
    return sets


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _read_texts(path: Path) -> list[str]:
    if _ending(path) not in FORMATS:
        raise InputError(f"{path}: unknown format, expected {', '.join(FORMATS)}, or these with .gz")
    texts: dict[str, None] = {}
    try:
        for row in _rows(path):
            split = next((str(row[name]) for name in _SPLIT_COLUMNS if name in row), "")
            if not _TRAINING.match(split):
                texts |= dict.fromkeys(value for value in row.values() if _is_text(value))
    except (ValueError, csv.Error, EOFError, OSError) as error:
        raise InputError(f"{path}: {error}") from error
    return [] if _TRAINING.search(path.name) else list(texts)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream:
        if _ending(path) == ".csv":
            yield from csv.DictReader(stream, restkey="")
        elif _ending(path) == ".tsv":
            yield from csv.DictReader(stream, restkey="", delimiter="\t", quoting=csv.QUOTE_NONE)
        elif _ending(path) == ".txt":
            yield from ({"text": line.rstrip("\r\n")} for line in stream)
        else:
            for line in filter(str.strip, stream):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("a line is no JSON object")
                yield row


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return " " in value.strip() or max(value) >= _FIRST_WITHOUT_BLANKS


def find_overlap(
    corpora: Sequence[DistinctRows], sets: Mapping[str, list[str]], progress: Progress
) -> Iterator[Finding]:
    """Yield the texts of corpora that differ only in spelling, and the texts of each evaluation set.

    Args:
        corpora: corpora and views that are trained on.
        sets: texts to test on, by the name of their set.
        progress: receives phases and rows.
    """
    exact = dict.fromkeys((text for texts in sets.values() for text in texts), False)
    # Text of the corpora by the folded text that it equals.
    met: dict[str, str | None] = dict.fromkeys(map(fold, exact))
    progress.phase("compare texts", sum(map(len, corpora)))
    for rows in corpora:
        digests = [np.empty(0, np.int64)]
        for numbers, _ in rows.blocks():
            texts = rows.corpus.texts(numbers)
            folded = list(map(fold, texts))
            for text, letters in zip(texts, folded, strict=True):
                if met.get(letters, "") is None:
                    met[letters] = text
                if text in exact:
                    exact[text] = True
            digests.append(np.fromiter(map(hash, folded), np.int64, len(folded)))
            progress.advance(len(numbers))
        if not isinstance(rows.corpus, View):
            yield _respelled(rows, np.concatenate(digests))
    for name, texts in sets.items():
        examples = [[found] for text in texts if (found := met[fold(text)]) is not None]
        letter_by_letter = sum(exact[text] for text in texts)
        figure = f"{len(examples):,} of {len(texts):,} texts, {letter_by_letter:,} letter by letter"
        share = len(examples) / len(texts)
        yield judge(SECTION, "evaluation texts", share, figure, of=name, examples=examples[:EXAMPLES])


def _respelled(rows: DistinctRows, digests: NDArray[np.int64]) -> Finding:
    """Return the texts of a corpus whose folded texts have the same digest."""
    values, counts = np.unique(digests, return_counts=True)
    numbers = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in rows.blocks())])
    pairs = [numbers[np.flatnonzero(digests == value)[:2]] for value in values[counts > 1][:EXAMPLES]]
    more, name, examples = len(digests) - len(values), rows.corpus.name, map(rows.corpus.texts, pairs)
    share, figure = more / max(len(digests), 1), f"{more:,} of {len(digests):,} texts"
    return judge(SECTION, "respelled texts", share, figure, of=name, examples=list(examples))
