"""Recipes: settings of published experiments, with the figures of their papers.

A file of ``distill/recipes`` holds the recipes of one paper. Its ``about`` and ``config`` hold for all of
them; those of a recipe are laid over them. Its ``rows`` are the rows of the paper's tables that have no
recipe of their own.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from distill.config.base import Settings, StrictConfig, setting
from distill.config.tree import merged, read_yaml
from distill.errors import ConfigError

FOLDER = Path(__file__).parent.with_name("recipes")

Kind = Literal["run", "finetune"]
EVERYWHERE = "runs here"
"""Status of a recipe that needs neither a hub nor a GPU."""

Status = Literal["runs here", "runs with a hub or GPU", "quoted", "not built"]


class About(StrictConfig):
    """Source of a recipe, and the figures its authors measured."""

    paper: str = setting(..., "the paper")
    table: str = setting(..., "table and row")
    teacher: str | None = setting(None, "the paper's teacher, and its pooling")
    corpus: str | None = setting(None, "the paper's training texts")
    build: str | None = setting(None, "command that makes such a cache")
    measure: str = setting(..., "unit of the figures")
    suite: str | None = setting(None, "suite that measures them; None: no suite does")
    relative: bool = setting(False, "whether the figures are per cent of the teacher's")
    figures: dict[str, float] = setting(..., "row of the paper's table -> figure of this student")
    notes: list[str] = setting([], "details that the paper leaves open")


class Recipe(StrictConfig):
    """A recipe.

    Attributes:
        name: ``PAPER/ROW``.
        kind: its command: ``distill run`` or ``distill finetune``.
        about: its source and figures.
        status: where the paper's figure can be aimed at.
        config: a part of that command's configuration.
    """

    name: str
    kind: Kind = "run"
    status: Status = "runs with a hub or GPU"
    about: About
    config: Settings


class PaperRow(StrictConfig):
    """A row of a paper's tables, and how its figure comes about.

    Attributes:
        paper: the paper's file of recipes.
        table: tables and row.
        status: where it runs, or that it does not.
        how: recipe with what is changed, command, or the reason why there is none.
    """

    paper: str
    table: str
    status: Status = "runs with a hub or GPU"
    how: str


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by name, paper after paper."""
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        paper = read_yaml(path)
        for row, own in paper["recipes"].items():
            recipe = _recipe(f"{path.stem}/{row}", paper, own)
            found[recipe.name] = recipe
    return found


@cache
def paper_rows() -> list[PaperRow]:
    """Return the rows of all tables of the papers, paper after paper, table after table."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        paper = read_yaml(path)
        names = [f"{path.stem}/{row}" for row in paper["recipes"]]
        # SimCSE's recipes are rows of the other papers.
        own = [recipes()[name] for name in names if "rows" in paper]
        rows = [
            PaperRow(paper=path.stem, table=one.about.table, status=one.status, how=one.name) for one in own
        ]
        rows += [PaperRow(paper=path.stem, **row) for row in paper.get("rows", [])]
        found += sorted(rows, key=_place)
    return found


def find_recipe(name: str, kind: Kind | None = None) -> Recipe:
    """Return the recipe called ``name``.

    Args:
        name: its name.
        kind: the command that it has to be for.

    Raises:
        ConfigError: if there is none, or it is for another command.
    """
    known = recipes()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        close += [one for one in known if one not in close and name in one][:3]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"no recipe {name!r}; {hint}'distill list recipes' lists all {len(known)}")
    recipe = known[name]
    if kind is not None and recipe.kind != kind:
        raise ConfigError(
            f"recipe {name} is for 'distill {recipe.kind}', not for 'distill {kind}'; "
            f"'distill list recipes' lists those that are"
        )
    return recipe


def _recipe(name: str, paper: Settings, own: dict[str, Any]) -> Recipe:
    shared, about = paper.get("about", {}), own.get("about", {})
    notes = [*shared.get("notes", []), *about.get("notes", [])]
    return Recipe(
        name=name,
        **{key: own[key] for key in ("kind", "status") if key in own},
        about=About.model_validate({**merged(shared, about), "notes": notes}),
        config=merged(paper.get("config", {}), own["config"]),
    )


def _place(row: PaperRow) -> tuple[bool, int]:
    """Tables before figures and sections, by their first number."""
    number = re.search(r"\d+", row.table)
    return not row.table.startswith("Table"), int(number[0]) if number else 0
