"""Predictions for the texts of a file, and their score."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

from distill.data.labelled import Columns, LabelledRows, label_numbers, read_labelled
from distill.errors import ConfigError
from distill.reaugkd.classifier import Answers, Neighbour, RetrievalAugmentedClassifier
from distill.reaugkd.knowledge_base import OnStep, Probabilities
from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
from embedcache.corpus.sources import STDIN
from embedcache.fsio import write_bytes
from embedcache.keys import KeyIndex, key_array
from embedcache.pairs import split_pair

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Score:
    """Quality of answers.

    Attributes:
        rows: number of texts.
        accuracy, macro_f1: 0 to 1.
        matthews: Matthews' correlation, -1 to 1, the measure of CoLA.
        labels: label -> ``rows``, ``precision``, ``recall`` and ``f1``.
    """

    rows: int
    accuracy: float
    macro_f1: float
    matthews: float
    labels: dict[str, dict[str, float]]

    @classmethod
    def of(cls, gold: NDArray[np.int64], predicted: NDArray[np.int64], names: Sequence[str]) -> Score:
        """Score predicted label numbers of shape (n,), n > 0."""
        numbers = range(len(names))
        figures = precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0)
        keys = ("precision", "recall", "f1", "rows")
        return cls(
            rows=len(gold),
            accuracy=float(accuracy_score(gold, predicted)),
            macro_f1=float(f1_score(gold, predicted, average="macro")),
            matthews=float(matthews_corrcoef(gold, predicted)),
            labels={
                names[n]: {key: float(figure[n]) for key, figure in zip(keys, figures, strict=True)}
                for n in numbers
            },
        )


@dataclass(frozen=True)
class Predictions:
    """Answers about the n texts of a file.

    Attributes:
        texts: the texts, pairs joined.
        names: names of the c labels.
        probabilities, student: shape (n, c); with retrieval, and of the student alone.
        gold: right labels; None without labels.
        neighbours: neighbours of each text; None if they were not asked for.
        score, student_score: with retrieval, and of the student alone; None without labels.
        chosen_on: scored texts that k and beta were chosen on.
        in_base: scored texts that are in the base, so that they find themselves.
        encode_seconds, search_seconds: time of the student, and time that retrieval added.
        warm_up_seconds: time of a first answer, not counted in those.
    """

    texts: Sequence[str]
    names: Sequence[str]
    probabilities: Probabilities
    student: Probabilities
    gold: Sequence[str] | None
    neighbours: Sequence[Sequence[Neighbour]] | None
    score: Score | None
    student_score: Score | None
    chosen_on: int
    in_base: int
    encode_seconds: float
    search_seconds: float
    warm_up_seconds: float

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each answer as a JSON object."""
        for place, text in enumerate(self.texts):
            row: dict[str, Any] = dict(zip(("text", "text2"), split_pair(text) or (text,), strict=False))
            if self.gold is not None:
                row["gold"] = self.gold[place]
            row["label"] = self.names[int(self.probabilities[place].argmax())]
            row["student"] = self.names[int(self.student[place].argmax())]
            shares = zip(self.names, self.probabilities[place].tolist(), strict=True)
            row["probabilities"] = {name: round(share, 6) for name, share in shares}
            if self.neighbours is not None:
                row["neighbours"] = [asdict(one) for one in self.neighbours[place]]
            yield row

    def write(self, path: Path) -> None:
        """Write the answers as JSONL, or as TSV if the file's name does not end in ``.jsonl``.

        Raises:
            StorageError: if it cannot be written.
        """
        lines: list[str] = []
        for row in self.rows():
            if path.suffix == ".jsonl":
                lines.append(json.dumps(row, ensure_ascii=False))
                continue
            shares, near = row.pop("probabilities"), row.pop("neighbours", None)
            cells = row | {f"p({name})": f"{share:.6f}" for name, share in shares.items()}
            cells |= {} if near is None else {"neighbours": json.dumps(near, ensure_ascii=False)}
            lines += [] if lines else ["\t".join(cells)]
            # A tab or a line end inside a text would end its field.
            lines.append("\t".join(" ".join(str(cell).split()) for cell in cells.values()))
        write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def read_texts(
    path: str, columns: Columns, rows: Sequence[str] = (), *, limit: int | None = None
) -> LabelledRows:
    """Read texts from a file, or from standard input (``-``), one text a line.

    Raises:
        ConfigError: if columns or rows of standard input are asked for.
        DataError, InputError: if the file cannot be read, or no row is left.
    """
    if path != STDIN:
        return read_labelled(path, columns, rows, limit=limit)
    if columns != Columns(label=None) or rows:
        raise ConfigError("standard input has one text a line and no columns: put the rows into a file")
    report = ReadReport()
    batches = read_batches([STDIN], ReadOptions(format="text", limit=limit), report)
    texts = [text for batch in batches for text in batch.texts]
    return LabelledRows("standard input", texts, [""] * len(texts), described=report.describe_skipped())


def predict(
    classifier: RetrievalAugmentedClassifier,
    rows: LabelledRows,
    *,
    labelled: bool,
    neighbours: int = 0,
    own_settings: bool = False,
    on_step: OnStep | None = None,
) -> Predictions:
    """Predict the labels of texts, and score the answers.

    Args:
        classifier: the classifier.
        rows: the texts, with their labels if ``labelled``.
        labelled: score the answers.
        neighbours: neighbours to return per text, of those used.
        own_settings: k and beta were both given by the caller, so no rows chose them.
        on_step: progress.

    Raises:
        ConfigError: if all scored rows are among those that k and beta were chosen on.
        DataError: if a label is unknown.
    """
    names, base = list(classifier.head.labels), classifier.base
    gold = label_numbers(rows.labels, names, rows.name) if labelled else None
    chosen_on = in_base = 0
    if base is not None and gold is not None:
        keys = key_array(rows.texts)
        in_base = int(base.holds(keys).sum())
        if base.chosen_keys is not None and not own_settings:
            chosen_on = int((KeyIndex(base.chosen_keys).locate(keys) >= 0).sum())
        if chosen_on == len(rows):
            raise ConfigError(
                f"{rows.name}: k and beta were chosen on these rows: score others, or give --k and --beta, "
                "or --no-retrieval"
            )
    began = time.perf_counter()
    classifier.answer(rows.texts[:1])
    warm_up = time.perf_counter() - began
    parts: list[Answers] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        parts.append(classifier.answer(rows.texts[start : start + _ROWS_AT_ONCE]))
        if on_step is not None:
            on_step("predicted", min(start + _ROWS_AT_ONCE, len(rows)), len(rows))
    probabilities = np.concatenate([part.probabilities for part in parts])
    student = np.concatenate([part.student for part in parts])
    return Predictions(
        texts=rows.texts,
        names=names,
        probabilities=probabilities,
        student=student,
        gold=rows.labels if labelled else None,
        neighbours=[one for part in parts for one in classifier.describe(part.found, neighbours)]
        if neighbours
        else None,
        score=None if gold is None else Score.of(gold, probabilities.argmax(axis=1), names),
        student_score=None if gold is None else Score.of(gold, student.argmax(axis=1), names),
        chosen_on=chosen_on,
        in_base=in_base,
        encode_seconds=sum(part.encode_seconds for part in parts),
        search_seconds=sum(part.search_seconds for part in parts),
        warm_up_seconds=warm_up,
    )
