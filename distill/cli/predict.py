"""``distill predict``: labels of texts, and the neighbours that they are based on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distill.cli.kb import file_options
from embedcache.cli.options import count
from embedcache.cli.tables import print_json
from embedcache.progress import show_progress

if TYPE_CHECKING:
    from distill.data.labelled import Columns, LabelledRows
    from distill.reaugkd.classifier import Answers, RetrievalAugmentedClassifier

_ROWS_AT_ONCE = 2048


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
    import numpy as np

    from distill.data.labelled import Columns, label_numbers
    from distill.errors import ConfigError
    from distill.reaugkd.classifier import RetrievalAugmentedClassifier, score_labels
    from distill.reaugkd.knowledge_base import contains
    from embedcache.keys import key_array

    if no_retrieval and neighbours:
        raise click.UsageError("--no-retrieval has no neighbours: leave out --neighbours")
    if out is not None and out.suffix not in (".tsv", ".jsonl"):
        raise click.BadParameter(f"{out}: expected a file that ends in .tsv or .jsonl", param_hint="'--out'")
    read = _read_texts(file, Columns(text, text2, label), rows, limit)
    if read.described:
        click.echo(f"left out: {read.described}", err=True)
    classifier = RetrievalAugmentedClassifier.from_folder(model, retrieval=not no_retrieval, **options)
    base, names = classifier.base, classifier.head.labels
    chosen = base.header.chosen if base and None in (options["k"], options["beta"]) else None
    facts: dict[str, Any] = {
        "rows": len(read),
        "k": classifier.k if base else None,
        "beta": classifier.beta if base else None,
        "chosen": chosen.model_dump() if chosen else None,
    }
    if label is not None:
        gold, keys = label_numbers(read.labels, names, read.name), key_array(read.texts)
        known = {"chosen_on": base.chosen_keys if chosen else None, "in_base": base.keys} if base else {}
        facts |= {name: 0 if one is None else int(contains(one, keys).sum()) for name, one in known.items()}
        if facts.get("chosen_on") == len(read):
            raise ConfigError(
                f"{read.name}: k and beta were chosen on these rows: score others, or give --k and --beta, "
                "or --no-retrieval"
            )
    parts: list[Answers] = []
    with show_progress() as progress:
        classifier.answer(read.texts[:1])  # The first answer takes longer.
        progress.phase("predict", len(read))
        for start in range(0, len(read), _ROWS_AT_ONCE):
            parts.append(classifier.answer(read.texts[start : start + _ROWS_AT_ONCE]))
            progress.advance(min(_ROWS_AT_ONCE, len(read) - start))
    if label is not None:
        for name, part in (("score", "probabilities"), ("student_score", "student")):
            said = np.concatenate([getattr(one, part).argmax(axis=1) for one in parts])
            facts[name] = score_labels(gold, said, names)
    facts |= {name: sum(getattr(one, name) for one in parts) for name in ("encode_seconds", "search_seconds")}
    answers = _answers(classifier, read, parts, label is not None, neighbours)
    if out is not None:
        _write(out, answers)
    if as_json:
        print_json(facts)
        return
    if out is None:
        _print(answers)
    # Only answers go to standard output, for another program to read.
    for line in _summary(facts):
        click.echo(line, err=out is None)


def _read_texts(path: str, columns: Columns, rows: Sequence[str], limit: int | None) -> LabelledRows:
    """Read texts from a file, or from standard input (``-``), one text a line."""
    from distill.data.labelled import LabelledRows, read_labelled
    from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
    from embedcache.corpus.sources import STDIN

    if path != STDIN:
        return read_labelled(path, columns, rows, limit=limit)
    if columns.text or columns.text2 or columns.label or rows:
        raise click.UsageError("standard input has one text a line and no columns: put the rows into a file")
    report = ReadReport()
    batches = read_batches([STDIN], ReadOptions(format="text", limit=limit), report)
    texts = [text for batch in batches for text in batch.texts]
    return LabelledRows("standard input", texts, [""] * len(texts), described=report.describe_skipped())


def _answers(
    classifier: RetrievalAugmentedClassifier,
    read: LabelledRows,
    parts: Sequence[Answers],
    is_labelled: bool,
    neighbours: int,
) -> Iterator[dict[str, Any]]:
    """Yield each answer as a JSON object."""
    from embedcache.pairs import split_pair

    names, place = classifier.head.labels, 0
    for part in parts:
        near = classifier.describe(part.found, neighbours) if neighbours else None
        for number, (shares, student) in enumerate(zip(part.probabilities, part.student, strict=True)):
            text = read.texts[place]
            row: dict[str, Any] = dict(zip(("text", "text2"), split_pair(text) or (text,), strict=False))
            if is_labelled:
                row["gold"] = read.labels[place]
            row |= {"label": names[int(shares.argmax())], "student": names[int(student.argmax())]}
            row["probabilities"] = dict(zip(names, shares.round(6).tolist(), strict=True))
            if near is not None:
                row["neighbours"] = [asdict(one) for one in near[number]]
            place += 1
            yield row


def _write(path: Path, answers: Iterator[dict[str, Any]]) -> None:
    """Write answers as JSONL, or as TSV if the file's name does not end in ``.jsonl``."""
    from embedcache.fsio import write_bytes

    lines: list[str] = []
    for row in answers:
        if path.suffix == ".jsonl":
            lines.append(json.dumps(row, ensure_ascii=False))
            continue
        cells = row | {f"p({name})": f"{share:.6f}" for name, share in row.pop("probabilities").items()}
        if "neighbours" in row:
            cells["neighbours"] = json.dumps(row["neighbours"], ensure_ascii=False)
        lines += [] if lines else ["\t".join(cells)]
        # A tab or a line end inside a text would end its field.
        lines.append("\t".join(" ".join(str(cell).split()) for cell in cells.values()))
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _print(answers: Iterator[dict[str, Any]]) -> None:
    for number, row in enumerate(answers):
        if number == 0 and "neighbours" in row:
            columns = "label, probability, text; its neighbours: weight, label, its probability, text"
            click.echo(columns, err=True)
        texts = " | ".join(row[name] for name in ("text", "text2") if name in row)
        click.echo(f"{row['label']}\t{row['probabilities'][row['label']]:.4f}\t{texts}")
        for near in row.get("neighbours", ()):
            text = near["text"] or f"row {near['row']}"
            shown = text if isinstance(text, str) else " | ".join(text)
            click.echo(f"  {near['weight']:.3f}\t{near['label']} {near['probability']:.4f}\t{shown}")


