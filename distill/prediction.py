"""Predicting the labels of a file's texts, with the neighbours that spoke for them, and scoring that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.classification.labels import label_numbers
from distill.classification.rows import Columns, LabelledRows, read_labelled
from distill.classification.score import accuracy, macro_f1, matthews
from distill.errors import ConfigError
from distill.knowledge_base.base import contains
from distill.knowledge_base.vote import Probabilities
from distill.retrieval_classifier import Neighbour, RetrievalAugmentedClassifier
from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
from embedcache.corpus.sources import STDIN
from embedcache.fsio import write_bytes
from embedcache.keys import KeyArray, key_array
from embedcache.pairs import split_pair

FORMATS = (".tsv", ".jsonl")
"""What predictions are written as, by the ending of the file."""

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class LabelScore:
    """One label among scored answers.

    Attributes:
        label: its name.
        rows: texts that have it.
        said: texts that are said to have it.
        precision, recall, f1: 0 to 1; 0 where there is nothing to divide by.
    """

    label: str
    rows: int
    said: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Score:
    """How good answers are.

    Attributes:
        rows: texts scored.
        accuracy: share that is right, 0 to 1.
        macro_f1: mean of the F1 of all labels, 0 to 1.
        matthews: Matthews' correlation, -1 to 1.
        labels: the labels one by one.
        student_accuracy, student_macro_f1, student_matthews: the same of the student alone.
        chosen_on: how many of the texts are among those that k and beta were chosen on.
        in_base: how many of the texts stand in the knowledge base, and so are among their own neighbours.
    """

    rows: int
    accuracy: float
    macro_f1: float
    matthews: float
    labels: tuple[LabelScore, ...]
    student_accuracy: float
    student_macro_f1: float
    student_matthews: float
    chosen_on: int
    in_base: int


@dataclass(frozen=True)
class Predictions:
    """Answers about n texts.

    Attributes:
        texts: the texts.
        names: the names of the c labels.
        probabilities: shape (n, c).
        student: those of the student alone, shape (n, c).
        gold: the right labels, where the file holds them.
        neighbours: the neighbours of each text; None where they were not asked for.
        score: how good the answers are; None without labels.
        encode_seconds, search_seconds: time of the student, and what retrieval added to it.
        warm_up_seconds: time of a first answer before those, in which libraries do what they do once.
    """

    texts: Sequence[str]
    names: Sequence[str]
    probabilities: Probabilities
    student: Probabilities
    gold: Sequence[object] | None
    neighbours: Sequence[Sequence[Neighbour]] | None
    score: Score | None
    encode_seconds: float
    search_seconds: float
    warm_up_seconds: float

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each answer as a JSON object."""
        for place, text in enumerate(self.texts):
            pair = split_pair(text)
            probabilities, student = self.probabilities[place], self.student[place]
            row: dict[str, Any] = {"text": text} if pair is None else {"text": pair[0], "text2": pair[1]}
            if self.gold is not None:
                row["gold"] = str(self.gold[place])
            row["label"] = self.names[int(probabilities.argmax())]
            row["student"] = self.names[int(student.argmax())]
            row["probabilities"] = {
                name: round(float(value), 6) for name, value in zip(self.names, probabilities, strict=True)
            }
            if self.neighbours is not None:
                row["neighbours"] = [asdict(one) for one in self.neighbours[place]]
            yield row

    def write(self, path: Path) -> None:
        """Write the answers as TSV or JSONL, by the ending of the file.

        Raises:
            ConfigError: if it has another ending.
            StorageError: if it cannot be written.
        """
        refuse_other_ending(path)
        lines = (
            [json.dumps(row, ensure_ascii=False) for row in self.rows()]
            if path.suffix == ".jsonl"
            else self._tsv()
        )
        write_bytes(path, "".join(f"{line}\n" for line in lines).encode())

    def _tsv(self) -> list[str]:
        lines: list[str] = []
        for row in self.rows():
            likely = row.pop("probabilities")
            near = row.pop("neighbours", None)
            cells = row | {f"p({name})": f"{value:.6f}" for name, value in likely.items()}
            if near is not None:
                cells["neighbours"] = json.dumps(near, ensure_ascii=False)
            if not lines:
                lines.append("\t".join(cells))
            # A tab or a line end ends a field; a text with one would move all that follows.
            lines.append("\t".join(" ".join(str(cell).split()) for cell in cells.values()))
        return lines


