"""``distill kb``: the knowledge base beside a student."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distill.cli.kb_show import describe_chosen, show_built, show_choice, write_table
from distill.cli.ticker import watched
from embedcache.cli.options import F, all_of

if TYPE_CHECKING:
    from distill.knowledge_base.base import KnowledgeBase

_MODEL = click.argument("model", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_MACHINE = (
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ..."),
    click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]"),
)
_COLUMNS = (
    click.option(
        "--text", metavar="COLUMN", help="Column of the text.  [default: the one that is plainly it]"
    ),
    click.option("--text2", metavar="COLUMN", help="Column of the second text, for pairs."),
    click.option(
        "--rows",
        metavar="COLUMN=VALUE",
        multiple=True,
        help="Take such rows only, as in split=dev; repeatable, all have to hold.",
    ),
    click.option("--format", metavar="KIND", help="Format of the file.  [default: by its ending]"),
)


def column_options(command: F) -> F:
    """Add where in a file the texts stand."""
    return all_of(*_COLUMNS)(command)


def machine_options(command: F) -> F:
    """Add where and how a student runs."""
    return all_of(*_MACHINE)(command)


@click.group("kb")
def kb_command() -> None:
    """Make and tune the knowledge base that a student asks while it predicts.

    MODEL is a run of 'distill run --loss reaugkd' or of 'distill teach', or a model folder with a classifier.
    The base is part of the folder: 'distill predict' and RetrievalAugmentedClassifier open both.
    """


@kb_command.command("build")
@_MODEL
@click.option(
    "--cache", type=click.Path(path_type=Path), required=True, help="Cache with the teacher's vectors."
)
@click.option("--corpus", metavar="NAME", help="Corpus to put in.  [default: the one the run names]")
@click.option(
    "--teacher",
    metavar="NAME",
    help="Projected teacher, or the cache's name of MODEL itself where 'distill teach' made it.  [default: "
    "the one the run names]",
)
@click.option("--m", type=int, default=48, show_default=True, help="Links a row keeps on each level.")
@click.option(
    "--ef-construction", type=int, default=400, show_default=True, help="Candidates looked at to link a row."
)
@click.option(
    "--ef-search",
    type=int,
    help="Candidates looked at to find neighbours.  [default: the fewest of 32 to 512 that find "
    "99 of 100 of the nearest neighbours of rows held out; 256 without such rows]",
)
@click.option(
    "--codec",
    type=click.Choice(["float32", "float16", "int8"]),
    default="float16",
    show_default=True,
    help="How vectors are kept.",
)
@click.option("--texts", is_flag=True, help="Keep the texts too, so that neighbours can be shown.")
@click.option(
    "--tau", type=float, help="Temperature of neighbours' weights.  [default: as in training, else 0.07]"
)
@click.option("--overwrite", is_flag=True, help="Replace a base that is there.")
@_JSON
def build_command(
    model: Path,
    cache: Path,
    corpus: str | None,
    teacher: str | None,
    m: int,
    ef_construction: int,
    ef_search: int | None,
    codec: str,
    texts: bool,
    tau: float | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make the knowledge base of MODEL from a cache.

    Of each text of the corpus it holds the projected vector and the softmax of the logits. Rows that the run
    held out stay out: k and beta are chosen on them.
    """
    from distill.knowledge_base.build import build_base
    from distill.knowledge_base.index import IndexSettings

    settings = IndexSettings(m, ef_construction, ef_search, codec)
    with watched() as on_step:
        built = build_base(
            model,
            cache,
            corpus=corpus,
            teacher=teacher,
            settings=settings,
            texts=texts,
            tau=tau,
            overwrite=overwrite,
            on_step=on_step,
        )
    show_built(built, as_json)


@kb_command.command("add")
@_MODEL
@click.option(
    "--cache", type=click.Path(path_type=Path), required=True, help="Cache with the teacher's vectors."
)
@click.option("--corpus", metavar="NAME", help="Corpus to add.  [default: the only one]")
@_JSON
def add_command(model: Path, cache: Path, corpus: str | None, as_json: bool) -> None:
    """Add the rows of another corpus to the knowledge base of MODEL; nothing is trained.

    Texts that are in it already, and those that the run held out, are left out. k and beta stay.
    """
    from distill.knowledge_base.build import add_rows

    with watched() as on_step:
        built = add_rows(model, cache, corpus=corpus, on_step=on_step)
    show_built(built, as_json)


