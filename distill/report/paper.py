"""Published figure of the recipe that a student was trained by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from distill.config.recipes import About, recipes
from distill.config.sources import over_recipe
from distill.config.tree import flat
from distill.layout import CONFIG
from distill.record import RunRecord

TEACHER = "teacher"
"""Name of the teacher's figure among those of a recipe."""


@dataclass(frozen=True)
class Paper:
    """Figure of a paper for a student like this.

    Attributes:
        recipe: recipe of the run.
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


def find_paper(record: RunRecord, run: Path) -> Paper | None:
    """Return the figure of the recipe that a run was started with; None for another student or loss."""
    recipe = recipes().get(record.recipe or "")
    if recipe is None or recipe.config.get("student", {}).get("spec") != record.student:
        return None
    own = recipe.config.get("loss", {})
    figures = {row: figure for row, figure in recipe.about.figures.items() if row != TEACHER}
    # A single row has the paper's name of the recipe's own loss.
    is_own = record.loss == own.get("name") and len(figures) == 1
    figure = next(iter(figures.values())) if is_own else figures.get(record.loss)
    if figure is None:
        return None
    try:
        config = dict(flat(yaml.safe_load((run / CONFIG).read_bytes())))
    except (OSError, yaml.YAMLError):
        config = {}
    expected = over_recipe(recipe.config, {"loss": {"name": record.loss}} if own.get("name") else {})
    differences = tuple(
        (key, str(value), str(config.get(key))) for key, value in flat(expected) if config.get(key) != value
    )
    return Paper(recipe.name, recipe.about, figure, differences)
