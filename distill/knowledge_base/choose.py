"""Choosing k and beta of a student's knowledge base on labelled rows that are in no base and in no report."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distill.classification.labels import label_numbers
from distill.classification.rows import FEWEST_SCORED, Columns, LabelledRows, read_labelled, refuse_test_rows
from distill.errors import ConfigError, DataError
from distill.knowledge_base.asked import Asked, compare_answers
from distill.knowledge_base.base import KnowledgeBase
from distill.knowledge_base.build import require_base
from distill.knowledge_base.header import Chosen
from distill.knowledge_base.student import ClassifierFolder, open_folder
from distill.knowledge_base.tune import (
    MOST_NEIGHBOURS,
    SHOWN_KS,
    SensitivityRow,
    Tuning,
    sensitivity,
    tune,
)
from distill.knowledge_base.vote import Probabilities, mixed, neighbour_vote, softmax
from distill.retrieval_classifier import DEFAULT_BETA, open_encoder
from distill.training.selection import refuse_test_file
from distill.vectors import unit
from embedcache.cache import Cache
from embedcache.keys import KeyIndex, key_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedcache.codecs import Vectors

_GONE = "not in the corpus"
"""Why a row that the run held out is left out."""

_TIMES = 3
"""How often retrieval is timed: it is so short that anything else on the machine shows."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, on what, and all that was tried.

    Attributes:
        chosen: k and beta, as they were written into the base's header.
        tuning: everything tried.
        table: the table over k, on the same rows.
        asked: the answers beside those of exact search, on the same rows.
        in_base: rows that were left out because their texts stand in the base.
        skipped: why other rows were left out -> how many.
        described: the same in words.
    """

    chosen: Chosen
    tuning: Tuning
    table: list[SensitivityRow]
    asked: Asked
    in_base: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    described: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the choice as a JSON object, without the single trials."""
        return {
            "chosen": self.chosen.facts(),
            "asked": self.asked.to_json(),
            "in_base": self.in_base,
            "skipped": dict(self.skipped),
            "table": [row.to_json() for row in self.table],
        }


def choose(
    model: str | Path,
    *,
    cache: str | Path | None = None,
    corpus: str | None = None,
    data: str | Path | None = None,
    columns: Columns | None = None,
    rows: Sequence[str] = (),
    ks: Sequence[int] = SHOWN_KS,
    keep: bool = True,
    device: str = "auto",
    threads: int | None = None,
) -> Choice:
    """Choose k and beta on rows held out from training, and write them into the base.

    Rows whose texts stand in the base are left out: they would find themselves.

    Args:
        model: the student: a run, or a model folder with a classifier and a knowledge base.
        cache: the cache the run was trained from: its held-out rows are taken, with the corpus's labels.
        corpus: which corpus of the cache has those rows; default: the one the run names, or the only one.
        data: a file of labelled rows instead.
        columns, rows: where in it they stand, and which are asked for; only with ``data``.
        ks: the k of the table.
        keep: whether to write the choice into the base.
        device, threads: where and how the student runs.

    Raises:
        ConfigError: if the file or the rows asked for are those of a test set, columns or rows are given and
            no file, or a file and a cache or corpus.
        DataError: if there is no base, its vectors are not those that the student gives, or too few rows are
            left.
        InputError: if the file or the corpus cannot be read, or holds pairs and the student was taught on
            single texts, or the other way round.
    """
    _refuse_unused(data, cache, corpus, columns, rows)
    student = open_folder(model)
    base = require_base(student)
    if data is not None:
        refuse_test_file(Path(data), "--data", "what is")
        refuse_test_rows("--rows", rows, "what is")
        asked = f" with {', '.join(rows)}" if rows else ""
        read = read_labelled(data, columns or Columns(), rows)
        labelled = replace(read, name=f"rows of {Path(data).name}{asked}")
    else:
        labelled = held_out_rows(student, cache, corpus)
    keys = key_array(labelled.texts)
    new = np.flatnonzero(~base.holds(keys))
    if len(new) < FEWEST_SCORED:
        raise DataError(
            f"{labelled.name}: {len(labelled)} labelled rows, {len(labelled) - len(new)} of which stand in "
            f"the knowledge base; expected {FEWEST_SCORED} others at least to choose k and beta on"
            + (f" (left out: {labelled.described})" if labelled.described else "")
        )
    left = labelled.take(new)
    student.head.refuse_others(left.texts, f"the student {student.title}")
    labels = label_numbers(left.labels, student.head.labels, left.name)
    encode = open_encoder(student, base, device, threads)
    # What a process does once is no part of what predicting costs.
    encode(left.texts[:1])
    began = time.perf_counter()
    vectors = encode(left.texts)
    probabilities = softmax(student.head.logits(vectors))
    seconds = time.perf_counter() - began
    asked_for = unit(vectors)
    found, cosines = base.index.search(asked_for, MOST_NEIGHBOURS)
    tuning = tune(probabilities, cosines, base.soft_labels[found], labels, base.tau)
    best = tuning.best
    chosen = Chosen(
        k=best.k,
        beta=best.beta,
        source=left.name,
        digest=left.digest,
        rows=len(left),
        accuracy=best.accuracy,
        without=tuning.without.accuracy,
        base_rows=len(base),
        lead=tuning.lead(best),
    )
    if keep:
        base.keep_choice(student.folder, chosen, keys[new])
    table = sensitivity(tuning, ks, seconds, lambda k: _retrieval_seconds(base, probabilities, vectors, k))
    return Choice(
        chosen,
        tuning,
        table,
        compare_answers(base, asked_for, probabilities, labels, best.k, best.beta),
        len(labelled) - len(left),
        dict(labelled.skipped),
        labelled.described,
    )


