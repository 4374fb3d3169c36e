"""Pipelines as YAML, checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.config.base import Settings, StrictConfig, keys
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.recipes import find_recipe
from distill.config.sources import find_problems, over_recipe, suggest_key
from distill.config.tree import flat, merged, put, read_yaml
from distill.errors import ConfigError, DataError
from distill.pipeline.settings import BuildSettings, EvalSettings, ExportSettings
from distill.pipeline.steps import BuildStep, EvalStep, ExportStep, FinetuneStep, RunStep, Step, files_of
from embedcache.teacher.resolve import ALIASES

_KINDS: dict[str, tuple[type[StrictConfig], type[Step[Any]]]] = {
    "build": (BuildSettings, BuildStep),
    "run": (RunConfig, RunStep),
    "finetune": (FinetuneConfig, FinetuneStep),
    "eval": (EvalSettings, EvalStep),
    "export": (ExportSettings, ExportStep),
}
STEPS = tuple(_KINDS)
"""The steps in their order; each may be left out."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline whose settings have been checked.

    Attributes:
        out: folder of what its steps make, unless they name another.
        steps: the steps in their order.
    """

    out: Path
    steps: tuple[Step[Any], ...]


def read_pipeline(file: Path, start: str | None = None) -> Pipeline:
    """Read a pipeline; its paths are relative to the folder of the file.

    Args:
        file: the YAML file.
        start: step to start with: files of the steps before it may be missing.

    Raises:
        ConfigError: naming every problem with its key.
    """
    whole = read_yaml(file)
    base = file.expanduser().parent
    out = base / Path(str(whole.pop("out", None) or file.stem)).expanduser()
    problems = [
        ConfigError(f"unknown step{suggest_key(key, ['out', *STEPS])}", key)
        for key in whole
        if key not in STEPS
    ]
    if not set(whole) & set(STEPS):
        problems.append(ConfigError(f"no step; give at least one of {', '.join(STEPS)}"))
    steps: dict[Path, Step[Any]] = {}
    trained: list[str] = []
    cache = str(out / "cache") if "build" in whole else None
    for key, given in _entries(whole):
        name = key.partition(".")[0]
        if not isinstance(given, dict):
            problems.append(ConfigError(f"expected keys and values (found {given!r})", key))
            continue
        model, kind = _KINDS[name]
        settings = _placed(model, given, base, trained)
        recipe = settings.pop("recipe", None) if name in ("run", "finetune") else None
        try:
            if recipe is not None:
                settings = over_recipe(find_recipe(str(recipe), name).config, settings)  # type: ignore[arg-type]
        except ConfigError as error:
            problems.append(ConfigError(str(error), f"{key}.recipe"))
        settings = {**_defaults(name, out, cache, trained), **settings}
        if name == "build":
            cache = str(settings["cache"])
        elif name in ("run", "finetune"):
            trained.append(str(settings["out"]))
        found = find_problems(model, settings)
        if not found:
            config: Any = model.model_validate(settings)
            place = (
                out / config.file_name if name == "eval" else Path(settings.get("out") or settings["cache"])
            )
            found = _contradictions(config)
            if start is None or STEPS.index(name) >= STEPS.index(start):
                found += _missing(config, [out, *map(Path, trained)])
            if place in steps:
                found.append(ConfigError(f"two steps write {place.name}; give each another name", "name"))
            steps[place] = kind(key, config, place, recipe)
        for problem in found:
            problem.key = f"{key}.{problem.key}" if problem.key else key
        problems += found
    if problems:
        raise ConfigError.joined(problems)
    return Pipeline(out, tuple(steps.values()))


def _defaults(name: str, out: Path, cache: str | None, trained: Sequence[str]) -> Settings:
    """Return what a step takes from those before it: the cache, and the folders of students."""
    found: dict[str, Settings] = {
        "build": {"cache": cache},
        "run": {"out": str(out / "run"), "cache": cache},
        "finetune": {"out": str(out / "finetune"), "start": trained[-1] if trained else None},
        "eval": {"models": list(trained) or None},
        "export": {"out": str(out / "export"), "model": trained[-1] if trained else None},
    }
    return {key: value for key, value in found[name].items() if value is not None}


def _entries(whole: Settings) -> Iterator[tuple[str, object]]:
    """Yield the steps with their settings; each of several evaluations by itself."""
    for name in STEPS:
        if name == "eval" and isinstance(whole.get(name), list):
            yield from ((f"{name}.{number}", one) for number, one in enumerate(whole[name]))
        elif name in whole:
            yield name, whole[name]


def _placed(model: type[StrictConfig], settings: Settings, base: Path, trained: Sequence[str]) -> Settings:
    """Return settings with paths as they are from here.

    A model is a path where it begins with a dot or ``~``, is a folder, or is trained by a step before; else
    it is an alias or hub id.
    """

    def path(text: str) -> str:
        return text if text == "-" else str(base / Path(text).expanduser())

    def spec(text: str) -> str:
        named = path(text)
        is_path = text.startswith((".", "~")) or Path(named).is_dir() or named in trained
        return named if is_path and text not in ALIASES else text

    result = merged(settings, {})
    for key, value in list(flat(result)):
        known = next((one for one in keys(model) if key == one.path or key.startswith(f"{one.path}.")), None)
        change = {"FILE": path, "DIR": path, "SPEC": spec}.get(known.metavar or "") if known else None
        if change is not None and isinstance(value, str):
            put(result, key, change(value))
        elif change is not None and isinstance(value, list):
            put(result, key, [change(one) if isinstance(one, str) else one for one in value])
    return result


def _contradictions(config: StrictConfig) -> list[ConfigError]:
    """Return problems between settings that are each valid."""
    if isinstance(config, RunConfig):
        try:
            # The number of rows is not known yet, and does not decide which settings a loss takes.
            config.resolved(1_000_000)
        except ConfigError as error:
            return list(error.problems) or [error]
    if isinstance(config, EvalSettings):
        from distill.evaluation.task import get_suite

        try:
            for suite in config.suites or ():
                get_suite(suite)
        except DataError as error:
            return [ConfigError(str(error), "suite")]
        if config.suites == []:
            return [ConfigError("no suite is named; leave suite out for sts", "suite")]
    return []


def _missing(config: StrictConfig, made: Sequence[Path]) -> list[ConfigError]:
    """Return problems of files that are missing and will not be made by a step."""
    return [
        ConfigError(f"there is no {path}", key)
        for key, path in files_of(config).items()
        if key != "sources"
        and not Path(path).exists()
        and not any(folder in Path(path).parents for folder in made)
    ]
