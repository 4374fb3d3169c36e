"""``distill predict``: a classifier's answers, and the neighbours that spoke for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distill.cli.kb import column_options, machine_options
from distill.cli.ticker import watched
from embedcache.sizes import counted

if TYPE_CHECKING:
    from distill.prediction import Predictions
    from distill.retrieval_classifier import RetrievalAugmentedClassifier


@click.command("predict")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", default="-")
@column_options
@click.option("--label", metavar="COLUMN", help="Column of the right label: the answers are scored.")
@click.option("--limit", type=click.IntRange(1), help="Take the first so many rows only.")
@click.option(
    "--k", type=click.IntRange(1), help="Neighbours to ask.  [default: as 'distill kb tune' chose, else 10]"
)
@click.option(
    "--beta",
    type=click.FloatRange(0, 1),
    help="What the student's own answer counts for.  [default: as chosen, else 0.5]",
)
@click.option("--no-retrieval", is_flag=True, help="Ask no knowledge base.")
@click.option(
    "--neighbours",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Give the N weightiest neighbours of each text.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the answers there, as .tsv or .jsonl.  [default: print them]",
)
@machine_options
@click.option("--json", "as_json", is_flag=True, help="Print score and rates as JSON, and no answers.")
def predict_command(
    model: Path,
    file: str,
    text: str | None,
    text2: str | None,
    rows: tuple[str, ...],
    format: str | None,  # noqa: A002 - the option's name
    label: str | None,
    limit: int | None,
    k: int | None,
    beta: float | None,
    no_retrieval: bool,
    neighbours: int,
    out: Path | None,
    device: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Predict the labels of the texts in FILE (default: standard input, a text a line).

    MODEL is a run or a model folder with a classifier. Where it has a knowledge base, the answer is beta
    times the student's own and 1 - beta times that of the k nearest neighbours (ReAugKD, section 3.3).
    """
    from distill.classification.rows import Columns
    from distill.prediction import predict, read_rows, refuse_other_ending
    from distill.retrieval_classifier import RetrievalAugmentedClassifier

    if no_retrieval and (k is not None or beta is not None or neighbours):
        raise click.UsageError("--no-retrieval asks no neighbours: leave --k, --beta and --neighbours out")
    if out is not None:
        refuse_other_ending(out)
    read = read_rows(file, Columns(text, text2, label, format), rows, limit=limit)
    classifier = RetrievalAugmentedClassifier.from_folder(
        model, retrieval=not no_retrieval, k=k, beta=beta, device=device, threads=threads
    )
    given = tuple(name for name, value in (("k", k), ("beta", beta)) if value is not None)
    with watched() as on_step:
        found = predict(
            classifier,
            read,
            labelled=label is not None,
            neighbours=neighbours,
            own_settings=len(given) == 2,
            on_step=on_step,
        )
    if read.described:
        click.echo(f"left out: {read.described}", err=True)
    if out is not None:
        found.write(out)
    if as_json:
        click.echo(json.dumps(_facts(found, classifier, given), indent=2, ensure_ascii=False))
        return
    if out is None:
        _print_answers(found)
    # What is printed may be read by another program: answers alone go there.
    _print_summary(found, classifier, given, err=out is None)


def _facts(
    found: Predictions, classifier: RetrievalAugmentedClassifier, given: tuple[str, ...]
) -> dict[str, Any]:
    from dataclasses import asdict

    base = classifier.base
    # A choice that neither setting is of says nothing of the answers.
    chosen = base.chosen if base is not None and len(given) < 2 else None
    return {
        "rows": len(found.texts),
        "k": classifier.k if base else None,
        "beta": classifier.beta if base else None,
        "given": list(given),
        "chosen": chosen.to_json() if chosen else None,
        "score": asdict(found.score) if found.score else None,
        "encode_seconds": found.encode_seconds,
        "search_seconds": found.search_seconds,
        "warm_up_seconds": found.warm_up_seconds,
    }


def _print_answers(found: Predictions) -> None:
    for row in found.rows():
        likely = row["probabilities"][row["label"]]
        texts = " | ".join(row[name] for name in ("text", "text2") if name in row)
        click.echo(f"{row['label']}\t{likely:.4f}\t{texts}")
        for near in row.get("neighbours", ()):
            kept = near["text"]
            what = (
                f"row {near['row']}" if kept is None else kept if isinstance(kept, str) else " | ".join(kept)
            )
            click.echo(f"  {near['weight']:.3f}\t{near['label']} {near['probability']:.4f}\t{what}")


def _settings(classifier: RetrievalAugmentedClassifier, given: tuple[str, ...]) -> str:
    """Return k and beta, and where each comes from: typed, chosen on rows, or neither."""
    chosen = classifier.base.chosen if classifier.base is not None else None
    otherwise = f"chosen on {chosen.rows:,} {chosen.source}" if chosen else "never tuned"
    k_from, beta_from = ("given" if name in given else otherwise for name in ("k", "beta"))
    of_k = "" if k_from == beta_from else f" ({k_from})"
    return f"k {classifier.k}{of_k}, beta {classifier.beta:g} ({beta_from})"


def _print_summary(
    found: Predictions, classifier: RetrievalAugmentedClassifier, given: tuple[str, ...], *, err: bool
) -> None:
    base, score = classifier.base, found.score
    if score is not None:
        click.echo(f"{'label':<20}{'rows':>8}{'said':>8}{'precision':>11}{'recall':>8}{'F1':>8}", err=err)
        for one in score.labels:
            click.echo(
                f"{one.label:<20}{one.rows:>8,}{one.said:>8,}{100 * one.precision:>11.2f}"
                f"{100 * one.recall:>8.2f}{100 * one.f1:>8.2f}",
                err=err,
            )
        told = (
            f"{100 * score.accuracy:.2f} % of {score.rows:,} right, macro F1 {100 * score.macro_f1:.2f}, "
            f"Matthews' correlation {100 * score.matthews:.2f}"
        )
        if base is not None:
            told += (
                f"; the student alone {100 * score.student_accuracy:.2f} %, "
                f"{100 * score.student_macro_f1:.2f}, {100 * score.student_matthews:.2f}"
            )
        click.echo(told, err=err)
        if score.chosen_on:
            click.echo(
                f"note: k and beta were chosen on {score.chosen_on:,} of these rows: the score is too good",
                err=err,
            )
        if score.in_base:
            click.echo(
                f"note: {score.in_base:,} of these rows stand in the knowledge base and find themselves: the "
                "score is too good",
                err=err,
            )
    if base is not None:
        click.echo(_settings(classifier, given), err=err)
    texts = counted(len(found.texts), "text")
    rate = len(found.texts) / max(found.encode_seconds, 1e-9)
    added = 100 * found.search_seconds / max(found.encode_seconds, 1e-9)
    retrieval = f"; retrieval added {found.search_seconds:.3f} s, {added:.2f} %" if base is not None else ""
    click.echo(
        f"{texts} in {found.encode_seconds:.2f} s, {rate:,.0f}/s{retrieval}; a first "
        f"answer, which is not counted, took {found.warm_up_seconds:.2f} s",
        err=err,
    )