def _refuse_unused(
    data: str | Path | None,
    cache: str | Path | None,
    corpus: str | None,
    columns: Columns | None,
    rows: Sequence[str],
) -> None:
    if data is None and (rows or columns is not None):
        raise ConfigError(
            "columns and rows (--text, --text2, --label, --format, --rows) are those of a labelled file, and "
            "there is none: give --data FILE, or leave them out to choose on the rows that the run held out"
        )
    if data is not None and (cache is not None or corpus is not None):
        raise ConfigError(
            f"{'--corpus' if cache is None else '--cache'} is where rows that the run held out are taken "
            "from, and --data gives others: leave one of them out"
        )


def held_out_rows(
    student: ClassifierFolder, cache: str | Path | None, corpus: str | None = None
) -> LabelledRows:
    """Return the rows that a run kept out of its training, with the labels of its corpus.

    Texts that the corpus does not hold any more have no label there; they are left out and counted.

    Args:
        student: the run's student.
        cache: the cache with the corpus; default: the one the run names.
        corpus: its name there; default: see :meth:`ClassifierFolder.find_corpus`.

    Raises:
        DataError: if it held none out, or nobody says in which cache its corpus is.
        InputError: if the cache does not hold the corpus, or it has no labels.
    """
    from distill.evaluation.record import read_run_cache

    texts = student.held_out()
    if not texts:
        raise DataError(
            f"{student.title}: nobody says which rows were held out from its training: give labelled rows "
            "that it was not trained on with --data FILE"
        )
    place = cache or (read_run_cache(student.run) if student.run else None)
    if place is None:
        named = student.record.get("cache")
        why = (
            f"{named}, where their labels were, is not there"
            if named
            else ("it does not say which cache has their labels")
        )
        raise DataError(
            f"{student.title}: {len(texts):,} rows were held out from its training, and {why}: name it with "
            "--cache, or give labelled rows with --data FILE"
        )
    opened = Cache(place)
    found = student.find_corpus(opened) if corpus is None else opened.corpus(corpus)
    places = KeyIndex(found.keys()).locate(key_array(texts))
    picked = places[places >= 0]
    name = f"rows of corpus {found.name!r} held out by the run"
    skipped, described = Counter[str](), ""
    if gone := len(texts) - len(picked):
        skipped[_GONE] = gone
        described = f"{gone:,} of {len(texts):,} texts held out by the run, which {found.title} does not hold"
        if student.corpus_digest not in (None, found.info.digest):
            described += " (it is not as the run found it)"
    return LabelledRows(name, found.texts(picked), found.labels(picked), skipped, described)


def _retrieval_seconds(base: KnowledgeBase, student: Probabilities, vectors: Vectors, k: int) -> float:
    """Return how long all that retrieval adds to the student's work takes: the quickest of a few times."""
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        rows, cosines = base.index.search(unit(vectors), k)
        mixed(student, neighbour_vote(cosines, base.soft_labels[rows], base.tau), DEFAULT_BETA)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
