"""A report as one HTML page that loads nothing: no script, no font, no picture from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from distill.layout import CONFIG
from distill.record import RunRecord, read_record
from distill.report import charts, tables
from distill.report.rows import Row, row_names, suites_of
from distill.report.tables import Table


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    folders = [run for row in rows for run in row.runs]
    runs = dict(zip(row_names([[folder] for folder in folders]), folders, strict=True))
    teachers = dict.fromkeys(row.name for row in rows if row.is_teacher)
    students = sum(not row.is_teacher for row in rows)
    counts = [
        f"{count} {name}{'s' * (count != 1)}" for count, name in ((students, "student"), (len(runs), "run"))
    ]
    return _template().render(
        light=charts.LIGHT,
        dark=charts.DARK,
        subtitle=" · ".join([*counts, *(f"teacher {name}" for name in teachers)]),
        summary=tables.summary(rows),
        notes=tables.notes(rows),
        charts=charts.fronts(rows),
        papers=tables.papers(rows),
        suites=[
            (suite, charts.bars(rows, suite), tables.of_suite(rows, suite), tables.further(rows, suite))
            for suite in suites_of(rows)
        ],
        curves=charts.curves(rows),
        runs=_runs(runs),
        contracts=_contracts(runs.values()),
        configs={name: _text(run / CONFIG) for name, run in runs.items()},
    )


def _runs(runs: Mapping[str, Path]) -> Table:
    """Return one row per run: data, student, loss and length of its training."""
    return Table.of("Runs", [{"run": name, **_facts(read_record(run))} for name, run in runs.items()])


def _facts(record: RunRecord | None) -> dict[str, str | None]:
    if record is None:
        return {}
    result = record.result
    facts: dict[str, Any] = {
        "seed": record.seed,
        "student": record.student,
        "loss": record.loss,
        "recipe": record.recipe,
        "teacher": " + ".join(teacher.name for teacher in record.teachers) or None,
        "corpus": record.corpus.name,
        "rows": record.rows,
        "held out": record.held_out,
        "steps": result and result.steps,
        "best step": result and result.best_step,
        "training time": result and duration(result.seconds),
        "rows/s": result and round(result.rows_per_second),
    }
    return {name: f"{value:,}" if isinstance(value, int) else value for name, value in facts.items()}


def _contracts(runs: Iterable[Path]) -> list[Table]:
    """Return the contract of every teacher, each once."""
    teachers = {
        one.contract_id + one.name: one
        for run in runs
        if (record := read_record(run))
        for one in record.teachers
    }
    return [
        Table(
            f"Contract of {one.name}",
            ["field", "value"],
            [(key, str(value) or "none") for key, value in one.contract.items()],
        )
        for one in teachers.values()
    ]


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "missing"


@cache
def _template() -> Template:
    # Text from runs is escaped; only our own drawings are let through, by name.
    environment = Environment(
        loader=PackageLoader("distill.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
