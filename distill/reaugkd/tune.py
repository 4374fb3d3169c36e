"""Choice of k and beta on labelled rows that are neither in the base nor reported.

The paper tries beta 0, 0.1 ... 1 and k 1 to 20 on the set that it reports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import binomtest

from distill.data.labelled import FEWEST_SCORED, Columns, LabelledRows, label_numbers, read_labelled
from distill.errors import ConfigError, DataError
from distill.reaugkd.classifier import open_encoder
from distill.reaugkd.index import Found
from distill.reaugkd.knowledge_base import Chosen, KnowledgeBase, Probabilities
from distill.reaugkd.student import StudentFolder, open_student_folder
from distill.training.selection import describe_test_name, refuse_test_rows
from distill.vectors import unit
from embedcache.cache import Cache
from embedcache.folders import locked_folder
from embedcache.keys import KeyIndex, key_array

BETAS = tuple(step / 10 for step in range(11))
MOST_NEIGHBOURS = 20
SHOWN_KS = (5, 10, 15, 20)
"""Values of k in the paper's Table 2."""


@dataclass(frozen=True)
class Trial:
    """Result of one k and beta on n labelled rows.

    Attributes:
        k: neighbours per text.
        beta: weight of the student's own answer.
        right: rows answered right, bool of shape (n,).
        log_loss: mean negative log probability of the right label.
    """

    k: int
    beta: float
    right: NDArray[np.bool_]
    log_loss: float

    @property
    def accuracy(self) -> float:
        """Share of right rows, 0 to 1."""
        return float(self.right.mean())

    @property
    def rank(self) -> tuple[float, float, int, float]:
        """Sort key, the best first: accuracy, log loss, fewest neighbours, largest beta."""
        return -self.accuracy, self.log_loss, self.k, -self.beta


@dataclass(frozen=True)
class TableRow:
    """Row of the table over k (ReAugKD, Table 2).

    Attributes:
        k: neighbours per text; 0 without retrieval.
        accuracy: with the chosen beta, 0 to 1.
        lead: 95 % interval of its lead over the student alone.
        best_beta, best_accuracy: the best beta for this k, and the accuracy with it.
        seconds: time of the student for all rows (k = 0), else the time that retrieval adds.
    """

    k: int
    accuracy: float
    lead: tuple[float, float]
    best_beta: float
    best_accuracy: float
    seconds: float


@dataclass(frozen=True)
class Choice:
    """Chosen k and beta, and figures of the rows they were chosen on.

    Attributes:
        chosen: k and beta, as the base's header holds them.
        within_chance: the interval of the lead over the student alone includes zero.
        table: the table over k.
        recall: share of the k nearest of the student's own vectors that the graph finds.
        exact_accuracy: accuracy with exact search, 0 to 1.
        in_base: rows left out because their texts are in the base.
        skipped: description of other rows left out; empty if there are none.
    """

    chosen: Chosen
    within_chance: bool
    table: tuple[TableRow, ...]
    recall: float
    exact_accuracy: float
    in_base: int
    skipped: str


def tune(
    model: str | Path,
    *,
    cache: str | Path | None = None,
    corpus: str | None = None,
    data: str | Path | None = None,
    columns: Columns | None = None,
    rows: Sequence[str] = (),
    device: str = "auto",
    threads: int | None = None,
) -> Choice:
    """Choose k and beta on rows held out from training, and write them into the base.

    Rows whose texts are in the base are left out: they would find themselves.

    Args:
        model: a run, or a model folder, with a knowledge base.
        cache, corpus: cache and corpus with the run's held-out rows; default: those of the run.
        data: file of labelled rows to choose on instead.
        columns, rows: columns of ``data``, and ``COLUMN=VALUE`` conditions on its rows.
        device, threads: as for ``distill.reaugkd.classifier.RetrievalAugmentedClassifier.from_folder``.

    Raises:
        ConfigError: if the file or the rows are those of a test set.
        DataError: if there is no base, the student cannot search it, or too few rows are left.
        InputError: if the file or the corpus cannot be read, or holds pairs for a student of single texts.
    """
    student = open_student_folder(model)
    with locked_folder(student.folder):
        base = student.base()
        encode = open_encoder(student, base, device, threads)
        if data is None:
            labelled = held_out_rows(student, cache, corpus)
        else:
            if warning := describe_test_name(data):
                raise ConfigError(f"{warning}. Give a development set", "--data")
            refuse_test_rows("--rows", rows, "what is")
            labelled = read_labelled(data, columns or Columns(), rows)
            labelled = replace(labelled, name=" ".join(["rows of", Path(data).name, *rows]))
        keys = key_array(labelled.texts)
        new = np.flatnonzero(~base.holds(keys))
        if len(new) < FEWEST_SCORED:
            raise DataError(
                f"{labelled.name}: {len(new)} of {len(labelled)} labelled rows are outside the knowledge "
                f"base, expected {FEWEST_SCORED} or more to choose k and beta on {labelled.described}"
            )
        left = labelled.take(new)
        student.head.refuse_others(left.texts, student.title)
        labels = label_numbers(left.labels, student.head.labels, left.name)
        encode(left.texts[:1])  # The first call takes longer.
        began = time.perf_counter()
        vectors = encode(left.texts)
        seconds = time.perf_counter() - began
        own: Probabilities = softmax(student.head.logits(vectors).astype(np.float64), axis=1)
        queries = unit(vectors)
        trials = try_settings(base, own, base.index.search(queries, MOST_NEIGHBOURS), labels)
        best = min(trials, key=lambda one: one.rank)
        alone = next(one for one in trials if one.beta == 1)
        chosen = Chosen(
            k=best.k,
            beta=best.beta,
            source=left.name,
            digest=left.digest,
            rows=len(left),
            accuracy=best.accuracy,
            without=alone.accuracy,
            base_rows=len(base),
            lead=lead_interval(best.right, alone.right),
        )
        header = base.header.model_copy(update={"chosen": chosen})
        replace(base, header=header, chosen_keys=keys[new]).write(student.folder)
    table = [TableRow(0, alone.accuracy, (0.0, 0.0), 1.0, alone.accuracy, seconds)]
    for k in SHOWN_KS:
        of_k = {one.beta: one for one in trials if one.k == k}
        if of_k:
            at_beta, top = of_k[best.beta], min(of_k.values(), key=lambda one: one.rank)
            began = time.perf_counter()
            base.vote(base.index.search(queries, k))
            seconds = time.perf_counter() - began
            lead = lead_interval(at_beta.right, alone.right)
            table.append(TableRow(k, at_beta.accuracy, lead, top.beta, top.accuracy, seconds))
    exact = best.beta * own + (1 - best.beta) * base.vote(base.index.exact(queries, best.k))
    return Choice(
        chosen=chosen,
        within_chance=chosen.within_chance,
        table=tuple(table),
        recall=base.index.recall(queries, best.k),
        exact_accuracy=float((exact.argmax(axis=1) == labels).mean()),
        in_base=len(labelled) - len(left),
        skipped=labelled.described,
    )


