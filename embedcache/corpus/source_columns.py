"""Columns of a source: those asked for, those found, and the problems of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from embedcache.errors import InputError, MissingInputError

USUAL_NAMES = ("text", "sentence", "content")
"""Names that a column of text usually has."""

_NEVER_TEXT = ("split", "label", "id", "idx", "score")
_SECOND = "text2"


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


RawRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """Columns to read; ``text`` None means the one that :func:`raw_rows` finds fitting.

    ``text_option`` and ``label_option`` are the options that name these columns, for messages. ``more`` are
    further columns, each with its option. ``delimiter`` stands between the fields of CSV and TSV.
    """

    text: str | None = None
    id: str | None = None
    label: str | None = None
    text_option: str = "--text-column"
    label_option: str = "--label-column"
    more: tuple[tuple[str, str], ...] = ()
    delimiter: str | None = None

    @property
    def others(self) -> list[str | None]:
        """Columns after the text's, in the order of a raw row."""
        return [self.id, self.label, *(column for _, column in self.more)]


@dataclass
class RawRows(Iterator[RawRow]):
    """Raw rows in order.

    Attributes:
        rows: the rows.
        column: column of the text; None for plain text.
        check: called when reading ends; raises :class:`InputError` where too many rows are malformed.
    """

    rows: Iterator[RawRow]
    column: str | None = None
    check: Callable[[], None] = lambda: None

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


def find_text_column(wanted: Columns, found: Sequence[str], textual: Sequence[str], name: str) -> str:
    """Return the text column, once every wanted column is known to be among ``found``, and only once."""
    shown = ", ".join(found[:20]) + (f", and {len(found) - 20} more" if len(found) > 20 else "")
    text = wanted.text
    if text is None:
        left = [column for column in textual if column not in wanted.others]
        candidates = [column for column in left if column not in _NEVER_TEXT]
        if len(candidates) > 1:
            candidates = [column for column in candidates if column in USUAL_NAMES]
        # Half of a pair is not to be taken for the whole of a text.
        if len(candidates) != 1 or _SECOND in left:
            raise InputError(
                f"{name}: cannot tell which column holds the text; found: {shown}; "
                f"pass {wanted.text_option} with one of them"
            )
        text = candidates[0]
    for option, column in asked(replace(wanted, text=text)):
        if column not in found:
            raise MissingInputError(
                f"{name}: no column {column!r}; found: {shown}; pass {option} with one of them"
            )
        if found.count(column) > 1:
            raise InputError(
                f"{name}: {found.count(column)} columns are called {column!r}; rename all but one"
            )
    return text


def asked(wanted: Columns) -> list[tuple[str, str]]:
    """Return the option and the name of each column that is asked for."""
    own = (
        (wanted.text_option, wanted.text),
        ("--id-column", wanted.id),
        (wanted.label_option, wanted.label),
    )
    return [(option, column) for option, column in own if column is not None] + list(wanted.more)


def refuse_columns(wanted: Columns, name: str, what: str) -> None:
    """Raise :class:`MissingInputError` where a column is asked for of ``what``, which has none."""
    for option, column in asked(wanted):
        raise MissingInputError(f"{name}: no column {column!r}: {what} has no columns; leave {option} out")
