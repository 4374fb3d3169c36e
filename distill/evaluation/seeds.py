"""Models of one evaluation that differ by the seed of their training alone: mean and deviation over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeVar

from distill.evaluation.result import ModelReport, SeedSpread
from distill.evaluation.scores import SetScores
from distill.evaluation.setting import Seed, Setting, read_setting, without_seed
from distill.evaluation.spread import Score

_Run = TypeVar("_Run")


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one setting, at least two.

    Attributes:
        name: as :func:`group_names` calls them.
        models: their names in reports.
        seeds: their seeds, no two the same.
    """

    name: str
    models: tuple[str, ...]
    seeds: tuple[Seed, ...]


def seed_groups(runs: Mapping[str, Path], notes: list[str]) -> list[SeedGroup]:
    """Return which of the evaluated runs are one student but for the seed.

    Args:
        runs: name in reports -> run folder.
        notes: takes a line for each run that is left out, as :func:`without_repeats` has it.
    """
    once: dict[Path, str] = {}
    for name, folder in runs.items():
        once.setdefault(folder, name)
    settings = {name: read_setting(folder) for folder, name in once.items()}
    known = {name: setting for name, setting in settings.items() if setting is not None and setting.seeds}
    groups: dict[str, list[str]] = {}
    for name in without_repeats(known, known.__getitem__, str, notes):
        groups.setdefault(known[name].digest, []).append(name)
    several = [group for group in groups.values() if len(group) > 1]
    names = group_names([[runs[model] for model in group] for group in several])
    return [
        SeedGroup(
            name, tuple(group), tuple(seed for model in group if (seed := known[model].seed) is not None)
        )
        for name, group in zip(names, several, strict=True)
    ]


def without_repeats(
    runs: Iterable[_Run],
    setting_of: Callable[[_Run], Setting | None],
    name_of: Callable[[_Run], str],
    notes: list[str],
) -> list[_Run]:
    """Return the runs without those of the settings and seeds of an earlier one.

    Counted twice, such a run would make a spread look small. A run whose settings or seeds are not known
    repeats no other.

    Args:
        runs: the runs.
        setting_of: what a run was trained with.
        name_of: what notes call it.
        notes: takes a line for each run that is left out; none twice.
    """
    first: dict[Setting, _Run] = {}
    kept = []
    for run in runs:
        setting = setting_of(run)
        if setting is None or not setting.seeds or first.setdefault(setting, run) is run:
            kept.append(run)
            continue
        same = name_of(first[setting])
        note = f"{name_of(run)}: not in a mean over seeds, it is of the same settings and seed as {same}"
        if note not in notes:
            notes.append(note)
    return kept


def group_names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """Return what groups of runs are called: what their folders' names share without the seed.

    Where that is nothing, as of ``mse/seed0`` and ``mse/seed1``, it is the name of the folder they are in.
    Groups that would be called the same are called by the end of their first run's path, as much of it as
    tells them apart.

    Args:
        groups: the folders of each group's runs; no folder is in two groups.
    """
    names = [_group_name(group) for group in groups]
    counts = Counter(names)
    clashing = [group[0] for name, group in zip(names, groups, strict=True) if counts[name] > 1]
    depth = 2
    while len({path.parts[-depth:] for path in clashing}) < len(set(clashing)):
        depth += 1
    return [
        name if counts[name] == 1 else str(PurePath(*group[0].parts[-depth:]))
        for name, group in zip(names, groups, strict=True)
    ]


def _group_name(folders: Sequence[Path]) -> str:
    shared = {without_seed(folder.name) for folder in folders}
    if shared == {""}:
        parents = {folder.parent.name for folder in folders}
        return parents.pop() if len(parents) == 1 else "/".join(folders[0].parts[-2:])
    return shared.pop() if len(shared) == 1 else folders[0].name


def spread_of(group: SeedGroup, reports: Sequence[ModelReport]) -> SeedSpread | None:
    """Return the spread of a suite's figures over a group; None where fewer than two of it have a report."""
    there = [report for report in reports if report.name in group.models]
    if len(there) < 2:
        return None
    of_sets = [
        {name: score.value for name, score in report.scores.sets.items()}
        for report in there
        if isinstance(report.scores, SetScores)
    ]
    return SeedSpread(
        name=group.name,
        models=tuple(report.name for report in there),
        seeds=tuple(group.seeds[group.models.index(report.name)] for report in there),
        sets=_spreads(of_sets),
        figures=_spreads([report.scores.figures() for report in there]),
        retention=Score.of([report.retention for report in there]),
    )


def _spreads(figures: Sequence[Mapping[str, float | None]]) -> dict[str, Score]:
    names = dict.fromkeys(name for one in figures for name in one)
    scores = {name: Score.of([one.get(name) for one in figures]) for name in names}
    return {name: score for name, score in scores.items() if score is not None}
