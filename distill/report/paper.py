"""Figure of a paper for a student that was trained by one of its recipes, or nearly so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from distill.config.recipes import About, Recipe, recipes
from distill.config.sources import over_recipe
from distill.config.tree import flat
from distill.layout import CONFIG
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
        about: its source.
        figure: the paper's figure.
        differences: settings that differ: (key, the recipe's value, the run's value).
    """

    recipe: str
    about: About
    figure: float
    differences: tuple[tuple[str, str, str], ...]

    @property
    def teacher(self) -> float | None:
        """Figure of the paper's teacher; None where the paper has none."""
        return 100.0 if self.about.relative else self.about.figures.get(TEACHER)


def find_paper(record: RunRecord, run: Path, suites: Collection[str] = ()) -> Paper | None:
    """Return the paper's figure for a run's student and loss; None where no recipe has both.

    The recipe is the one the run was started with. Where that is of another student or loss, or there is
    none, it is the recipe with a figure of ``suites``, else any, that has the fewest differing settings.
    """
    try:
        config = dict(flat(yaml.safe_load((run / CONFIG).read_bytes())))
    except (OSError, yaml.YAMLError):
        config = {}
    found = [_compare(record, config, recipe) for recipe in recipes().values() if recipe.kind == record.kind]
    papers = [paper for paper in found if paper is not None]
    return min(
        papers,
        key=lambda one: (one.recipe != record.recipe, one.about.suite not in suites, len(one.differences)),
        default=None,
    )


def short_name(spec: str) -> str:
    """Return a student's alias, or the last part of its hub id or path, in small letters."""
    last = spec.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return _ALIASES.get(last, last)


def _compare(record: RunRecord, config: Mapping[str, object], recipe: Recipe) -> Paper | None:
    student, own = (recipe.config.get(group, {}) for group in ("student", "loss"))
    figures = {row: figure for row, figure in recipe.about.figures.items() if row != TEACHER}
    # A single row has the paper's name of the recipe's own loss.
    is_own = record.loss == own.get("name") and len(figures) == 1
    figure = next(iter(figures.values())) if is_own else figures.get(record.loss)
    if figure is None or short_name(str(student.get("spec", "none"))) != short_name(record.student):
        return None
    expected = over_recipe(recipe.config, {"loss": {"name": record.loss}} if own.get("name") else {})
    differences = tuple(
        (key, str(value), str(config.get(key)))
        for key, value in flat(expected)
        if key != "student.spec" and config.get(key) != value
    )
    return Paper(recipe.name, recipe.about, figure, differences)
