"""What a sweep varies and what it holds fixed: from a YAML file, from flags, or from both."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, field_validator

from distill.config.base import Seed, Settings, StrictConfig
from distill.config.models import RunConfig
from distill.config.recipes import find_recipe
from distill.config.sources import (
    LOSS_SETTINGS,
    describe_keys,
    make_config,
    over_recipe,
    short_names,
    suggest_key,
)
from distill.config.tree import as_number, merged, put, read_yaml
from distill.errors import ConfigError

SEED = "seed"
"""The key that repeats a setting and makes no other one."""

# What names a run's place, not what it does.
_NOT_VARIED = ("cache", "out", "overwrite")

Block = dict[str, list[Any]]
"""Dotted key -> values; a block's runs are all combinations of them."""


class SweepFile(StrictConfig):
    """A sweep as a YAML file has it."""

    recipe: str | None = Field(default=None, description="recipe whose settings all others win over")
    base: Settings = Field(default={}, description="a part of a run's configuration, the same for all runs")
    vary: Annotated[list[Block], Field(min_length=1)] = Field(
        description="blocks of dotted key -> values; a block's runs are all combinations of its values"
    )
    best_of: list[str] = Field(
        default=[], description="keys of which the value with the best development score is chosen"
    )
    more_seeds: list[Seed] = Field(
        default=[], description="seeds that only the settings chosen by best_of are run with as well"
    )

    @field_validator("vary", mode="before")
    @classmethod
    def _one_block_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep varies and what it holds fixed.

    Attributes:
        base: settings that all runs share, laid over the recipe's.
        blocks: dotted key -> values, once per block.
        recipe: the settings of a recipe; None without one.
        best_of: keys of which the value with the best development score is chosen.
        more_seeds: seeds that only the settings so chosen are run with as well.
        recipe_name: the recipe's name, which the runs write down.
    """

    base: Settings
    blocks: tuple[Block, ...]
    recipe: Settings | None = None
    best_of: tuple[str, ...] = ()
    more_seeds: tuple[int, ...] = field(default=())
    recipe_name: str | None = None

    @property
    def keys(self) -> list[str]:
        """The keys that are varied, in the order in which they are named first, the seed last."""
        named = dict.fromkeys(key for block in self.blocks for key in block)
        return [key for key in named if key != SEED] + [SEED] * (SEED in named or bool(self.more_seeds))

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield dotted key -> value, once per run, block after block."""
        for block in self.blocks:
            for values in itertools.product(*block.values()):
                yield dict(zip(block, values, strict=True))

    def settings(self, varied: Mapping[str, Any]) -> Settings:
        """Return the settings of the run with the varied ones put in."""
        values = merged(self.base, {})
        for key, value in varied.items():
            put(values, key, value)
        return values if self.recipe is None else over_recipe(self.recipe, values)


def make_spec(
    file: Path | None = None,
    vary: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    recipe: str | None = None,
    students: Sequence[str] = (),
    best_of: Sequence[str] = (),
    more_seeds: Sequence[int] = (),
) -> SweepSpec:
    """Put a sweep together; what is given here wins over what is in the file.

    Args:
        file: a YAML file (:class:`SweepFile`).
        vary: ``KEY=VALUE,VALUE`` texts. Without a file they make one block; with one, each takes the place of
            its key in every block.
        settings: settings that all runs share.
        recipe: name of a recipe.
        students: students to train, as if varied.
        best_of: keys; short names (``tau``) will do.
        more_seeds: seeds for the chosen settings.

    Raises:
        ConfigError: naming everything that cannot be used.
    """
    flags = dict(map(_parse_vary, vary)) | ({"student.spec": list(students)} if students else {})
    if file is not None:
        given = make_config(SweepFile, read_yaml(file))
    elif flags:
        given = SweepFile(vary=[{}])
    else:
        raise ConfigError("nothing is varied: give --vary KEY=VALUE,VALUE or a FILE")
    blocks = tuple(
        {**{_whole(key): values for key, values in block.items()}, **flags} for block in given.vary
    )
    name = recipe or given.recipe
    spec = SweepSpec(
        merged(_without(given.base, flags), settings or {}),
        blocks,
        find_recipe(name, "run").config if name else None,
        tuple(_whole(key) for key in (best_of or given.best_of)),
        tuple(more_seeds or given.more_seeds),
        name,
    )
    _check(spec)
    return spec


