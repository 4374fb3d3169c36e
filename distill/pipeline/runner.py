"""Running a pipeline: a step is skipped where nothing it depends on has changed and its outputs are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distill.errors import ConfigError
from distill.pipeline.digests import Facts, differences
from distill.pipeline.spec import STEPS, Pipeline
from distill.pipeline.step import Step, Watch
from distill.pipeline.steps import make_steps
from distill.training.folder import locked
from distill.training.processes import refuse_launcher
from embedcache.fsio import read_sealed_json, write_sealed_json

STATE = "pipeline.json"
"""What the steps depended on when they were done, and what they made; in the pipeline's folder."""

_VERSION = 1
_MOST_TOLD = 4
_NEW = "not done yet"


@dataclass(frozen=True)
class StepReport:
    """What became of a step.

    Attributes:
        name: the step.
        action: ``skip``, ``do`` (it is about to be done) or ``done``.
        reasons: why it is not skipped.
        seconds: how long it took, once it is done.
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
        more = len(self.reasons) - _MOST_TOLD
        told = "; ".join(self.reasons[:_MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")
        return f"{self.name}: {told}"


@dataclass
class _Kept:
    """What is known of a step.

    Attributes:
        facts: what it depended on.
        outputs: what it made; None before it is finished.
        mine: whether what lies in its place is the pipeline's own.
    """

    facts: Facts
    outputs: Facts | None
    mine: bool


@dataclass
class _State:
    """``pipeline.json``."""

    path: Path
    steps: dict[str, _Kept] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> _State:
        try:
            value: dict[str, Any] = read_sealed_json(path)
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path}, which says what is done already, is damaged ({error}): delete it, and give the "
                "pipeline another 'out'"
            ) from error
        if value.get("version") != _VERSION:
            raise ConfigError(f"{path} is of another version ({value.get('version')}): delete it")
        return cls(path, {name: _Kept(**one) for name, one in value["steps"].items()})

    def keep(self, name: str, kept: _Kept) -> None:
        self.steps[name] = kept
        steps = {step: asdict(one) for step, one in self.steps.items()}
        write_sealed_json(self.path, {"version": _VERSION, "steps": steps})


def run_pipeline(
    pipeline: Pipeline,
    *,
    start: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    watch: Watch | None = None,
    on_report: Callable[[StepReport], None] = lambda report: None,
) -> list[StepReport]:
    """Do the steps of a pipeline that have to be done.

    Args:
        pipeline: the pipeline.
        start: the step to start with: those before are left as they are, it and those after are done anew.
        force: do all of them anew.
        dry_run: do nothing, report what would be done.
        watch: whom to tell how far a step is.
        on_report: called with what becomes of every step.

    Returns:
        One report a step: ``skip`` or ``done``, or what a dry run would do.

    Raises:
        ConfigError: if ``start`` is no step, a step before it is not done, or another process is at it.
        DistillError, EmbedCacheError: of the step that fails; those before it are kept.
    """
    refuse_launcher("a pipeline")
    steps = make_steps(pipeline)
    if start is not None and start not in pipeline.steps:
        raise ConfigError(f"--from {start}: the pipeline has the steps {', '.join(pipeline.steps)}")
    if dry_run:
        return _dry_run(steps, _State.read(pipeline.out / STATE), start, force, on_report)
    reports = []
    with locked(pipeline.out):
        state = _State.read(pipeline.out / STATE)
        done: dict[str, Facts] = {}
        for step in steps:
            report, done[step.name] = _take(step, state, done, start, force, watch or Watch(), on_report)
            reports.append(report)
    return reports


def _take(
    step: Step,
    state: _State,
    done: dict[str, Facts],
    start: str | None,
    force: bool,
    watch: Watch,
    on_report: Callable[[StepReport], None],
) -> tuple[StepReport, Facts]:
    """Do one step, or skip it; return what became of it and its outputs."""
    kept = state.steps.get(step.name)
    facts = {} if _before(step, start) else step.facts(done)
    reasons = _reasons(step, kept, facts, start, force)
    if not reasons:
        report = StepReport(step.name, "skip")
        on_report(report)
        return report, (kept.outputs if kept else None) or {}
    on_report(StepReport(step.name, "do", ("starting",) if reasons == [_NEW] else tuple(reasons)))
    began = time.perf_counter()
    # What was begun with the same facts and not finished can be gone on with; what is forced is done anew.
    anew = force or start is not None
    unchanged = kept is not None and kept.facts == facts and kept.outputs is None and not anew
    # A step that is refused because of what others have there must not find it its own the next time.
    mine = kept.mine if kept is not None else step.vacant()
    state.keep(step.name, _Kept(facts, None, mine))
    outputs = step.do(watch, done, mine=mine, unchanged=unchanged)
    state.keep(step.name, _Kept(facts, outputs, mine=True))
    report = StepReport(step.name, "done", tuple(reasons), time.perf_counter() - began)
    on_report(report)
    return report, outputs


def _dry_run(
    steps: list[Step],
    state: _State,
    start: str | None,
    force: bool,
    on_report: Callable[[StepReport], None],
) -> list[StepReport]:
    reports: list[StepReport] = []
    done: dict[str, Facts] = {}
    waiting = ""
    for step in steps:
        kept = state.steps.get(step.name)
        if waiting:
            # What it reads may be another thing by then.
            reasons = [f"depends on what {waiting} makes"]
        else:
            facts = {} if _before(step, start) else step.facts(done)
            reasons = _reasons(step, kept, facts, start, force)
        waiting = waiting or (step.name if reasons else "")
        done[step.name] = (kept.outputs if kept else None) or {}
        reports.append(StepReport(step.name, "do" if reasons else "skip", tuple(reasons)))
        on_report(reports[-1])
    return reports


def _before(step: Step, start: str | None) -> bool:
    return start is not None and STEPS.index(step.name) < STEPS.index(start)


def _reasons(step: Step, kept: _Kept | None, facts: Facts, start: str | None, force: bool) -> list[str]:
    """Return why a step has to be done; nothing where it has not."""
    if _before(step, start):
        if kept is None or kept.outputs is None or differences(kept.outputs, step.outputs(kept.outputs)):
            raise ConfigError(
                f"--from {start}: the step {step.name} before it is not done, or what it made has changed; "
                f"start with --from {step.name}"
            )
        return []
    if kept is None:
        return [_NEW]
    if force or start is not None:
        return ["is to be done anew"]
    changed = differences(kept.facts, facts)
    if kept.outputs is None:
        return ["was not finished", *changed]
    return changed or differences(kept.outputs, step.outputs(kept.outputs))
