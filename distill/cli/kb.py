"""``distill kb``: projections, and the knowledge base of a student."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import F, all_of, choice, count, flag, json_option, named, overwrite_option
from embedcache.cli.tables import print_result, print_table
from embedcache.progress import show_progress

if TYPE_CHECKING:
    from distill.reaugkd.student import Built

_MODEL = click.argument("model", type=click.Path(path_type=Path))
_CACHE = click.option("--cache", metavar="DIR", required=True, help="The cache's folder.")
_POSITIVE = click.FloatRange(min=0, min_open=True)
_EFFORT = click.IntRange(1, 10**7)
_CORPUS = named("--corpus", "NAME", "Corpus of the cache.  [default: the run's, or the only one]")


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
@click.option("--tau", type=_POSITIVE, help="Temperature of the loss.  [default: 0.07]")
@click.option("--batch-size", type=click.IntRange(2), help="Rows per step.  [default: 512]")
@click.option("--lr", type=_POSITIVE, help="Learning rate.  [default: 2e-5]")
@count("--epochs", "Passes over the rows.  [default: 3]")
@click.option("--seed", type=click.IntRange(0, 10**9), help="Seed.  [default: 0]")
@count("--threads", "CPU threads.  [default: all cores]")
@click.option("--apply", "only_apply", is_flag=True, help="Train nothing: add the vectors that CORPUS lacks.")
@json_option
def project_command(
    cache: str, corpus: str | None, teacher: str | None, only_apply: bool, as_json: bool, **options: Any
) -> None:
    """Train a linear map of cached vectors that draws rows of one label together.

    Only cached vectors and the corpus's labels are used. The mapped vectors are cached as those of another
    teacher, for 'distill run --loss reaugkd'.
    """
    from distill.reaugkd.projection import ProjectionSettings, project
    from embedcache.cache import Cache
    from embedcache.projection import extend

    opened = Cache(cache)
    given = {key: value for key, value in options.items() if value is not None}
    if only_apply:
        if given:
            raise click.UsageError(f"--apply trains nothing: leave out {', '.join(given)}")
        with show_progress() as progress:
            added = extend(opened, opened.teacher(teacher), opened.corpus(corpus), progress)
        print_result({"written": added}, as_json, ("projection", ""), [("vectors added", str(added))])
        return
    rest = {key: given.pop(key) for key in ("dim", "name", "threads") if key in given}
    settings = ProjectionSettings(**given)
    with show_progress() as progress:
        found = project(opened, teacher=teacher, corpus=corpus, settings=settings, progress=progress, **rest)
    training, labels = found.training, ", ".join(f"{label}: {rows:,}" for label, rows in found.labels.items())
    rows = {
        "teacher": f"{found.teacher}, {found.dimension} dimensions, {found.written:,} vectors added",
        "trained on": f"{sum(found.labels.values()):,} rows of {found.corpus} ({labels})",
        "alone": f"{training.alone:,} times a row was alone with its label in its batch",
        "loss": " -> ".join(f"{loss:.4f}" for loss in training.losses),
        "map": f"moved by {100 * training.moved:.2f} % of its norm in {training.steps:,} steps",
        "neighbours": f"{100 * found.base_accuracy:.2f} % right before, {100 * found.accuracy:.2f} % "
        f"after (leave-one-out, {found.sample:,} training rows)",
        "note": "\n".join(found.notes),
    }
    print_result(found, as_json, ("projection", ""), rows.items())


@kb_command.command("build")
@_MODEL
@_CACHE
@_CORPUS
@named("--teacher", "NAME", "Teacher of the vectors.  [default: the run's]")
@click.option("--m", type=click.IntRange(2, 1024), default=48, show_default=True, help="Links of a row.")
@click.option("--ef-construction", type=_EFFORT, default=400, show_default=True, help="Candidates to link.")
@click.option(
    "--ef-search",
    type=_EFFORT,
    help="Candidates in a search.  [default: the fewest that find 99 % of the nearest]",
)
@choice(
    "--codec", ("float32", "float16", "int8"), "Storage of vectors.", default="float16", show_default=True
)
@flag("--texts", "Keep the texts, to show neighbours.")
@click.option(
    "--tau", type=_POSITIVE, help="Temperature of neighbours' weights.  [default: the run's, else 0.07]"
)
@overwrite_option
@json_option
def build_command(model: Path, as_json: bool, **options: Any) -> None:
    """Build the knowledge base of MODEL from a cache; rows that the run held out are left out."""
    from distill.reaugkd.index import IndexSettings
    from distill.reaugkd.student import build_base

    settings = IndexSettings(
        **{name: options.pop(name) for name in ("m", "ef_construction", "ef_search", "codec")}
    )
    with show_progress() as progress:
        built = build_base(model, settings=settings, progress=progress, **options)
    _print_built(built, as_json)


@kb_command.command("add")
@_MODEL
@_CACHE
@_CORPUS
@json_option
def add_command(model: Path, cache: str, corpus: str | None, as_json: bool) -> None:
    """Add another corpus to the knowledge base of MODEL, without training; k and beta stay."""
    from distill.reaugkd.student import add_rows

    with show_progress() as progress:
        built = add_rows(model, cache, corpus=corpus, progress=progress)
    _print_built(built, as_json)


@kb_command.command("tune")
@_MODEL
@named("--cache", "DIR", "Cache with the run's held-out rows.  [default: the run's]")
@_CORPUS
@named("--data", "FILE", "Choose on the rows of a file instead; its label column is 'label'.")
@file_options
@json_option
def tune_command(
    model: Path, data: str | None, text: str | None, text2: str | None, label: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Choose k (1 to 20) and beta (0, 0.1 ... 1) on labelled rows that are not in the base."""
    from distill.data.labelled import Columns
    from distill.reaugkd.tune import tune

    if data is None and (text or text2 or label or options["rows"]):
        raise click.UsageError("--text, --text2, --label and --rows are of a file: name it with --data")
    found = tune(model, data=data, columns=Columns(text, text2, label or "label"), **options)
    if found.skipped:
        click.echo(f"left out: {found.skipped}", err=True)
    chosen, notes = found.chosen, []
    if chosen.within_chance:
        notes.append("the lead is within chance, and it is the best of many trials on these rows")
    if found.exact_accuracy - chosen.accuracy > 0.005:
        notes.append("exact search is better: build the base with a larger --ef-search")
    if chosen.rows < 100:
        notes.append(
            f"{chosen.rows} rows are too few to choose by: give --data FILE, or train with more --held-out"
        )
    rows = {
        "k and beta": f"{chosen.k} and {chosen.beta:g}",
        "chosen on": f"{chosen.rows:,} {chosen.source} ({found.in_base:,} others are in the base)",
        "right": f"{100 * chosen.accuracy:.2f} %, student alone {100 * chosen.without:.2f} %",
        "exact search": f"{100 * found.exact_accuracy:.2f} %; the graph finds "
        f"{100 * found.recall:.1f} % of the student's nearest {chosen.k}",
        "lead, 95 %": _interval(chosen.lead or (0.0, 0.0)),
        "note": "\n".join(notes),
    }
    print_result(found, as_json, ("choice", ""), rows.items())
    if as_json:
        return
    print_table(
        ("k", "% right", "lead, 95 %", "best beta", "% right with it", "seconds added"),
        [
            (
                row.k,
                f"{100 * row.accuracy:.2f}",
                _interval(row.lead) if row.k else "",
                f"{row.best_beta:g}",
                f"{100 * row.best_accuracy:.2f}",
                f"{row.seconds:.4f}" if row.k else "",
            )
            for row in found.table
        ],
    )


