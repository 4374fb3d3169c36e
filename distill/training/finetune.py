"""Stage 2: fine-tuning a student, or any encoder, on texts alone.

With triples it is the second stage of DistilCSE, or from a plain model supervised SimCSE; with sentences that
are their own positives under another dropout it is unsupervised SimCSE.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.card import write_card
from distill.config.finetune import FinetuneConfig
from distill.config.sources import keyword_options, load_config
from distill.data.triples import Triples, TripleSource, read_sentences, read_triples, tokenise
from distill.errors import ConfigError
from distill.evaluation.files import read_pairs
from distill.layout import BEST, CONFIG, HELD_OUT, TARGETS
from distill.record import CorpusRecord, RunRecord, TrainResult, seeds_of, setting_of
from distill.students.build import open_student
from distill.training.contrastive import Contrast, InfoNCE, nearest_selector
from distill.training.describe import describe_dev, refuse_other_data
from distill.training.device import make_accelerator, seeded
from distill.training.folder import (
    begin_folder,
    claim_folder,
    finish_folder,
    read_interrupted,
)
from distill.training.selection import pair_selector
from distill.training.setup import Training, machine_flags, make_trainer, refuse_long_warmup
from distill.training.start import Start, default_out, find_start
from distill.training.student import student_parts, tokenizer_of
from distill.training.token_views import prepare_progress
from distill.training.tracking import OnProgress, require_tensorboard

if TYPE_CHECKING:
    from distill.training.selection import Selector
    from embedcache.contract import Contract
    from embedcache.teacher.tokenize import FastTokenizer

LOSS = "infonce"
"""Loss of every fine-tuning."""

KIND = "finetune"
"""What the record of a fine-tuning says it is, and the command it is made with."""

_VERSION = 1


@dataclass(frozen=True)
class FinetuneRun:
    """A finished fine-tuning.

    Attributes:
        folder: the run's folder.
        config: the configuration with all defaults filled in.
        result: how training ended.
        parameters: parameters of the student as it is saved.
        rows: triples, pairs or sentences trained on.
        texts: texts of such a row: three, two or one.
        skipped: why rows of the file were left out -> how many.
        in_dev: rows trained on that hold a text of the development set; None without one.
        resumed: the step it went on from last; 0 where it was never interrupted, or had to start anew.
    """

    folder: Path
    config: FinetuneConfig
    result: TrainResult
    parameters: int
    rows: int
    texts: int
    skipped: dict[str, int]
    in_dev: int | None
    resumed: int = 0

    @property
    def best(self) -> Path:
        """The folder of the best student; ``SentenceTransformer(run.best)`` opens it."""
        return self.folder / BEST

    def facts(self) -> dict[str, object]:
        """Return what the fine-tuning was and how it ended, as a JSON object."""
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "parameters": self.parameters,
            "rows": self.rows,
            "skipped": self.skipped,
            "in_dev": self.in_dev,
            "resumed": self.resumed,
            **self.result.model_dump(),
        }


@dataclass(frozen=True)
class FinetuneTraining(Training):
    """A fine-tuning that is ready to start."""

    config: FinetuneConfig
    start: Start
    contract: Contract
    rows: Triples
    held_out: Triples | None
    in_dev: int | None

    @property
    def is_in_target_space(self) -> bool:
        """Whether the student's vectors began as ones like its teacher's, if it has one."""
        student = self.config.student
        is_bare = student.head == "none" or student.drop_head
        return is_bare and (self.start.record is None or self.start.record.in_target_space)


def finetune(
    start: str | Path,
    *,
    triples: str | Path | None = None,
    sentences: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> FinetuneRun:
    """Fine-tune a student on triples or sentences; the keyword form of :func:`finetune_config`.

    Args:
        start: a run's folder (its best student is meant), another folder, a hub id or an alias.
        triples: file of anchors, positives and hard negatives.
        sentences: file of texts, instead of triples.
        on_progress: called after every step.
        settings: settings of the configuration, as for :func:`distill.run`.

    Raises:
        ConfigError: naming every key that is unknown or has a value that cannot be used; else as
            :func:`finetune_config`.
    """
    texts = {"start": start, "triples": triples, "sentences": sentences}
    options = keyword_options(FinetuneConfig, {**texts, **settings})
    return finetune_config(load_config(FinetuneConfig, options=options), on_progress)


def finetune_config(
    config: FinetuneConfig, on_progress: OnProgress | None = None, *, recipe: str | None = None
) -> FinetuneRun:
    """Fine-tune the student that ``config`` describes.

    The run's folder is that of :func:`distill.training.run.run_config`; where the student comes from a run,
    it also holds that run's record, so that the student is still evaluated beside its teacher.

    Args:
        config: the configuration.
        on_progress: called after every step.
        recipe: name of the recipe that the configuration was made from, to be written down.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if the file of texts or the development set cannot be used.
        StudentError: if the model cannot be loaded or used.
        TrainingError: if the loss becomes NaN or infinite.
        EmbedCacheError: if the file of texts cannot be read.
    """
    identity = config.identity_digest()
    folder, config = claim_folder(
        config, lambda: default_out(config.start, config.triples or config.sentences or "", KIND)
    )
    training = _prepare(config, folder, on_progress)
    training.start.refuse_folder(folder, "student")
    record = _record(training, recipe, identity)
    # From here on files are written; everything that can be refused has been.
    with training.exclusive():
        if training.is_first:
            _start_folder(training, record)
        return _train(training, record, on_progress)


def resume_finetune(
    folder: str | Path,
    *,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> FinetuneRun:
    """Go on with a fine-tuning that was interrupted, from its last checkpoint; without one, from the start.

    With the device and the number of threads it began with, the weights are those of one that was never
    interrupted, bit for bit.

    Args:
        folder: the run's folder.
        device, threads: of the machine that it goes on upon; default: as before.
        on_progress: called after every step.

    Raises:
        CheckpointError: if there is nothing to go on with, or what it is made of has changed.
        DistillError, EmbedCacheError: as :func:`finetune_config`.
    """
    folder = Path(folder).expanduser()
    record = read_interrupted(folder, KIND)
    options = {**machine_flags(device, threads), "out": str(folder)}
    config = load_config(FinetuneConfig, folder / CONFIG, options=options)
    training = _prepare(config, folder, on_progress)
    now = _record(training, record.recipe, record.identity)
    refuse_other_data(record, now)
    with training.exclusive():
        training.go_on(now, lambda: _start_folder(training, now), on_progress)
        return _train(training, now, on_progress)


def _prepare(config: FinetuneConfig, folder: Path, on_progress: OnProgress | None) -> FinetuneTraining:
    if config.tracking.tensorboard:
        require_tensorboard()
    start = find_start(config.start)
    everything = _read_rows(config)
    config = config.resolved(len(everything))
    rows, held_out = everything, None
    if config.evaluation.held_out:
        rows, held_out = everything.split(config.evaluation.held_out, config.seed)
    if len(rows) < 2:
        raise ConfigError(
            f"{config.evaluation.held_out} leaves {len(rows)} of {len(everything)} rows "
            "to train on; hold out fewer",
            "evaluation.held_out",
        )
    refuse_long_warmup(config, len(rows))
    accelerator = make_accelerator(config.training)
    student = config.student
    # Weights that a model's file lacks are drawn at random when it is loaded.
    with seeded(config.seed, torch.device("cpu")):
        model, contract = open_student(
            start.model,
            head=student.head,
            pooling=student.pooling,
            dropout=student.dropout,
            seed=config.seed,
        )
    parts = student_parts(
        model,
        start.model,
        lambda tokenizer: _make_selector(config.evaluation.data, held_out, tokenizer),
        config.evaluation,
        drop_head=student.drop_head,
        held_out=len(held_out or ()),
    )
    in_dev = None
    if config.evaluation.data is not None:
        pairs = read_pairs(config.evaluation.data, "dev")
        in_dev = rows.overlap({*pairs.left, *pairs.right})
    # What is trained on may be cut shorter than what the student is scored on and used for.
    shorter = tokenizer_of(model, start.model, student.max_length)
    arrays = tokenise(rows.columns, shorter, prepare_progress(on_progress, len(rows) * len(rows.columns)))
    trainer = make_trainer(
        parts,
        Contrast(InfoNCE(config.loss.tau), None if config.loss.duplicates == "keep" else rows.codes()),
        TripleSource(arrays, max(2, len(arrays)), by_length=config.training.order == "length"),
        config,
        accelerator,
        folder,
    )
    return FinetuneTraining(
        config, folder, parts, trainer, accelerator, start, contract, rows, held_out, in_dev
    )


def _make_selector(data: str | None, held_out: Triples | None, tokenizer: FastTokenizer) -> Selector | None:
    if data is not None:
        return pair_selector(data, tokenizer)
    return None if held_out is None else nearest_selector(held_out, tokenizer)


def _read_rows(config: FinetuneConfig) -> Triples:
    options: dict[str, Any] = {"format": config.format, "limit": config.training.limit}
    if config.sentences is not None:
        return read_sentences(
            config.sentences, column=config.columns[0] if config.columns else None, **options
        )
    assert config.triples is not None  # noqa: S101 - the configuration has one of the two
    return read_triples(config.triples, columns=config.columns, **options)


def _record(training: FinetuneTraining, recipe: str | None, identity: str) -> RunRecord:
    """Return the record of a run that has no result yet, with what the record of its start says."""
    config, before, rows = training.config, training.start.record, training.rows
    held_out = len(training.held_out or ())
    start = training.start.describe(config.start, training.contract.id)
    dev = describe_dev(config.evaluation.data)
    return RunRecord(
        kind="finetune",
        identity=identity,
        seeds=seeds_of(config.seed, start),
        setting=setting_of(config, {"corpus": rows.digest, "dev": dev and dev.sha256}, start),
        recipe=recipe,
        # An evaluation finds the teacher, its vectors and how they became targets where a run has them.
        teachers=[] if before is None else before.teachers,
        targets=None if before is None else before.targets,
        cache=None if before is None else before.cache,
        corpus=CorpusRecord(name=rows.name, rows=len(rows) + held_out, digest=rows.digest),
        skipped=dict(rows.skipped),
        rows=len(rows),
        held_out=held_out,
        in_dev=training.in_dev,
        student=config.start if before is None else before.student,
        parameters=training.parameters,
        in_target_space=training.is_in_target_space,
        dev=dev,
        loss=LOSS,
        start=start,
        stage1=before,
    )


def _start_folder(training: FinetuneTraining, record: RunRecord) -> None:
    begin_folder(training.folder, training.config.to_yaml(), record, _held_out_texts(training))
    if training.start.run is not None and (training.start.run / TARGETS).is_file():
        shutil.copyfile(training.start.run / TARGETS, training.folder / TARGETS)


def _held_out_texts(training: FinetuneTraining) -> list[str]:
    """Return what neither stage has seen: of a run's held-out texts, else of the held-out triples."""
    before = training.start.run
    if before is not None and (before / HELD_OUT).is_file():
        lines = (before / HELD_OUT).read_text(encoding="utf-8").split("\n")
        held_out = [json.loads(line) for line in lines if line]
    else:
        held_out = [] if training.held_out is None else training.held_out.texts()
    seen = set(training.rows.texts())
    return [text for text in held_out if text not in seen]


def _train(training: FinetuneTraining, record: RunRecord, on_progress: OnProgress | None) -> FinetuneRun:
    resumed = training.trainer.step
    result = training.train(on_progress)
    run = FinetuneRun(
        training.folder,
        training.config,
        result,
        training.parameters,
        rows=len(training.rows),
        texts=len(training.rows.columns),
        skipped=dict(training.rows.skipped),
        in_dev=training.in_dev,
        resumed=resumed,
    )
    if training.is_first:
        record = record.model_copy(update={"result": result})
        write_card(run.best, record, training.config.model_dump(mode="json"), training.dimension)
        finish_folder(training.folder, record)
    return run
