"""Recipes: the settings of published experiments, by name, with what the papers say came out.

A file of ``distill/recipes`` holds the recipes of one paper; ``about`` and ``config`` at its top hold for all
of them, and what a recipe says of its own is laid over that.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from distill.config_sources import Settings, merged, read_yaml
from distill.errors import ConfigError
from distill.strict_config import StrictConfig

FOLDER = Path(__file__).with_name("recipes")

Kind = Literal["run", "finetune"]


class About(StrictConfig):
    """Where a recipe comes from, and what its authors measured."""

    paper: str = Field(description="the paper")
    table: str = Field(description="table and row")
    teacher: str | None = Field(default=None, description="the paper's teacher and how it is pooled")
    corpus: str | None = Field(default=None, description="the paper's training texts")
    build: str | None = Field(default=None, description="a command that makes such a cache")
    measure: str = Field(description="what the figures are")
    suite: str | None = Field(
        default=None, description="suite of 'distill suites' that measures this; none: no suite does"
    )
    relative: bool = Field(default=False, description="whether the figures are per cent of the teacher's")
    figures: dict[str, float] = Field(description="row of the paper's table -> figure for this student")
    notes: list[str] = Field(default=[], description="what the paper leaves open, and what was done about it")


class Recipe(StrictConfig):
    """A recipe.

    Attributes:
        name: ``PAPER/ROW``.
        kind: the command it is for: ``distill run`` or ``distill finetune``.
        about: where it comes from.
        config: a part of that command's configuration.
    """

    name: str
    kind: Kind = "run"
    about: About
    config: Settings

    def to_yaml(self) -> str:
        """Return the whole recipe as YAML; what stands under ``config`` is a configuration file."""
        return yaml.safe_dump(
            self.model_dump(mode="json", exclude_none=True),
            sort_keys=False,
            allow_unicode=True,
            width=110,
        )


def recipes() -> dict[str, Recipe]:
    """Return all recipes by name, paper after paper."""
    return {
        recipe.name: recipe for path in sorted(FOLDER.glob("*.yaml")) for recipe in _read(path.stem, path)
    }


def find_recipe(name: str, kind: Kind | None = None) -> Recipe:
    """Return the recipe called ``name``.

    Args:
        name: its name.
        kind: the command that it has to be for.

    Raises:
        ConfigError: if there is none, naming those that are called alike; or if it is for another command.
    """
    there = recipes()
    if name not in there:
        close = difflib.get_close_matches(name, there, n=3, cutoff=0.4)
        close += [one for one in there if one not in close and name in one][:3]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"no recipe {name!r}: {hint}'distill recipes' lists all {len(there)}")
    recipe = there[name]
    if kind is not None and recipe.kind != kind:
        raise ConfigError(
            f"recipe {name} is for 'distill {recipe.kind}', not for 'distill {kind}'; "
            f"'distill recipes' lists those that are"
        )
    return recipe


def _read(paper: str, path: Path) -> list[Recipe]:
    whole = read_yaml(path)
    return [_recipe(f"{paper}/{row}", whole, own) for row, own in whole["recipes"].items()]


def _recipe(name: str, whole: Settings, own: dict[str, Any]) -> Recipe:
    shared, about = whole.get("about", {}), own.get("about", {})
    notes = [*shared.get("notes", []), *about.get("notes", [])]
    return Recipe(
        name=name,
        kind=own.get("kind", "run"),
        about=About.model_validate({**merged(shared, about), "notes": notes}),
        config=merged(whole.get("config", {}), own["config"]),
    )
