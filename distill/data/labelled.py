"""Labelled texts or pairs of texts from a file, and the numbers of their labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from distill.data.sampler import HELD_OUT_STREAM, permutation
from distill.errors import DataError
from embedcache.corpus.columns import Columns as RawColumns
from embedcache.corpus.columns import Problem
from embedcache.corpus.folding import fold
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import ReadReport, RowConditions, text_of_row
from embedcache.corpus.sources import expand_sources, format_of

_LISTED = 5

FEWEST_SCORED = 10
"""Rows that a classifier can be scored on; fewer tell nothing."""


@dataclass(frozen=True)
class Columns:
    """Columns of a file that hold the texts and the labels.

    Attributes:
        text: column of the text; None: the one that is plainly it.
        text2: column of the second text of a pair; None: rows are single texts.
        label: column of the label; None: rows have none, and are given an empty one.
        format: the file's format; None: by its ending.
        prefix: prefix of the options that name these columns, for messages.
    """

    text: str | None = None
    text2: str | None = None
    label: str | None = "label"
    format: str | None = None
    prefix: str = "--"


class TextRows:
    """Rows of texts, column by column; base of labelled texts and of triples."""

    columns: tuple[list[str], ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0])

    @property
    def distinct(self) -> int:
        """Number of distinct texts of the first column."""
        return len(set(self.columns[0]))

    def distinct_texts(self) -> list[str]:
        """Return all distinct texts."""
        return list(dict.fromkeys(text for column in self.columns for text in column))

    def take(self, rows: NDArray[np.integer]) -> Self:
        """Return some of the rows."""
        raise NotImplementedError

    def split(self, count: int, seed: int) -> tuple[Self, Self]:
        """Return the rows left, and those of ``count`` distinct texts of the first column, drawn at random.

        Rows of one text stay together: else the held-out ones would not be new to the student.
        """
        texts = self.columns[0]
        distinct = list(dict.fromkeys(texts))
        places = permutation(len(distinct), seed, HELD_OUT_STREAM, first=count)
        drawn = {distinct[place] for place in places.tolist()}
        inside = np.array([text in drawn for text in texts], dtype=np.bool_)
        return self.take(np.flatnonzero(~inside)), self.take(np.flatnonzero(inside))

    def overlap(self, texts: Collection[str]) -> int:
        """Return the number of rows that hold one of ``texts``; case, blanks and punctuation do not count."""
        folded = {fold(text) for text in texts}
        known = {text for text in self.distinct_texts() if fold(text) in folded}
        return sum(any(text in known for text in row) for row in zip(*self.columns, strict=True))


@dataclass(frozen=True)
class LabelledRows(TextRows):
    """Labelled texts in the order of their file.

    Attributes:
        name: their name in reports.
        texts: the texts; a pair is one text, see ``embedcache.pairs``.
        labels: their names.
        skipped: why rows of the file were left out -> how many.
        described: the same in words, with the place of the first of each.
    """

    name: str
    texts: list[str]
    labels: list[str]
    skipped: Counter[str] = field(default_factory=Counter)
    described: str = ""

    @property
    def columns(self) -> tuple[list[str], ...]:  # type: ignore[override]  # a field of the others
        """The one column of texts."""
        return (self.texts,)

    @property
    def digest(self) -> str:
        """The sha256 of all texts and labels in order."""
        digest = hashlib.sha256()
        for text, label in zip(self.texts, self.labels, strict=True):
            encoded = f"{label}\n{text}".encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    def take(self, rows: NDArray[np.integer]) -> LabelledRows:
        """Return some of the rows."""
        texts, labels = ([cells[row] for row in rows.tolist()] for cells in (self.texts, self.labels))
        return replace(self, texts=texts, labels=labels)


def one_source(path: str | Path) -> Path:
    """Return the file of this machine that ``path`` names.

    Raises:
        InputError: if there is none.
        DataError: if it names several, standard input, or a file elsewhere.
    """
    sources = expand_sources([str(path)])
    if len(sources) > 1 or not isinstance(sources[0], Path):
        raise DataError(f"{path} is not one file here: give the path of one, downloaded or from a pipe")
    return sources[0]


def read_labelled(
    path: str | Path,
    columns: Columns,
    rows: Sequence[str] = (),
    *,
    limit: int | None = None,
    rows_option: str | None = None,
) -> LabelledRows:
    """Read labelled texts from a file with columns.

    Rows without a usable text or label are skipped and counted; rows that are not asked for are not.

    Args:
        path: a TSV, CSV, JSONL, Parquet or Arrow file, compressed or not.
        columns: its columns of texts and labels.
        rows: ``COLUMN=VALUE``, all of which have to hold.
        limit: stop after N kept rows.
        rows_option: the option that ``rows`` were given with, for messages; default: ``rows`` after the
            prefix of the columns.

    Raises:
        InputError: if the file or a column is missing or cannot be read, or a condition has another form.
        DataError: if no row is left.
    """
    source = one_source(path)
    conditions, report = RowConditions(rows, rows_option or f"{columns.prefix}rows"), ReadReport()
    kept = _kept(source, format_of(source, columns.format), columns, conditions, report)
    found = list(islice(kept, limit))
    if not found and conditions.not_asked and not report.skipped:
        raise DataError(f"{source}: {conditions.describe_none()}")
    if not found:
        where = f" with {', '.join(rows)}" if rows else ""
        why = f"; skipped {report.describe_skipped()}" if report.skipped else ""
        what = "texts" if columns.label is None else "labelled texts"
        raise DataError(f"{source} holds no {what}{where}{why}: check the columns and their values")
    name = Path(source).name.split(".")[0] or str(source)
    texts, labels = ([row[place] for row in found] for place in (0, 1))
    return LabelledRows(name, texts, labels, report.skipped, report.describe_skipped())


def _kept(
    source: Path,
    kind: str,
    columns: Columns,
    conditions: RowConditions,
    report: ReadReport,
) -> Iterator[tuple[str, str]]:
    """Yield the text and the label of each row that is asked for and can be used."""
    prefix, is_labelled = columns.prefix, columns.label is not None
    second = [] if columns.text2 is None else [(f"{prefix}text2", columns.text2)]
    asked = RawColumns(
        columns.text,
        label=columns.label,
        text_option=f"{prefix}text",
        label_option=f"{prefix}label",
        more=(*second, *conditions.columns),
    )
    with raw_rows(source, kind, asked) as rows:
        for row in filter(conditions.hold, rows):
            text = text_of_row(row, pairs=bool(second), with_label=is_labelled)
            if isinstance(text, Problem):
                report.skip(text.value, f"{source}:{row[0]}")
            else:
                yield text, _named(row[3]) if is_labelled else ""


def _named(label: object) -> str:
    return str(int(label) if isinstance(label, bool) else label)


def refuse_few(rows: LabelledRows, what: str, remedy: str = "give a file with more") -> None:
    """Raise ``DataError`` for too few rows to score a classifier on.

    Args:
        rows: the rows.
        what: the key of the configuration that says which they are, and what it says.
        remedy: remedy for the message.
    """
    if len(rows) < FEWEST_SCORED:
        raise DataError(
            f"{what}: {len(rows)} labelled rows to choose a checkpoint by, expected {FEWEST_SCORED} at "
            f"least; {remedy}"
        )


def label_names(labels: Sequence[object]) -> tuple[str, ...]:
    """Return the names of all labels that occur: by size where all of them are numbers, else by name.

    Raises:
        DataError: if there are fewer than two, or nearly every row has a different one.
    """
    names = {str(label) for label in labels}
    if len(names) < 2:
        raise DataError(
            f"the label column holds {_listed(sorted(names)) or 'nothing'} alone: a classifier needs rows of "
            "two labels at least"
        )
    if len(names) > max(2, len(labels) // 2):
        raise DataError(
            f"the label column holds {len(names)} different labels in {len(labels)} rows: expected classes "
            "with several rows each; name the column of those with --label"
        )
    try:
        # Equal numbers may be written in two ways, and stay two labels.
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def label_numbers(labels: Sequence[object], names: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return the place of every label in ``names``, int64 of shape (n,).

    Args:
        labels: the labels of n rows.
        names: the names there are.
        where: the rows, for messages.

    Raises:
        DataError: if a label is not among the names; it lists those.
    """
    places = {name: place for place, name in enumerate(names)}
    strangers = Counter(str(label) for label in labels if str(label) not in places)
    if strangers:
        raise DataError(
            f"{where}: {strangers.total()} of {len(labels)} rows have a label that the classifier does not "
            f"know: {_listed(sorted(strangers))}; it knows {_listed(list(names))}. Leave those rows out, or "
            "train on rows with these labels as well"
        )
    return np.array([places[str(label)] for label in labels], dtype=np.int64)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(name) for name in names[:_LISTED]) + rest
