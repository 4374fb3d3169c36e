"""``distill project``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from distill.errors import ConfigError
from embedcache.sizes import counted

if TYPE_CHECKING:
    from distill.projection import Projection
    from distill.projection.train import ProjectionSettings

_RAISED_LR = 1e-3
"""A rate with which some thousand rows move a map."""


@click.command("project")
@click.option("--cache", metavar="DIR", required=True, help="The cache's folder.")
@click.option("--corpus", metavar="NAME", help="Corpus with labels in the cache.  [default: the only one]")
@click.option(
    "--teacher",
    metavar="NAME",
    help="Teacher in the cache; with --apply, a projection.  [default: the only one]",
)
@click.option("--dim", type=int, help="Width, that of the student's vectors.  [default: the teacher's]")
@click.option("--name", metavar="NAME", help="What to call it.  [default: TEACHER.projected]")
@click.option("--tau", type=float, help="Temperature.  [default: 0.07]")
@click.option("--batch-size", type=int, help="Rows a step.  [default: 512]")
@click.option("--lr", type=float, help="Learning rate.  [default: 2e-5]")
@click.option("--epochs", type=int, help="Times that all rows are seen.  [default: 3]")
@click.option("--seed", type=int, help="Of its first values and of the order of rows.  [default: 0]")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option(
    "--apply", "only_apply", is_flag=True, help="Train nothing: add the vectors that the corpus lacks."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def project_command(
    cache: str,
    corpus: str | None,
    teacher: str | None,
    dim: int | None,
    name: str | None,
    threads: int | None,
    only_apply: bool,
    as_json: bool,
    **training: float | None,
) -> None:
    """Map a teacher's cached vectors so that rows of one label lie together, and keep that as a teacher.

    A linear map is trained with the supervised contrastive loss from the cached vectors and the corpus's
    labels: no model is loaded. Its vectors have length one and are kept as those of a teacher of its own, for
    'distill run --loss reaugkd' and everything else that reads vectors.
    """
    import json

    from distill.cli.ticker import watched
    from distill.projection import extend_projection, project
    from distill.projection.train import ProjectionSettings

    given = {key: value for key, value in training.items() if value is not None}
    if only_apply:
        others = [key for key, value in (("dim", dim), ("name", name)) if value is not None]
        if strangers := [f"--{key.replace('_', '-')}" for key in (*others, *given)]:
            raise ConfigError(f"--apply trains nothing: leave {', '.join(strangers)} out")
        with watched() as on_step:
            added = extend_projection(cache, teacher, corpus=corpus, on_step=on_step)
        click.echo(json.dumps({"written": added}) if as_json else f"{counted(added, 'vector')} added")
        return
    settings = ProjectionSettings(**given)  # type: ignore[arg-type]
    with watched() as on_step:
        found = project(
            cache,
            teacher=teacher,
            corpus=corpus,
            dim=dim,
            name=name,
            settings=settings,
            threads=threads,
            on_step=on_step,
        )
    if as_json:
        click.echo(json.dumps(found.facts(), indent=2))
    else:
        _print(found, cache, settings)


def _print(found: Projection, cache: str, settings: ProjectionSettings) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.of} projected on {found.corpus}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    counts = ", ".join(f"{label}: {count:,}" for label, count in found.labels.items())
    alone = f", {found.alone:,} times a row had no partner in its batch" if found.alone else ""
    rows = {
        "teacher": f"{found.teacher}, {found.dimension} dimensions",
        "trained on": f"{found.rows:,} rows ({counts}){alone}",
        "loss": " -> ".join(f"{loss:.4f}" for loss in found.losses),
        "the map": f"moved by {100 * found.moved:.2f} % of its norm",
        "neighbours": f"{100 * found.accuracy_of:.2f} % right before, {100 * found.accuracy:.2f} % after "
        f"(leave-one-out, {found.sample:,} rows of the training)",
        "mean cosine": f"of one label {_moved(found.cosines_of.within, found.cosines.within)}, of others "
        f"{_moved(found.cosines_of.between, found.cosines.between)} (the same rows)",
        "their loss": f"{_moved(found.loss_of, found.loss)} among each other",
        "vectors": f"{found.written:,} added",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    for note in _notes(found, settings):
        console.print(f"note: {note}", soft_wrap=True)
    console.print(
        f"Use it:  distill run --cache {cache} --teacher {found.teacher} --loss reaugkd", soft_wrap=True
    )


def _notes(found: Projection, settings: ProjectionSettings) -> list[str]:
    """Return what there is to mend of a projection, and how."""
    notes = []
    if not found.steps:
        notes.append(
            "the map is the one it began with: in no batch did two rows have one label. Use a corpus with "
            "several rows of each label, or give a larger --batch-size, and another --name"
        )
    elif found.hardly_moved:
        # To who has raised the rate already no higher one is recommended.
        more = "more --epochs" if settings.lr >= _RAISED_LR else f"--lr {_RAISED_LR:g}, or more --epochs"
        notes.append(
            "the map hardly moved. The paper's learning rate and epochs are for some 60,000 rows and more; "
            f"here it was {counted(found.steps, 'step')} at {settings.lr:g}: give {more}, and another --name"
        )
    if found.lost_neighbours:
        narrow = found.dimension < found.dimension_of
        less = f"more than --dim {found.dimension}" if narrow else "a lower --lr, or fewer --epochs"
        notes.append(
            f"fewer rows are next to those of their label than before: give {less}, and another --name"
        )
    return notes


def _moved(before: float | None, after: float | None) -> str:
    return "unknown" if before is None or after is None else f"{before:.3f} -> {after:.3f}"
