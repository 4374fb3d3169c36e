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

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.folding import fold
from embedcache.doctor.findings import EXAMPLES, Finding, judge
from embedcache.doctor.scan import Rows, blocks
from embedcache.errors import InputError, MissingInputError
from embedcache.progress import Progress

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
        files = {path.name: path}
        if path.is_dir():
            inside = (file for file in sorted(path.rglob("*")) if _ending(file) in FORMATS and file.is_file())
            files = {str(file.relative_to(path)): file for file in inside}
        read = {name: _read_texts(file) for name, file in files.items() if not _TRAINING.search(file.name)}
        if not any(read.values()):
            raise InputError(f"{path}: no texts to test on, expected values of several words")
        sets |= {name: texts for name, texts in read.items() if texts}
    return sets


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _read_texts(path: Path) -> list[str]:
    if _ending(path) not in FORMATS:
        raise InputError(f"{path}: unknown format, expected {', '.join(FORMATS)}, or these with .gz")
    texts: dict[str, None] = {}
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream:
            for row in _rows(stream, _ending(path)):
                split = next((str(row[name]) for name in _SPLIT_COLUMNS if name in row), "")
                if not _TRAINING.match(split):
                    texts |= dict.fromkeys(value for value in row.values() if _is_text(value))
    except (ValueError, csv.Error, EOFError, OSError) as error:
        raise InputError(f"{path}: {error}") from error
    return list(texts)


def _rows(stream: Iterable[str], ending: str) -> Iterable[Mapping[str, Any]]:
    if ending == ".csv":
        return csv.DictReader(stream, restkey="")
    if ending == ".tsv":
        return csv.DictReader(stream, restkey="", delimiter="\t", quoting=csv.QUOTE_NONE)
    if ending == ".txt":
        return ({"text": line.rstrip("\r\n")} for line in stream)
    values = map(json.loads, filter(str.strip, stream))
    return (value if isinstance(value, dict) else {"text": value} for value in values)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return " " in value.strip() or max(value) >= _FIRST_WITHOUT_BLANKS


def find_overlap(
    corpora: Sequence[tuple[Corpus, Rows]], sets: Mapping[str, list[str]], progress: Progress
) -> Iterator[Finding]:
    """Yield the texts of corpora that differ only in spelling, and the texts of each evaluation set.

    Args:
        corpora: corpora and views that are trained on, and their distinct rows.
        sets: texts to test on, by the name of their set.
        progress: receives phases and rows.
    """
    # Text of the corpora by the folded text that it equals.
    met: dict[str, str | None] = {fold(text): None for texts in sets.values() for text in texts}
    progress.phase("compare texts", sum(len(rows) for _, rows in corpora))
    for corpus, rows in corpora:
        digests = [np.empty(0, np.int64)]
        for block in blocks(rows):
            texts = corpus.texts(block)
            folded = list(map(fold, texts))
            met |= {letters: text for letters, text in zip(folded, texts, strict=True) if letters in met}
            digests.append(np.fromiter(map(hash, folded), np.int64, len(folded)))
            progress.advance(len(block))
        if not isinstance(corpus, View):
            yield _respelled(corpus, rows, np.concatenate(digests))
    for name, texts in sets.items():
        examples = [[found] for text in texts if (found := met[fold(text)]) is not None]
        share, figure = len(examples) / len(texts), f"{len(examples):,} of {len(texts):,} texts"
        yield judge("evaluation texts", share, figure, of=name, examples=examples[:EXAMPLES])


def _respelled(corpus: Corpus, rows: Rows, digests: NDArray[np.int64]) -> Finding:
    """Return the texts of a corpus whose folded texts have the same digest."""
    values, counts = np.unique(digests, return_counts=True)
    shared, more = values[counts > 1][:EXAMPLES], len(digests) - len(values)
    examples = [corpus.texts(rows[digests == value][:2]) for value in shared]
    share, figure = more / max(len(digests), 1), f"{more:,} of {len(digests):,} texts"
    return judge("respelled texts", share, figure, of=corpus.name, examples=examples)
