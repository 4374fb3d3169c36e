"""``embedcache doctor``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import cache_option

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from embedcache.doctor import Diagnosis
    from embedcache.doctor.histogram import Histogram
    from embedcache.doctor.overlap import Overlap

_TERMINAL_BARS = 12
_EXAMPLE_CHARACTERS = 70
_STYLES = {"ok": "green", "look": "yellow", "bad": "red"}


@click.command("doctor")
@cache_option
@click.option("--teacher", metavar="NAME", help="Whose vectors.  [default: the only teacher]")
@click.option(
    "--corpus", metavar="NAME", help="Judge the vectors of this corpus alone.  [default: all vectors]"
)
@click.option(
    "--against",
    multiple=True,
    metavar="PATH",
    help="Evaluation set, or folder of them, that must not be trained on; may be given several times.",
)
@click.option(
    "--sample",
    type=click.IntRange(2),
    default=20_000,
    show_default=True,
    help="Vectors whose geometry is measured; time grows with its square.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the sample.")
@click.option("--plot", metavar="FILE", help="Draw the figures into FILE.svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, histograms included.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any verdict is bad.")
def doctor_command(
    cache: str,
    teacher: str | None,
    corpus: str | None,
    against: tuple[str, ...],
    sample: int,
    seed: int,
    plot: str | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Judge a cache before a student is trained on it.

    Looks for broken and equal vectors, measures the shape of their cloud and the length of the texts, and
    finds texts of evaluation sets among those to be trained on. Each figure is ok, worth a look, or bad.
    """
    import json

    from embedcache.cli.progress import watched
    from embedcache.doctor import examine
    from embedcache.doctor.plot import check_plot
    from embedcache.doctor.plot import plot as draw

    if plot is not None:
        check_plot(plot)
    with watched() as on_progress:
        diagnosis = examine(
            cache,
            teacher=teacher,
            corpus=corpus,
            against=against,
            sample=sample,
            seed=seed,
            on_progress=on_progress,
        )
    if as_json:
        click.echo(json.dumps(diagnosis.to_json(), indent=2, allow_nan=False))
    else:
        from rich.console import Console

        Console().print(*_render(diagnosis), sep="\n")
    if plot is not None:
        drawn = draw(diagnosis, plot)
        if not as_json:
            click.echo(f"plot: {drawn}")
    if strict and diagnosis.worst == "bad":
        sys.exit(1)


def _render(diagnosis: Diagnosis) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = [_verdicts(diagnosis)]
    for verdict in diagnosis.verdicts:
        if verdict.examples and verdict.grade != "ok":
            parts.append(Text(f"{verdict.name}, for example:"))
            parts.extend(Text("  " + "\n    and ".join(map(_short, texts))) for texts in verdict.examples)
    if diagnosis.overlaps:
        parts.extend(_overlaps(diagnosis.overlaps))
    if diagnosis.unread:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in diagnosis.unread.items())
        parts.append(Text(f"not read: {reasons}"))
    parts.append(_bars("texts by length in tokens", diagnosis.lengths, whole=True))
    if diagnosis.geometry is not None:
        parts.append(_bars("pairs by cosine", diagnosis.geometry.cosines, whole=False))
    return parts


def _short(text: str) -> str:
    shown = text if len(text) <= _EXAMPLE_CHARACTERS else text[: _EXAMPLE_CHARACTERS - 1] + "…"
    return repr(shown)


def _verdicts(diagnosis: Diagnosis) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"{diagnosis.cache} with {diagnosis.teacher} ({diagnosis.contract_id[:12]})",
        title_justify="left",
    )
    table.add_column("measure", overflow="fold")
    table.add_column("figure, why it matters, what to do", overflow="fold")
    table.add_column("verdict")
    for verdict in diagnosis.verdicts:
        table.add_row(
            Text(verdict.name),
            Text.assemble(f"{verdict.figure}\n", (verdict.advice, "dim")),
            Text(verdict.grade, style=_STYLES[verdict.grade]),
        )
    return table


def _overlaps(overlaps: Sequence[Overlap]) -> list[RenderableType]:
    """Return the sets that were met as a table, and what became of all others as a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="evaluation sets that were met", title_justify="left")
    table.add_column("set", overflow="fold")
    table.add_column("rows to")
    for column in ("texts", "exact", "folded", "share"):
        table.add_column(column, justify="right")
    met = [one for one in overlaps if one.folded]
    examples = []
    for one in met:
        counts = (f"{one.texts:,}", f"{one.exact:,}", f"{one.folded:,}", f"{one.share:.2%}")
        table.add_row(Text(one.name), "train on" if one.training else "test on", *counts)
        if not one.training:
            examples.append(Text(f"  {one.name}: {_short(one.examples[0])}"))
    texts, skipped = sum(one.texts for one in overlaps), sum(one.skipped for one in overlaps)
    to_train = sum(one.training for one in overlaps)
    kinds = f" ({len(overlaps) - to_train} to test on, {to_train} to train on)" if to_train else ""
    columns = ", ".join(dict.fromkeys(column for one in overlaps for column in one.columns))
    line = Text(
        f"{len(overlaps) - len(met)} of {len(overlaps)} evaluation sets{kinds} were not met; {texts:,} "
        f"texts of columns {columns or 'of plain text'}; "
        f"{skipped:,} values skipped (empty, no string or not UTF-8)"
    )
    if not met:
        return [line]
    return [table, line, *([Text("met, for example:"), *examples] if examples else [])]


def _bars(title: str, data: Histogram, *, whole: bool) -> Table:
    """Return a histogram of at most :data:`_TERMINAL_BARS` bars; ``whole`` numbers get closed ranges."""
    from embedcache.cli.tables import bars

    step = -(-len(data.counts) // _TERMINAL_BARS)
    counts = [sum(data.counts[i : i + step]) for i in range(0, len(data.counts), step)]
    edges = [*data.edges[:-1:step], data.edges[-1]]
    labels = [
        f"{low:.0f} to {high - 1:.0f}" if whole else f"{low:.2f} to {high:.2f}"
        for low, high in pairwise(edges)
    ]
    return bars(title, list(zip(labels, counts, strict=True)))