@kb_command.command("info")
@_MODEL
@json_option
def info_command(model: Path, as_json: bool) -> None:
    """Check every file of the knowledge base of MODEL, and describe it."""
    from distill.reaugkd.student import open_student_folder

    header = open_student_folder(model).base().header
    origin, chosen = header.origin, header.chosen
    choice = "not chosen yet: 'distill kb tune'"
    if chosen is not None:
        choice = (
            f"{chosen.k} and {chosen.beta:g}, chosen on {chosen.rows:,} {chosen.source} when the base had "
            f"{chosen.base_rows:,} rows: {100 * chosen.accuracy:.2f} % right, student alone "
            f"{100 * chosen.without:.2f} %{', within chance' if chosen.within_chance else ''}"
        )
    rows = {
        "rows": ", ".join(f"{corpus.name} ({corpus.rows:,})" for corpus in header.corpora),
        "vectors": f"{header.dimension} dimensions of {origin.teacher} ({origin.contract[:12]})",
        "labels": ", ".join(origin.labels),
        "index": ", ".join(f"{key} {value}" for key, value in header.index.model_dump().items()),
        "texts": "kept" if header.texts else "not kept",
        "tau": f"{header.tau:g}",
        "k and beta": choice,
    }
    print_result(header, as_json, ("knowledge base", ""), rows.items())


def _print_built(built: Built, as_json: bool) -> None:
    header, recall = built.header, built.recall
    measured = "not measured" if recall is None else f"finds {100 * recall:.1f} % of the nearest 10"
    rows = {
        "rows": f"{built.added:,} added, {header.rows:,} in the base",
        "left out": f"{built.repeated:,} repeated, {built.held_out:,} held out, {built.known:,} known",
        "ef-search": f"{header.index.ef_search}, {measured}",
    }
    print_result(built, as_json, ("knowledge base", ""), rows.items())


def _interval(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
