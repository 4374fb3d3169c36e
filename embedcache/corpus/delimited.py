"""CSV and TSV: a header line, then a record a row."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

from embedcache.corpus.source_columns import (
    USUAL_NAMES,
    Columns,
    Problem,
    RawRow,
    RawRows,
    find_text_column,
    is_utf8,
)
from embedcache.errors import InputError

DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "\\t": "\t"}
"""Word -> the delimiter that it means, beside the character itself."""

# Share and least number of rows of another width that mean that the file is read wrongly.
_WRONG_SHARE, _WRONG_LEAST = 0.01, 3
_LONGEST_HEADER_CELL, _MOST_HEADER_WORDS = 60, 3
_LONGEST_FIELD = 1 << 26
# Python 3.10's csv refuses NUL; decoding UTF-8 never gives this surrogate, so it can stand in on the way.
_NUL_STAND_IN = "\udc00" if sys.version_info < (3, 11) else ""

_Record: TypeAlias = tuple[int, list[str] | Problem]


class _Table:
    """Rows of CSV or TSV under a header.

    Args:
        records: line number and fields of each row after the header.
        header: names of the columns.
        pick: gives the wanted fields of a row.
        name: name of the source.
    """

    def __init__(
        self,
        records: Iterator[_Record],
        header: list[str],
        pick: Callable[[list[str]], tuple[str, ...]],
        name: str,
    ) -> None:
        self._records, self._header, self._pick, self._name = records, header, pick, name
        self._rows = self._wrong = 0
        self._first = ""

    def __iter__(self) -> Iterator[RawRow]:
        """Yield the raw rows."""
        width = len(self._header)
        for number, fields in self._records:
            self._rows += 1
            if isinstance(fields, Problem):
                yield number, fields, None, None
            elif len(fields) == width:
                yield (number, *self._pick(fields))
            elif fields in ([], [""]):
                yield number, Problem.EMPTY, None, None
            else:
                self._wrong += 1
                self._first = self._first or f"{self._name}:{number}: {len(fields)} fields"
                yield number, Problem.COLUMN_COUNT, None, None

    def check(self) -> None:
        """Raise :class:`InputError` where too many of the rows read have another width than the header."""
        if self._wrong >= _WRONG_LEAST and self._wrong > self._rows * _WRONG_SHARE:
            header = ", ".join(self._header)[:80]
            raise InputError(
                f"{self._first}, and the header has {len(self._header)} ({header}); so in {self._wrong:,} of "
                f"{self._rows:,} rows. Quote fields that hold the delimiter, or pass the right --delimiter, "
                "or --format text if every line is a text"
            )


def open_delimited(lines: Iterator[bytes], kind: str, name: str, wanted: Columns) -> RawRows:
    """Return the rows of ``lines``, read as ``csv`` (RFC 4180) or ``tsv`` (no quoting).

    Raises:
        MissingInputError: if a column is missing.
        InputError: if the header has another delimiter or looks like data, or no text column is obvious.
    """
    delimiter = DELIMITERS.get(wanted.delimiter or "", wanted.delimiter) or ("," if kind == "csv" else "\t")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        known = ", ".join(DELIMITERS)
        raise InputError(f"--delimiter {wanted.delimiter!r}: expected one character, or one of {known}")
    first = next(lines)
    records = (_csv_records if kind == "csv" else _tsv_records)(chain([first], lines), delimiter, name)
    _, header = next(records)
    if isinstance(header, Problem) or not all(map(is_utf8, header)):
        raise InputError(f"{name}:1: the header line is not {kind.upper()} in UTF-8; pass the right --format")
    if wanted.delimiter is None:
        _refuse_other_delimiter(decoded_line(first), header, delimiter, name)
    text = find_text_column(wanted, header, header, name)
    if wanted.text is None and text not in USUAL_NAMES and _is_sentence(text):
        raise InputError(
            f"{name}:1: the first line looks like data, expected a header: {text[:60]!r}. Add a header line, "
            "pass --format text if every line is a text, or name the column with --text-column"
        )
    # A column not asked for gives the text, which is not looked at: itemgetter is twice as fast as a closure.
    pick = itemgetter(*(header.index(column or text) for column in (text, *wanted.others)))
    table = _Table(records, header, pick, name)
    return RawRows(iter(table), text, table.check)


def _refuse_other_delimiter(line: str, header: Sequence[str], delimiter: str, name: str) -> None:
    word, other = max(DELIMITERS.items(), key=lambda item: line.count(item[1]))
    cells = line.split(other)
    if len(cells) > len(header) and not any(map(_is_sentence, cells)):
        raise InputError(
            f"{name}:1: the header has {len(cells)} columns by {word} and {len(header)} by {delimiter!r}: "
            f"{line[:60]!r}. Pass --delimiter {word}"
        )


def _is_sentence(cell: str) -> bool:
    words = cell.split()
    return (
        len(words) > _MOST_HEADER_WORDS
        or len(cell) > _LONGEST_HEADER_CELL
        or cell.rstrip().endswith((".", "!"))
    )


def _tsv_records(lines: Iterator[bytes], delimiter: str, name: str) -> Iterator[_Record]:
    return ((number, decoded_line(line).split(delimiter)) for number, line in enumerate(lines, 1))


def _csv_records(lines: Iterator[bytes], delimiter: str, name: str) -> Iterator[_Record]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    decoded = (line.decode("utf-8", "surrogateescape") for line in lines)
    if _NUL_STAND_IN:
        decoded = (line.replace("\0", _NUL_STAND_IN) for line in decoded)
    records = csv.reader(decoded, delimiter=delimiter, strict=True)
    while True:
        number = records.line_num + 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            # One bad line is one lost row. A quote left open swallows rows that cannot be counted.
            if records.line_num > number:
                raise InputError(
                    f"{name}:{number}: the record that begins here goes wrong by line {records.line_num}: a "
                    'quote was left open; close it, and write a quote inside quotes as ""'
                ) from error
            yield number, Problem.MALFORMED_CSV
            continue
        if _NUL_STAND_IN:
            fields = [field.replace(_NUL_STAND_IN, "\0") for field in fields]
        yield number, fields


def decoded_line(line: bytes) -> str:
    """Return ``line`` without its line ending, LF or CRLF; every other character stays."""
    return line.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
