"""``distill predict``: labels of texts, and the neighbours that they are based on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distill.cli.kb import file_options
from distill.cli.ticker import watched
from embedcache.cli.options import count

if TYPE_CHECKING:
    from distill.reaugkd.predict import Predictions


@click.command("predict")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("file", default="-")
@file_options
@count("--limit", "Read at most N rows.")
@count("--k", "Neighbours per text.  [default: as chosen by 'distill kb tune', else 10]")
@click.option(
    "--beta",
    type=click.FloatRange(0, 1),
    help="Weight of the student's own answer.  [default: as chosen, else 0.5]",
)
@click.option("--no-retrieval", is_flag=True, help="Use no knowledge base.")
@click.option("--neighbours", type=click.IntRange(0), default=0, help="Show N neighbours of each text.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the answers, .tsv or .jsonl."
)
@click.option("--json", "as_json", is_flag=True, help="Print score and times as JSON, and no answers.")
def predict_command(
    model: Path, file: str, text: str | None, text2: str | None, label: str | None, rows: tuple[str, ...],
    limit: int | None, no_retrieval: bool, neighbours: int, out: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict the labels of the texts in FILE (default: standard input, one text a line).

    MODEL is a run or a model folder with a classifier. With --label the answers are scored. With a knowledge
    base the answer is beta times the student's and 1 - beta times that of the k nearest neighbours.
    """
    from distill.data.labelled import Columns
    from distill.reaugkd.classifier import RetrievalAugmentedClassifier
    from distill.reaugkd.predict import predict, read_texts

    own = options["k"] is not None and options["beta"] is not None
    if no_retrieval and (options["k"] is not None or options["beta"] is not None or neighbours):
        raise click.UsageError("--no-retrieval has no neighbours: leave out --k, --beta and --neighbours")
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise click.BadParameter(f"{out}: expected a file that ends in .tsv or .jsonl", param_hint="'--out'")
    read = read_texts(file, Columns(text, text2, label), rows, limit=limit)
    classifier = RetrievalAugmentedClassifier.from_folder(model, retrieval=not no_retrieval, **options)
    with watched() as on_step:
        found = predict(
            classifier, read, labelled=bool(label), neighbours=neighbours, own_settings=own, on_step=on_step
        )
    if read.described:
        click.echo(f"left out: {read.described}", err=True)
    if out is not None:
        found.write(out)
    base = classifier.base
    chosen = base.header.chosen if base and not own else None
    facts = {
        "rows": len(found.texts),
        "k": classifier.k if base else None,
        "beta": classifier.beta if base else None,
        "chosen": chosen.model_dump(mode="json") if chosen else None,
        "score": asdict(found.score) if found.score else None,
        "student_score": asdict(found.student_score) if found.student_score else None,
        "chosen_on": found.chosen_on,
        "in_base": found.in_base,
        "encode_seconds": found.encode_seconds,
        "search_seconds": found.search_seconds,
        "warm_up_seconds": found.warm_up_seconds,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    if out is None:
        _print_answers(found)
    # Only answers go to standard output, for another program to read.
    for line in _summary(found, facts):
        click.echo(line, err=out is None)


def _print_answers(found: Predictions) -> None:
    for row in found.rows():
        texts = " | ".join(row[name] for name in ("text", "text2") if name in row)
        click.echo(f"{row['label']}\t{row['probabilities'][row['label']]:.4f}\t{texts}")
        for near in row.get("neighbours", ()):
            text = near["text"] or f"row {near['row']}"
            shown = text if isinstance(text, str) else " | ".join(text)
            click.echo(f"  {near['weight']:.3f}\t{near['label']} {near['probability']:.4f}\t{shown}")


def _summary(found: Predictions, facts: dict[str, Any]) -> list[str]:
    lines = []
    for name, score in (("with retrieval", found.score), ("student alone", found.student_score)):
        if score is not None and (facts["k"] or name == "student alone"):
            lines.append(
                f"{name}: {100 * score.accuracy:.2f} % of {score.rows:,} right, macro F1 "
                f"{100 * score.macro_f1:.2f}, Matthews' correlation {100 * score.matthews:.2f}"
            )
    if found.score is not None:
        lines += [
            f"{label}: {one['rows']:,.0f} rows, precision {100 * one['precision']:.2f}, recall "
            f"{100 * one['recall']:.2f}, F1 {100 * one['f1']:.2f}"
            for label, one in found.score.labels.items()
        ]
    for count_of, what in (
        (found.chosen_on, "k and beta were chosen on"),
        (found.in_base, "are in the knowledge base and find themselves:"),
    ):
        if count_of:
            lines.append(f"note: the score is too good: {what} {count_of:,} of these rows")
    chosen = facts["chosen"]
    if facts["k"]:
        source = f"chosen on {chosen['rows']:,} {chosen['source']}" if chosen else "not chosen on any rows"
        lines.append(f"k {facts['k']}, beta {facts['beta']:g} ({source})")
    rate, added = len(found.texts) / found.encode_seconds, found.search_seconds / found.encode_seconds
    lines.append(
        f"{len(found.texts):,} texts in {found.encode_seconds:.2f} s, {rate:,.0f}/s; retrieval added "
        f"{found.search_seconds:.3f} s, {100 * added:.2f} %; warm-up {found.warm_up_seconds:.2f} s"
    )
    return lines
