"""Columns to read from a source, the raw rows they give, and the problems a row can have.

A raw row is ``(position, text, id, label, *more)``. The position counts lines from 1 (a CSV record: its first
line), or rows from 1. Each cell is the value of its column, or the ``Problem`` for which there is none;
cells of columns that were not asked for have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import repeat
from typing import Any, TypeAlias

from embedcache.errors import InputError, MissingInputError

TEXT_COLUMNS = ("text", "sentence", "content")
"""Names of the column that holds the text, where none is given."""
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}
"""Delimiters that have a name."""


class Problem(Enum):
    """Reason for skipping a row; the values are reported."""

    EMPTY = "empty"
    NULL = "null"
    NOT_A_STRING = "not a string"
    INVALID_UTF8 = "invalid utf-8"
    NUL_BYTE = "nul byte"
    MALFORMED_JSON = "malformed json"
    MALFORMED_CSV = "malformed csv"
    COLUMN_COUNT = "wrong number of columns"
    MISSING_COLUMN = "missing column"
    NULL_ID = "null id"
    NULL_LABEL = "null label"
    BAD_LABEL = "unusable label"
    PAIR_SEPARATOR = "pair separator"
    EMPTY_FILE = "empty file"


RawRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """Columns to read; ``text`` None means the one of ``TEXT_COLUMNS``.

    ``text_option`` and ``label_option`` are the options that name these columns, for messages. ``more`` are
    further columns, each with its option. ``delimiter`` stands between the fields of CSV and TSV. ``on_bad``
    is ``error`` or ``skip`` for files with many malformed rows, None where they cannot be skipped. ``choose``
    gives other columns in place of these, from those of the source and its name.
    """

    text: str | None = None
    id: str | None = None
    label: str | None = None
    text_option: str = "text_column"
    label_option: str = "label_column"
    more: tuple[tuple[str, str], ...] = ()
    delimiter: str | None = None
    on_bad: str | None = None
    choose: Callable[[Sequence[str], str], Columns] | None = None

    @property
    def names(self) -> list[str | None]:
        """Columns in the order of a raw row, None for one that was not asked for."""
        return [self.text, self.id, self.label, *(column for _, column in self.more)]

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Option and name of each column that is asked for."""
        options = [self.text_option, "id_column", self.label_option, *(option for option, _ in self.more)]
        return [(option, name) for option, name in zip(options, self.names, strict=True) if name is not None]

    def lost(self, position: int, problem: Problem) -> RawRow:
        """Return the raw row of which nothing can be read."""
        return (position, *repeat(problem, len(self.names)))

    def within(self, found: Sequence[str], name: str) -> Columns:
        """Return these columns and that of the text, all of them among ``found``, and only once.

        Nothing but its name makes a column that of the text: a first line of data is not taken for a header.
        """
        if self.choose is not None:
            return self.choose(found, name).within(found, name)
        shown = ", ".join(found[:20]) + (f", and {len(found) - 20} more" if len(found) > 20 else "")
        if self.text is None:
            usual = [column for column in TEXT_COLUMNS if column in found and column not in self.names]
            if len(usual) != 1:
                raise InputError(
                    f"{name}: cannot tell which column holds the text; found: {shown[:200]}; expected one of "
                    f"{', '.join(TEXT_COLUMNS)}; {_remedy(found, self.text_option)}"
                )
            return replace(self, text=usual[0]).within(found, name)
        for option, column in self.asked:
            if column not in found:
                raise MissingInputError(
                    f"{name}: no column {column!r}; found: {shown}; {_remedy(found, option)}"
                )
            if found.count(column) > 1:
                raise InputError(
                    f"{name}: {found.count(column)} columns are called {column!r}; rename all but one"
                )
        return self


_HEADER = "if that is a row of data, write a header above it"


def _remedy(found: Sequence[str], option: str) -> str:
    """Return the advice for a file without the wanted column."""
    option = f"--{option.removeprefix('--').replace('_', '-')}"
    for word, character in DELIMITERS.items():
        if any(character in column for column in found):
            return f"if {word}s separate the columns, give --delimiter={word}; {_HEADER}"
    if len(found) == 1:
        return f"give {option}, or --format=text if every line is a text"
    return f"use {option} with one of them; {_HEADER}"


@dataclass
class RawRows(Iterator[RawRow]):
    """Raw rows in order, and the column of the text; None for plain text."""

    rows: Iterator[RawRow]
    column: str | None = None

    def __iter__(self) -> Iterator[RawRow]:
        """Return the rows that are left."""
        return self.rows

    def __next__(self) -> RawRow:
        """Return the next row."""
        return next(self.rows)


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be encoded: no stray bytes, no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
