"""Fine-tuning on texts alone: triples, pairs or sentences (contrastive), or labels (cross entropy).

Triples give the second stage of DistilCSE, or from a plain model supervised SimCSE. Sentences that are their
own positives under another dropout give unsupervised SimCSE. Labels give a classifier.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from distill.config.finetune import FinetuneConfig
from distill.data.labelled import (
    Columns,
    LabelledRows,
    label_names,
    label_numbers,
    read_labelled,
    refuse_few,
)
from distill.data.sampler import ORDERS
from distill.data.triples import Triples, TripleSource, read_sentences, read_triples, tokenise
from distill.device import seeded, with_precision
from distill.errors import ConfigError
from distill.evaluation.pairs import PairSet
from distill.layout import BEST, HELD_OUT, TARGETS, default_folder, describe_missing, resume_command
from distill.reaugkd.head import LabelHead
from distill.record import CorpusRecord, RunRecord, StartRecord, read_record, run_folder, setting_of
from distill.students.build import open_student
from distill.training.objectives import Contrast, CrossEntropy, InfoNCE
from distill.training.selection import (
    ClassSelector,
    Selector,
    nearest_selector,
    pair_selector,
    read_dev_pairs,
    refuse_test_rows,
)
from distill.training.task import StudentParts, Task, Work, describe_dev, make_parts, prepared, tokenizer_of
from distill.training.tracking import OnProgress
from embedcache.pairs import what_is_read
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Start:
    """Model that is fine-tuned.

    Attributes:
        model: folder, hub id or alias.
        run: the run it comes from; None where it comes from none.
        record: that run's record; None without a run.
    """

    model: str
    run: Path | None = None
    record: RunRecord | None = None


def find_start(spec: str) -> Start:
    """Return the model that ``spec`` names; of a run, its best student.

    Raises:
        ConfigError: if there is no such folder, or the run is damaged or not finished.
    """
    run = run_folder(spec)
    if run is None:
        if missing := describe_missing(spec):
            raise ConfigError(f"{missing}", "start")
        return Start(spec)
    record = read_record(run)
    if record is None:
        raise ConfigError(f"the record of the run {run} is damaged; give a copy of {run / BEST}", "start")
    if not record.is_finished:
        raise ConfigError(f"the run {run} is not finished; resume it with '{resume_command(run)}'", "start")
    return Start(str(run / BEST), run, record)


@dataclass(frozen=True)
class FinetuneTask(Task):
    """Task of ``distill finetune``: common part of its two kinds.

    Attributes:
        config: the resolved configuration.
        start: the model.
        in_dev: rows trained on that share a text with the development set; None without one.
    """

    config: FinetuneConfig
    start: Start
    in_dev: int | None

    def folder(self) -> Path:
        """Return the folder of the run, which is not that of the run the student comes from."""
        start = self.start.run.name if self.start.run else Path(self.config.start).name
        named = default_folder(f"{start}-{Path(self.config.file).name.split('.')[0]}-finetune")
        folder = Path(self.config.out or named).expanduser()
        if self.start.run == folder.resolve():
            raise ConfigError(f"{folder} is the run that the student comes from; give another --out", "out")
        return folder

    def _record(
        self, parts: StudentParts, contract_id: str, rows: Triples | LabelledRows, **facts: Any
    ) -> Callable[..., RunRecord]:
        config, before = self.config, self.start.record
        evaluation = config.evaluation
        start = StartRecord(
            spec=config.start,
            run=None if self.start.run is None else str(self.start.run),
            contract_id=contract_id,
            setting=None if before is None else before.setting,
            seeds=[] if before is None else before.seeds,
        )
        data = evaluation.data or (config.labels if evaluation.rows else None)
        dev = describe_dev(data, evaluation.rows)
        digests = {"corpus": rows.digest, "dev": dev and dev.sha256}
        held_out = facts.pop("held_out")
        return partial(
            RunRecord,
            kind="finetune",
            seeds=[*start.seeds, config.seed],
            setting=setting_of(config, digests, start),
            corpus=CorpusRecord(name=rows.name, rows=len(rows) + held_out, digest=rows.digest),
            skipped=dict(rows.skipped),
            rows=len(rows),
            held_out=held_out,
            in_dev=self.in_dev,
            parameters=parts.parameters,
            dev=dev,
            start=start,
            stage1=before,
            **facts,
        )


@dataclass(frozen=True)
class ContrastTask(FinetuneTask):
    """Fine-tuning on triples, pairs or sentences.

    Attributes:
        rows: rows to train on.
        held_out: rows to choose checkpoints by; None without any.
        dev: pairs to choose them by instead.
    """

    rows: Triples
    held_out: Triples | None
    dev: PairSet | None = None

    def prepare(self, accelerator: Accelerator, on_progress: OnProgress | None) -> Work:
        """Build student, objective and source."""
        config, rows, spec = self.config, self.rows, self.start.model
        student = config.student
        with seeded(config.seed, torch.device("cpu")):
            model, contract = open_student(
                spec,
                head=student.head,
                pooling=student.pooling,
                layers=student.layers,
                dropout=student.dropout,
                seed=config.seed,
            )
        parts = make_parts(model, spec, self._select, config.evaluation, student.drop_head)
        # Training texts may be cut shorter than those that the student is scored on and used for.
        shorter = tokenizer_of(model, spec, student.max_length)
        arrays = tokenise(rows.columns, shorter, prepared(on_progress, len(rows) * len(rows.columns)))
        codes = None if config.loss.duplicates == "keep" else rows.codes()
        source = TripleSource(arrays, max(2, len(arrays)), ORDERS[config.training.order])
        before, is_bare = self.start.record, student.head == "none" or student.drop_head
        # An evaluation finds the teacher, its vectors and how they became targets where a run has them.
        taught = {} if before is None else {name: getattr(before, name) for name in _OF_TEACHER}
        record = self._record(
            parts,
            contract.id,
            rows,
            loss="infonce",
            student=config.start if before is None else before.student,
            held_out=len(self.held_out or ()),
            in_target_space=is_bare and (before is None or before.in_target_space),
            **taught,
        )
        return Work(parts, Contrast(InfoNCE(config.loss.tau), codes), source, record)

    def _select(self, tokenizer: FastTokenizer) -> Selector | None:
        if self.dev is not None:
            return pair_selector(self.dev, tokenizer)
        return nearest_selector(self.held_out, tokenizer)

    def held_out_texts(self) -> list[str]:
        """Return texts that neither stage has seen: of a run's held-out ones, else of the held-out rows."""
        before = self.start.run
        if before is not None and (before / HELD_OUT).is_file():
            lines = (before / HELD_OUT).read_text(encoding="utf-8").split("\n")
            held_out = [json.loads(line) for line in lines if line]
        else:
            held_out = [] if self.held_out is None else self.held_out.distinct_texts()
        seen = set(self.rows.distinct_texts())
        return [text for text in held_out if text not in seen]

    def save(self, folder: Path) -> None:
        """Copy how the teachers' vectors became targets from the stage before."""
        if self.start.run is not None and (self.start.run / TARGETS).is_file():
            shutil.copyfile(self.start.run / TARGETS, folder / TARGETS)