def _summary(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a result as text."""
    for title, score in (
        ("with retrieval", facts.get("score")),
        ("student alone", facts.get("student_score")),
    ):
        if score and (facts["k"] or title == "student alone"):
            yield (
                f"{title}: {100 * score['accuracy']:.2f} % of {score['rows']:,} right, macro F1 "
                f"{100 * score['macro_f1']:.2f}, Matthews' correlation {100 * score['matthews']:.2f}"
            )
    for label, one in facts.get("score", {}).get("labels", {}).items():
        yield (
            f"{label}: {one['rows']:,} rows, precision {100 * one['precision']:.2f}, recall "
            f"{100 * one['recall']:.2f}, F1 {100 * one['f1']:.2f}"
        )
    for name, what in (
        ("chosen_on", "k and beta were chosen on"),
        ("in_base", "are in the knowledge base and find themselves:"),
    ):
        if facts.get(name):
            yield f"note: the score is too good: {what} {facts[name]:,} of these rows"
    if facts["k"]:
        chosen = facts["chosen"]
        source = f"chosen on {chosen['rows']:,} {chosen['source']}" if chosen else "not chosen on any rows"
        yield f"k {facts['k']}, beta {facts['beta']:g} ({source})"
    rows, seconds, added = facts["rows"], facts["encode_seconds"], facts["search_seconds"]
    retrieval = f"; retrieval added {added:.3f} s, {100 * added / seconds:.2f} %" if facts["k"] else ""
    yield f"texts: {rows:,} in {seconds:.2f} s, {rows / seconds:,.0f}/s{retrieval}"
