"""``embedcache doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import cache_option, json_option, live_teacher_options

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from embedcache.doctor import Diagnosis

_STYLES = {"ok": "green", "look": "yellow", "bad": "red"}
_LOSSES = (
    ("bytes a vector", "bytes_per_vector", ","),
    ("mean cosine", "mean_cosine", ".8f"),
    ("worst cosine", "worst_cosine", ".8f"),
    ("rank agreement", "rank_agreement", ".6f"),
    ("top 10 kept", "neighbours_kept", ".1%"),
)


@click.command("doctor")
@cache_option
@click.option("--teacher", metavar="NAME", help="Teacher to judge.  [default: the only one]")
@click.option("--corpus", metavar="NAME", help="Judge this corpus alone.  [default: all vectors]")
@click.option(
    "--evaluation-set",
    "evaluation_sets",
    multiple=True,
    metavar="PATH",
    help="File or folder of texts that must not be trained on. May be repeated.",
)
@click.option(
    "--deep",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=1000,
    default=None,
    metavar="[N]",
    help="Encode N texts again with the live teacher and compare.  [N: 1000]",
)
@click.option("--codecs", is_flag=True, help="Compare size and loss of the codecs.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the samples.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any finding is bad.")
@live_teacher_options
@json_option
def doctor_command(
    cache: str,
    teacher: str | None,
    corpus: str | None,
    evaluation_sets: tuple[str, ...],
    deep: int | None,
    codecs: bool,
    seed: int,
    strict: bool,
    as_json: bool,
    **computing: Any,
) -> None:
    """Judge a cache before a student is trained on it.

    Finds broken, equal and missing vectors, measures their geometry, and finds texts of evaluation sets among
    those that would be trained on. Exits with 1 if --deep finds a wrong vector.
    """
    import json

    from embedcache.cli.progress_bar import show_progress
    from embedcache.doctor import examine
    from embedcache.live import Computing

    with show_progress() as progress:
        diagnosis = examine(
            cache,
            teacher=teacher,
            corpus=corpus,
            evaluation_sets=evaluation_sets,
            deep=deep or 0,
            codecs=codecs,
            seed=seed,
            computing=Computing(**computing),
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(diagnosis.to_json(), indent=2))
    else:
        from rich.console import Console

        Console().print(*_render(diagnosis), sep="\n")
    if diagnosis.has_wrong_vectors or (strict and diagnosis.worst == "bad"):
        sys.exit(1)


def _render(diagnosis: Diagnosis) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{diagnosis.cache}: {diagnosis.teacher}", title_justify="left")
    for heading in ("finding", "figure", "verdict"):
        table.add_column(heading, overflow="fold")
    parts: list[RenderableType] = [table]
    for finding in diagnosis.findings:
        advice = Text(f"\n{finding.advice}" if finding.advice else "", style="dim")
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(Text(finding.name), Text(finding.figure) + advice, level)
        if finding.examples:
            groups = (" | ".join(_short(text) for text in group) for group in finding.examples)
            parts.append(Text("\n  ".join([f"{finding.name}, for example:", *groups])))
    return [*parts, *([_codecs(diagnosis)] if diagnosis.codecs else [])]


def _short(text: str) -> str:
    return repr(text if len(text) <= 70 else f"{text[:69]}…")


def _codecs(diagnosis: Diagnosis) -> Table:
    from rich.table import Table

    notes = [f"* as stored: {', '.join(diagnosis.stored_as)}. No codec brings back what that has lost."]
    notes += [f"{loss.codec}: {loss.note}" for loss in diagnosis.codecs if loss.note]
    table = Table(title="codecs", title_justify="left", caption="\n".join(notes), caption_justify="left")
    table.add_column("", no_wrap=True)
    for loss in diagnosis.codecs:
        mark = " *" if loss.codec in diagnosis.stored_as else ""
        table.add_column(loss.codec + mark, justify="right", no_wrap=True)
    for heading, field, spec in _LOSSES:
        figures = (getattr(loss, field) for loss in diagnosis.codecs)
        table.add_row(heading, *("-" if figure is None else format(figure, spec) for figure in figures))
    return table
