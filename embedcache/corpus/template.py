"""Texts made of several columns: ``{title}. {body}``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from string import Formatter

from embedcache.corpus.columns import Problem
from embedcache.errors import InputError


class TextTemplate:
    """Template of a text with columns in braces; ``{{`` is a brace.

    Args:
        template: the template.

    Attributes:
        fields: columns that it names, in order, each once.

    Raises:
        InputError: if it cannot be read, or names no column.

    Example:
        >>> TextTemplate("{title}. {body}").fill(["Cats", None])
        'Cats.'
    """

    def __init__(self, template: str) -> None:
        try:
            parts = list(Formatter().parse(template))
        except ValueError as error:
            raise InputError(f"--text-template {template!r}: {error}; write {{{{ for a brace") from error
        if odd := next((name for _, name, form, turn in parts if name is not None and (form or turn)), None):
            raise InputError(f"--text-template {template!r}: give columns alone, such as {{{odd}}}")
        self._parts = [(literal, name) for literal, name, _, _ in parts]
        self.fields = tuple(dict.fromkeys(name for _, name in self._parts if name))
        if not self.fields or any(name == "" for _, name in self._parts):
            raise InputError(
                f"--text-template {template!r}: name columns in braces, as in '{{title}}. {{body}}'"
            )

    def fill(self, values: Sequence[object]) -> str | Problem:
        """Return the text of a row, without blanks around it, or the problem with it.

        A gap is an empty text; a row with gaps alone has none.

        Args:
            values: the value of each of ``fields``.
        """
        cells: dict[str, str] = {}
        for name, value in zip(self.fields, values, strict=True):
            cell = _written(value)
            if isinstance(cell, Problem):
                return cell
            cells[name] = cell
        if all(not cell or cell.isspace() for cell in cells.values()):
            return Problem.EMPTY
        return "".join(literal + (cells[name] if name else "") for literal, name in self._parts).strip()


def _written(value: object) -> str | Problem:
    """Return a value as text; a gap, such as a key that an object lacks, is empty."""
    if value is None or value is Problem.MISSING_COLUMN or value != value:  # NaN, NaT
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # whole numbers beside gaps
        return str(int(value))
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, Problem):
        return value
    return str(value) if isinstance(value, (str, int, float, Decimal)) else Problem.NOT_A_STRING
