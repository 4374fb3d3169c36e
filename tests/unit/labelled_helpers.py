"""What tests of labelled sets share: files of examples, and a model that can tell them apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distill.evaluation.encoding import encode_distinct
from distill.evaluation.old_init import EvaluatedModel
from distill.evaluation.tasks import Subject

WORDS = ("plot", "cast", "film", "score", "scene", "ending", "camera", "story")
SIGNS = ("good", "bad", "x", "y", "z")


def signs(texts) -> np.ndarray:
    """How often each sign occurs, and how long a text is: what it says can be told from that."""
    rows = [[*(1 + text.count(sign) for sign in SIGNS), len(text)] for text in texts]
    return np.array(rows, dtype=np.float32)


def model(name="student") -> EvaluatedModel:
    return EvaluatedModel(name, 1000, 4.0, 6, signs)


def subject(task) -> Subject:
    return Subject("student", model(), encode_distinct(model(), task.texts()))


def opinion(number: int) -> str:
    return f"the {WORDS[number % 8]} {WORDS[number // 8 % 8]} is {'good' if number % 2 else 'bad'} {number}"


def opinions(count: int, first: int = 0) -> list[str]:
    return [f"{number % 2}\t{opinion(number)}" for number in range(first, first + count)]


def write(folder: Path, stem: str, header: str, rows) -> Path:
    path = folder / f"{stem}.tsv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def write_sst2(folder: Path, stem: str, learnt: int) -> None:
    rows = [f"train\t{row}" for row in opinions(learnt)]
    rows += [f"dev\t{row}" for row in opinions(10, 100)] + [f"test\t{row}" for row in opinions(12, 200)]
    write(folder, stem, "split\tlabel\ttext", rows)


def write_mrpc(folder: Path) -> None:
    parts = ["train"] * 24 + ["val"] * 6 + ["test"] * 10
    rows = [
        f"{part}\t{number % 2}\t{opinion(number)}\t{opinion(number if number % 2 else number + 1)}"
        for number, part in enumerate(parts)
    ]
    write(folder, "senteval_mrpc", "split\tlabel\ttext\ttext2", rows)


def write_sick(folder: Path) -> None:
    names = ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")
    parts = ["train"] * 30 + ["trial"] * 9 + ["test"] * 12
    rows = [
        f"{part}\t3\t{opinion(number)}\t{'xyz'[number % 3] * 5} {number}\t{names[number % 3]}"
        for number, part in enumerate(parts)
    ]
    write(folder, "sick", "subset\tscore\tsentence1\tsentence2\tentailment", rows)


def snli_rows(count: int, first: int = 0) -> list[str]:
    names = ("entailment", "neutral", "contradiction")
    return [f"{names[n % 3]}\t{opinion(n // 3)}\t{'xyz'[n % 3] * 5} {n}" for n in range(first, first + count)]


SNLI_HEADER = "label\tpremise\thypothesis"