def refuse_other_ending(path: Path) -> None:
    """Raise :class:`ConfigError` where predictions cannot be written to a file of that name."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--out {path}: expected a file that ends in {' or '.join(FORMATS)}")


def read_rows(
    path: str, columns: Columns, rows: Sequence[str] = (), *, limit: int | None = None
) -> LabelledRows:
    """Read texts from a file, or from standard input (``-``) a text a line.

    Raises:
        ConfigError: if columns of standard input are asked for.
        DataError, InputError: if the file or a column is not there, cannot be read, or no row is left.
    """
    if path != STDIN:
        return read_labelled(path, columns, rows, limit=limit)
    if columns != Columns(label=None) or rows:
        raise ConfigError(
            "standard input is read a text a line and has no columns: put what has some into a file"
        )
    report = ReadReport()
    batches = read_batches([STDIN], ReadOptions(format="text", limit=limit), report)
    texts = [text for batch in batches for text in batch.texts]
    return LabelledRows("standard input", texts, [""] * len(texts), report.skipped, report.describe_skipped())


def predict(
    classifier: RetrievalAugmentedClassifier,
    rows: LabelledRows,
    *,
    labelled: bool,
    neighbours: int = 0,
    own_settings: bool = False,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Predictions:
    """Predict the labels of texts.

    Args:
        classifier: the classifier.
        rows: the texts, with their labels where ``labelled``.
        labelled: whether to score the answers.
        neighbours: how many neighbours of each text to return, of those asked.
        own_settings: whether k and beta were given by hand, and so were not chosen on any rows.
        on_step: told how many texts are done.

    Raises:
        ConfigError: if neighbours are asked for without a base, or all rows to score are among those that k
            and beta were chosen on.
        DataError: if a label is not one that the classifier knows.
    """
    names = classifier.classes_.tolist()
    gold = label_numbers(rows.labels, names, rows.name) if labelled else None
    if neighbours and classifier.base is None:
        raise ConfigError("--neighbours: there is no knowledge base to ask; leave it out")
    keys = key_array(rows.texts) if labelled else None
    chosen_on = 0 if own_settings or keys is None else _chosen_on(classifier, rows, keys)
    # Of few texts the first call would be most of the time, and which share of it is retrieval's by accident.
    began = time.perf_counter()
    classifier.answer(rows.texts[:1])
    warm_up = time.perf_counter() - began
    parts, near, seconds = [], [], [0.0, 0.0]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        answers = classifier.answer(rows.texts[start : start + _ROWS_AT_ONCE])
        parts.append((answers.probabilities, answers.student))
        if neighbours and answers.found is not None:
            near += classifier.describe(answers.found, neighbours)
        seconds[0] += answers.encode_seconds
        seconds[1] += answers.search_seconds
        if on_step is not None:
            on_step("predicted", min(start + _ROWS_AT_ONCE, len(rows)), len(rows))
    probabilities, student = (np.concatenate(side) for side in zip(*parts, strict=True))
    in_base = 0 if keys is None else _in_base(classifier, keys)
    score = None if gold is None else _score(names, probabilities, student, gold, chosen_on, in_base)
    return Predictions(
        texts=rows.texts,
        names=names,
        probabilities=probabilities,
        student=student,
        gold=rows.labels if labelled else None,
        neighbours=near if neighbours else None,
        score=score,
        encode_seconds=seconds[0],
        search_seconds=seconds[1],
        warm_up_seconds=warm_up,
    )


def _chosen_on(classifier: RetrievalAugmentedClassifier, rows: LabelledRows, keys: KeyArray) -> int:
    """Return how many texts are among those that k and beta were chosen on."""
    base = classifier.base
    if base is None or base.chosen is None:
        return 0
    count = int(contains(base.chosen_keys, keys).sum())
    if count == len(rows):
        raise ConfigError(
            f"{rows.name}: k and beta were chosen on these rows ({base.chosen.source}), so a score on them "
            "would be too good: score others, or give --k and --beta, or --no-retrieval"
        )
    return count


def _in_base(classifier: RetrievalAugmentedClassifier, keys: KeyArray) -> int:
    """Return how many texts stand in the knowledge base."""
    base = classifier.base
    return 0 if base is None else int(base.holds(keys).sum())


def _score(
    names: Sequence[str],
    probabilities: Probabilities,
    student: Probabilities,
    gold: NDArray[np.int64],
    chosen_on: int,
    in_base: int,
) -> Score:
    said, alone = probabilities.argmax(axis=1), student.argmax(axis=1)
    return Score(
        rows=len(gold),
        accuracy=accuracy(said, gold),
        macro_f1=macro_f1(said, gold),
        matthews=matthews(said, gold),
        labels=tuple(_of_label(name, place, said, gold) for place, name in enumerate(names)),
        student_accuracy=accuracy(alone, gold),
        student_macro_f1=macro_f1(alone, gold),
        student_matthews=matthews(alone, gold),
        chosen_on=chosen_on,
        in_base=in_base,
    )


def _of_label(name: str, place: int, said: NDArray[np.int64], gold: NDArray[np.int64]) -> LabelScore:
    is_one, says = gold == place, said == place
    hits, rows, told = int((is_one & says).sum()), int(is_one.sum()), int(says.sum())
    return LabelScore(
        label=name,
        rows=rows,
        said=told,
        precision=hits / max(1, told),
        recall=hits / max(1, rows),
        f1=2 * hits / max(1, told + rows),
    )
