"""Evaluation sets as the overlap needs them: the keys of their texts, as they stand and folded.

A set is a file of plain text, TSV, CSV or JSONL; every column of texts counts. A column holds texts if it
is called so (``text``, ``sentence1``, ``premise`` ...), or if most of its first values are more than one
word. Rows that a column ``split`` or ``subset`` calls ``train`` are set apart, and without ``split`` also
files whose name says so: they are there to be trained on.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from embedcache.corpus.formats import Columns, is_utf8, raw_rows
from embedcache.corpus.sources import FORMATS, format_of, open_bytes
from embedcache.doctor.progress import Meter
from embedcache.errors import InputError, MissingInputError
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray, key_array

KINDS = ("text", "tsv", "csv", "jsonl")

_TEXT_NAME = re.compile(
    r"(text|sentence|sent|premise|hypothesis|question|query|caption|content|passage|title|document)s?_?\d*",
    re.IGNORECASE,
)
_SPLIT_NAMES = ("split", "subset")
_TRAIN = re.compile(r"(?:^|[\W_])train(?:ing)?(?![a-z])", re.IGNORECASE)
_HEAD_ROWS = 200
_BATCH_TEXTS = 8192

# From Thai on, scripts that put no blank between words begin.
_FIRST_WITHOUT_BLANKS = "\u0e00"


class _Marks(dict[int, int | None]):
    """What :meth:`str.translate` makes of a character: nothing of blanks, punctuation, symbols, controls."""

    def __missing__(self, code: int) -> int | None:
        dropped = unicodedata.category(chr(code))[0] in "ZPSC"
        self[code] = None if dropped else code
        return self[code]


_MARKS = _Marks()


def fold(text: str) -> str:
    """Return ``text`` without case, blanks and punctuation, in Unicode's compatibility form.

    So that tokenised and plain spellings meet (``do n't``, ``Don't``). A text of nothing else stays as it is.
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_MARKS) or text


@dataclass(frozen=True)
class EvaluationSet:
    """The texts of one file that are there to be tested on, or trained on.

    Attributes:
        name: the file's name inside the folder that was given.
        columns: the columns that were read; empty for plain text.
        training: whether these are the rows to train on.
        keys: of the distinct texts, dtype ``V16``, shape (n,).
        folded: keys of the same texts, folded.
        skipped: values that are no text: empty, no string, or not UTF-8.
    """

    name: str
    columns: tuple[str, ...]
    training: bool
    keys: KeyArray
    folded: KeyArray
    skipped: int


@dataclass(frozen=True)
class EvaluationSets:
    """All sets that were named.

    Attributes:
        sets: in the order of their files; the training rows of a file after its others.
        unread: file -> why it was not read; of files that stand in a folder that was named.
    """

    sets: tuple[EvaluationSet, ...]
    unread: dict[str, str]


@dataclass
class _Texts:
    """Keys of texts being read."""

    keys: list[KeyArray] = field(default_factory=list)
    folded: list[KeyArray] = field(default_factory=list)

    def add(self, texts: Sequence[str]) -> None:
        self.keys.append(key_array(texts))
        self.folded.append(key_array(map(fold, texts)))

    def finish(self, name: str, columns: tuple[str, ...], training: bool, skipped: int) -> EvaluationSet:
        keys = np.concatenate([*self.keys, np.empty(0, dtype=KEY_DTYPE)])
        folded = np.concatenate([*self.folded, np.empty(0, dtype=KEY_DTYPE)])
        first = KeyIndex(keys).first_places()
        return EvaluationSet(name, columns, training, keys[first], folded[first], skipped)


