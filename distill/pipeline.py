"""Pipelines: build, run, finetune, eval and export as the steps of one YAML file.

A file is checked whole before anything runs. A step is skipped where its settings and the content of its
inputs have not changed and its outputs are there; ``pipeline.json`` in its folder holds both. Paths are
relative to the folder of the file, which is the working directory while a pipeline is read and run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.config.base import Settings, StrictConfig
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.recipes import find_recipe
from distill.config.sources import make_config, over_recipe, suggest_key
from distill.config.tree import read_yaml
from distill.digests import ABSENT
from distill.errors import ConfigError
from distill.steps import (
    BuildSettings,
    BuildStep,
    EvalSettings,
    EvalStep,
    ExportSettings,
    ExportStep,
    Facts,
    Step,
    TrainStep,
    Watch,
)
from distill.training.distributed import refuse_launcher
from distill.training.folder import locked
from embedcache.fsio import read_sealed_json, write_sealed_json

STATE = "pipeline.json"
_SHOWN = 4

_KINDS: dict[str, tuple[type[StrictConfig], type[Step]]] = {
    "build": (BuildSettings, BuildStep),
    "run": (RunConfig, TrainStep),
    "finetune": (FinetuneConfig, TrainStep),
    "eval": (EvalSettings, EvalStep),
    "export": (ExportSettings, ExportStep),
}
STEPS = tuple(_KINDS)
"""The steps in their order; each may be left out."""


def read_pipeline(file: Path, start: str | None = None) -> tuple[Path, list[Step]]:
    """Return the folder of what the steps of a pipeline make, and the steps in their order, checked.

    Args:
        file: the YAML file; what is returned is relative to its folder.
        start: step to start with: files of the steps before it may be missing.

    Raises:
        ConfigError: naming every problem with its key.
    """
    whole = read_yaml(file)
    with _inside(file.parent):
        return _read(whole, file.stem, start)


def _read(whole: Settings, name: str, start: str | None) -> tuple[Path, list[Step]]:
    out = Path(str(whole.pop("out", None) or name))
    unknown = [name for name in whole if name not in STEPS]
    problems = [ConfigError(f"unknown step{suggest_key(name, ['out', *STEPS])}", name) for name in unknown]
    if not set(whole) & set(STEPS):
        problems.append(ConfigError(f"no step; give at least one of {', '.join(STEPS)}"))
    if start is not None and start not in whole:
        problems.append(ConfigError(f"--from {start}: the pipeline has the steps {', '.join(whole)}"))
    steps: dict[Path, Step] = {}
    students: list[str] = []
    cache = str(out / "cache") if "build" in whole else None
    for name, given in _entries(whole):
        kind, last = name.partition(".")[0], students[-1] if students else None
        defaults: dict[str, Settings] = {
            "build": {"cache": cache},
            "run": {"out": str(out / "run"), "cache": cache},
            "finetune": {"out": str(out / "finetune"), "start": last},
            "eval": {"models": list(students)},
            "export": {"out": str(out / "export"), "model": last},
        }
        try:
            if not isinstance(given, dict):
                raise ConfigError(f"expected keys and values (found {given!r})")
            settings = {**{key: value for key, value in defaults[kind].items() if value}, **given}
            if kind == "build":
                cache = settings["cache"]
            elif kind in ("run", "finetune"):
                students.append(str(settings["out"]))
            step = _step(name, settings, out)
            if step.place in steps:
                raise ConfigError(f"two steps write {step.place.name}; give each another name", "name")
            steps[step.place] = step
            if start not in STEPS[STEPS.index(kind) + 1 :]:
                _require_files(step, [out, *map(Path, students)])
        except ConfigError as error:
            for problem in error.problems or [error]:
                problem.key = f"{name}.{problem.key}" if problem.key else name
                problems.append(problem)
    if problems:
        raise ConfigError.joined(problems)
    return out, list(steps.values())


def _entries(whole: Settings) -> Iterator[tuple[str, object]]:
    """Yield the steps with their settings; each of several evaluations by itself."""
    for name in STEPS:
        if name == "eval" and isinstance(whole.get(name), list):
            yield from ((f"{name}.{number}", one) for number, one in enumerate(whole[name]))
        elif name in whole:
            yield name, whole[name]


def _step(name: str, settings: Settings, out: Path) -> Step:
    kind = name.partition(".")[0]
    model, step = _KINDS[kind]
    recipe = settings.pop("recipe", None) if kind in ("run", "finetune") else None
    if recipe is not None:
        settings = over_recipe(find_recipe(recipe, kind).config, settings)  # type: ignore[arg-type]
    config: Any = make_config(model, settings)
    if isinstance(config, RunConfig):
        # The number of rows is not known yet, and does not decide which settings a loss takes.
        config.resolved(1_000_000)
    if isinstance(config, EvalSettings):
        return step(name, config, out / f"eval-{config.name or '-'.join(config.suite)}.json")
    return step(name, config, Path(config.cache if kind == "build" else config.out), recipe)


def _require_files(step: Step, made: Sequence[Path]) -> None:
    """Raise ``ConfigError`` for files that are missing and lie in no folder that a step makes."""
    missing = [
        ConfigError(f"there is no {name}", key)
        for key, kind, name in step.reads()
        if kind == "FILE"
        and not Path(name).exists()
        and not any(folder in Path(name).parents for folder in made)
    ]
    if missing:
        raise ConfigError.joined(missing)


@dataclass
class _Kept:
    """State of a step: its inputs, its outputs (None until it is finished), and whether its place is ours."""

    inputs: Facts
    outputs: Facts | None
    own: bool


def run_pipeline(
    file: Path,
    *,
    start: str | None = None,
    again: bool = False,
    dry_run: bool = False,
    watch: Watch = Watch(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Do the steps of a pipeline that have to be done.

    Args:
        file: the YAML file.
        start: step to start with: those before are left as they are, it and those after are done again.
        again: do all of them again.
        dry_run: only say what would be done.
        watch: receivers of progress.
        say: called with a line on every step: why it is done, how long it took, or that it is skipped.

    Returns:
        step -> ``skip`` or ``done``; of a dry run ``skip`` or ``do``.

    Raises:
        ConfigError: as ``read_pipeline``; if a step before ``start`` is not done, or another process is
            at the pipeline.
        DistillError, EmbedCacheError: of the step that fails; those before it are kept.
    """
    refuse_launcher("a pipeline")
    actions: dict[str, str] = {}
    done: dict[str, Facts] = {}
    out, steps = read_pipeline(file, start)
    with _inside(file.parent), nullcontext() if dry_run else locked(out):
        state = _read_state(out / STATE)
        for step in steps:
            kept, inputs = state.get(step.name), Facts()
            if "do" in actions.values():
                reasons = ["depends on the steps before it"]
            elif start in STEPS[STEPS.index(step.name.partition(".")[0]) + 1 :]:
                _require_done(step, kept, str(start))
                reasons = []
            else:
                step = step.settled(done)
                inputs = step.inputs()
                reasons = _reasons(step, kept, inputs, again=again or start is not None)
            more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
            say(f"{step.name}: {'; '.join([*reasons[:_SHOWN], *more]) or 'skipped, nothing has changed'}")
            done[step.name] = (kept.outputs if kept else None) or {}
            actions[step.name] = "do" if reasons else "skip"
            if reasons and not dry_run:
                began = time.perf_counter()
                # A step that is refused because of existing files does not own them the next time.
                own = kept.own if kept is not None else not step.place.exists()
                _write_state(out / STATE, state, step.name, _Kept(inputs, None, own))
                done[step.name] = step.do(watch, own=own)
                _write_state(out / STATE, state, step.name, _Kept(inputs, done[step.name], own=True))
                say(f"{step.name}: done in {time.perf_counter() - began:.0f} s")
                actions[step.name] = "done"
    if not dry_run:
        say(f"everything is in {file.parent / out}")
    return actions


