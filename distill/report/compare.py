"""Two models compared on the same items, and the tables that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.errors import DataError
from distill.evaluation import stats
from distill.evaluation.models import Spec
from distill.evaluation.result import AVERAGE
from distill.evaluation.runner import evaluate_suites
from distill.evaluation.stats import Comparison
from distill.report.tables import NOTHING, Table


@dataclass(frozen=True)
class ModelComparison:
    """Two models on one or several suites.

    Attributes:
        a, b: their names.
        suites: suite -> a row for each set, and for the average where there are several.
        draws: draws that intervals and p-values rest on.
        notes: what a reader must know.
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
        return {"a": self.a, "b": self.b, "draws": self.draws, "suites": rows, "notes": list(self.notes)}


def compare(
    a: Spec,
    b: Spec,
    suites: Sequence[str] | None = ("sts",),
    *,
    data: str | Path | None = None,
    draws: int = stats.DRAWS_OF_COMPARISON,
    seed: int = 0,
    **options: Any,
) -> ModelComparison:
    """Compare two models item by item.

    Args:
        a, b: the models, as :func:`distill.evaluation.runner.evaluate_suites` takes them.
        suites: suites of sets; None: every one that finds its files.
        data: folder of test files.
        draws: draws of the bootstrap.
        seed: choice of the draws.
        options: further options of an evaluation. Evaluations that are kept are used.

    Raises:
        DataError: if both are the same model, or a suite that is named has no items to compare.
        DistillError, EmbedCacheError: as :func:`distill.evaluation.runner.evaluate_suites`.
    """
    if a == b or (isinstance(a, str | Path) and isinstance(b, str | Path) and Path(a) == Path(b)):
        raise DataError(f"{a} compared with itself; name two models")
    found = evaluate_suites([a, b], suites, data=data, beside_teacher=False, keep=True, **options)
    notes = list(dict.fromkeys(note for one in found for note in one.notes))
    averaged = [one for one in found if one.models[0][1].headline == AVERAGE]
    if without := [one.suite for one in found if one not in averaged]:
        if suites is not None or not averaged:
            raise DataError(
                f"{', '.join(without)}: no items to compare on; name suites of sets, as sts or transfer"
            )
        notes.append(f"not compared, no items: {', '.join(without)}")
    rows = {one.suite: stats.compare(one.models[0][1], one.models[1][1], draws, seed) for one in averaged}
    (first, _), (second, _) = found[0].models
    return ModelComparison(first.name, second.name, rows, draws, tuple(notes))


def comparison_tables(found: ModelComparison) -> list[Table]:
    """Return a table for each suite: both figures, difference, interval, p-value and the better model."""
    heads = ["set", "items", found.a, found.b, "difference", "95 % interval", "p", "better"]
    caption = (
        f"Difference: {found.a} - {found.b}, {found.draws:,} draws of the items. p: two-sided, of the sets "
        "corrected for their number (Holm)."
    )
    return [
        Table(f"{suite}, x100", heads, [_cells(found, row) for row in rows], caption)
        for suite, rows in found.suites.items()
    ]


def _cells(found: ModelComparison, row: Comparison) -> list[str]:
    interval = NOTHING if row.interval is None else f"{row.interval[0]:+.2f}, {row.interval[1]:+.2f}"
    p = NOTHING if row.p_corrected is None else f"{row.p_corrected:.3f}"
    better = {"A is better": found.a, "B is better": found.b}.get(row.verdict, "not shown")
    figures = [f"{row.a:.2f}", f"{row.b:.2f}", f"{row.difference:+.2f}"]
    return [row.label, f"{row.items:,}", *figures, interval, p, better]
