"""The tables of a sweep: one row a run, one row a setting with mean and standard deviation over its seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.evaluation.kept import AVERAGE
from distill.evaluation.spread import Score
from distill.sweep.measured import Measured, Speed
from distill.sweep.plan import spelled
from distill.sweep.spec import SEED, SweepSpec
from embedcache.fsio import write_bytes

if TYPE_CHECKING:
    from distill.sweep.runner import Outcome

LEADERBOARD = "leaderboard.csv"
RUNS_TABLE = "runs.csv"


@dataclass(frozen=True)
class Row:
    """A setting of a sweep.

    Attributes:
        varied: dotted key -> value, without the seed.
        planned: runs of it.
        finished: those that are finished.
        dev: development score times 100, by which rows are ordered.
        suite: the suite's figure.
        retention: that in per cent of the teacher's.
        parameters: number of parameters of the student; None where not known.
        megabytes: size of its saved weights in units of 10^6 bytes; None where not known.
        speed: how fast it is; None where it was not timed.
        chosen: whether ``best_of`` has chosen it; True without one.
    """

    varied: Mapping[str, Any]
    planned: int
    finished: int
    dev: Score | None
    suite: Score | None
    retention: Score | None
    parameters: int | None
    megabytes: float | None
    speed: Speed | None
    chosen: bool


def leaderboard(
    outcomes: Sequence[Outcome], spec: SweepSpec, choose_from: Sequence[Outcome] | None = None
) -> list[Row]:
    """Return one row a setting, the best by the mean development score first.

    Args:
        outcomes: the runs.
        spec: the sweep.
        choose_from: the runs that ``best_of`` chooses by; default: all.
    """
    chosen = _choose(choose_from or outcomes, spec.best_of)
    rows = []
    for setting, group in _by_setting(outcomes).items():
        varied = {key: value for key, value in group[0].run.varied.items() if key != SEED}
        known = [outcome.measured for outcome in group if outcome.measured is not None]
        rows.append(
            Row(
                varied,
                len(group),
                sum(outcome.result is not None for outcome in group),
                Score.of([outcome.dev for outcome in group]),
                Score.of([(outcome.scores or {}).get(AVERAGE) for outcome in group]),
                Score.of([one.retention for one in known]),
                # These do not depend on the seed.
                next((one.parameters for one in known if one.parameters), None),
                next((one.megabytes for one in known if one.megabytes), None),
                next((one.speed for one in known if one.speed), None),
                not spec.best_of or setting in chosen,
            )
        )
    return sorted(rows, key=lambda row: (row.dev is None, -(row.dev.mean if row.dev else 0.0)))


def chosen_settings(outcomes: Sequence[Outcome], spec: SweepSpec) -> list[dict[str, Any]]:
    """Return the settings that ``best_of`` chooses: dotted key -> value, as their blocks gave them."""
    groups = _by_setting(outcomes)
    return [dict(groups[setting][0].run.given) for setting in _choose(outcomes, spec.best_of)]


def write_tables(
    out: Path, outcomes: Sequence[Outcome], spec: SweepSpec, choose_from: Sequence[Outcome] | None = None
) -> None:
    """Write ``leaderboard.csv`` and ``runs.csv`` into the sweep's folder."""
    rows = leaderboard(outcomes, spec, choose_from)
    keys = [key for key in spec.keys if key != SEED]
    lines = [
        {
            **{key: _cell(row.varied[key]) for key in keys},
            "runs": row.finished,
            "planned": row.planned,
            **_score_cells("dev", row.dev),
            **_score_cells("suite", row.suite),
            **_score_cells("retention", row.retention),
            **_size_cells(row),
            **({"chosen": row.chosen} if spec.best_of else {}),
        }
        for row in rows
    ]
    _write(out / LEADERBOARD, lines)
    sets = dict.fromkeys(name for outcome in outcomes for name in outcome.scores or {} if name != AVERAGE)
    _write(out / RUNS_TABLE, [_run_line(outcome, spec.keys, list(sets)) for outcome in outcomes])


def _run_line(outcome: Outcome, keys: Sequence[str], sets: Sequence[str]) -> dict[str, object]:
    result, scores, measured = outcome.result or {}, outcome.scores or {}, outcome.measured
    facts = ("steps", "best_step", "final_loss", "seconds", "stopped_early")
    return {
        "run": outcome.run.name,
        "status": outcome.status,
        **{key: _cell(outcome.run.varied[key]) for key in keys},
        "dev": _number(outcome.dev),
        "suite": _number(scores.get(AVERAGE)),
        **{name: _number(scores.get(name)) for name in sets},
        "retention": _number(measured.retention if measured else None),
        **_size_cells(measured),
        **{name: result.get(name, "") for name in facts},
        "error": outcome.error or "",
    }


def _score_cells(name: str, score: Score | None) -> dict[str, object]:
    return {
        f"{name}_mean": _number(score.mean if score else None),
        f"{name}_std": _number(score.std if score else None),
    }


def _size_cells(known: Row | Measured | None) -> dict[str, object]:
    parameters, megabytes, speed = (
        (None, None, None) if known is None else (known.parameters, known.megabytes, known.speed)
    )
    return {
        "parameters": "" if parameters is None else parameters,
        "megabytes": "" if megabytes is None else megabytes,
        "sentences_per_second_1": "" if speed is None else speed.single,
        "sentences_per_second_32": "" if speed is None else speed.batch,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _cell(value: object) -> str:
    return "" if value is None else spelled(value)


def _write(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_bytes(path, text.getvalue().encode())


def _by_setting(outcomes: Sequence[Outcome]) -> dict[tuple[Any, ...], list[Outcome]]:
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.run.setting, []).append(outcome)
    return groups


def _choose(outcomes: Sequence[Outcome], best_of: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return, per setting of the other keys, the setting with the best mean development score."""
    best: dict[tuple[Any, ...], tuple[float, tuple[Any, ...]]] = {}
    for setting, group in _by_setting(outcomes).items():
        dev = Score.of([outcome.dev for outcome in group])
        keys = [key for key in group[0].run.varied if key != SEED]
        others = tuple(value for key, value in zip(keys, setting, strict=True) if key not in best_of)
        if dev is not None and (others not in best or dev.mean > best[others][0]):
            best[others] = (dev.mean, setting)
    return [setting for _, setting in best.values()]
