"""Configuration of a sweep: a YAML file, options, or both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator, model_validator

from distill.config.base import Seed, Settings, StrictConfig, keys, setting
from distill.config.models import RunConfig
from distill.config.recipes import find_recipe
from distill.config.sources import full_key, make_config, over_recipe
from distill.config.tree import as_number, flat, merged, put, read_yaml
from distill.errors import ConfigError

SEED = "seed"

Block = dict[str, Annotated[list[Any], Field(min_length=1)]]
"""Key -> values; a block's runs are all combinations of them."""


class Sweep(StrictConfig):
    """Settings that a sweep varies, and those that it holds fixed; also the form of its YAML file."""

    recipe: str | None = setting(None, "recipe below all other settings")
    base: Settings = setting({}, "configuration of all runs")
    vary: Annotated[list[Block], Field(min_length=1)] = setting(..., "block, or blocks, of key -> values")
    best_of: list[str] = setting([], "keys whose value with the best development score is chosen")
    more_seeds: list[Seed] = setting([], "extra seeds for the settings chosen by best_of")

    @field_validator("vary", mode="before")
    @classmethod
    def _one_block_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value

    @field_validator("vary")
    @classmethod
    def _dotted_keys(cls, blocks: list[Block]) -> list[Block]:
        return [{_dotted(key): values for key, values in block.items()} for block in blocks]

    @field_validator("best_of")
    @classmethod
    def _dotted_names(cls, names: list[str]) -> list[str]:
        return [_dotted(name) for name in names]

    @model_validator(mode="after")
    def _check(self) -> Sweep:
        for key, _ in flat(self.base):
            if any(key in block for block in self.vary):
                raise ConfigError("varied, and set for all runs too; leave one of them out", key)
        for key in self.best_of:
            if key not in self.keys:
                raise ConfigError(f"best_of names it, and only {', '.join(self.keys)} are varied", key)
        return self

    @property
    def keys(self) -> list[str]:
        """Varied keys in the order of their first mention, without the seed."""
        return [key for key in dict.fromkeys(itertools.chain(*self.vary)) if key != SEED]

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield dotted key -> value, once per run."""
        for block in self.vary:
            for values in itertools.product(*block.values()):
                yield dict(zip(block, values, strict=True))

    def settings(self, varied: Mapping[str, Any]) -> Settings:
        """Return the settings of one run."""
        values = merged(self.base, {})
        for key, value in varied.items():
            put(values, key, value)
        return values if self.recipe is None else over_recipe(find_recipe(self.recipe, "run").config, values)


def read_sweep(
    file: Path | None = None,
    vary: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    students: Sequence[str] = (),
    best_of: Sequence[str] = (),
    more_seeds: Sequence[int | str] = (),
) -> Sweep:
    """Return a sweep; arguments win over the file.

    Args:
        file: a YAML file of the keys of ``Sweep``.
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
    given = Sweep(vary=[{}]) if file is None else make_config(Sweep, read_yaml(file))
    base: Settings = {}
    for key, value in flat(given.base):
        if key not in flags:
            put(base, key, value)
    values = {
        "recipe": recipe or given.recipe,
        "base": merged(base, settings or {}),
        "vary": [{**block, **flags} for block in given.vary],
        "best_of": list(best_of) or given.best_of,
        "more_seeds": list(more_seeds) or given.more_seeds,
    }
    return make_config(Sweep, values)


def _parse_vary(text: str) -> tuple[str, list[Any]]:
    key, _, values = text.partition("=")
    try:
        found = [as_number(value) for value in yaml.safe_load(f"[{values}]")]
    except yaml.YAMLError:
        found = []
    if not key or not found:
        raise ConfigError(f"--vary {text!r}: expected KEY=VALUE,VALUE, as in --vary loss=l2,ckd")
    return _dotted(key), found


def _dotted(name: str) -> str:
    """Return the dotted key of a short or dotted one, which is not a place."""
    key = full_key(RunConfig, name)
    if any(one.path == key and one.affects == "place" for one in keys(RunConfig)):
        raise ConfigError("a place cannot be varied", key)
    return key
