"""Which rows of a source are asked for: ``--rows COLUMN=VALUE``, and what to say where no row is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from embedcache.corpus.formats import RawRow
from embedcache.errors import InputError

_LISTED = 5
# Of a column of free text nearly every value is another one.
_MOST_COUNTED = 1000
_LONGEST_SHOWN = 40


class RowConditions:
    """Conditions that all have to hold for a row, and the values that rows had for which they did not.

    Args:
        rows: ``COLUMN=VALUE`` each.
        option: what they are given with, for messages.

    Raises:
        InputError: if one has another form.
    """

    def __init__(self, rows: Sequence[str], option: str = "--rows") -> None:
        self._rows, self._option = tuple(rows), option
        self._wanted: list[str] = []
        self.columns: list[tuple[str, str]] = []
        """The option and the column of each condition, to be read behind all other columns."""
        for row in rows:
            column, _, value = row.partition("=")
            if not column or not value:
                raise InputError(f"{option} {row!r}: expected COLUMN=VALUE, such as split=train")
            self.columns.append((option, column))
            self._wanted.append(value)
        self._values = [Counter[str]() for _ in rows]
        self.not_asked = 0
        """How many rows were not asked for."""

    def hold(self, row: RawRow) -> bool:
        """Return whether a raw row is asked for; one without columns is not judged."""
        if not self._wanted or len(row) == 4:
            return True
        values = [str(value) for value in row[len(row) - len(self._wanted) :]]
        if values == self._wanted:
            return True
        self.not_asked += 1
        for counter, value in zip(self._values, values, strict=True):
            if value in counter or len(counter) < _MOST_COUNTED:
                counter[value] += 1
        return False

    def describe_none(self) -> str:
        """Return why no row was asked for, with the values that there are."""
        there = "; ".join(
            f"{column!r} has {_listed(counter)}"
            for (_, column), counter in zip(self.columns, self._values, strict=True)
        )
        rows = "row has" if self.not_asked == 1 else "rows has"
        return (
            f"none of its {self.not_asked:,} {rows} {' and '.join(self._rows)}: {there}; give {self._option} "
            "with values that stand in one row"
        )


def _listed(counter: Counter[str]) -> str:
    shown = [f"{_short(value)} ({count:,})" for value, count in counter.most_common(_LISTED)]
    rest = len(counter) - _LISTED
    more = "or more " if len(counter) == _MOST_COUNTED else ""
    return ", ".join(shown) + (f" and {rest:,} {more}others" if rest > 0 else "")


def _short(value: str) -> str:
    return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[: _LONGEST_SHOWN - 3]}...")
