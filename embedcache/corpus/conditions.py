"""Conditions on the rows of a source: ``--rows COLUMN=VALUE``."""

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
    """Conditions that all have to hold for a row, and the values of rows for which they did not.

    Args:
        rows: ``COLUMN=VALUE`` each.
        option: the option that gives them, for messages.

    Attributes:
        columns: the option and the column of each condition, to be read after all other columns.
        not_asked: number of rows for which they did not hold.

    Raises:
        InputError: if one has another form.
    """

    def __init__(self, rows: Sequence[str], option: str = "--rows") -> None:
        pairs = [row.partition("=") for row in rows]
        for row, (column, _, value) in zip(rows, pairs, strict=True):
            if not column or not value:
                raise InputError(f"{option} {row!r}: expected COLUMN=VALUE, such as split=train")
        self._rows, self._option = tuple(rows), option
        self._wanted = [value for _, _, value in pairs]
        self._values = [Counter[str]() for _ in rows]
        self.columns = [(option, column) for column, _, _ in pairs]
        self.not_asked = 0

    def hold(self, row: RawRow) -> bool:
        """Return whether a raw row is asked for; one with a problem, which has no columns, passes."""
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
        """Return the reason why no row was asked for, with the commonest values of each column."""
        there = "; ".join(
            f"{column!r} has "
            + ", ".join(_shown(value, count) for value, count in counter.most_common(_LISTED))
            for (_, column), counter in zip(self.columns, self._values, strict=True)
        )
        return f"no row of {self.not_asked:,} has {' and '.join(self._rows)}: {there}; change {self._option}"


def _shown(value: str, count: int) -> str:
    return f"{value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + '...'!r} ({count:,})"
