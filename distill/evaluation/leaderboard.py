"""Evaluations that runs keep in their folders, side by side: mean and standard deviation over seeds.

Runs whose configurations differ in the seed alone are one row. A row's figures are comparable with another's
only where both were evaluated on the same sentences with the same settings: of every suite, the runs that
most others share these with are shown, and the others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.digests import model_digest
from distill.errors import DataError
from distill.evaluation.kept import AVERAGE, Kept, all_kept, kept_suites, place_of
from distill.evaluation.origin_keys import MUCH, SELECTED_ON
from distill.evaluation.seeds import group_names, without_repeats
from distill.evaluation.setting import Seed, Setting, read_setting
from distill.evaluation.spread import Score
from distill.evaluation.suites import SUITES
from distill.layout import RECORD


@dataclass(frozen=True)
class RankedRun:
    """A run with what is kept of its evaluations.

    Attributes:
        folder: the run's folder.
        setting: what it was trained with.
        kept: by suite.
    """

    folder: Path
    setting: Setting
    kept: Mapping[str, Kept]


@dataclass(frozen=True)
class SuiteColumn:
    """What one suite says of the runs of a setting.

    Attributes:
        score: the headline figure.
        retention: in per cent of the teacher's; None where no run was evaluated beside one.
        sets: the figure of each set.
        selected_on: sets of which a tenth of the pairs or more chose a checkpoint.
    """

    score: Score
    retention: Score | None
    sets: Mapping[str, Score]
    selected_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class BoardRow:
    """The runs of one setting.

    Attributes:
        name: what they are called: the name they share, or their folder.
        runs: their folders.
        seeds: their seeds, as :class:`distill.evaluation.setting.Setting` shows them; None: not known.
        parameters: of the student.
        megabytes: of its weights, in units of 10^6 bytes.
        suites: what each suite says.
    """

    name: str
    runs: tuple[Path, ...]
    seeds: tuple[Seed | None, ...]
    parameters: int | None
    megabytes: float | None
    suites: Mapping[str, SuiteColumn]

    def to_json(self) -> dict[str, object]:
        """Return the row as a JSON object."""
        return {
            "name": self.name,
            "runs": [str(run) for run in self.runs],
            "seeds": list(self.seeds),
            "parameters": self.parameters,
            "megabytes": self.megabytes,
            "suites": {
                suite: {
                    "score": _score_json(column.score),
                    "retention": _score_json(column.retention),
                    "sets": {name: _score_json(score) for name, score in column.sets.items()},
                    "selected_on": list(column.selected_on),
                }
                for suite, column in self.suites.items()
            },
        }


@dataclass(frozen=True)
class Board:
    """The rows, best first by the first suite, and what a reader must know."""

    suites: tuple[str, ...]
    rows: tuple[BoardRow, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the board as a JSON object."""
        rows = [row.to_json() for row in self.rows]
        return {"suites": list(self.suites), "rows": rows, "notes": list(self.notes)}


def make_board(folders: Sequence[str | Path], suites: Sequence[str] = ()) -> Board:
    """Return the leaderboard of all runs in and below ``folders`` that keep an evaluation.

    Args:
        folders: run folders, sweeps, or whatever holds some.
        suites: the suites to show; default: all that are kept.

    Raises:
        DataError: if a folder is not there, or no evaluation of these suites is kept.
    """
    notes: list[str] = []
    runs = [run for one in _find_runs(folders) if (run := _read_run(one, notes)) is not None]
    runs = _without_stale(runs, notes)
    wanted = [suite for suite in SUITES if not suites or suite in suites]
    shown = tuple(suite for suite in wanted if any(suite in run.kept for run in runs))
    if not shown:
        named = f" by {', '.join(suites)}" if suites else ""
        raise DataError(
            f"no evaluation{named} is kept in {', '.join(map(str, folders))}: 'distill eval RUN' keeps one"
        )
    # Repeats are looked for in each suite: of two such runs one may be evaluated where the other is not.
    counted = {suite: _without_repeats(_comparable(suite, runs, notes), notes) for suite in shown}
    groups: dict[str, list[RankedRun]] = {}
    for run in runs:
        if any(run in counted[suite] for suite in shown):
            groups.setdefault(run.setting.digest, []).append(run)
    names = group_names([[run.folder for run in group] for group in groups.values()])
    rows = [_row(name, group, counted) for name, group in zip(names, groups.values(), strict=True)]
    ranked = tuple(sorted(rows, key=lambda row: _place(row, shown[0])))
    notes += [
        f"{row.name}: SELECTED ON TEST PAIRS of {', '.join(column.selected_on)} ({suite}); such figures are "
        "too good"
        for row in ranked
        for suite, column in row.suites.items()
        if column.selected_on
    ]
    notes += [
        f"{row.name}: {suite} is of {column.score.n} of its {len(set(row.seeds))} seeds"
        for row in ranked
        for suite, column in row.suites.items()
        if column.score.n < len(set(row.seeds))
    ]
    return Board(shown, ranked, tuple(notes))


