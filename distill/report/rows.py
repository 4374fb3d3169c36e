"""Rows of a report: each student beside its teacher, the figures of its seeds as mean and deviation.

Runs that differ by their seed alone (``record.setting``) are one row. Of each suite only runs
evaluated on the same items with the same settings are shown; rows name what was left out.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from distill.errors import DataError, DistillError
from distill.evaluation.cache import Kept, kept_path, kept_suites, read_kept
from distill.evaluation.contamination import CONTAMINATION, Seen, describe
from distill.evaluation.model_kinds import open_model
from distill.evaluation.models import weight_bytes
from distill.evaluation.result import Figure, Interval, Scored
from distill.evaluation.task import PAIRS
from distill.layout import BEST
from distill.record import RunRecord, find_runs, read_record
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
        interval: 95 % confidence interval of a single run; None of several, whose spread is ``std``.
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

    @classmethod
    def over(cls, figures: Iterable[Figure | None]) -> Score | None:
        """Return the score of one figure a run; None where no run has one."""
        found = [figure for figure in figures if figure is not None]
        if not found:
            return None
        values = [figure.value for figure in found]
        others: dict[str, list[float]] = defaultdict(list)
        for figure in found:
            for name, value in figure.others.items():
                others[name].append(value)
        return cls(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            len(values),
            found[0].interval if len(found) == 1 else None,
            found[0].measure,
            found[0].items,
            {name: statistics.fmean(several) for name, several in others.items()},
        )


@dataclass(frozen=True)
class SuiteScores:
    """Figures of one suite: the one rows are compared by, its share of the teacher's in %, and each set's."""

    headline: Score | None = None
    retention: Score | None = None
    sets: Mapping[str, Score] = field(default_factory=dict)

    @classmethod
    def over(cls, scored: Sequence[Scored], retentions: Iterable[Figure | None] = ()) -> SuiteScores:
        """Return the figures over seeds."""
        results = [result for _, result in scored]
        sets = {
            name: Score.over(result.figures.get(name) for result in results)
            for name in dict.fromkeys(name for result in results for name in result.figures)
        }
        return cls(
            Score.over(result.main for result in results),
            Score.over(retentions),
            {name: score for name, score in sets.items() if score},
        )


@dataclass(frozen=True)
class Row:
    """One student, or one teacher.

    Attributes:
        name: common part of the names of its runs' folders; of a teacher its name.
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
        paper: figure of the paper whose recipe it was started with; None without one, or with sets missing.
        notes: remarks on it: missing evaluations, selection on test pairs, contamination.
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
        return self.suites.get(LATENCY, SuiteScores()).sets.get(SPEED)

    def headline(self, suite: str | None) -> Score | None:
        """Return the figure that ``suite`` compares by; None where there is none."""
        return self.suites.get(suite or "", SuiteScores()).headline


@dataclass
class _Run:
    """A run as it was read; ``notes`` gathers the remarks for its row."""

    folder: Path
    record: RunRecord | None
    kept: dict[str, Kept]
    notes: list[str]

    @property
    def seeds(self) -> list[int]:
        return self.record.seeds if self.record else []

    @property
    def teacher(self) -> str | None:
        """Names of its teachers; None where it learnt from texts alone."""
        return " + ".join(one.name for one in self.record.teachers) or None if self.record else None

    @property
    def selection(self) -> Figure | None:
        """Score its checkpoint was chosen by, x100."""
        score = self.record.result.best_score if self.record and self.record.result else None
        return None if score is None else Figure(100 * score, "")


def rows(places: str | Path | Iterable[str | Path], suites: Sequence[str] = ()) -> list[Row]:
    """Return teachers, then students with the best first.

    Args:
        places: runs' folders, or folders with runs below them.
        suites: suites to show, the first to rank by; default: all that are kept, ranked by ``sts``.

    Raises:
        DataError: if a place holds no run, or no run keeps an evaluation of ``suites``.
    """
    runs = [_read(folder) for folder in find_runs(places)]
    kept = dict.fromkeys(suite for run in runs for suite in run.kept)
    if suites and not any(suite in kept for suite in suites):
        raise DataError(
            f"no run keeps an evaluation by {', '.join(suites)} (kept: {', '.join(kept) or 'none'}); "
            "make one with 'distill eval RUN --suite SUITE'"
        )
    shown = list(suites) or sorted(kept, key=lambda name: name != MAIN_SUITE)
    groups: dict[str, list[_Run]] = defaultdict(list)
    for suite in shown:
        _leave_out_others(suite, runs)
    for run in runs:
        run.kept = {name: run.kept[name] for name in shown if name in run.kept}
        if missing := [suite for suite in shown or [MAIN_SUITE] if suite not in run.kept]:
            how = "--pairs FILE" if missing[0] == PAIRS else f"--suite {missing[0]}"
            run.notes.append(f"no figures on {', '.join(missing)}; run 'distill eval RUN {how}'")
        groups[str(run.folder) if run.record is None else run.record.setting].append(run)
    names = row_names([[run.folder for run in group] for group in groups.values()])
    students = [_student(name, group) for name, group in zip(names, groups.values(), strict=True)]
    ranked_by = main_suite(students, shown)
    return [*_teachers(runs), *sorted(students, key=lambda row: _rank(row, ranked_by))]


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
    shared = {_SEED_IN_NAME.sub("", folder.name) or folder.parent.name for folder in folders}
    return ", ".join(sorted(shared))


