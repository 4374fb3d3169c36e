"""The training loop: stream rows, step, evaluate, keep the best, write checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.data.collate import Batch
from distill.data.loader import CheckRows, Loader
from distill.data.source import Share, Source
from distill.errors import CheckpointError, TrainingError
from distill.record import TrainResult
from distill.students.build import forward
from distill.training.checkpoint import (
    Checkpoint,
    optimizer_tensors,
    owned,
    random_state,
    restore_module,
    restore_optimizer,
    restore_random,
)
from distill.training.distributed import average_gradients, broadcast, gather_objects
from distill.training.objectives import Objective
from distill.training.optimizer import learning_rate_factor, make_optimizer, warmup_steps
from distill.training.selection import Selector, StudentEncoder
from distill.training.state import RecentLosses, TrainState
from distill.training.tracking import OnProgress, Tracker, TrainProgress
from embedcache.errors import RemoteError, StorageError
from embedcache.teacher.inference import use_short_attention
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer


SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""Least seconds between checkpoints by default."""


class Trainer:
    """Training loop of one student.

    Args:
        model: the student.
        evaluated: the model that is scored and saved: the student itself, or the student without its head.
        objective: the objective; its parameters are trained along.
        source: rows to train on.
        tokenizer: the student's tokenizer.
        selector: scores the student to choose the best checkpoint; None keeps the last state.
        config: the resolved configuration.
        accelerator: device, precision and processes.
        folder: where checkpoints go.
        save_best: called whenever the model is the best so far.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        evaluated: SentenceTransformer,
        objective: Objective,
        source: Source,
        tokenizer: FastTokenizer,
        selector: Selector | None,
        config: RunConfig | FinetuneConfig,
        accelerator: Accelerator,
        folder: Path,
        save_best: Callable[[], None],
    ) -> None:
        self._config, self._source, self._folder = config, source, folder
        self._selector, self._save_best, self._accelerator = selector, save_best, accelerator
        self._share = Share(accelerator.process_index, accelerator.num_processes)
        self._device = accelerator.device
        self._batch_size = config.training.batch_size or 1
        self._epochs = config.training.epochs or 1
        self._steps_an_epoch = -(-len(source.lengths) // self._batch_size)
        self.total_steps = config.training.count_steps(len(source.lengths))
        warmup = warmup_steps(config.optimizer.warmup, self.total_steps)
        self._learning_rate = learning_rate_factor(config.optimizer.schedule, warmup, self.total_steps)
        optimizer = make_optimizer([model, objective.module], config.optimizer)
        if self._device.type == "cpu":
            use_short_attention(model)
        self._plain_model = model
        self._model, self._optimizer = accelerator.prepare(model, optimizer)
        # Not prepared: accelerate would run it in the precision of the forward pass.
        objective.module.to(self._device)
        self._objective = objective
        self._encoder = StudentEncoder(evaluated, tokenizer, self._device, self._autocast)
        self._state, self._resumed, self._saved = TrainState(), 0, 0.0
        self._recent = RecentLosses(self._share.processes)

    def _autocast(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.autocast()
        return context

    def train(
        self,
        tracker: Tracker,
        on_progress: OnProgress | None = None,
        check: CheckRows | None = None,
    ) -> TrainResult:
        """Run all remaining steps.

        Args:
            tracker: takes the metrics.
            on_progress: called after every step.
            check: called with the rows of each window before the first of them is trained on.

        Raises:
            TrainingError: if the loss becomes NaN or infinite; the best checkpoint so far stays.
            StorageError: if a checkpoint cannot be written; the one before stays.
            RemoteError: if rows cannot be had of a remote, in this process or in another one; a checkpoint of
                the steps done is written first.
        """
        state = self._state
        self._saved = time.perf_counter()
        started = self._saved - state.seconds
        self._model.train()
        while state.epoch < self._epochs and not self._has_stopped():
            loader, waited = self._loader(check), state.waited
            for batch in self._saved_on_remote_error(loader):
                self._recent.add(self._step(batch))
                state.step, state.batch = state.step + 1, state.batch + 1
                state.rows += len(batch.rows)
                state.seconds, state.waited = time.perf_counter() - started, waited + loader.waited
                self._report(tracker)
                if on_progress is not None:
                    on_progress(self._progress())
                if self._has_stopped():
                    break
                if state.step < self.total_steps and self._is_checkpoint_due():
                    began = time.perf_counter()
                    self._save_checkpoint()
                    self._saved = time.perf_counter()
                    state.saving += self._saved - began
            # The order of one epoch takes four bytes a row; two at once would take eight.
            del loader
            state.epoch, state.batch = state.epoch + 1, 0
        state.seconds = time.perf_counter() - started
        return TrainResult(
            steps=state.step,
            total_steps=self.total_steps,
            best_step=state.best_step,
            best_score=state.best_score,
            selected_by=None if self._selector is None else self._selector.name,
            final_loss=math.nan if state.final_loss is None else state.final_loss,
            seconds=state.seconds,
            rows_per_second=state.rows_per_second,
            waited=state.waited / state.seconds,
            stopped_early=state.stopped and state.step < self.total_steps,
        )

    def _saved_on_remote_error(self, loader: Loader) -> Iterator[Batch]:
        """Yield the batches; on an error of a remote, write a checkpoint of the steps done."""
        try:
            yield from loader
        except RemoteError:
            # It is raised in all processes, see _raise_together, and all have a part in a checkpoint.
            if self._state.step > self._resumed:
                with suppress(StorageError):
                    self._save_checkpoint()
            # A launcher ends all processes as soon as one has failed: the first may still be writing.
            self._accelerator.wait_for_everyone()
            raise

    def _raise_together(self, error: RemoteError | None) -> None:
        """Raise the error of a remote in all processes where one of them has met it.

        Each process reads from the remote by itself. One that ended alone would leave the others waiting for
        its part of the next step.

        Args:
            error: what this process has met; None if nothing.
        """
        messages = gather_objects("" if error is None else str(error), self._share)
        if error is not None:
            raise error
        for message in filter(None, messages):
            raise RemoteError(message)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from where a checkpoint was written.

        Raises:
            CheckpointError: if it is of another student, loss or number of processes.
        """
        processes = checkpoint.facts["processes"]
        if processes != self._share.processes:
            raise CheckpointError(
                f"the checkpoint was written by {processes} processes and this run has "
                f"{self._share.processes}: start it with {processes}"
            )
        restore_module(self._plain_model, checkpoint.of("model"), "student")
        restore_module(self._objective.module, checkpoint.of("loss"), "loss")
        self._objective.restored()
        restore_optimizer(self._optimizer.optimizer, checkpoint)
        if self._accelerator.scaler is not None and checkpoint.facts["scaler"]:
            self._accelerator.scaler.load_state_dict(checkpoint.facts["scaler"])
        restore_random(checkpoint.of(f"random.{self._share.process}"), self._device)
        self._state = TrainState(**checkpoint.facts["state"])
        self._resumed = self._state.step
        losses = checkpoint.tensors["recent"].to(self._device)
        self._recent.restore(losses, checkpoint.facts["recent_mean"], checkpoint.facts["last_losses"])

    def _progress(self) -> TrainProgress:
        state = self._state
        return TrainProgress(
            "train",
            state.step,
            self.total_steps,
            self._recent.mean,
            state.rows_per_second,
            state.best_score,
            self._resumed,
        )

    def _has_stopped(self) -> bool:
        return self._state.stopped or self._state.step == self.total_steps

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    def _is_checkpoint_due(self) -> bool:
        state, every = self._state, self._config.training.checkpoint_every
        if every is not None:
            return state.step % every == 0
        if state.step % (self._config.evaluation.every or self.total_steps):
            return False
        # All processes have a part in a checkpoint, and their clocks differ.
        return broadcast(time.perf_counter() - self._saved, self._share) >= SECONDS_BETWEEN_CHECKPOINTS

    def _save_checkpoint(self) -> None:
        # What all processes have to take part in comes first.
        recent = self._recent.tensor()
        random = gather_objects(random_state(self._device), self._share)
        if self._share.process:
            return
        tensors = {
            **owned("model", self._plain_model.state_dict()),
            **owned("loss", self._objective.module.state_dict()),
            **optimizer_tensors(self._optimizer.optimizer),
            "recent": recent,
        }
        for process, state in enumerate(random):
            tensors |= owned(f"random.{process}", state)
        scaler = self._accelerator.scaler
        facts = {
            "state": self._state.to_json(),
            "recent_mean": self._recent.mean,
            "last_losses": self._recent.last,
            "processes": self._share.processes,
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        Checkpoint(tensors, facts).save(self._folder)

    def _loader(self, check: CheckRows | None) -> Loader:
        state = self._state
        batches = self._source.batches(self._batch_size, seed=self._config.seed, epoch=state.epoch)
        return Loader(
            self._source,
            batches,
            epoch=state.epoch,
            start=state.batch,
            share=self._share,
            pin=self._device.type == "cuda",
            breaks=batches.breaks,
            check=check,
            agree=self._raise_together,
        )

    def _report(self, tracker: Tracker) -> None:
        """Evaluate and log, at the steps where either is due."""
        state, config = self._state, self._config
        last = state.step == self.total_steps
        if state.step % (config.evaluation.every or self.total_steps) == 0 or last:
            self._recent.check(state.step)
            began = time.perf_counter()
            self._evaluate(tracker)
            spent = time.perf_counter() - began
            state.evaluating, state.seconds = state.evaluating + spent, state.seconds + spent
        if state.step % config.tracking.log_every == 0 or last or state.stopped:
            mean = self._recent.take(state.step)
            state.final_loss = sum(self._recent.last) / len(self._recent.last)
            tracker.log(state.step, self._metrics(mean))

    def _evaluate(self, tracker: Tracker) -> None:
        state, evaluation = self._state, self._config.evaluation
        scores = self._score()
        score = None if self._selector is None else scores[self._selector.name]
        if score is None or state.best_score is None or score > state.best_score:
            state.best_score, state.best_step, state.since_best = score, state.step, 0
            if self._share.process == 0:
                self._save_best()
        else:
            state.since_best += 1
        if scores:
            tracker.log(state.step, scores)
        steps = (evaluation.patience_epochs or math.inf) * self._steps_an_epoch
        state.stopped = (
            state.since_best >= (evaluation.patience or math.inf) or state.step - state.best_step >= steps
        )

    def _score(self) -> dict[str, float]:
        if self._selector is None:
            return {}
        # One process scores, so that all of them decide alike.
        scores = self._selector.score(self._encoder) if self._share.process == 0 else {}
        score = broadcast(scores.get(self._selector.name, math.nan), self._share)
        if not math.isfinite(score):
            raise TrainingError(
                f"the student's vectors became NaN or infinite by step {self._state.step}: lower "
                "optimizer.lr, or use training.mixed_precision=no; the best checkpoint so far is kept"
            )
        return scores or {self._selector.name: score}

    def _step(self, batch: Batch) -> Tensor:
        batch = batch.to(self._device)
        self._objective.begin_step(batch)
        with self._accelerator.autocast():
            vectors = forward(self._model, batch.input_ids, batch.attention_mask, batch.token_types)
        with torch.autocast(self._device.type, enabled=False):
            loss = self._objective.loss(vectors.float(), batch, self._share)
        self._accelerator.backward(loss)
        average_gradients(self._objective.module, self._share.processes)
        if self._config.optimizer.max_grad_norm:
            # What the loss learns is a part of the same step.
            parameters = [*self._model.parameters(), *self._objective.module.parameters()]
            self._accelerator.clip_grad_norm_(parameters, self._config.optimizer.max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self._learning_rate(self._state.step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._objective.end_step(batch)
        return loss.detach()

    def _metrics(self, loss: float) -> dict[str, float]:
        return {
            "epoch": self._state.epoch,
            "loss": loss,
            "lr": float(self._optimizer.param_groups[0]["lr"]),
            "rows_per_second": self._state.rows_per_second,
            **self._objective.metrics(),
        }