def _place(row: BoardRow, suite: str) -> tuple[bool, float, str]:
    column = row.suites.get(suite)
    return column is None, -column.score.mean if column else 0.0, row.name


def _find_runs(folders: Sequence[str | Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for one in map(Path, folders):
        if not one.is_dir():
            raise DataError(f"no folder {one}: give one that holds runs, or a run")
        found |= dict.fromkeys(path.parent.resolve() for path in sorted(one.rglob(RECORD)))
    return list(found)


def _read_run(folder: Path, notes: list[str]) -> RankedRun | None:
    kept = all_kept(folder)
    notes += [
        f"{folder.name}: {place_of(folder, suite).name} cannot be read; 'distill eval' makes it anew"
        for suite in kept_suites(folder)
        if suite not in kept
    ]
    if not kept:
        return None
    # A run without its configuration is like no other.
    setting = read_setting(folder) or Setting(str(folder), ())
    return RankedRun(folder, setting, kept)


def _without_stale(runs: Sequence[RankedRun], notes: list[str]) -> list[RankedRun]:
    """Leave out evaluations of a student that is another one now."""
    fresh = []
    for run in runs:
        digest = model_digest(str(run.folder))
        kept = {suite: one for suite, one in run.kept.items() if one.digest.get("student") == digest}
        if stale := [suite for suite in run.kept if suite not in kept]:
            notes.append(
                f"{run.folder.name}: left out, its student has changed since it was evaluated: "
                f"{', '.join(stale)}; run 'distill eval' again"
            )
        if kept:
            fresh.append(RankedRun(run.folder, run.setting, kept))
    return fresh


def _without_repeats(runs: Sequence[RankedRun], notes: list[str]) -> list[RankedRun]:
    return without_repeats(runs, lambda run: run.setting, lambda run: str(run.folder), notes)


def _comparable(suite: str, runs: Sequence[RankedRun], notes: list[str]) -> list[RankedRun]:
    """Return the runs that were evaluated on the sentences and with the settings that most were.

    Settings say which teacher fidelity is to, and which processor a latency was timed on.
    """
    digests = {
        run.folder: (run.kept[suite].digest.get("sentences"), run.kept[suite].digest.get("settings"))
        for run in runs
        if suite in run.kept
    }
    ((usual, _),) = Counter(digests.values()).most_common(1)
    others = [folder.name for folder, digest in digests.items() if digest != usual]
    if others:
        notes.append(
            f"{suite}: left out, evaluated on other sentences, or with other settings, than most: "
            f"{', '.join(others)}"
        )
    return [run for run in runs if digests.get(run.folder) == usual and run.folder in digests]


def _row(name: str, group: Sequence[RankedRun], counted: Mapping[str, Sequence[RankedRun]]) -> BoardRow:
    reports = [_report(next(iter(run.kept.values()))) for run in group]
    columns = {}
    for suite, runs in counted.items():
        kept = [run.kept[suite] for run in group if run in runs]
        score = Score.of([one.scores.get(AVERAGE) for one in kept])
        if score is not None:
            columns[suite] = _column(kept, score)
    return BoardRow(
        name,
        tuple(run.folder for run in group),
        tuple(run.setting.seed for run in group),
        reports[0].get("parameters"),
        reports[0].get("megabytes"),
        columns,
    )


def _column(kept: Sequence[Kept], score: Score) -> SuiteColumn:
    sets = dict.fromkeys(name for one in kept for name in one.scores if name != AVERAGE)
    by_set = {name: Score.of([one.scores.get(name) for one in kept]) for name in sets}
    reports = [_report(one) for one in kept]
    selected = dict.fromkeys(
        str(mark["set"])
        for report in reports
        for mark in report.get(SELECTED_ON) or []
        if mark["pairs"] >= MUCH * mark["of"]
    )
    return SuiteColumn(
        score,
        Score.of([report.get("retention") for report in reports]),
        {name: spread for name, spread in by_set.items() if spread is not None},
        tuple(selected),
    )


def _report(kept: Kept) -> Mapping[str, Any]:
    report: Mapping[str, Any] = kept.result["models"][-1]
    return report


def _score_json(score: Score | None) -> dict[str, object] | None:
    return None if score is None else score.to_json()
