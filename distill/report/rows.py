"""Rows of a report: each student beside its teacher, the figures of its seeds as mean and deviation.

Runs that differ by their seed alone (``record.setting``) are one row. Of each suite only runs
evaluated on the same items with the same settings are shown; rows name what was left out.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import yaml

from distill.errors import DataError
from distill.evaluation.models import weight_bytes
from distill.evaluation.result import Figure, Interval, ModelFacts, SuiteResult
from distill.layout import BEST, CONFIG
from distill.record import RunRecord, find_runs, read_record
from distill.report.evaluations import RunEvaluation, marks, read_evaluations
from distill.report.paper import Paper, find_paper

MAIN_SUITE = "sts"
"""Suite that rows are ranked by, where it was evaluated."""

LATENCY, SPEED = "latency", "batch_1_sentences_per_second"
"""Suite and set of the speed: sentences a second on a CPU, one at a time."""

_SEED_IN_NAME = re.compile(r"[-_]?seed[-_]?\d+(?:-[0-9a-f]{10})?$|-[0-9a-f]{10}$")


@dataclass(frozen=True)
class Score:
    """Figure over the seeds of a student.

    Attributes:
        mean: the mean.
        std: sample standard deviation (n - 1); None of a single run.
        n: number of runs.
        interval: 95 % confidence interval; of several runs the means of both ends; None where one has none.
        measure: name of the measure, ``spearman`` for example.
        items: number of items; None where not known.
        others: further measures of the same items: name -> mean.
    """

    mean: float
    std: float | None
    n: int
    interval: Interval | None = None
    measure: str = ""
    items: int | None = None
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteScores:
    """Figures of one suite: the one rows are compared by, its share of the teacher's in %, and each set's."""

    headline: Score | None
    retention: Score | None
    sets: Mapping[str, Score]


@dataclass(frozen=True)
class Row:
    """One student, or one teacher.

    Attributes:
        name: what the names of its runs' folders have in common; of a teacher its name.
        is_teacher: True of a teacher.
        runs: its runs' folders.
        seeds: their seeds, as records show them.
        student: specification of the student; None of a teacher.
        loss: the loss; None of a teacher.
        teacher: name of its teacher, or teachers; None where it learnt from texts alone.
        parameters: number of parameters; None where not known.
        megabytes: size of its weights in units of 10^6 bytes; None where not known.
        selection: score its checkpoints were chosen by, x100.
        suites: suite -> its figures.
        paper: figure of the paper whose recipe it follows; None without one.
        notes: what a reader must know of it: missing evaluations, selection on test pairs, contamination.
    """

    name: str
    is_teacher: bool = False
    runs: tuple[Path, ...] = ()
    seeds: tuple[int | str, ...] = ()
    student: str | None = None
    loss: str | None = None
    teacher: str | None = None
    parameters: int | None = None
    megabytes: float | None = None
    selection: Score | None = None
    suites: Mapping[str, SuiteScores] = field(default_factory=dict)
    paper: Paper | None = None
    notes: tuple[str, ...] = ()

    @property
    def speed(self) -> Score | None:
        """Sentences a second on a CPU, one at a time; None unless the latency suite timed it."""
        timed = self.suites.get(LATENCY)
        return None if timed is None else timed.sets.get(SPEED)

    def headline(self, suite: str | None) -> Score | None:
        """Return the figure that ``suite`` compares by; None where there is none."""
        found = self.suites.get(suite or "")
        return None if found is None else found.headline


@dataclass
class _Entry:
    """A run as it was read; ``notes`` gathers what its row has to say of it."""

    folder: Path
    record: RunRecord | None
    config: Mapping[str, Any]
    evaluations: dict[str, RunEvaluation]
    notes: list[str]

    @property
    def teacher(self) -> str | None:
        """Names of its teachers; None where it learnt from texts alone."""
        teachers = [] if self.record is None else self.record.teachers
        return " + ".join(one.name for one in teachers) or None

    @property
    def dev_score(self) -> float | None:
        """Score its checkpoint was chosen by, x100."""
        result = None if self.record is None else self.record.result
        return None if result is None or result.best_score is None else 100 * result.best_score


def rows(places: str | Path | Iterable[str | Path], suites: Sequence[str] = ()) -> list[Row]:
    """Return teachers, then students with the best first.

    Args:
        places: runs' folders, or folders with runs below them.
        suites: suites to show, the first to rank by; default: all that are kept, ranked by ``sts``.

    Raises:
        DataError: if a place holds no run, or no run keeps an evaluation of ``suites``.
    """
    entries = [_read(folder) for folder in find_runs(places)]
    kept = dict.fromkeys(suite for entry in entries for suite in entry.evaluations)
    if suites and not any(suite in kept for suite in suites):
        raise DataError(
            f"no run keeps an evaluation by {', '.join(suites)} (kept: {', '.join(kept) or 'none'}); "
            "make one with 'distill eval RUN --suite SUITE'"
        )
    shown = list(suites) or sorted(kept, key=lambda name: name != MAIN_SUITE)
    for entry in entries:
        entry.evaluations = {name: entry.evaluations[name] for name in shown if name in entry.evaluations}
    for suite in shown:
        _leave_out_others(suite, entries)
    for entry in entries:
        if missing := [suite for suite in shown or [MAIN_SUITE] if suite not in entry.evaluations]:
            entry.notes.append(
                f"no figures on {', '.join(missing)}; run 'distill eval RUN --suite {missing[0]}'"
            )
    groups: dict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        groups[str(entry.folder) if entry.record is None else entry.record.setting].append(entry)
    names = row_names([[entry.folder for entry in group] for group in groups.values()])
    students = [_student(name, group) for name, group in zip(names, groups.values(), strict=True)]
    ranked_by = main_suite(students, shown)
    return [*_teachers(entries), *sorted(students, key=lambda row: _rank(row, ranked_by))]


def main_suite(rows: Sequence[Row], suites: Sequence[str] | None = None) -> str | None:
    """Return the first suite with a figure that rows are ranked by; None where there is none."""
    return next((name for name in suites or suites_of(rows) if any(row.headline(name) for row in rows)), None)


def suites_of(rows: Iterable[Row]) -> list[str]:
    """Return the suites of all rows, in order."""
    return list(dict.fromkeys(suite for row in rows for suite in row.suites))


def row_names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """Return a name for each group of runs: the name of their folders without the seed.

    Where nothing is left, as of ``mse/seed0``, it is the name of the folder they are in. Names that are not
    unique are replaced by the last parts of the first run's path, as many as are needed.
    """
    names = [_shared_name(group) for group in groups]
    count = Counter(names)
    clashing = [group[0] for name, group in zip(names, groups, strict=True) if count[name] > 1]
    depth = 2
    while len({path.parts[-depth:] for path in clashing}) < len(clashing):
        depth += 1
    return [
        name if count[name] == 1 else str(PurePath(*group[0].parts[-depth:]))
        for name, group in zip(names, groups, strict=True)
    ]


def _shared_name(folders: Sequence[Path]) -> str:
    if len(folders) == 1:
        return folders[0].name
    shared = {_SEED_IN_NAME.sub("", folder.name) for folder in folders}
    if shared == {""}:
        parents = {folder.parent.name for folder in folders}
        return parents.pop() if len(parents) == 1 else "/".join(folders[0].parts[-2:])
    return ", ".join(sorted(shared))


def _read(folder: Path) -> _Entry:
    record = read_record(folder)
    evaluations, notes = read_evaluations(folder)
    if record is None:
        notes.append("run.json cannot be read; restore it from a copy")
    elif record.result is None:
        notes.append("not finished")
    try:
        config = yaml.safe_load((folder / CONFIG).read_bytes())
    except (OSError, yaml.YAMLError):
        config = {}
    return _Entry(folder, record, config, evaluations, notes)


def _leave_out_others(suite: str, entries: Sequence[_Entry]) -> None:
    """Leave out evaluations on other items, or with other settings, than most: they cannot be compared."""
    there = {id(entry): entry.evaluations[suite].basis for entry in entries if suite in entry.evaluations}
    ((usual, _),) = Counter(there.values()).most_common(1) or [("", 0)]
    for entry in entries:
        if there.get(id(entry), usual) != usual:
            del entry.evaluations[suite]
            entry.notes.append(f"left out of {suite}: evaluated on other items or settings than most runs")


def _student(name: str, group: Sequence[_Entry]) -> Row:
    group = sorted(group, key=lambda entry: (entry.record.seeds if entry.record else [], entry.folder.name))
    suites, repeated = {}, dict[str, None]()
    for suite in dict.fromkeys(suite for entry in group for suite in entry.evaluations):
        counted = _once([entry for entry in group if suite in entry.evaluations], repeated)
        suites[suite] = _suite_scores(
            [(one.result, one.retention) for entry in counted for one in [entry.evaluations[suite]]]
        )
    first = group[0].record
    shared = set.intersection(*(set(entry.notes) for entry in group))
    notes = [
        note if note in shared else f"{entry.folder.name}: {note}" for entry in group for note in entry.notes
    ]
    for entry in group:
        for suite, evaluation in entry.evaluations.items():
            notes += marks(suite, evaluation.result)
            if evaluation.result.main and evaluation.teacher is None and first and first.teachers:
                notes.append("no retention: evaluated without its teacher")
    chosen = _once([entry for entry in group if entry.dev_score is not None], {})
    best = group[0].folder / BEST
    return Row(
        name,
        runs=tuple(entry.folder for entry in group),
        seeds=tuple(entry.record.seed for entry in group if entry.record),
        student=None if first is None else first.student,
        loss=None if first is None else first.loss,
        teacher=group[0].teacher,
        parameters=None if first is None else first.parameters,
        megabytes=round(weight_bytes(best) / 1e6, 3) if best.is_dir() else None,
        selection=_score([Figure(entry.dev_score or 0.0, "") for entry in chosen]),
        suites=suites,
        paper=None if first is None else find_paper(first, group[0].config, suites),
        notes=tuple(dict.fromkeys([*notes, *repeated])),
    )


def _once(group: Sequence[_Entry], repeated: dict[str, None]) -> list[_Entry]:
    """Return the runs without those of the same seed: counted twice, a run makes the deviation small."""
    first: dict[tuple[int, ...], _Entry] = {}
    for entry in group:
        seeds = tuple(entry.record.seeds) if entry.record else ()
        same = first.setdefault(seeds, entry)
        if same is not entry:
            repeated[
                f"{entry.folder.name}: not in the mean, same settings and seed as {same.folder.name}"
            ] = None
    return list(first.values())


def _teachers(entries: Sequence[_Entry]) -> list[Row]:
    """Return a row for each teacher, as evaluated beside the first run that has each suite."""
    found: dict[str, tuple[str, dict[str, tuple[ModelFacts, SuiteResult]]]] = {}
    for entry in entries:
        if entry.record is None or entry.teacher is None:
            continue
        targets = entry.record.targets
        made_of = [[one.contract_id, one.share] for one in entry.record.teachers]
        key = str((made_of, targets and targets.projected_from))
        _, models = found.setdefault(key, (entry.teacher, {}))
        for suite, one in entry.evaluations.items():
            if one.teacher is not None:
                models.setdefault(suite, one.teacher)
    return [
        Row(
            name,
            is_teacher=True,
            parameters=next((facts.parameters for facts, _ in models.values() if facts.parameters), None),
            megabytes=next((facts.megabytes for facts, _ in models.values() if facts.megabytes), None),
            suites={suite: _suite_scores([(result, None)]) for suite, (_, result) in models.items()},
        )
        for name, models in found.values()
    ]


def _suite_scores(models: Sequence[tuple[SuiteResult, Figure | None]]) -> SuiteScores:
    """Return the figures over seeds of (result, retention) of each."""
    names = dict.fromkeys(name for result, _ in models for name in result.figures)
    sets = {name: _score([one.figures[name] for one, _ in models if name in one.figures]) for name in names}
    return SuiteScores(
        _score([main for result, _ in models if (main := result.main)]),
        _score([retention for _, retention in models if retention]),
        {name: score for name, score in sets.items() if score},
    )


def _score(figures: Sequence[Figure]) -> Score | None:
    if not figures:
        return None
    values = [figure.value for figure in figures]
    ends = [figure.interval for figure in figures if figure.interval is not None]
    interval = None
    if len(ends) == len(figures):
        interval = (statistics.fmean(low for low, _ in ends), statistics.fmean(high for _, high in ends))
    others = dict.fromkeys(name for figure in figures for name in figure.others)
    return Score(
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        n=len(values),
        interval=interval,
        measure=figures[0].measure,
        items=figures[0].items,
        others={
            name: statistics.fmean(figure.others[name] for figure in figures if name in figure.others)
            for name in others
        },
    )


def _rank(row: Row, suite: str | None) -> tuple[bool, float, float, str]:
    figure, dev = row.headline(suite), row.selection
    return figure is None, -(figure.mean if figure else 0.0), -(dev.mean if dev else 0.0), row.name
