"""Running a pipeline.

A step is skipped where its settings and the content of its inputs have not changed and its outputs are there.
``pipeline.json`` in the pipeline's folder holds what each step depended on and what it made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.digests import ABSENT
from distill.errors import ConfigError
from distill.pipeline.read import Pipeline
from distill.pipeline.steps import Facts, Step, Watch
from distill.training.distributed import refuse_launcher
from distill.training.folder import locked
from embedcache.fsio import read_sealed_json, write_sealed_json

STATE = "pipeline.json"
_SHOWN = 4


@dataclass(frozen=True)
class StepReport:
    """Outcome of a step.

    Attributes:
        name: the step.
        action: ``skip``, ``do`` (about to be done) or ``done``.
        reasons: why it is not skipped.
        seconds: time it took.
    """

    name: str
    action: str
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.action == "skip":
            return f"{self.name}: skipped, nothing has changed"
        if self.action == "done":
            return f"{self.name}: done in {self.seconds:.0f} s"
        more = [f"and {len(self.reasons) - _SHOWN} more"] if len(self.reasons) > _SHOWN else []
        return f"{self.name}: {'; '.join([*self.reasons[:_SHOWN], *more])}"


@dataclass
class _Kept:
    """State of a step: its inputs, its outputs (None until it is finished), and whose its place is."""

    inputs: Facts
    outputs: Facts | None
    own: bool


def run_pipeline(
    pipeline: Pipeline,
    *,
    start: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    watch: Watch = Watch(),  # noqa: B008 - frozen
    on_report: Callable[[StepReport], None] = lambda report: None,
) -> list[StepReport]:
    """Do the steps of a pipeline that have to be done.

    Args:
        pipeline: the pipeline.
        start: step to start with: those before are left as they are, it and those after are done again.
        force: do all of them again.
        dry_run: report what would be done.
        watch: receivers of progress.
        on_report: called with the outcome of every step.

    Returns:
        One report a step: ``skip`` or ``done``; of a dry run ``skip`` or ``do``.

    Raises:
        ConfigError: if ``start`` is no step, a step before it is not done, or another process is at it.
        DistillError, EmbedCacheError: of the step that fails; those before it are kept.
    """
    refuse_launcher("a pipeline")
    names = [step.name.partition(".")[0] for step in pipeline.steps]
    if start is not None and start not in names:
        raise ConfigError(f"--from {start}: the pipeline has the steps {', '.join(dict.fromkeys(names))}")
    left = names.index(start) if start is not None else 0
    reports: list[StepReport] = []

    def report(*facts: Any) -> None:
        reports.append(StepReport(*facts))
        on_report(reports[-1])

    done: dict[str, Facts] = {}
    waiting: str | None = None
    with nullcontext() if dry_run else locked(pipeline.out):
        state = _read_state(pipeline.out / STATE)
        for number, step in enumerate(pipeline.steps):
            kept = state.get(step.name)
            inputs: Facts = {}
            if number < left:
                _require_done(step, kept, str(start))
                reasons = []
            elif waiting is not None:
                reasons = [f"depends on what {waiting} makes"]
            else:
                inputs = step.inputs(done)
                reasons = _reasons(step, kept, inputs, again=force or start is not None)
            done[step.name] = (kept.outputs if kept else None) or {}
            if not reasons:
                report(step.name, "skip")
            elif dry_run:
                waiting = waiting or step.name
                report(step.name, "do", tuple(reasons))
            else:
                on_report(StepReport(step.name, "do", tuple(reasons)))
                began = time.perf_counter()
                # A step that is refused because of what it found there does not own it the next time.
                own = kept.own if kept is not None else not step.place.exists()
                begun = kept is not None and kept.outputs is None and kept.inputs == inputs
                resume = own and begun and not force and start is None
                _write_state(pipeline.out / STATE, state, step.name, _Kept(inputs, None, own))
                done[step.name] = step.do(watch, done, own=own, resume=resume)
                _write_state(pipeline.out / STATE, state, step.name, _Kept(inputs, done[step.name], own=True))
                report(step.name, "done", tuple(reasons), time.perf_counter() - began)
    return reports


def _require_done(step: Step[Any], kept: _Kept | None, start: str) -> None:
    if kept is None or kept.outputs is None or step.outputs(kept.outputs) != kept.outputs:
        raise ConfigError(
            f"--from {start}: the step {step.name} before it is not done, or its outputs have changed; start "
            f"with --from {step.name.partition('.')[0]}"
        )


def _reasons(step: Step[Any], kept: _Kept | None, inputs: Facts, *, again: bool) -> list[str]:
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


def _write_state(path: Path, state: dict[str, _Kept], name: str, kept: _Kept) -> None:
    state[name] = kept
    write_sealed_json(path, {step: asdict(one) for step, one in state.items()})
