"""Reading a corpus: rows of text out of files, each row kept, or skipped and counted.

=====================================================  ===========================================
found                                                  outcome
=====================================================  ===========================================
text of blanks alone (``str.isspace``), an empty line  skipped, ``empty``
null text (JSON, Parquet, Arrow)                       skipped, ``null``
text that is a number, list or object (JSON)           skipped, ``not a string``
bytes that are not UTF-8, half a surrogate pair        that row skipped, ``invalid utf-8``
a NUL in the text                                      skipped, ``nul byte``
a U+001F in the text, which separates pairs            skipped, ``pair separator``
a line that is not JSON, or not an object              skipped, ``malformed json``
an object without a column that the first one has      skipped, ``missing column``
a CSV or TSV row of another width than the header      skipped, ``wrong number of columns``
one line that breaks the rules of CSV                  skipped, ``malformed csv``
a CSV quote left open over several lines               refused: the rows in it cannot be counted
an id or label asked for that is null, empty or NaN    skipped, ``null id`` or ``null label``
a label infinite, beyond 64 bits, a list, a date ...   skipped, ``unusable label``
labels of text and numbers, fractions after integers   refused: a corpus has one type of label
a line ending (LF, CRLF), a byte order mark in front   taken off
any other character, blanks at the ends of a text      kept
a line of 1 MB                                         kept; over 64 MiB, the file is refused
a second text asked for: any of this in either text    skipped likewise; else both are one text, a pair
a row for which ``--rows`` does not hold               left out, counted by itself
a column that is not there                             refused, naming the columns found
an empty file, a header alone, every row skipped       refused, with the counts
gzip, zstd, Parquet or Arrow data cut off or damaged   refused; rows before it may have been given
Parquet, Arrow, UTF-16, zip, xz, bzip2 read as text    refused
pictures, programs and other binary data read as text  refused
JSONL without one object in it, such as a JSON list    refused
=====================================================  ===========================================

The text column is, unless named, the only column of text beside the id's and the label's, or else the only
one called text, sentence or content, or else the file is refused. Plain text has no columns to name.

CSV is RFC 4180 with a header line; quoted texts may hold line breaks. TSV has a header line and no quoting: a
tab ends a field, a quote is a character. Labels of JSONL, Parquet and Arrow keep their type (a Boolean
becomes 0 or 1), those of CSV and TSV are strings. Memory stays that of a batch; Parquet and Arrow out of a
pipe or a compressed file pass through a temporary file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from embedcache.corpus.conditions import RowConditions
from embedcache.corpus.formats import Columns, Problem, RawRow, is_utf8, raw_rows
from embedcache.corpus.sources import Source, expand_sources, format_of, source_name
from embedcache.errors import InputError
from embedcache.pairs import SEPARATOR, join_pair

__all__ = [
    "ReadOptions",
    "ReadReport",
    "RowBatch",
    "Source",
    "expand_sources",
    "read_batches",
    "text_of_row",
    "text_problem",
]

Label: TypeAlias = str | int | float
_Row: TypeAlias = tuple[str, str, Any]


@dataclass(frozen=True)
class ReadOptions:
    """What to take from each source.

    Attributes:
        text_column: the column of the text; see the module's text for the default.
        id_column: a column whose values, as strings, name the rows; the corpus checks that they differ.
        label_column: a column of strings, whole numbers or fractions.
        format: ``text``, ``jsonl``, ``csv``, ``tsv``, ``parquet`` or ``arrow`` for every source; by default
            the ending says, and standard input is plain text.
        limit: stop after so many kept rows of all sources together.
        text2_column: the column of a second text: rows are pairs then, see :mod:`embedcache.pairs`.
        rows: ``COLUMN=VALUE`` each; rows for which not all of them hold are left out.

    """

    text_column: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    limit: int | None = None
    text2_column: str | None = None
    rows: tuple[str, ...] = ()

    @property
    def reads_pairs(self) -> bool:
        """Whether rows are pairs of texts."""
        return self.text2_column is not None

    @property
    def columns(self) -> Columns:
        """What is read of a source: the columns of :class:`RowConditions` come last.

        Raises:
            InputError: if a condition is not of the form ``COLUMN=VALUE``.

        """
        second = [("--text2-column", self.text2_column)] if self.text2_column is not None else []
        more = (*second, *RowConditions(self.rows).columns)
        return Columns(self.text_column, self.id_column, self.label_column, more=more)


@dataclass
class ReadReport:
    """What became of the rows, filled while they are read.

    Attributes:
        rows: rows kept and given.
        skipped: reason -> rows skipped for it.
        first_skipped: reason -> ``file:line`` of the first such row (``file:row`` for Parquet and Arrow).
        not_asked: rows that were not asked for.

    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    not_asked: int = 0

    def skip(self, reason: str, where: str) -> None:
        """Count one row as skipped at ``where``."""
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, where)

    def describe_skipped(self) -> str:
        """Return the counts as a phrase, the commonest reason first; empty where nothing was skipped."""
        return ", ".join(
            f"{count} {reason} (first at {self.first_skipped[reason]})"
            for reason, count in self.skipped.most_common()
        )


@dataclass(frozen=True)
class RowBatch:
    """Rows in source order: ``texts``, and as long as it the ``ids`` and ``labels`` that were asked for."""

    texts: list[str]
    ids: list[str] | None
    labels: list[str] | list[int] | list[float] | None


