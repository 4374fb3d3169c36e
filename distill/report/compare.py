"""Two models compared on the same items, and the tables that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import DataError
from distill.evaluation import stats
from distill.evaluation.models import Spec
from distill.evaluation.result import AVERAGE
from distill.evaluation.runner import evaluate_suites
from distill.evaluation.stats import Comparison
from distill.report.tables import NOTHING, Table
from embedcache.notebook import data_frame, html_table

if TYPE_CHECKING:
    import pandas as pd


NOT_SHOWN = "not shown"
"""In place of the better model, where the difference may be noise."""


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """Two models on one or several suites.

    Attributes:
        a, b: their names.
        suites: suite -> a row for each set, and for the average where there are several.
        draws: draws that intervals and p-values rest on.
        notes: remarks on the comparison.
    """

    a: str
    b: str
    suites: Mapping[str, list[Comparison]]
    draws: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object: a list of rows by suite."""
        rows = {
            suite: [asdict(row) | {"difference": row.difference, "verdict": row.verdict} for row in found]
            for suite, found in self.suites.items()
        }
        return {**vars(self), "suites": rows, "notes": list(self.notes)}

    @property
    def better(self) -> dict[str, str]:
        """Name of the better model by verdict."""
        return {"A is better": self.a, "B is better": self.b}

    def __repr__(self) -> str:
        """Return difference, interval and p-value of each set, a line each."""
        lines = [", ".join(f"{name} {cell}" for name, cell in row.items()) for row in self._rows()]
        return "\n  ".join([f"ModelComparison({self.a!r}, {self.b!r})", *lines[:9]])

    def _repr_html_(self) -> str:
        """Return the comparison as a table, as a notebook shows it."""
        return html_table(self._rows(), f"{self.a} and {self.b}")

    def to_frame(self) -> pd.DataFrame:
        """Return the comparison as a pandas data frame, a row a set.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, object]]:
        """Return the cells of each set by column, figures as numbers."""
        return [
            {
                "suite": suite,
                "set": row.label,
                "items": row.items,
                self.a: row.a,
                self.b: row.b,
                "difference": row.difference,
                "low": None if row.interval is None else row.interval[0],
                "high": None if row.interval is None else row.interval[1],
                "p": row.p_corrected,
                "better": self.better.get(row.verdict, NOT_SHOWN),
            }
            for suite, rows in self.suites.items()
            for row in rows
        ]


def compare(
    a: Spec,
    b: Spec,
    suites: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    pairs: object = None,
    columns: Sequence[str] | None = None,
    draws: int = stats.DRAWS_OF_COMPARISON,
    seed: int = 0,
    **options: Any,
) -> ModelComparison:
    """Compare two models item by item.

    Args:
        a: a model, as ``distill.evaluation.runner.evaluate_suites`` takes it.
        b: the other.
        suites: suites of sets; ``all``: every one that finds its files; default: ``sts``, or where they are
            given ``pairs`` alone.
        data: folder of test files.
        pairs: pairs or triplets of your own, as for ``distill.evaluate``.
        columns: their columns.
        draws: draws of the bootstrap.
        seed: choice of the draws.
        options: further options of ``distill.evaluate``. Kept evaluations are used.

    Raises:
        DataError: if both are the same model, or no suite has items to compare.
        DistillError, EmbedCacheError: as ``distill.evaluation.runner.evaluate_suites``.
    """
    if str(a) == str(b):
        raise DataError(f"{a} compared with itself; name two models")
    if suites is None:
        suites = () if pairs is not None else ("sts",)
    options |= {"pairs": pairs, "columns": columns}
    found = evaluate_suites([a, b], suites, data=data, beside_teacher=False, keep=True, **options)
    notes = dict.fromkeys(note for one in found for note in one.notes)
    rows: dict[str, list[Comparison]] = {}
    for one in found:
        (first, of_a), (second, of_b) = one.models
        if of_a.headline == AVERAGE:
            rows[one.suite] = stats.compare(of_a, of_b, draws, seed)
        else:
            notes[f"not compared, no items: {one.suite}"] = None
    if not rows:
        raise DataError(f"{', '.join(notes)}; name suites of sets, as sts or transfer")
    return ModelComparison(first.name, second.name, rows, draws, tuple(notes))


def comparison_tables(found: ModelComparison) -> list[Table]:
    """Return a table for each suite: both figures, difference, interval, p-value and the better model."""
    caption = (
        f"Difference: {found.a} - {found.b}, {found.draws:,} draws of the items. p: two-sided, of the sets "
        "corrected for their number (Holm)."
    )
    heads = ["set", "items", found.a, found.b, "difference", "95 % interval", "p", "better"]
    return [
        Table(f"{suite}, x100", heads, [_cells(row, found.better) for row in rows], caption)
        for suite, rows in found.suites.items()
    ]


def _cells(row: Comparison, better: Mapping[str, str]) -> list[str]:
    interval = NOTHING if row.interval is None else f"{row.interval[0]:+.2f}, {row.interval[1]:+.2f}"
    p = NOTHING if row.p_corrected is None else f"{row.p_corrected:.3f}"
    figures = [f"{row.a:.2f}", f"{row.b:.2f}", f"{row.difference:+.2f}"]
    return [row.label, f"{row.items:,}", *figures, interval, p, better.get(row.verdict, NOT_SHOWN)]