def read_evaluation_sets(against: Sequence[str | Path], meter: Meter) -> EvaluationSets:
    """Read files, and the files of folders.

    Args:
        against: files and folders; of a folder, also the files in folders below it.
        meter: counts the values read.

    Raises:
        MissingInputError: if one is not there.
        InputError: if a file that was named cannot be read as a set, or any is damaged.
    """
    sets: list[EvaluationSet] = []
    unread: dict[str, str] = {}
    for one in map(Path, against):
        if not one.exists():
            raise MissingInputError(f"no evaluation set at {one}; expected a file, or a folder of files")
        for name, path in _files(one):
            reason = _unreadable(path)
            columns = [] if reason else _text_columns(path)
            if columns == []:
                reason = reason or "no column of texts"
                if not one.is_dir():
                    raise InputError(
                        f"{path} cannot be an evaluation set: {reason}; expected texts as plain text, TSV, "
                        "CSV or JSONL, in a column called text or sentence, or of several words a value"
                    )
                unread[name] = reason
                continue
            sets.extend(_read(name, path, columns, meter))
    if not sets:
        raise InputError(
            f"no evaluation set in {', '.join(map(str, against))}: expected files of plain text, TSV, CSV or "
            "JSONL with a column of texts"
        )
    return EvaluationSets(tuple(sets), unread)


def _files(one: Path) -> Iterator[tuple[str, Path]]:
    if not one.is_dir():
        yield one.name, one
        return
    for path in sorted(one.rglob("*")):
        inside = path.relative_to(one)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield inside.as_posix(), path


def _unreadable(path: Path) -> str | None:
    endings = {ending for kind in FORMATS for ending in FORMATS[kind]}
    names = {suffix.lower() for suffix in path.suffixes}
    if not names & endings:
        return "its ending says no format"
    kind = format_of(path)
    return None if kind in KINDS else f"{kind} is not read here"


def _header(path: Path, kind: str) -> list[str]:
    with open_bytes(path) as stream:
        line = next((line for line in stream if not line.isspace()), b"").removeprefix(b"\xef\xbb\xbf")
    text = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    if kind == "tsv":
        return text.split("\t")
    if kind == "csv":
        return next(csv.reader([text]), [])
    try:
        row = json.loads(text)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{path}:1: the first line is no JSON object; expected one object a line")
    return list(row)


def _text_columns(path: Path) -> list[str | None]:
    """Return the columns that hold texts; None stands for the lines of plain text."""
    kind = format_of(path)
    if kind == "text":
        return [None]
    return [
        column
        for column in _header(path, kind)
        if column not in _SPLIT_NAMES and (_TEXT_NAME.fullmatch(column) or _reads_as_text(path, kind, column))
    ]


def _reads_as_text(path: Path, kind: str, column: str) -> bool:
    with raw_rows(path, kind, Columns(text=column)) as rows:
        values = [
            text for _, text, _, _ in islice(rows, _HEAD_ROWS) if isinstance(text, str) and text.strip()
        ]
    several = sum(" " in value.strip() or max(value) >= _FIRST_WITHOUT_BLANKS for value in values)
    return several * 2 > len(values)


def _read(name: str, path: Path, columns: list[str | None], meter: Meter) -> Iterator[EvaluationSet]:
    kind = format_of(path)
    header = [] if kind == "text" else _header(path, kind)
    split = next((column for column in _SPLIT_NAMES if column in header), None)
    by_name = split != "split" and _TRAIN.search(path.name) is not None
    parts = {training: _Texts() for training in (False, True)}
    skipped = dict.fromkeys(parts, 0)
    for column in columns:
        waiting: dict[bool, list[str]] = {training: [] for training in parts}
        with raw_rows(path, kind, Columns(text=column, label=split)) as rows:
            for _, text, _, value in rows:
                training = by_name or (split is not None and _TRAIN.match(str(value)) is not None)
                if not isinstance(text, str) or not text.strip() or not is_utf8(text):
                    skipped[training] += 1
                    continue
                waiting[training].append(text)
                if len(waiting[training]) == _BATCH_TEXTS:
                    parts[training].add(waiting[training])
                    meter.step(_BATCH_TEXTS)
                    waiting[training] = []
        for training, texts in waiting.items():
            parts[training].add(texts)
            meter.step(len(texts))
    named = tuple(column for column in columns if column is not None)
    for training, texts_read in parts.items():
        found = texts_read.finish(name, named, training, skipped[training])
        if len(found.keys) or found.skipped:
            yield found
