"""The paper's figure for a student that was trained as one of its recipes says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from distill.config_sources import over_recipe
from distill.recipe import Recipe, recipes
from distill.report.data import Paper
from distill.report.folder import RunFolder, flat
from distill.students.spec import ALIASES as STUDENTS

TEACHER = "teacher"
"""What the figures of a recipe call the teacher's."""

_ALIASES = {spec.rpartition("/")[2].lower(): alias for alias, spec in STUDENTS.items()}


def find_paper(run: RunFolder, suites: Collection[str] = ()) -> Paper | None:
    """Return what a paper says of the run's student and loss; None where no recipe has both.

    That is the recipe which the run was started with. Where it names none, or was given another student or
    loss, it is a recipe of its student and loss: before others one whose figures are of ``suites``, which the
    run was evaluated on, and of those the one with the fewest other settings that differ. All that differ are
    told.
    """
    there = recipes()
    named = there.get(str(run.record.get("recipe")))
    if named is not None and (paper := _compare(run, named)) is not None:
        return paper
    kind = str(run.record.get("kind", "run"))
    found = [_compare(run, recipe) for recipe in there.values() if recipe.kind == kind]
    papers = [paper for paper in found if paper is not None]
    return min(papers, key=lambda one: (one.suite not in suites, len(one.differences)), default=None)


def _compare(run: RunFolder, recipe: Recipe) -> Paper | None:
    loss = str(run.record.get("loss"))
    student = short_name(str(run.record.get("student")))
    named = recipe.config.get("student", {}).get("spec")
    if named is None or short_name(str(named)) != student:
        return None
    figure = _figure(recipe, loss)
    if figure is None:
        return None
    own = recipe.config.get("loss", {}).get("name")
    expected = over_recipe(recipe.config, {"loss": {"name": loss}} if own else {})
    about = recipe.about
    return Paper(
        recipe=recipe.name,
        figure=figure,
        teacher=about.figures.get(TEACHER),
        measure=about.measure,
        suite=about.suite,
        relative=about.relative,
        source=f"{about.paper}, {about.table}",
        differences=tuple(_differences(expected, run.config)),
    )


def _figure(recipe: Recipe, loss: str) -> float | None:
    figures = {row: figure for row, figure in recipe.about.figures.items() if row != TEACHER}
    if loss in figures:
        return figures[loss]
    # The one row of a recipe's own loss has the paper's name for it.
    is_own = loss == recipe.config.get("loss", {}).get("name")
    return next(iter(figures.values())) if is_own and len(figures) == 1 else None


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    there = flat(found)
    return [
        (key, str(value), str(there.get(key)))
        for key, value in flat(expected).items()
        if key != "student.spec" and there.get(key) != value
    ]


def short_name(spec: str) -> str:
    """Return a student's short name, in small letters, whatever place or hub id it is called by."""
    last = spec.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return _ALIASES.get(last, last)
