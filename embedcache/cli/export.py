"""``embedcache export``."""

from __future__ import annotations

import click

from embedcache.cli.options import cache_option


@click.command("export")
@cache_option
@click.option(
    "--out", required=True, metavar="PATH", help="The Parquet file, or the folder of npy, to write."
)
@click.option(
    "--to",
    type=click.Choice(["parquet", "npy"]),
    default="parquet",
    show_default=True,
    help="One file of row, text, id, label and vector; or vectors.npy with a rows.parquet beside it.",
)
@click.option("--corpus", metavar="NAME", help="Whose rows.  [default: the only corpus]")
@click.option(
    "--view",
    metavar="NAME",
    help="This view of them, with vectors of its texts.  [default: the original text]",
)
@click.option("--teacher", metavar="NAME", help="Whose vectors.  [default: the only teacher]")
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows for which this holds, such as \"label = 'news' AND NOT truncated\".",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Of the vectors.",
)
@click.option("--skip-missing", is_flag=True, help="Leave out and count rows without a vector.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export at --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def export_command(
    cache: str,
    out: str,
    to: str,
    corpus: str | None,
    view: str | None,
    teacher: str | None,
    where: str | None,
    dtype: str,
    skip_missing: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write rows of a corpus with their vectors to a file that other programs read.

    --where knows row, text, characters, key, and, where there are such, id, label, tokens and truncated, of
    the original text also with --view. What is written appears when it is whole.
    """
    import json

    from embedcache.cli.progress import watched
    from embedcache.cli.tables import size
    from embedcache.export import export_rows
    from embedcache.sizes import counted

    with watched() as on_step:
        summary = export_rows(
            cache,
            out,
            corpus=corpus,
            view=view,
            teacher=teacher,
            where=where,
            to=to,
            dtype=dtype,
            skip_missing=skip_missing,
            overwrite=overwrite,
            on_step=on_step,
        )
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
        return
    left_out = f", {summary.missing:,} left out without a vector" if summary.missing else ""
    of = summary.corpus if summary.view is None else f"{summary.view} of {summary.corpus}"
    click.echo(
        f"{counted(summary.rows, 'row')} of {of} with vectors of {summary.teacher} in "
        f"{summary.path} ({size(summary.bytes)}){left_out}, {summary.seconds:.1f} s"
    )