@kb_command.command("info")
@_MODEL
@_JSON
def info_command(model: Path, as_json: bool) -> None:
    """Say what the knowledge base of MODEL holds, of whom, and what k and beta were chosen on."""
    from distill.knowledge_base.build import require_header
    from distill.knowledge_base.header import index_bytes
    from distill.knowledge_base.student import open_folder
    from embedcache.cli.tables import size
    from embedcache.sizes import counted

    student = open_folder(model)
    header = require_header(student)
    held = index_bytes(student.folder)
    if as_json:
        click.echo(json.dumps({**header.facts(), "index_bytes": held}, indent=2, ensure_ascii=False))
        return
    origin, settings = header.origin, header.settings
    corpora = ", ".join(f"{corpus['name']} ({corpus['rows']:,})" for corpus in header.corpora)
    click.echo(f"rows         {counted(header.rows, 'row')} of {corpora}")
    click.echo(f"vectors      {header.dimension} numbers of {origin.teacher} ({origin.contract[:12]})")
    click.echo(f"labels       {', '.join(origin.labels)} (logits {origin.logits[:12]})")
    click.echo(
        f"index        HNSW, m {settings.m}, ef-construction {settings.ef_construction}, ef-search "
        f"{settings.ef_search}, {settings.codec}; {size(held)}"
    )
    click.echo(f"texts        {'kept' if header.has_texts else 'not kept'}")
    click.echo(f"tau          {header.tau:g}")
    click.echo(f"k and beta   {describe_chosen(header)}")


@kb_command.command("check")
@_MODEL
@click.option("--sample", type=click.IntRange(1), default=1000, show_default=True, help="Rows to search for.")
@click.option("--k", type=click.IntRange(1), default=10, show_default=True, help="Neighbours of each.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the rows.")
@_JSON
def check_command(model: Path, sample: int, k: int, seed: int, as_json: bool) -> None:
    """Compare the graph of MODEL's knowledge base with exact search, and read every file of it.

    It searches for rows of the base itself, each of which is moved a little. A student's own vectors may lie
    farther off: what the graph finds of those 'distill kb tune' tells.
    """
    from distill.knowledge_base.recall import measure_recall, moved_rows

    base = _base(model)
    found = measure_recall(base.index, moved_rows(base.index, sample, seed), k)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    click.echo(
        f"recall@{found.k} {found.recall:.4f} over {found.queries:,} searches of {len(base):,} rows; as near "
        f"as the nearest {found.k}: {found.as_near:.4f}"
    )
    click.echo(f"a search {1e6 * found.seconds:,.0f} us, exact {1e6 * found.exact_seconds:,.0f} us")


@kb_command.command("tune", short_help="Choose k and beta on rows held out from training.")
@_MODEL
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Cache of the run, to take its held-out rows from.  [default: the one the run names]",
)
@click.option("--corpus", metavar="NAME", help="Corpus with those rows.  [default: the one the run names]")
@click.option("--data", metavar="FILE", help="Labelled rows instead.  [default: rows held out by the run]")
@column_options
@click.option("--label", metavar="COLUMN", help="Column of the label.  [default: label]")
@click.option("--table", is_flag=True, help="Print the table over k (ReAugKD, Table 2).")
@click.option(
    "--ks",
    metavar="K,K,...",
    default="5,10,15,20",
    show_default=True,
    help="The k of the table, at most 20.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table, as .tsv or .json."
)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write k and beta into the base.")
@machine_options
@_JSON
def tune_command(
    model: Path,
    cache: Path | None,
    corpus: str | None,
    data: str | None,
    text: str | None,
    text2: str | None,
    label: str | None,
    rows: tuple[str, ...],
    format: str | None,  # noqa: A002 - the option's name
    table: bool,
    ks: str,
    out: Path | None,
    keep: bool,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Choose k (1 to 20) and beta (0, 0.1 ... 1) on rows held out from training; predictions then use them.

    Rows that stand in the base are left out. Give other rows than those that are to be reported.
    """
    from distill.classification.rows import Columns
    from distill.knowledge_base.choose import choose

    wanted = _parse_ks(ks)
    if out is not None and out.suffix not in (".tsv", ".json"):
        raise click.BadParameter(f"{out}: expected a file that ends in .tsv or .json", param_hint="'--out'")
    named = any(one is not None for one in (text, text2, label, format))
    columns = Columns(text, text2, label or "label", format) if named else None
    choice = choose(
        model,
        cache=cache,
        corpus=corpus,
        data=data,
        columns=columns,
        rows=rows,
        ks=wanted,
        keep=keep,
        device=device,
        threads=threads,
    )
    if choice.described:
        click.echo(f"left out: {choice.described}", err=True)
    if out is not None:
        write_table(choice, out)
    if as_json:
        click.echo(json.dumps(choice.to_json(), indent=2, ensure_ascii=False))
        return
    show_choice(choice, table=table)


def _base(model: Path) -> KnowledgeBase:
    from distill.knowledge_base.build import require_base
    from distill.knowledge_base.student import open_folder

    return require_base(open_folder(model))


def _parse_ks(ks: str) -> list[int]:
    from distill.knowledge_base.tune import MOST_NEIGHBOURS

    parts = [part.strip() for part in ks.split(",")]
    if not all(part.isdigit() and 1 <= int(part) <= MOST_NEIGHBOURS for part in parts):
        raise click.BadParameter(
            f"{ks!r}: expected numbers from 1 to {MOST_NEIGHBOURS} with commas between", param_hint="'--ks'"
        )
    return [int(part) for part in parts]
