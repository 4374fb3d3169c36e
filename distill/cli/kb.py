"""``distill kb``: projections, and the knowledge base of a student."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distill.cli.ticker import watched
from embedcache.cli.options import F, all_of, count, flag, named

if TYPE_CHECKING:
    from distill.reaugkd.knowledge_base import Built

_MODEL = click.argument("model", type=click.Path(path_type=Path))
_CACHE = click.option("--cache", metavar="DIR", required=True, help="The cache's folder.")
_CORPUS = named("--corpus", "NAME", "Corpus of the cache.  [default: the run's, or the only one]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def file_options(command: F) -> F:
    """Add the columns and rows of a file of texts, and the machine that a student runs on."""
    return all_of(
        named("--text", "COLUMN", "Column of the text.  [default: text, sentence ...]"),
        named("--text2", "COLUMN", "Column of the second text of a pair."),
        named("--label", "COLUMN", "Column of the label."),
        click.option(
            "--rows", multiple=True, metavar="COLUMN=VALUE", help="Take these rows only. Repeatable."
        ),
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda ..."),
        count("--threads", "CPU threads.  [default: all cores]"),
    )(command)


@click.group("kb")
def kb_command() -> None:
    """Project a teacher's vectors, and keep a knowledge base of them in a student's folder (ReAugKD).

    MODEL is a run of 'distill run --loss reaugkd', or a model folder with a classifier.
    """


@kb_command.command("project")
@_CACHE
@_CORPUS
@named("--teacher", "NAME", "Teacher of the cache; with --apply, a projection.  [default: the only one]")
@count("--dim", "Width of the projected vectors.  [default: the teacher's]")
@named("--name", "NAME", "Name of the projected teacher.  [default: TEACHER.projected]")
@click.option("--tau", type=float, help="Temperature of the loss.  [default: 0.07]")
@click.option("--batch-size", type=click.IntRange(2), help="Rows per step.  [default: 512]")
@click.option("--lr", type=float, help="Learning rate.  [default: 2e-5]")
@count("--epochs", "Passes over the rows.  [default: 3]")
@click.option("--seed", type=click.IntRange(0), help="Seed.  [default: 0]")
@count("--threads", "CPU threads.  [default: all cores]")
@click.option("--apply", "only_apply", is_flag=True, help="Train nothing: add the vectors that CORPUS lacks.")
@_JSON
def project_command(
    cache: str, corpus: str | None, teacher: str | None, only_apply: bool, as_json: bool, **options: Any
) -> None:
    """Train a linear map of cached vectors that draws rows of one label together.

    Only cached vectors and the corpus's labels are used. The mapped vectors are cached as those of another
    teacher, for 'distill run --loss reaugkd'.
    """
    from distill.reaugkd.projection import ProjectionSettings, extend_projection, project

    given = {key: value for key, value in options.items() if value is not None}
    if only_apply:
        if given:
            raise click.UsageError(f"--apply trains nothing: leave out {', '.join(given)}")
        with watched() as on_step:
            added = extend_projection(cache, teacher, corpus=corpus, on_step=on_step)
        click.echo(json.dumps({"written": added}) if as_json else f"{added:,} vectors added")
        return
    rest = {key: given.pop(key) for key in ("dim", "name", "threads") if key in given}
    settings = ProjectionSettings(**given)
    with watched() as on_step:
        found = project(cache, teacher=teacher, corpus=corpus, settings=settings, on_step=on_step, **rest)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    labels = ", ".join(f"{label}: {rows:,}" for label, rows in found.labels.items())
    _show(
        {
            "teacher": f"{found.teacher}, {found.dimension} dimensions, {found.written:,} vectors added",
            "trained on": f"{found.rows:,} rows of {found.corpus} ({labels})",
            "alone": f"{found.alone:,} times a row was alone with its label in its batch",
            "loss": " -> ".join(f"{loss:.4f}" for loss in found.losses),
            "map": f"moved by {100 * found.moved:.2f} % of its norm in {found.steps:,} steps",
            "neighbours": f"{100 * found.base_accuracy:.2f} % right before, {100 * found.accuracy:.2f} % "
            f"after (leave-one-out, {found.sample:,} training rows)",
        }
    )
    for note in found.notes:
        click.echo(f"note: {note}")


@kb_command.command("build")
@_MODEL
@_CACHE
@_CORPUS
@named("--teacher", "NAME", "Teacher of the vectors.  [default: the run's]")
@click.option("--m", type=click.IntRange(2, 1024), default=48, show_default=True, help="Links of a row.")
@click.option(
    "--ef-construction", type=click.IntRange(1), default=400, show_default=True, help="Candidates to link."
)
@count("--ef-search", "Candidates in a search.  [default: the fewest that find 99 % of the nearest]")
@click.option(
    "--codec",
    type=click.Choice(["float32", "float16", "int8"]),
    default="float16",
    show_default=True,
    help="Storage of vectors.",
)
@flag("--texts", "Keep the texts, to show neighbours.")
@click.option(
    "--tau", type=float, help="Temperature of neighbours' weights.  [default: the run's, else 0.07]"
)
@flag("--overwrite", "Replace an earlier base.")
@_JSON
def build_command(
    model: Path,
    m: int,
    ef_construction: int,
    ef_search: int | None,
    codec: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Build the knowledge base of MODEL from a cache; rows that the run held out are left out."""
    from distill.reaugkd.index import IndexSettings
    from distill.reaugkd.knowledge_base import build_base

    settings = IndexSettings.model_validate(
        {"m": m, "ef_construction": ef_construction, "ef_search": ef_search, "codec": codec}
    )
    with watched() as on_step:
        built = build_base(model, settings=settings, on_step=on_step, **options)
    _show_built(built, as_json)


