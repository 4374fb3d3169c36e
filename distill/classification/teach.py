"""Teaching a classifier: an encoder and a linear map on top of it, by cross entropy with labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.card import write_card
from distill.classification.config import KIND, TeachConfig
from distill.classification.labels import describe_counts, label_names, label_numbers
from distill.classification.objective import CrossEntropy
from distill.classification.rows import (
    Columns,
    LabelledRows,
    read_labelled,
    refuse_few,
    refuse_test_rows,
)
from distill.classification.selection import ClassSelector
from distill.config.sources import keyword_options, load_config
from distill.data.triples import TripleSource, tokenise
from distill.layout import BEST, CONFIG
from distill.reaugkd.head import LabelHead
from distill.record import CorpusRecord, RunRecord, TrainResult, seeds_of, setting_of
from distill.students.build import open_student
from distill.training.describe import describe_dev, refuse_other_data
from distill.training.device import make_accelerator, seeded
from distill.training.folder import begin_folder, claim_folder, finish_folder, read_interrupted
from distill.training.selection import refuse_test_file
from distill.training.setup import Training, machine_flags, make_trainer, refuse_long_warmup
from distill.training.start import Start, default_out, find_start
from distill.training.student import student_parts
from distill.training.token_views import prepare_progress
from distill.training.tracking import OnProgress, best_scores, require_tensorboard
from embedcache.pairs import what_is_read

if TYPE_CHECKING:
    from embedcache.contract import Contract

LOSS = "cross-entropy"
"""The loss of every teaching."""

_VERSION = 1


@dataclass(frozen=True)
class TeachRun:
    """A finished teaching.

    Attributes:
        folder: the run's folder.
        config: the configuration with all defaults filled in.
        result: how training ended.
        parameters: parameters of the encoder as it is saved.
        labels: the names of the labels, in the order of the logits.
        balance: how many of the rows trained on have each label, in words.
        rows: rows trained on.
        scored: rows that checkpoints were chosen on.
        skipped: why rows of the file were left out -> how many.
        in_dev: rows trained on whose text is one of the development set; None without one.
        scores: accuracy and macro F1 of the best checkpoint, 0 to 1; empty where nothing was scored.
        resumed: the step it went on from last; 0 where it was never interrupted, or had to start anew.
    """

    folder: Path
    config: TeachConfig
    result: TrainResult
    parameters: int
    labels: tuple[str, ...]
    balance: str
    rows: int
    scored: int
    skipped: dict[str, int]
    in_dev: int | None
    scores: dict[str, float]
    resumed: int = 0

    @property
    def best(self) -> Path:
        """The folder of the best classifier; ``SentenceTransformer(run.best)`` opens its encoder."""
        return self.folder / BEST

    def facts(self) -> dict[str, object]:
        """Return what the teaching was and how it ended, as a JSON object."""
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "parameters": self.parameters,
            "labels": list(self.labels),
            "rows": self.rows,
            "scored": self.scored,
            "skipped": self.skipped,
            "in_dev": self.in_dev,
            "scores": self.scores,
            "resumed": self.resumed,
            **self.result.model_dump(),
        }


@dataclass(frozen=True)
class TeachTraining(Training):
    """A teaching that is ready to start.

    Attributes:
        config: the resolved configuration.
        start: what is taught.
        contract: of the vectors it gave as it was.
        rows: the rows to train on.
        scored: the rows that checkpoints are chosen on.
        labels: the names of the labels.
        balance: how many of the rows have each, in words.
        in_dev: see :class:`TeachRun`.
    """

    config: TeachConfig
    start: Start
    contract: Contract
    rows: LabelledRows
    scored: LabelledRows | None
    labels: tuple[str, ...]
    balance: str
    in_dev: int | None


def teach(
    start: str | Path, *, train: str | Path, on_progress: OnProgress | None = None, **settings: Any
) -> TeachRun:
    """Teach a classifier; the keyword form of :func:`teach_config`.

    Args:
        start: a run's folder (its best student is meant), another folder, a hub id or an alias.
        train: file of labelled texts.
        on_progress: called after every step.
        settings: settings of the configuration, by short name (``text="text"``, ``epochs=3``), dotted key or
            group.

    Raises:
        ConfigError: naming every key that is unknown or has a value that cannot be used; else as
            :func:`teach_config`.
    """
    options = keyword_options(TeachConfig, {"start": start, "train": train, **settings})
    return teach_config(load_config(TeachConfig, options=options), on_progress)


def teach_config(config: TeachConfig, on_progress: OnProgress | None = None) -> TeachRun:
    """Teach the classifier that ``config`` describes.

    ``best/`` of the run's folder is the encoder as a sentence-transformers folder, whose vectors have their
    own length, with the classifier beside it: see :class:`embedcache.teacher.classifier.ClassifierHead`.

    Args:
        config: the configuration.
        on_progress: called after every step.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if the labels cannot be used.
        StudentError: if the model cannot be loaded or used.
        TrainingError: if the loss becomes NaN or infinite.
        EmbedCacheError: if a file of texts cannot be read.
    """
    identity = config.identity_digest()
    folder, config = claim_folder(config, lambda: default_out(config.start, config.data.train, KIND))
    training = _prepare(config, folder, on_progress)
    training.start.refuse_folder(folder, "model")
    record = _record(training, identity)
    # From here on files are written; everything that can be refused has been.
    with training.exclusive():
        if training.is_first:
            _start_folder(training, record)
        return _train(training, record, on_progress)


def resume_teach(
    folder: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> TeachRun:
    """Go on with a teaching that was interrupted, from its last checkpoint; without one, from the start.

    With the device and the number of threads it began with, the weights are those of one that was never
    interrupted, bit for bit.

    Args:
        folder: the run's folder.
        device, threads: of the machine that it goes on upon; default: as before.
        on_progress: called after every step.

    Raises:
        CheckpointError: if there is nothing to go on with, or what it is made of has changed.
        DistillError, EmbedCacheError: as :func:`teach_config`.
    """
    folder = Path(folder).expanduser()
    record = read_interrupted(folder, KIND)
    options = {**machine_flags(device, threads), "out": str(folder)}
    config = load_config(TeachConfig, folder / CONFIG, options=options)
    training = _prepare(config, folder, on_progress)
    now = _record(training, record.identity)
    refuse_other_data(record, now)
    with training.exclusive():
        training.go_on(now, lambda: _start_folder(training, now), on_progress)
        return _train(training, now, on_progress)


def _prepare(config: TeachConfig, folder: Path, on_progress: OnProgress | None) -> TeachTraining:
    if config.tracking.tensorboard:
        require_tensorboard()
    start = find_start(config.start)
    rows, scored = _read_rows(config)
    labels = label_names(rows.labels)
    numbers = label_numbers(rows.labels, labels, f"train: {config.data.train}")
    config = config.resolved(len(rows))
    refuse_long_warmup(config, len(rows))
    accelerator = make_accelerator(config.training)
    student = config.student
    # Weights that a model's file lacks are drawn at random when it is loaded.
    with seeded(config.seed, torch.device("cpu")):
        model, contract = open_student(
            start.model,
            pooling=student.pooling,
            layers=student.layers,
            max_length=student.max_length,
            scaled=False,
            dropout=student.dropout,
        )
    width = int(model.get_embedding_dimension() or 0)
    head = LabelHead(labels, width, dropout=student.dropout, seed=config.seed, reads=what_is_read(rows.texts))
    answers = None
    if scored is not None:
        answers = label_numbers(scored.labels, labels, "the development rows")
    parts = student_parts(
        model,
        start.model,
        lambda tokenizer: (
            None
            if scored is None or answers is None
            else ClassSelector(
                tokenizer(scored.texts), answers, head, "dev" if config.evaluation.has_set else "held_out"
            )
        ),
        config.evaluation,
        drop_head=False,
        held_out=len(scored or ()),
        classifier=head,
    )
    arrays = tokenise([rows.texts], parts.tokenizer, prepare_progress(on_progress, len(rows)))
    trainer = make_trainer(
        parts, CrossEntropy(head, numbers), TripleSource(arrays, 1), config, accelerator, folder
    )
    in_dev = rows.overlap(scored.texts) if scored is not None and config.evaluation.has_set else None
    balance = describe_counts(numbers, labels)
    return TeachTraining(
        config, folder, parts, trainer, accelerator, start, contract, rows, scored, labels, balance, in_dev
    )


def _read_rows(config: TeachConfig) -> tuple[LabelledRows, LabelledRows | None]:
    """Return the rows to train on, and those to choose checkpoints on."""
    data, evaluation = config.data, config.evaluation
    columns = Columns(data.text, data.text2, data.label, data.format)
    if evaluation.has_set:
        refuse_test_rows("evaluation.rows", evaluation.rows or ())
        if evaluation.data is not None:
            refuse_test_file(Path(evaluation.data))
    rows = read_labelled(data.train, columns, data.rows or (), limit=config.training.limit)
    if evaluation.has_set:
        dev, conditions = evaluation.data or data.train, evaluation.rows or ()
        scored = read_labelled(dev, columns, conditions, rows_option="--dev-rows")
        asked = f"evaluation.rows: {', '.join(conditions)}" if conditions else f"evaluation.data: {dev}"
        refuse_few(scored, asked, "give more, or hold out training rows")
    elif evaluation.held_out:
        rows, scored = rows.split(evaluation.held_out, config.seed)
        asked = f"evaluation.share: {evaluation.held_out:g} of the texts"
        refuse_few(scored, asked, "hold out a larger share, or 0 to keep the last state")
    else:
        return rows, None
    return rows, scored


def _record(training: TeachTraining, identity: str) -> RunRecord:
    """Return the record of a teaching that has no result yet."""
    config, rows = training.config, training.rows
    evaluation = config.evaluation
    held_out = 0 if evaluation.has_set else len(training.scored or ())
    dev = None
    if evaluation.has_set:
        dev = describe_dev(evaluation.data or config.data.train, evaluation.rows)
    start = training.start.describe(config.start, training.contract.id)
    return RunRecord(
        kind="teach",
        identity=identity,
        seeds=seeds_of(config.seed, start),
        setting=setting_of(config, {"corpus": rows.digest, "dev": dev and dev.sha256}, start),
        corpus=CorpusRecord(name=rows.name, rows=len(rows) + held_out, digest=rows.digest),
        labels=list(training.labels),
        skipped=dict(rows.skipped),
        rows=len(rows),
        held_out=held_out,
        in_dev=training.in_dev,
        student=config.start,
        parameters=training.parameters,
        dev=dev,
        loss=LOSS,
        start=start,
    )


def _start_folder(training: TeachTraining, record: RunRecord) -> None:
    held_out = training.scored if not training.config.evaluation.has_set else None
    texts = [] if held_out is None else list(dict.fromkeys(held_out.texts))
    begin_folder(training.folder, training.config.to_yaml(), record, texts)


def _train(training: TeachTraining, record: RunRecord, on_progress: OnProgress | None) -> TeachRun:
    resumed = training.trainer.step
    result = training.train(on_progress)
    run = TeachRun(
        training.folder,
        training.config,
        result,
        training.parameters,
        training.labels,
        training.balance,
        rows=len(training.rows),
        scored=len(training.scored or ()),
        skipped=dict(training.rows.skipped),
        in_dev=training.in_dev,
        scores=best_scores(training.folder, result.best_step) if training.is_first else {},
        resumed=resumed,
    )
    if training.is_first:
        record = record.model_copy(update={"scores": run.scores, "result": result})
        write_card(run.best, record, training.config.model_dump(mode="json"), training.dimension)
        finish_folder(training.folder, record)
    return run