def _read(folder: Path) -> _Run:
    run = _Run(folder, read_record(folder), {}, [])
    if run.record is None:
        run.notes.append("run.json cannot be read; restore it from a copy")
    elif not run.record.is_finished:
        run.notes.append("not finished")
    try:
        student = open_model(folder).identity()
    except DistillError:
        student = None
    for suite in kept_suites(folder):
        file, kept = kept_path(folder, suite).name, read_kept(folder, suite)
        if kept is None:
            run.notes.append(f"{file} is damaged; evaluate again")
        elif kept.key.get("model") != student:
            run.notes.append(f"{file} is of other weights; evaluate again")
        else:
            run.kept[suite] = kept
    return run


def _leave_out_others(suite: str, runs: Sequence[_Run]) -> None:
    """Leave out evaluations on other items, or with other settings, than most: they cannot be compared."""
    bases = [(run, _basis(run.kept[suite])) for run in runs if suite in run.kept]
    ((usual, _),) = Counter(basis for _, basis in bases).most_common(1) or [("", 0)]
    for run, basis in bases:
        if basis != usual:
            del run.kept[suite]
            run.notes.append(f"left out of {suite}: evaluated on other items or settings than most runs")


def _basis(kept: Kept) -> str:
    """Return data, settings, items and machine, which are equal of all figures that can be compared."""
    settings = json.loads(kept.key.get("settings", "{}"))
    settings = {name: value for name, value in settings.items() if name not in ("draws", "draws_seed")}
    _, result = kept.scored
    items = sorted((name, one.items) for name, one in result.figures.items())
    machine = [result.settings.get(name) for name in ("processor", "threads")]
    return str([items, kept.key.get("data"), settings, machine])


def _student(name: str, group: Sequence[_Run]) -> Row:
    group = sorted(group, key=lambda run: (run.seeds, -len(run.kept), run.folder.name))
    first, record = group[0], group[0].record
    shared = set.intersection(*(set(run.notes) for run in group))
    notes = [note if note in shared else f"{run.folder.name}: {note}" for run in group for note in run.notes]
    # Counted twice, a run makes the deviation small.
    counted: dict[str, _Run] = {}
    notes += [
        f"{run.folder.name}: not in the mean, same settings and seed as {same.folder.name}"
        for run in group
        if (same := counted.setdefault(str(run.seeds), run)) is not run
    ]
    suites: dict[str, list[Kept]] = defaultdict(list)
    for run in counted.values():
        for suite, kept in run.kept.items():
            suites[suite].append(kept)
            result = kept.scored[1]
            seen = {name: Seen(**one) for name, one in (result.marks.get(CONTAMINATION) or {}).items()}
            if worth := {name: one for name, one in seen.items() if one.sentences_seen or one.selected_on}:
                notes += [f"{suite}: {note}" for note in describe(worth)]
            if result.missing and result.main:
                sets = len(result.figures)
                notes.append(f"{suite}: average over {sets} of {sets + len(result.missing)} sets")
            if result.main and kept.evaluation.teacher is None and run.teacher:
                notes.append("no retention: evaluated without its teacher")
    scores = {
        suite: SuiteScores.over(
            [one.scored for one in kept], [one.evaluation.retention(one.scored[0].name) for one in kept]
        )
        for suite, kept in suites.items()
    }
    paper = find_paper(record, first.folder) if record else None
    if paper and any(kept.scored[1].missing for kept in suites.get(paper.about.suite or "", [])):
        paper = None  # its average is over all sets
    best = first.folder / BEST
    return Row(
        name,
        runs=tuple(run.folder for run in group),
        seeds=tuple(run.record.seed for run in counted.values() if run.record),
        student=record.student if record else None,
        loss=record.loss if record else None,
        teacher=first.teacher,
        parameters=record.parameters if record else None,
        megabytes=round(weight_bytes(best) / 1e6, 3) if best.is_dir() else None,
        selection=Score.over(run.selection for run in counted.values()),
        suites=scores,
        paper=paper,
        notes=tuple(dict.fromkeys(notes)),
    )


def _teachers(runs: Sequence[_Run]) -> list[Row]:
    """Return a row for each teacher, as evaluated beside the first run that has each suite."""
    found: dict[str, tuple[str, dict[str, Scored]]] = {}
    for run in runs:
        if run.record is None or run.teacher is None:
            continue
        made_of = [[one.contract_id, one.share] for one in run.record.teachers]
        key = str((made_of, run.record.targets and run.record.targets.projected_from))
        _, scored = found.setdefault(key, (run.teacher, {}))
        for suite, kept in run.kept.items():
            if kept.evaluation.teacher is not None:
                scored.setdefault(suite, kept.evaluation.models[0])
    return [
        Row(
            name,
            is_teacher=True,
            parameters=next((facts.parameters for facts, _ in scored.values() if facts.parameters), None),
            megabytes=next((facts.megabytes for facts, _ in scored.values() if facts.megabytes), None),
            suites={suite: SuiteScores.over([one]) for suite, one in scored.items()},
        )
        for name, scored in found.values()
    ]


def _rank(row: Row, suite: str | None) -> tuple[bool, float, float, str]:
    figure, dev = row.headline(suite), row.selection
    return figure is None, -(figure.mean if figure else 0.0), -(dev.mean if dev else 0.0), row.name