def _require_done(step: Step, kept: _Kept | None, start: str) -> None:
    if kept is None or kept.outputs is None or step.outputs(kept.outputs) != kept.outputs:
        raise ConfigError(
            f"--from {start}: the step {step.name} before it is not done, or its outputs have changed; start "
            f"with --from {step.name.partition('.')[0]}"
        )


def _write_state(path: Path, state: dict[str, _Kept], name: str, kept: _Kept) -> None:
    state[name] = kept
    write_sealed_json(path, {step: asdict(one) for step, one in state.items()})


def _reasons(step: Step, kept: _Kept | None, inputs: Facts, *, again: bool) -> list[str]:
    """Return why a step has to be done; nothing where it can be skipped."""
    if kept is None:
        return ["not done yet"]
    if again:
        return ["to be done again"]
    if kept.outputs is None:
        return ["not finished", *_differences(kept.inputs, inputs)]
    return _differences(kept.inputs, inputs) or _differences(kept.outputs, step.outputs(kept.outputs))


def _differences(before: Facts, now: Facts) -> list[str]:
    """Return a phrase for each difference."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        was, is_now = before.get(name, ABSENT), now.get(name, ABSENT)
        if was != is_now:
            is_digest = name.startswith("content of ") and ABSENT not in (was, is_now)
            found.append(f"{name} has changed" if is_digest else f"{name}: {was} -> {is_now}")
    return found


def _read_state(path: Path) -> dict[str, _Kept]:
    try:
        return {name: _Kept(**kept) for name, kept in read_sealed_json(path).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}): delete it, and give the pipeline another 'out'"
        ) from error


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Make ``folder`` the working directory inside the block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