_OF_TEACHER = ("teachers", "targets", "cache")


@dataclass(frozen=True)
class LabelTask(FinetuneTask):
    """Fine-tuning on labelled texts: an encoder and a linear classifier on its vectors.

    Attributes:
        rows: rows to train on.
        scored: rows to choose checkpoints by; None without any.
        labels: names of the labels, in the order of the logits.
    """

    rows: LabelledRows
    scored: LabelledRows | None
    labels: tuple[str, ...]

    def prepare(self, accelerator: Accelerator, on_progress: OnProgress | None) -> Work:
        """Build student, classifier, objective and source."""
        config, rows, spec, student = self.config, self.rows, self.start.model, self.config.student
        numbers = label_numbers(rows.labels, self.labels, f"labels: {config.labels}")
        with seeded(config.seed, torch.device("cpu")):
            model, contract = open_student(
                spec,
                pooling=student.pooling,
                layers=student.layers,
                max_length=student.max_length,
                scaled=False,
                dropout=student.dropout,
            )
        head = self._head(model)
        parts = make_parts(
            model, spec, lambda tokenizer: self._select(head, tokenizer), config.evaluation, classifier=head
        )
        arrays = tokenise([rows.texts], parts.tokenizer, prepared(on_progress, len(rows)))
        counts = {name: int((numbers == place).sum()) for place, name in enumerate(self.labels)}
        record = self._record(
            parts,
            contract.id,
            rows,
            loss="cross-entropy",
            student=config.start,
            held_out=0 if config.evaluation.has_set else len(self.scored or ()),
            labels=list(self.labels),
            label_counts=counts,
        )
        source = TripleSource(arrays, 1, ORDERS[config.training.order])
        return Work(parts, CrossEntropy(head, numbers), source, record)

    def _head(self, model: SentenceTransformer) -> LabelHead:
        config = self.config
        width, reads = int(model.get_embedding_dimension() or 0), what_is_read(self.rows.texts)
        return LabelHead(self.labels, width, dropout=config.student.dropout, seed=config.seed, reads=reads)

    def _select(self, head: LabelHead, tokenizer: FastTokenizer) -> Selector | None:
        if self.scored is None:
            return None
        answers = label_numbers(self.scored.labels, self.labels, "the development rows")
        origin: Literal["dev", "held_out"] = "dev" if self.config.evaluation.has_set else "held_out"
        return ClassSelector(tokenizer(self.scored.texts), answers, head, origin)

    def held_out_texts(self) -> list[str]:
        """Return the distinct texts kept out of training."""
        if self.scored is None or self.config.evaluation.has_set:
            return []
        return list(dict.fromkeys(self.scored.texts))


