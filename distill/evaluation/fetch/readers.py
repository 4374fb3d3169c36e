"""Conversions: from the form in which a source offers its files to rows of named cells.

A reader takes the name of a part and the part's files as lines, and yields one mapping of cells for each row.
Rows that the set does not score are left out and counted. Anything that does not have the expected form is an
error: a file read wrongly would be worse than none.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from distill.errors import DataError

Row = Mapping[str, str]
Lines = Iterable[str]
Reader = Callable[[str, Sequence[Lines], "Counter[str]"], Iterator[Row]]

UNSCORED = "pairs without a score"
EMPTY = "empty rows"
UNLABELLED = "pairs without a label of the majority"


def clean(text: str) -> str:
    """Return ``text`` with every run of blanks, tabs and the like as one blank."""
    return " ".join(text.split())


def pairs_and_scores(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Pairs in one file (sentence1, sentence2, ...), their scores line by line in a second one."""
    pairs, scores = files
    for number, (pair, score) in enumerate(_together([pairs, scores]), 1):
        left, right = _cells(pair, number, at_least=2)[:2]
        if score.strip():
            yield _pair(part, score, left, right)
        else:
            dropped[UNSCORED] += 1


def scored_pairs(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Lines of score, sentence1, sentence2; pairs that were never scored have an empty score."""
    for number, line in enumerate(files[0], 1):
        score, left, right = _cells(line, number, at_least=3)[:3]
        if score.strip():
            yield _pair(part, score, left, right)
        else:
            dropped[UNSCORED] += 1


def json_pairs(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """JSON objects with score, sentence1 and sentence2, one in each line."""
    for number, line in enumerate(files[0], 1):
        try:
            found = json.loads(line)
            score, left, right = found["score"], found["sentence1"], found["sentence2"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"line {number} is no JSON object with score, sentence1 and sentence2: {line[:80]!r}"
            ) from error
        yield _pair(part, str(score), left, right)


def sts_benchmark(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Lines of genre, subset, year, number, score, sentence1, sentence2; some go on with their origins."""
    for number, line in enumerate(files[0], 1):
        genre, subset, year, sid, score, left, right = _cells(line, number, at_least=7)[:7]
        yield {**_pair(subset, score, left, right), "genre": genre, "year": year, "sid": sid, "split": part}


def translated_pairs(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """CSV of sentence1, sentence2, score, quoted where needed."""
    rows = csv.reader((f"{line}\n" for line in files[0]), strict=True)
    try:
        for number, cells in enumerate(rows, 1):
            left, right, score = _expect(cells, number, 3)
            yield {**_pair(part, score, left, right), "split": part}
    except csv.Error as error:
        raise DataError(f"line {rows.line_num} is no CSV ({error})") from error


def sick(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """SICK as SemEval 2014 gave it out: number, sentences, relatedness, entailment, below a header."""
    header = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]
    for cells in _below(header, files[0]):
        yield {
            **_pair(part, cells["relatedness_score"], cells["sentence_A"], cells["sentence_B"]),
            "entailment": cells["entailment_judgment"].strip(),
            "pair_id": cells["pair_ID"].strip(),
        }


def text_lines(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """One text in each line, all of the class that names the part."""
    for line in files[0]:
        if text := clean(line):
            yield {"label": part, "text": text}
        else:
            dropped[EMPTY] += 1


def labelled_lines(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Lines of a label, a blank and a text."""
    for number, line in enumerate(files[0], 1):
        label, _, text = line.partition(" ")
        if not label.isdecimal():
            raise DataError(f"line {number} does not begin with a label and a blank: {line[:80]!r}")
        if text := clean(text):
            yield {"split": part, "label": label, "text": text}
        else:
            dropped[EMPTY] += 1


def questions(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Lines of COARSE:fine, a blank and a question, as TREC's question classes are given out."""
    for number, line in enumerate(files[0], 1):
        label, _, text = line.partition(" ")
        coarse, colon, fine = label.partition(":")
        if not (coarse and colon and fine and text.strip()):
            raise DataError(f"line {number} is not COARSE:fine, a blank and a question: {line[:80]!r}")
        yield {"split": part, "label": coarse, "text": clean(text), "fine_label": label}


def paraphrases(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """MRPC: label, two numbers, two sentences, below a header, without quoting."""
    for cells in _below(["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], files[0]):
        yield {
            "split": part,
            "label": cells["Quality"].strip(),
            "text": clean(cells["#1 String"]),
            "text2": clean(cells["#2 String"]),
            "id1": cells["#1 ID"].strip(),
            "id2": cells["#2 ID"].strip(),
        }


def labelled_sentences(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """GLUE's SST-2: a sentence and its label, below a header."""
    for cells in _below(["sentence", "label"], files[0]):
        yield {"split": part, "label": cells["label"].strip(), "text": clean(cells["sentence"])}


def inferences(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """SNLI's tab-separated files; pairs whose annotators did not agree have the label '-'."""
    for cells in _below(["gold_label", "sentence1", "sentence2"], files[0]):
        if cells["gold_label"] == "-":
            dropped[UNLABELLED] += 1
        else:
            premise, hypothesis = clean(cells["sentence1"]), clean(cells["sentence2"])
            yield {
                "split": part,
                "label": cells["gold_label"],
                "premise": premise,
                "hypothesis": hypothesis,
            }


def captions(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """Several files, whose n-th lines describe the same image."""
    for number, texts in enumerate(_together(files)):
        named = {f"caption{place}": clean(text) for place, text in enumerate(texts, 1)}
        yield {"split": part, "image_index": str(number), **named}


def _pair(subset: str, score: str, left: str, right: str) -> dict[str, str]:
    try:
        float(score)
    except ValueError as error:
        raise DataError(f"{score!r} is no score (pair {left[:40]!r}, {right[:40]!r})") from error
    return {"subset": subset, "score": score.strip(), "sentence1": clean(left), "sentence2": clean(right)}


def _cells(line: str, number: int, at_least: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) < at_least:
        raise DataError(f"line {number} has {len(cells)} cells, expected at least {at_least}: {line[:80]!r}")
    return cells


def _expect(cells: list[str], number: int, count: int) -> list[str]:
    if len(cells) != count:
        raise DataError(f"row {number} has {len(cells)} cells, expected {count}: {str(cells)[:80]}")
    return cells


def _below(wanted: Sequence[str], lines: Lines) -> Iterator[dict[str, str]]:
    """Yield the rows below a header that has the ``wanted`` columns among others."""
    rows = iter(lines)
    header = next(rows, "").split("\t")
    if not set(wanted) <= set(header):
        raise DataError(f"the header is {header}, expected it to hold {', '.join(wanted)}")
    for number, line in enumerate(rows, 2):
        yield dict(zip(header, _expect(line.split("\t"), number, len(header)), strict=True))


def _together(files: Sequence[Lines]) -> Iterator[tuple[str, ...]]:
    try:
        yield from zip(*files, strict=True)
    except ValueError as error:
        raise DataError(
            "files that belong together line by line do not have the same number of lines"
        ) from error
