"""Settings that a sweep varies and holds fixed: a YAML file, options, or both."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator

from distill.config.base import Seed, Settings, StrictConfig, keys, setting
from distill.config.models import RunConfig
from distill.config.recipes import Recipe, find_recipe
from distill.config.sources import full_key, make_config, over_recipe
from distill.config.tree import as_number, flat, merged, put, read_yaml
from distill.errors import ConfigError

SEED = "seed"

Block = dict[str, list[Any]]
"""Dotted key -> values; a block's runs are all combinations of them."""


class SweepFile(StrictConfig):
    """A sweep as YAML."""

    recipe: str | None = setting(None, "recipe below all other settings")
    base: Settings = setting({}, "configuration of all runs")
    vary: Annotated[list[Block], Field(min_length=1)] = setting(..., "block, or blocks, of key -> values")
    best_of: list[str] = setting([], "keys whose value with the best development score is chosen")
    more_seeds: list[Seed] = setting([], "seeds that only the chosen settings are run with as well")

    @field_validator("vary", mode="before")
    @classmethod
    def _one_block_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value


@dataclass(frozen=True)
class Sweep:
    """Settings that a sweep varies, and those that it holds fixed.

    Attributes:
        base: settings of all runs.
        blocks: dotted key -> values, once per block.
        recipe: recipe below them; None without one.
        best_of: keys whose value with the best development score is chosen.
        more_seeds: seeds that only the chosen settings are run with as well.
    """

    base: Settings
    blocks: tuple[Block, ...]
    recipe: Recipe | None = None
    best_of: tuple[str, ...] = ()
    more_seeds: tuple[int, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Varied keys in the order of their first mention; without the seed."""
        return [key for key in dict.fromkeys(itertools.chain(*self.blocks)) if key != SEED]

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield dotted key -> value, once per run."""
        for block in self.blocks:
            for values in itertools.product(*block.values()):
                yield dict(zip(block, values, strict=True))

    def settings(self, varied: Mapping[str, Any]) -> Settings:
        """Return the settings of one run."""
        values = merged(self.base, {})
        for key, value in varied.items():
            put(values, key, value)
        return values if self.recipe is None else over_recipe(self.recipe.config, values)


def read_sweep(
    file: Path | None = None,
    vary: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    students: Sequence[str] = (),
    best_of: Sequence[str] = (),
    more_seeds: Sequence[int] = (),
) -> Sweep:
    """Return a sweep; what is given here wins over the file.

    Args:
        file: a YAML file (:class:`SweepFile`).
        vary: ``KEY=VALUE,VALUE`` texts: one block, or with a file values for the key in every block.
        settings: settings of all runs.
        recipe: name of a recipe.
        students: students, as if varied.
        best_of: keys, short or dotted.
        more_seeds: seeds for the chosen settings.

    Raises:
        ConfigError: naming every problem.
    """
    flags = dict(map(_parse_vary, vary)) | ({"student.spec": list(students)} if students else {})
    if file is None and not flags:
        raise ConfigError("nothing is varied; give --vary KEY=VALUE,VALUE or a FILE")
    given = SweepFile(vary=[{}]) if file is None else make_config(SweepFile, read_yaml(file))
    blocks = tuple({**{_key(key): values for key, values in block.items()}, **flags} for block in given.vary)
    base: Settings = {}
    for key, value in flat(given.base):
        if key not in flags:
            put(base, key, value)
    name = recipe or given.recipe
    sweep = Sweep(
        merged(base, settings or {}),
        blocks,
        find_recipe(name, "run") if name else None,
        tuple(map(_key, best_of or given.best_of)),
        tuple(more_seeds or given.more_seeds),
    )
    _check(sweep)
    return sweep


def _parse_vary(text: str) -> tuple[str, list[Any]]:
    key, separator, values = text.partition("=")
    try:
        found = [as_number(value) for value in yaml.safe_load(f"[{values}]")]
    except yaml.YAMLError:
        found = []
    if not separator or not found:
        raise ConfigError(f"--vary {text!r}: expected KEY=VALUE,VALUE, as in --vary loss=l2,ckd")
    # Pieces of layers:0,2,5 and of compact:e=128,layers=3; no folder or hub id is called KEY=VALUE.
    pieces = [
        one for one in found if isinstance(one, (int, float)) or re.fullmatch(r"[\w-]+=[^/]*", str(one))
    ]
    if _key(key) == "student.spec" and pieces:
        raise ConfigError(
            f"--vary {text!r}: {pieces[0]!r} is no student; put a spec with commas in double quotes, as in "
            """--vary 'student="compact:e=128,layers=3",layers:3', or give each student by --student"""
        )
    return _key(key), found


def _key(name: str) -> str:
    """Return the dotted key of a short or dotted one, which is not a place."""
    key = full_key(RunConfig, name)
    if any(one.path == key and one.affects == "place" for one in keys(RunConfig)):
        raise ConfigError("a place cannot be varied", key)
    return key


def _check(sweep: Sweep) -> None:
    fixed = {key for key, value in flat(sweep.base) if value is not None}
    varied = sweep.keys
    problems = [
        *(
            ConfigError("varied without values", key)
            for block in sweep.blocks
            for key in block
            if not block[key]
        ),
        *(
            ConfigError("varied, and set for all runs too", key)
            for key in dict.fromkeys(itertools.chain(*sweep.blocks))
            if key in fixed
        ),
        *(
            ConfigError(f"best_of names it, and it is not varied ({', '.join(varied)} are)", key)
            for key in sweep.best_of
            if key not in varied
        ),
    ]
    if sweep.more_seeds and not sweep.best_of:
        problems.append(
            ConfigError("more_seeds are for the settings that best_of chooses; give --best-of KEY")
        )
    if problems:
        raise ConfigError.joined(problems)
