"""``distill report``: what is known of runs, as a page, as Markdown or as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from distill.cli.ticker import watched
from distill.evaluation.suites import SUITES

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".svg": "svg"}


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it here.  [default: print it]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json", "svg"]),
    help="html: one page that needs nothing from outside; svg: retention over size and speed, a picture.  "
    "[default: by the ending of --out, else md]",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of test files: evaluate on it what was not evaluated yet.  [default: evaluate nothing]",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(list(SUITES)),
    help="Report this suite alone; repeatable.  [default: all that were evaluated or, with --data, can be]",
)
@click.option(
    "--neighbours",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Show the nearest neighbours of so many held-out sentences; 0: none, and no model is loaded",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps")
def report_command(
    runs: tuple[Path, ...],
    out: Path | None,
    form: str | None,
    data: Path | None,
    suites: tuple[str, ...],
    neighbours: int,
    device: str,
) -> None:
    """Report on runs: scores, curves, charts, neighbours, configurations.

    RUN is the folder of a run, or one with runs anywhere below it, such as a sweep's.

    Evaluations kept in the runs' folders (by 'distill eval' and 'distill sweep') are used; what is missing is
    told.
    """
    import json

    from distill.report.collect import collect_report
    from distill.report.markdown import render_markdown

    ending = out.suffix.lower() if out else ".md"
    if form is None and ending not in _ENDINGS:
        raise click.BadParameter(
            f"{out}: expected a file that ends in {', '.join(_ENDINGS)}, or --format", param_hint="'--out'"
        )
    form = form or _ENDINGS[ending]
    if form in ("html", "svg"):
        from distill.report.charts.style import require_matplotlib

        require_matplotlib()  # before the work
    if form == "svg":
        neighbours = 0  # none are drawn
    with watched("") as progress:
        report = collect_report(
            runs,
            data=data,
            suites=suites or None,
            queries=neighbours,
            device=device,
            progress=progress,
        )
    if form == "html":
        from distill.report.page import render_page

        text = render_page(report)
    elif form == "svg":
        from distill.report.charts.picture import front_picture

        text = front_picture(report)
    elif form == "json":
        text = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
    else:
        text = render_markdown(report)
    if out is None:
        click.echo(text, nl=False)
        return
    from embedcache.fsio import write_bytes

    write_bytes(out, text.encode())
    click.echo(f"written to {out}", err=True)