@contextmanager
def open_finetuning(config: FinetuneConfig) -> Iterator[FinetuneTask]:
    """Read the texts of a fine-tuning, and resolve its configuration.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if the file of texts or the development set cannot be used.
        EmbedCacheError: if a file cannot be read.
    """
    start = find_start(config.start)
    config = config.model_copy(update={"training": with_precision(config.training)})
    yield _read_labelled(config, start) if config.labels is not None else _read_contrast(config, start)


def _read_contrast(config: FinetuneConfig, start: Start) -> ContrastTask:
    options: dict[str, Any] = {"format": config.format, "limit": config.training.limit}
    if config.sentences is not None:
        column = config.columns[0] if config.columns else None
        everything = read_sentences(config.sentences, column=column, **options)
    else:
        everything = read_triples(config.file, columns=config.columns, **options)
    count = config.count_held_out(everything.distinct)
    rows, held_out = everything.split(count, config.seed) if count else (everything, None)
    if len(rows) < 2:
        raise ConfigError(
            f"{count} leaves {len(rows)} of {len(everything)} rows to train on; hold out fewer",
            "evaluation.held_out",
        )
    config = config.resolved(len(rows), count)
    dev, in_dev = None, None
    if config.evaluation.data is not None:
        dev = read_dev_pairs(config.evaluation.data)
        in_dev = rows.overlap({text for column in dev.texts for text in column})
    return ContrastTask(config, start, in_dev, rows, held_out, dev)


def _read_labelled(config: FinetuneConfig, start: Start) -> LabelTask:
    evaluation = config.evaluation
    columns = Columns(config.text, config.text2, config.label, config.format)
    if evaluation.has_set:
        refuse_test_rows("evaluation.rows", evaluation.rows or ())
        is_same_file = evaluation.data in (None, config.file)
        if is_same_file and set(config.rows or ()) <= set(evaluation.rows or ()):
            raise ConfigError(
                "all development rows would be trained on as well: select others to train on, as in --rows "
                "split=train",
                "evaluation.rows",
            )
    rows = read_labelled(config.file, columns, config.rows or (), limit=config.training.limit)
    scored, in_dev, count = None, None, 0
    if evaluation.has_set:
        dev, conditions = evaluation.data or config.file, evaluation.rows or ()
        scored = read_labelled(dev, columns, conditions, rows_option="--dev-rows")
        asked = f"evaluation.rows: {', '.join(conditions)}" if conditions else f"evaluation.data: {dev}"
        refuse_few(scored, asked, "give more, or hold out training rows")
        in_dev = rows.overlap(scored.texts)
    elif count := config.count_held_out(rows.distinct):
        rows, scored = rows.split(count, config.seed)
        refuse_few(
            scored, f"evaluation.held_out: {count} texts", "hold out more, or 0 to keep the last state"
        )
    config = config.resolved(len(rows), count)
    return LabelTask(config, start, in_dev, rows, scored, label_names(rows.labels))
