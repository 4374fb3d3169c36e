"""``embedcache codecs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from embedcache.cli.options import cache_option, json_option

if TYPE_CHECKING:
    from rich.table import Table

    from embedcache.codecs.compare import StoreComparison

_MEASURES = (
    ("bytes a vector", "bytes_per_vector", ","),
    ("times smaller", "times_smaller", ".3g"),
    ("mean cosine", "mean_cosine", ".8f"),
    ("worst cosine", "worst_cosine", ".8f"),
    ("rank agreement", "rank_agreement", ".6f"),
    ("top 10 kept", "neighbours_kept", ".1%"),
    ("rows/s read", "decode_rows_per_second", ",.0f"),
)


@click.command("codecs")
@cache_option
@click.option("--teacher", metavar="NAME", help="Whose vectors.  [default: the only teacher]")
@click.option(
    "--sample",
    type=click.IntRange(2),
    default=10_000,
    show_default=True,
    help="Vectors drawn; one half of them trains pq, the other is scored.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the sample and the pairs."
)
@json_option
def codecs_command(cache: str, teacher: str | None, sample: int, seed: int, as_json: bool) -> None:
    """Compare the codecs on a cache's own vectors: their size, what they lose, how fast they are read."""
    import json

    from embedcache.cache import Cache
    from embedcache.cli.progress import watched
    from embedcache.codecs.compare import compare_stored

    opened = Cache(cache)
    found = opened.teacher(teacher)
    with watched("steps") as on_step:
        comparison = compare_stored(opened.store(found.contract), sample=sample, seed=seed, on_step=on_step)
    if as_json:
        click.echo(json.dumps({"teacher": found.name, **comparison.to_json()}, indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    console.print(_table(comparison, found.name))
    console.print(*_notes(comparison), sep="\n", markup=False)


def _table(comparison: StoreComparison, teacher: str) -> Table:
    """Return a column for each codec: a row for each would not fit a narrow terminal."""
    from rich.table import Table

    table = Table(
        title=f"{teacher}: {comparison.sampled:,} of {comparison.rows:,} vectors", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for report in comparison.reports:
        mark = " *" if report.codec in comparison.used else ""
        table.add_column(f"{report.codec}{mark}", justify="right", no_wrap=True)
    for heading, field, spec in _MEASURES:
        figures = (getattr(report, field) for report in comparison.reports)
        table.add_row(heading, *("-" if figure is None else format(figure, spec) for figure in figures))
    return table


def _notes(comparison: StoreComparison) -> list[str]:
    scored = max(report.scored for report in comparison.reports)
    notes = [
        f"* in use. Scored on {scored:,} vectors; rank agreement is Spearman's, over similarities of pairs."
    ]
    notes.append("On disk a row also has its key and its token count: 'embedcache plan' counts them in.")
    notes += [f"{report.codec}: {report.why_not}" for report in comparison.reports if report.why_not]
    if scored < comparison.sampled:
        notes.append(
            f"pq learnt its codebook from the other {comparison.sampled - scored:,}; one learnt from more "
            "loses a little less."
        )
    if comparison.lossy:
        notes.append(
            f"The cache holds these vectors as {', '.join(comparison.lossy)}: what that lost cannot be "
            "seen here, and no codec brings it back."
        )
    return notes
