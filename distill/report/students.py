"""Runs grouped into students: those that differ in their seed alone, under names that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from distill.report.folder import RunFolder, flat
from distill.report.paper import short_name

_LETTERS = "ABCDEFGHIJKLMNOPQRSUVWXYZ"  # no T: that is the teacher
_NOT_IN_A_NAME = {"student.spec", "loss.name", "corpus", "teachers", "start"}


def group_runs(runs: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Return the runs of each student, by seed, in the order in which the students were named."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True, default=str), []).append(run)
    return [sorted(group, key=lambda run: (run.seed or 0, run.name)) for group in groups.values()]


def student_names(groups: Sequence[Sequence[RunFolder]]) -> list[str]:
    """Return a name per student: its model, its loss, and what tells it from others of the same two.

    Where that leaves two alike, the name of its first run says which is meant.
    """
    bases = [_base(group[0]) for group in groups]
    names = []
    for base, group in zip(bases, groups, strict=True):
        alike = [flat(other[0].setting) for other, its in zip(groups, bases, strict=True) if its == base]
        names.append(" ".join([base, *_told_apart(flat(group[0].setting), alike)]))
    return [
        group[0].name if names.count(name) > 1 else name for name, group in zip(names, groups, strict=True)
    ]


def student_key(place: int) -> str:
    """Return the letters that charts call the student at ``place`` by: A, B ... Z, A2, B2 ..."""
    again, letter = divmod(place, len(_LETTERS))
    return _LETTERS[letter] + (str(again + 1) if again else "")


def teacher_key(place: int, teachers: int) -> str:
    """Return the letters that charts call a teacher by: T, or T1, T2 ... of several."""
    return "T" if teachers == 1 else f"T{place + 1}"


def _base(run: RunFolder) -> str:
    return f"{short_name(str(run.record.get('student')))} {run.record.get('loss')}"


def _told_apart(settings: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = [
        key
        for key in settings
        if key not in _NOT_IN_A_NAME and len({str(other.get(key)) for other in alike}) > 1
    ]
    return [f"{key.rpartition('.')[2]}={settings[key]}" for key in keys if settings[key] is not None]
