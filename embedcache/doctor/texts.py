"""Texts of a cache: missing and repeated ones, and texts of evaluation sets among them."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.folding import fold
from embedcache.doctor.findings import EXAMPLES, Finding, judge, share
from embedcache.errors import InputError, MissingInputError
from embedcache.keys import first_occurrences
from embedcache.store import Positions, ShardStore


def _json_row(line: str) -> dict[str, Any]:
    value = json.loads(line)
    return value if isinstance(value, dict) else {"text": value}


_READERS: dict[str, Callable[[Iterable[str]], Iterable[dict[str, Any]]]] = {
    ".txt": lambda lines: ({"text": line.rstrip("\r\n")} for line in lines),
    ".tsv": partial(csv.DictReader, restkey="", delimiter="\t", quoting=csv.QUOTE_NONE),
    ".csv": partial(csv.DictReader, restkey=""),
    ".jsonl": lambda lines: map(_json_row, filter(str.strip, lines)),
}
_SPLIT_COLUMNS = ("split", "subset")
_TRAINING = re.compile(r"(?:^|[\W_])train(?:ing)?(?![a-z])", re.IGNORECASE)
# Scripts that put no blanks between words begin with Thai.
_FIRST_WITHOUT_BLANKS = "\u0e00"


def judge_corpus(corpus: Corpus, store: ShardStore) -> tuple[list[Finding], Positions]:
    """Judge the texts of a corpus; memory is 24 bytes a row.

    Args:
        corpus: the corpus.
        store: the teacher's vectors.

    Returns:
        The findings, and the positions of the vectors that are there.
    """
    keys = corpus.keys()
    # A text is trained on once.
    rows = np.flatnonzero(first_occurrences([keys]))
    positions = store.locate(keys[rows])
    missing = rows[positions < 0]
    if len(missing) == len(rows):
        advice = "Not built with this teacher. Choose another corpus."
        return [Finding(f"missing vectors: {corpus.name}", "all", 1.0, "look", advice)], positions[:0]
    examples = [[text] for text in corpus.texts(missing[:EXAMPLES])]
    findings = [
        judge("missing vectors", *share(len(missing), len(rows), "texts"), of=corpus.name, examples=examples),
        judge("repeated texts", *share(len(keys) - len(rows), len(keys), "rows"), of=corpus.name),
    ]
    return findings, positions[positions >= 0]


def find_evaluation_texts(corpora: Iterable[Corpus], sets: Mapping[str, list[str]]) -> Iterator[Finding]:
    """Yield the texts of each evaluation set that corpora or views hold, spelling aside.

    Args:
        corpora: corpora and views that are trained on.
        sets: texts to test on, by the name of their set.
    """
    # Text of the corpora by the folded text that it equals.
    met: dict[str, str | None] = {fold(text): None for texts in sets.values() for text in texts}
    for corpus in corpora if sets else ():
        for texts in corpus.iter_texts():
            met |= {folded: text for text in texts if (folded := fold(text)) in met}
    for name, texts in sets.items():
        examples = [[found] for text in texts if (found := met[fold(text)]) is not None]
        figure = share(len(examples), len(texts), "texts")
        yield judge("evaluation texts", *figure, of=name, examples=examples[:EXAMPLES])


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
            inside = (file for file in sorted(path.rglob("*")) if file.is_file())
            files = {str(one.relative_to(path)): one for one in inside if _ending(one) in _READERS}
        read = {name: _read_texts(file) for name, file in files.items() if not _TRAINING.search(file.name)}
        if not any(read.values()):
            raise InputError(f"{path}: no texts to test on, expected values of several words")
        sets |= {name: texts for name, texts in read.items() if texts}
    return sets


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _read_texts(path: Path) -> list[str]:
    if _ending(path) not in _READERS:
        raise InputError(f"{path}: unknown format, expected {', '.join(_READERS)}, or these with .gz")
    texts: dict[str, None] = {}
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream:
            for row in _READERS[_ending(path)](stream):
                split = next((str(row[name]) for name in _SPLIT_COLUMNS if name in row), "")
                if not _TRAINING.match(split):
                    texts |= dict.fromkeys(value for value in row.values() if _is_text(value))
    except (ValueError, csv.Error, EOFError, OSError) as error:
        raise InputError(f"{path}: {error}") from error
    return list(texts)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return " " in value.strip() or max(value) >= _FIRST_WITHOUT_BLANKS
