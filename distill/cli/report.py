"""``distill report``: runs side by side as tables, Markdown, JSON, a page or a picture."""

from __future__ import annotations

import json
from pathlib import Path

import click

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".svg": "svg"}


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE.", metavar="FILE")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "details", "md", "json", "html", "svg"]),
    help="Form of the report.  [default: by the ending of --out, else table]",
)
@click.option("--suite", "suites", multiple=True, metavar="SUITE", help="Show this suite alone; repeatable.")
def report_command(
    runs: tuple[Path, ...], out: Path | None, form: str | None, suites: tuple[str, ...]
) -> None:
    """Rank runs beside their teachers by the evaluations kept in their folders.

    RUN is the folder of a run, or a folder with runs anywhere below it, such as that of a sweep. Runs that
    differ by their seed alone are one row: mean and standard deviation.

    \b
    table    ranking: figures, retention, size, the paper's figure
    details  ranking, and the figures of every set
    html     one page with charts that loads nothing from outside
    svg      picture of retention over size, and over speed where the latency suite timed all
    """
    from distill.report import rows, writers

    ending = out.suffix.lower() if out else ""
    form = form or ("table" if out is None else _ENDINGS.get(ending))
    if form is None:
        raise click.BadParameter(
            f"{out}: no format ends in {ending!r} (known: {', '.join(_ENDINGS)}); give --format",
            param_hint="--out",
        )
    found = rows(runs, suites)
    if form in ("table", "details"):
        from distill.cli.evaluate import table_console

        shown = writers.terminal(found, details=form == "details")
        if out is None:
            table_console().print(shown)
            return
        from rich.console import Console

        with (console := Console(width=200)).capture() as printed:
            console.print(shown)
        text = printed.get()
    elif form == "md":
        text = "# Distillation report\n\n" + writers.markdown(found)
    elif form == "json":
        text = json.dumps(writers.json(found), indent=2, ensure_ascii=False) + "\n"
    elif form == "html":
        from distill.report.page import page

        text = page(found)
    else:
        from distill.report.charts import picture

        text = picture(found)
    if out is None:
        click.echo(text, nl=False)
        return
    from embedcache.fsio import write_bytes

    write_bytes(out, text.encode())
    click.echo(f"written to {out}", err=True)
