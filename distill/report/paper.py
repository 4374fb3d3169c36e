"""Figure of a paper for a student that was trained by one of its recipes, or nearly so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from distill.config.recipes import Recipe, recipes
from distill.config.sources import over_recipe
from distill.record import RunRecord
from distill.students.spec import ALIASES as STUDENTS

TEACHER = "teacher"
"""Name of the teacher's figure among those of a recipe."""

_ALIASES = {spec.rpartition("/")[2].lower(): alias for alias, spec in STUDENTS.items()}


@dataclass(frozen=True)
class Paper:
    """Figure of a paper for a student like this.

    Attributes:
        recipe: recipe with the same student and loss.
        figure: the paper's figure.
        teacher: figure of the paper's teacher; None where the paper has none.
        measure: name of the measure.
        suite: suite that measures the same; None where none does.
        relative: True where the figure is in per cent of the paper's teacher.
        source: paper, table and row.
        differences: settings that differ: (key, the recipe's value, the run's value).
    """

    recipe: str
    figure: float
    teacher: float | None
    measure: str
    suite: str | None
    relative: bool
    source: str
    differences: tuple[tuple[str, str, str], ...]


def find_paper(record: RunRecord, config: Mapping[str, Any], suites: Collection[str] = ()) -> Paper | None:
    """Return the paper's figure for a run's student and loss; None where no recipe has both.

    The recipe is the one the run was started with. Where that is of another student or loss, or there is
    none, it is the recipe with a figure of ``suites``, else any, that has the fewest differing settings.
    """
    there = recipes()
    named = there.get(str(record.recipe))
    if named is not None and (paper := _compare(record, config, named)) is not None:
        return paper
    found = [_compare(record, config, recipe) for recipe in there.values() if recipe.kind == record.kind]
    papers = [paper for paper in found if paper is not None]
    return min(papers, key=lambda one: (one.suite not in suites, len(one.differences)), default=None)


def short_name(spec: str) -> str:
    """Return a student's alias, or the last part of its hub id or path, in small letters."""
    last = spec.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return _ALIASES.get(last, last)


def _compare(record: RunRecord, config: Mapping[str, Any], recipe: Recipe) -> Paper | None:
    student, own = (recipe.config.get(group, {}) for group in ("student", "loss"))
    figure = _figure(recipe, record.loss, own.get("name"))
    if figure is None or short_name(str(student.get("spec", "none"))) != short_name(record.student):
        return None
    expected = flat(over_recipe(recipe.config, {"loss": {"name": record.loss}} if own.get("name") else {}))
    there, about = flat(config), recipe.about
    return Paper(
        recipe=recipe.name,
        figure=figure,
        teacher=100.0 if about.relative else about.figures.get(TEACHER),
        measure=about.measure,
        suite=about.suite,
        relative=about.relative,
        source=f"{about.paper}, {about.table}",
        differences=tuple(
            (key, str(value), str(there.get(key)))
            for key, value in expected.items()
            if key != "student.spec" and there.get(key) != value
        ),
    )


def _figure(recipe: Recipe, loss: str, own: str | None) -> float | None:
    figures = {row: figure for row, figure in recipe.about.figures.items() if row != TEACHER}
    # A single row has the paper's name of the recipe's own loss.
    return figures.get(loss, next(iter(figures.values())) if loss == own and len(figures) == 1 else None)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as dotted key -> value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