def try_settings(
    base: KnowledgeBase, student: Probabilities, found: Found, labels: NDArray[np.int64]
) -> list[Trial]:
    """Try every k and beta.

    Args:
        base: the knowledge base.
        student: probabilities of the student alone, shape (n, c), n > 0.
        found: the nearest rows and their cosines, both of shape (n, largest k).
        labels: right labels, int64 of shape (n,).
    """
    trials, places = [], np.arange(len(labels))
    for k in range(1, found[0].shape[1] + 1):
        voted = base.vote((found[0][:, :k], found[1][:, :k]))
        for beta in BETAS:
            mixed = beta * student + (1 - beta) * voted
            log_loss = -np.log(np.maximum(mixed[places, labels], 1e-12)).mean()
            trials.append(Trial(k, beta, mixed.argmax(axis=1) == labels, float(log_loss)))
    return trials


def lead_interval(ours: NDArray[np.bool_], others: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the 95 % interval of a difference of accuracies on the same n rows.

    Only rows that one has right and the other wrong count (McNemar, 1947): the interval is the exact one of
    their binomial (Clopper and Pearson, 1934). It ignores that ``ours`` may be the best of many trials.

    Args:
        ours, others: masks of right rows, bool of shape (n,), n > 0.
    """
    won, lost = int((ours & ~others).sum()), int((others & ~ours).sum())
    if not won + lost:
        return 0.0, 0.0
    ends = binomtest(won, won + lost).proportion_ci(0.95, method="exact")
    share = (won + lost) / len(ours)
    return share * (2 * float(ends.low) - 1), share * (2 * float(ends.high) - 1)


def held_out_rows(
    student: StudentFolder, cache: str | Path | None = None, corpus: str | None = None
) -> LabelledRows:
    """Return the rows that a run held out of its training, with the labels of its corpus.

    Texts that the corpus no longer holds are left out and counted.

    Args:
        student: the run's student.
        cache: cache with the corpus; default: the run's.
        corpus: its name; default: as ``StudentFolder.find_corpus``.

    Raises:
        DataError: if no rows were held out, or the cache is not known.
        InputError: if the cache has no such corpus, or the corpus has no labels.
    """
    texts, place = student.held_out(), cache or (student.record.cache if student.record else None)
    if not texts:
        raise DataError(f"{student.title} has no held-out rows: give labelled rows with --data FILE")
    if place is None or not Path(place).is_dir():
        raise DataError(
            f"{student.title}: no cache {place or ''} with the labels of its {len(texts):,} held-out rows: "
            "name it with --cache, or give labelled rows with --data FILE"
        )
    found = student.find_corpus(Cache(place), corpus)
    places = KeyIndex(found.keys()).locate(key_array(texts))
    picked = places[places >= 0]
    gone = len(texts) - len(picked)
    described = f"{gone:,} of {len(texts):,} held-out texts, which {found.title} lacks" if gone else ""
    name = f"rows of corpus {found.name!r} held out by the run"
    return LabelledRows(name, found.texts(picked), found.labels(picked), described=described)