def with_seeds(spec: SweepSpec, chosen: Sequence[Mapping[str, Any]]) -> SweepSpec:
    """Return the sweep over the ``more_seeds`` of the chosen settings, each given as dotted key -> value."""
    seeds = list(spec.more_seeds)
    blocks = tuple(
        {**{key: [value] for key, value in one.items() if key != SEED}, SEED: seeds} for one in chosen
    )
    return replace(spec, blocks=blocks)


def _parse_vary(text: str) -> tuple[str, list[Any]]:
    key, separator, values = text.partition("=")
    if not separator or not key or not values:
        raise ConfigError(
            f"--vary {text!r}: expected the form KEY=VALUE,VALUE, as in --vary loss.name=l2,ckd or "
            "--vary seed=0,1,2"
        )
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError as error:
        raise ConfigError(f"--vary {text!r}: {values!r} is no list of YAML values") from error
    whole, wanted = _whole(key), list(map(as_number, found))
    if whole == "student.spec" and (pieces := [value for value in wanted if _is_piece(value)]):
        raise ConfigError(
            f"--vary {text!r}: the commas make {pieces[0]!r} a student by itself; put a spec with commas in "
            """double quotes, as in --vary 'student.spec="compact:e=128,layers=3",layers:3', or give each """
            "student by --student"
        )
    return whole, wanted


def _is_piece(value: object) -> bool:
    """Return whether a value looks like what stands behind a comma in a student's spec."""
    # Whole numbers are of layers:0,2,5; no folder or hub id is called KEY=VALUE.
    return isinstance(value, (int, float)) or bool(re.fullmatch(r"[\w-]+=[^/]*", str(value)))


def _whole(key: str) -> str:
    """Return the dotted key that a short one stands for."""
    return short_names(RunConfig).get(key, key)


def _without(values: Settings, paths: Iterable[str]) -> Settings:
    """Return ``values`` without what the dotted ``paths`` lead to."""
    result = merged(values, {})
    for path in paths:
        *parents, last = path.split(".")
        inner: Any = result
        for parent in parents:
            inner = inner.get(parent) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return result


def _check(spec: SweepSpec) -> None:
    known = [key for key, _ in describe_keys(RunConfig) if key != LOSS_SETTINGS]
    # What may be typed after --vary, but for places.
    words = [name for name in (*short_names(RunConfig), *known) if name not in _NOT_VARIED]
    problems = []
    for number, block in enumerate(spec.blocks):
        where = f"vary.{number}." if len(spec.blocks) > 1 else "vary."
        for key, values in block.items():
            if key in _NOT_VARIED:
                problems.append(f"{where}{key}: names a place and cannot be varied")
            elif key not in known and not key.startswith("loss."):
                problems.append(f"{where}{key}: unknown key{suggest_key(key, words)}")
            elif not values:
                problems.append(f"{where}{key}: no values; give at least one")
            elif _is_set(spec.base, key):
                problems.append(f"{where}{key}: is varied, and set for all runs too; leave one of them out")
    problems += [
        f"best_of: {key} is not varied; it can be one of {', '.join(k for k in spec.keys if k != SEED)}"
        for key in spec.best_of
        if key not in spec.keys or key == SEED
    ]
    if spec.more_seeds and not spec.best_of:
        problems.append("more_seeds: are run with what best_of has chosen; give --best-of KEY too")
    if problems:
        raise ConfigError(f"the sweep cannot be run: {'; '.join(problems)}")


def _is_set(values: Mapping[str, Any], path: str) -> bool:
    inner: Any = values
    for part in path.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return inner is not None