def read_batches(
    sources: Sequence[Source], options: ReadOptions, report: ReadReport, *, batch_rows: int = 8192
) -> Iterator[RowBatch]:
    """Yield the kept rows of ``sources``, in order, in batches of ``batch_rows`` (the last may be shorter).

    ``report`` is up to date with every batch given. With a limit, nothing after the last kept row is counted.

    Raises:
        MissingInputError: a file or a column is not there.
        InputError: see the module's table; also an unknown format or a limit below 1.

    """
    if not sources:
        raise InputError("no input was named; name at least one file, or - for standard input")
    if options.limit is not None and options.limit < 1:
        raise InputError(f"limit is {options.limit}, expected at least 1; leave it out to read every row")
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}, expected at least 1")
    kinds = [format_of(source, options.format) for source in sources]
    return _batches(
        _rows(list(zip(sources, kinds, strict=True)), options, report), options, report, batch_rows
    )


def _batches(
    rows: Generator[_Row, None, None], options: ReadOptions, report: ReadReport, batch_rows: int
) -> Iterator[RowBatch]:
    with closing(rows):
        wanted = islice(rows, options.limit)
        while batch := list(islice(wanted, batch_rows)):
            report.rows += len(batch)
            yield RowBatch(
                texts=[text for text, _, _ in batch],
                ids=None if options.id_column is None else [id_ for _, id_, _ in batch],
                labels=None if options.label_column is None else [label for _, _, label in batch],
            )


def _rows(
    sources: list[tuple[Source, str]], options: ReadOptions, report: ReadReport
) -> Generator[_Row, None, None]:
    labels = _LabelType()
    for source, kind in sources:
        yield from _kept(source, kind, options, labels, report)


def _kept(
    source: Source, kind: str, options: ReadOptions, labels: _LabelType, report: ReadReport
) -> Iterator[_Row]:
    name, wanted, conditions = source_name(source), options.columns, RowConditions(options.rows)
    own = ReadReport()
    with_id, with_label, pairs = wanted.id is not None, wanted.label is not None, options.reads_pairs
    with raw_rows(source, kind, wanted) as rows:
        for row in rows:
            position, _, id_, label = row[:4]
            if not conditions.hold(row):
                report.not_asked += 1
                continue
            text = text_of_row(row, pairs=pairs, with_id=with_id, with_label=with_label)
            if isinstance(text, Problem):
                own.skip(text.value, f"{name}:{position}")
                report.skip(text.value, f"{name}:{position}")
            else:
                own.rows += 1
                yield (
                    text,
                    str(id_) if with_id else "",
                    labels.fitted(label, name, position) if with_label else None,
                )
    if not own.rows:
        raise InputError(f"{name}: no rows to read as {kind}: {_why_none(own, conditions)}")


def _why_none(own: ReadReport, conditions: RowConditions) -> str:
    if conditions.not_asked and not own.skipped:
        return conditions.describe_none()
    found = own.describe_skipped()
    return (
        f"every row was skipped: {found}; " if found else "it has a header alone; "
    ) + "expected at least one text; check the file, the format and the text column"


def text_of_row(
    row: RawRow, *, pairs: bool = False, with_id: bool = False, with_label: bool = False
) -> str | Problem:
    """Return the text of a raw row as corpora keep it, or why the row is skipped.

    Args:
        row: the row.
        pairs: whether a second text was asked for; both are one text then.
        with_id, with_label: whether an id and a label were asked for, and have to be there.
    """
    text, id_, label = row[1:4]
    problem = (
        text_problem(text)
        or (_id_problem(id_) if with_id else None)
        or (_label_problem(label) if with_label else None)
        or (text_problem(row[4]) if pairs else None)
    )
    if problem is not None:
        return problem
    kept: str = join_pair(text, row[4]) if pairs else text
    return kept


def text_problem(text: object) -> Problem | None:
    """Return why a row is skipped for what stands in the column of its text; None where it is kept."""
    if not isinstance(text, str):
        return text if isinstance(text, Problem) else Problem.NULL if text is None else Problem.NOT_A_STRING
    if not text or text.isspace():
        return Problem.EMPTY
    if "\0" in text:
        return Problem.NUL_BYTE
    if SEPARATOR in text:
        return Problem.PAIR_SEPARATOR
    return None if text.isascii() or is_utf8(text) else Problem.INVALID_UTF8


def _id_problem(id_: object) -> Problem | None:
    if isinstance(id_, str) and id_:
        return None if is_utf8(id_) else Problem.INVALID_UTF8
    return Problem.NULL_ID if _is_null(id_) else None


def _label_problem(label: object) -> Problem | None:
    if isinstance(label, str) and label:
        return None if is_utf8(label) else Problem.INVALID_UTF8
    if _is_null(label):
        return Problem.NULL_LABEL
    if isinstance(label, int):
        return None if -(2**63) <= label < 2**63 else Problem.BAD_LABEL
    return None if isinstance(label, float) and math.isfinite(label) else Problem.BAD_LABEL


def _is_null(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


class _LabelType:
    """The one type of a corpus' labels, set by the first of them."""

    def __init__(self) -> None:
        self._type: type[Label] | None = None

    def fitted(self, label: Label, name: str, position: int) -> Label:
        """Return ``label`` in that type, or raise: a column of two types could not be stored."""
        if type(label) is self._type:
            return label
        if isinstance(label, bool):
            label = int(label)
        if self._type is None:
            self._type = type(label)
        if self._type is float and isinstance(label, int):
            label = float(label)
        if type(label) is not self._type:
            raise InputError(
                f"{name}:{position}: label {label!r} is of type {type(label).__name__}, "
                f"those before it of type {self._type.__name__}; "
                "write the column in one type (1.0, not 1, where there are fractions)"
            )
        return label