@kb_command.command("add")
@_MODEL
@_CACHE
@_CORPUS
@_JSON
def add_command(model: Path, cache: str, corpus: str | None, as_json: bool) -> None:
    """Add another corpus to the knowledge base of MODEL, without training; k and beta stay."""
    from distill.reaugkd.knowledge_base import add_rows

    with watched() as on_step:
        built = add_rows(model, cache, corpus=corpus, on_step=on_step)
    _show_built(built, as_json)


@kb_command.command("tune")
@_MODEL
@named("--cache", "DIR", "Cache with the run's held-out rows.  [default: the run's]")
@_CORPUS
@named("--data", "FILE", "Choose on the rows of a file instead; its label column is 'label'.")
@file_options
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the choice into the base.")
@_JSON
def tune_command(
    model: Path, data: str | None, text: str | None, text2: str | None, label: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Choose k (1 to 20) and beta (0, 0.1 ... 1) on labelled rows that are not in the base."""
    from distill.data.labelled import Columns
    from distill.reaugkd.tune import tune

    if data is None and (text or text2 or label or options["rows"]):
        raise click.UsageError("--text, --text2, --label and --rows are of a file: name it with --data")
    if data is not None and (options["cache"] or options["corpus"]):
        raise click.UsageError(
            "--cache and --corpus are of the run's held-out rows: leave them or --data out"
        )
    choice = tune(model, data=data, columns=Columns(text, text2, label or "label"), **options)
    if choice.skipped:
        click.echo(f"left out: {choice.skipped}", err=True)
    if as_json:
        click.echo(json.dumps(choice.to_json(), indent=2, ensure_ascii=False))
        return
    chosen = choice.chosen
    low, high = chosen.lead or (0.0, 0.0)
    click.echo(
        f"k {chosen.k}, beta {chosen.beta:g}: {100 * chosen.accuracy:.2f} % right on {chosen.rows:,} "
        f"{chosen.source} ({choice.in_base:,} others are in the base); student alone "
        f"{100 * chosen.without:.2f} %, 95 % interval of the lead {100 * low:+.2f} to {100 * high:+.2f}"
    )
    if chosen.within_chance:
        click.echo("note: the lead is within chance, and it is the best of many trials on these rows")
    click.echo(
        f"exact search: {100 * choice.exact_accuracy:.2f} % right; the graph finds "
        f"{100 * choice.recall.recall:.1f} % of the student's nearest {choice.recall.k}"
    )
    if choice.exact_accuracy - chosen.accuracy > 0.005:
        click.echo("note: exact search is better: build the base with a larger --ef-search")
    click.echo(f"{'k':>4}{'% right':>9}{'lead, 95 %':>18}{'best beta':>11}{'% right':>9}{'seconds':>10}")
    for row in choice.table:
        lead = f"{100 * row.lead[0]:+.2f} to {100 * row.lead[1]:+.2f}" if row.k else ""
        click.echo(
            f"{row.k:>4}{100 * row.accuracy:>9.2f}{lead:>18}{row.best_beta:>11g}"
            f"{100 * row.best_accuracy:>9.2f}{row.seconds:>10.4f}"
        )


@kb_command.command("info")
@_MODEL
@flag("--check", "Read every file, and compare the graph with exact search on moved rows of the base.")
@_JSON
def info_command(model: Path, check: bool, as_json: bool) -> None:
    """Describe the knowledge base of MODEL."""
    from distill.reaugkd.knowledge_base import index_bytes, require_base, require_header
    from distill.reaugkd.student import open_student
    from embedcache.cli.tables import size

    student = open_student(model)
    header = require_header(student)
    facts: dict[str, Any] = {**header.model_dump(mode="json"), "index_bytes": index_bytes(student.folder)}
    if check:
        index = require_base(student).index
        facts["recall"] = asdict(index.recall(index.moved_rows(1000, seed=0), 10))
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    origin, chosen, recall = header.origin, header.chosen, facts.get("recall")
    graph = ", ".join(f"{key} {value}" for key, value in facts["index"].items() if key != "is_settled")
    lines = {
        "rows": ", ".join(f"{corpus.name} ({corpus.rows:,})" for corpus in header.corpora),
        "vectors": f"{header.dimension} dimensions of {origin.teacher} ({origin.contract[:12]})",
        "labels": ", ".join(origin.labels),
        "index": f"{graph}, {size(facts['index_bytes'])}",
        "texts": "kept" if header.texts else "not kept",
        "tau": f"{header.tau:g}",
        "k and beta": "not chosen yet: 'distill kb tune'",
    }
    if chosen is not None:
        lines["k and beta"] = (
            f"{chosen.k} and {chosen.beta:g}, chosen on {chosen.rows:,} {chosen.source} when the base had "
            f"{chosen.base_rows:,} rows: {100 * chosen.accuracy:.2f} % right, student alone "
            f"{100 * chosen.without:.2f} %{', within chance' if chosen.within_chance else ''}"
        )
    if recall is not None:
        lines["recall"] = (
            f"{recall['recall']:.4f} of the nearest {recall['k']}, {1e6 * recall['seconds']:,.0f} us each, "
            f"exact {1e6 * recall['exact_seconds']:,.0f} us"
        )
    _show(lines)


def _show_built(built: Built, as_json: bool) -> None:
    counts = {name: getattr(built, name) for name in ("added", "repeated", "held_out", "known", "recall")}
    header = built.base.header
    if as_json:
        click.echo(json.dumps({**counts, **header.model_dump(mode="json")}, indent=2, ensure_ascii=False))
        return
    measured = (
        "not measured" if built.recall is None else f"finds {100 * built.recall:.1f} % of the nearest 10"
    )
    _show(
        {
            "rows": f"{built.added:,} added, {header.rows:,} in the base",
            "left out": f"{built.repeated:,} repeated, {built.held_out:,} held out, {built.known:,} known",
            "ef-search": f"{header.index.ef_search}, {measured}",
        }
    )


def _show(lines: dict[str, str]) -> None:
    for name, value in lines.items():
        click.echo(f"{name:<12}{value}")
