"""The training loop: stream rows, step, evaluate, keep the best, write checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.data.collate import Batch
from distill.data.loader import Loader
from distill.data.source import Share
from distill.errors import CheckpointError, TrainingError
from distill.record import TrainResult
from distill.students.build import forward
from distill.training.checkpoint import (
    Checkpoint,
    TrainState,
    optimizer_tensors,
    owned,
    random_state,
    restore_module,
    restore_optimizer,
    restore_random,
)
from distill.training.distributed import average_gradients, broadcast, gather_objects, mean_of
from distill.training.optimizer import learning_rate_factor, make_optimizer, warmup_steps
from distill.training.selection import StudentEncoder
from distill.training.task import Work
from distill.training.tracking import OnProgress, Tracker, TrainProgress
from embedcache.errors import RemoteError, StorageError
from embedcache.teacher.inference import use_short_attention

if TYPE_CHECKING:
    from accelerate import Accelerator


SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""Least seconds between checkpoints by default."""

LAST_STEPS = 100
"""Steps that the final loss is the mean over, or all of a shorter run."""

_NO_CPU_MEMORY = "DefaultCPUAllocator"


class Trainer:
    """Training loop of one student.

    Args:
        work: student, objective and rows.
        config: the resolved configuration.
        accelerator: device, precision and processes.
        folder: folder of checkpoints.
        save_best: called whenever the student is the best so far.
    """

    def __init__(
        self,
        work: Work,
        config: RunConfig | FinetuneConfig,
        accelerator: Accelerator,
        folder: Path,
        save_best: Callable[[], None],
    ) -> None:
        student, rows = work.student, len(work.source.lengths)
        self._config, self._source, self._objective = config, work.source, work.objective
        self._selector, self._save_best = student.selector, save_best
        self._accelerator, self._folder = accelerator, folder
        self._share = Share(accelerator.process_index, accelerator.num_processes)
        self._device = accelerator.device
        self._batch_size = config.training.batch_size or 1
        self._epochs = config.training.epochs or 1
        self._steps_an_epoch = -(-rows // self._batch_size)
        self.total_steps = config.training.count_steps(rows)
        warmup = warmup_steps(config.optimizer.warmup, self.total_steps)
        self._learning_rate = learning_rate_factor(config.optimizer.schedule, warmup, self.total_steps)
        optimizer = make_optimizer([student.model, work.objective.module], config.optimizer)
        if self._device.type == "cpu":
            use_short_attention(student.model)
        self._plain_model = student.model
        self._model, self._optimizer = accelerator.prepare(student.model, optimizer)
        # Not prepared: accelerate would run it in the precision of the forward pass.
        work.objective.module.to(self._device)
        self._encoder = StudentEncoder(student.kept, student.tokenizer, self._device, accelerator.autocast)
        self._state, self._resumed, self._saved = TrainState(), 0, 0.0
        # Left on their device: reading one a step would make a GPU wait.
        self._unread: list[Tensor] = []

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    @property
    def best_scores(self) -> dict[str, float]:
        """Scores of the best checkpoint by name, in the first process."""
        return self._state.best_scores

    def train(self, tracker: Tracker, on_progress: OnProgress | None = None) -> TrainResult:
        """Run all remaining steps.

        Args:
            tracker: takes the metrics.
            on_progress: called after every step.

        Raises:
            TrainingError: if the loss becomes NaN or infinite, or memory runs out; the best checkpoint so far
                stays.
            StorageError: if a checkpoint cannot be written; the one before stays.
            RemoteError: if rows cannot be had of a remote, in this process or in another one; a checkpoint of
                the steps done is written first.
        """
        state = self._state
        self._saved = time.perf_counter()
        started = self._saved - state.seconds
        self._model.train()
        while state.epoch < self._epochs and not self._has_stopped():
            try:
                self._train_epoch(started, tracker, on_progress)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and _NO_CPU_MEMORY not in str(error):
                    raise
                raise TrainingError(
                    f"out of {self._device.type} memory at step {state.step + 1} with batches of "
                    f"{self._batch_size} rows: lower --batch-size"
                ) from error
            state.epoch, state.batch = state.epoch + 1, 0
        state.seconds = time.perf_counter() - started
        last = state.losses[-LAST_STEPS:]
        return TrainResult(
            steps=state.step,
            total_steps=self.total_steps,
            best_step=state.best_step,
            best_score=state.best_score,
            selected_by=None if self._selector is None else self._selector.name,
            final_loss=sum(last) / len(last),
            seconds=state.seconds,
            rows_per_second=state.rows_per_second,
            waited=state.waited / state.seconds,
            stopped_early=state.stopped and state.step < self.total_steps,
        )

    def _train_epoch(self, started: float, tracker: Tracker, on_progress: OnProgress | None) -> None:
        """Train on the remaining batches of an epoch, window by window."""
        state, on_gpu = self._state, self._device.type == "cuda"
        batches = self._source.batches(self._batch_size, seed=self._config.seed, epoch=state.epoch)
        for window in batches.windows(state.batch):
            self._fetch(window)
            loader = Loader(self._source, window, epoch=state.epoch, share=self._share, pin=on_gpu)
            waited = state.waited
            for batch in loader:
                self._unread.append(self._step(batch))
                state.step, state.batch = state.step + 1, state.batch + 1
                state.rows += len(batch.rows)
                state.seconds, state.waited = time.perf_counter() - started, waited + loader.waited
                self._report(tracker)
                if on_progress is not None:
                    on_progress(self._progress())
                if self._has_stopped():
                    return
                if state.step < self.total_steps and self._is_checkpoint_due():
                    began = time.perf_counter()
                    self._save_checkpoint()
                    self._saved = time.perf_counter()
                    state.saving += self._saved - began

    def _fetch(self, window: Sequence[NDArray[np.integer]]) -> None:
        """Have the vectors of a window; where one process cannot, all write a checkpoint and end.

        Each process reads from a remote by itself. One that ended alone would leave the others waiting for
        its part of the next step.
        """
        began, error = time.perf_counter(), None
        try:
            self._source.fetch(window, self._state.epoch)
        except RemoteError as failed:
            error = failed
        self._state.waited += time.perf_counter() - began
        messages = [one for one in gather_objects(str(error or ""), self._share) if one]
        if not messages:
            return
        if self._state.step > self._resumed:
            with suppress(StorageError):
                self._save_checkpoint()
        # A launcher ends all processes as soon as one has failed: the first may still be writing.
        self._accelerator.wait_for_everyone()
        raise error or RemoteError(messages[0])

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint.

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

    def _save_checkpoint(self) -> None:
        # What all processes have to take part in comes first.
        self._read_losses()
        random = gather_objects(random_state(self._device), self._share)
        if self._share.process:
            return
        tensors = {
            **owned("model", self._plain_model.state_dict()),
            **owned("loss", self._objective.module.state_dict()),
            **optimizer_tensors(self._optimizer.optimizer),
        }
        for process, state in enumerate(random):
            tensors |= owned(f"random.{process}", state)
        scaler = self._accelerator.scaler
        facts = {
            "state": asdict(self._state),
            "processes": self._share.processes,
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        Checkpoint(tensors, facts).save(self._folder)

    def _is_checkpoint_due(self) -> bool:
        state, every = self._state, self._config.training.checkpoint_every
        if every is not None:
            return state.step % every == 0
        if state.step % (self._config.evaluation.every or self.total_steps):
            return False
        # All processes have a part in a checkpoint, and their clocks differ.
        return broadcast(time.perf_counter() - self._saved, self._share) >= SECONDS_BETWEEN_CHECKPOINTS

    def _has_stopped(self) -> bool:
        return self._state.stopped or self._state.step == self.total_steps

    def _progress(self) -> TrainProgress:
        state = self._state
        return TrainProgress(
            "train",
            state.step,
            self.total_steps,
            state.loss,
            state.rows_per_second,
            state.best_score,
            self._resumed,
        )

    def _read_losses(self) -> None:
        """Take the losses of the steps since the last call, the mean over all processes, into the state.

        Raises:
            TrainingError: if one is NaN or infinite; it names the first such step.
        """
        if not self._unread:
            return
        values = mean_of(torch.stack(self._unread), self._share.processes).tolist()
        self._unread = []
        for step, value in enumerate(values, start=self._state.step - len(values) + 1):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss became {value} at step {step}: lower optimizer.lr, or use "
                    "training.mixed_precision=no; the best checkpoint so far is kept"
                )
        self._state.losses += values

    def _report(self, tracker: Tracker) -> None:
        """Evaluate and log, at the steps where either is due."""
        state, config = self._state, self._config
        last = state.step == self.total_steps
        if state.step % (config.evaluation.every or self.total_steps) == 0 or last:
            self._read_losses()
            began = time.perf_counter()
            self._evaluate(tracker)
            spent = time.perf_counter() - began
            state.evaluating, state.seconds = state.evaluating + spent, state.seconds + spent
        if state.step % config.tracking.log_every == 0 or last or state.stopped:
            self._read_losses()
            new = state.losses[state.reported - state.step :]
            state.loss, state.reported = sum(new) / len(new), state.step
            state.losses = state.losses[-LAST_STEPS:]
            tracker.log(state.step, self._metrics(state.loss))

    def _evaluate(self, tracker: Tracker) -> None:
        state, evaluation = self._state, self._config.evaluation
        scores = self._score()
        score = None if self._selector is None else scores[self._selector.name]
        if score is None or state.best_score is None or score > state.best_score:
            state.best_score, state.best_step, state.since_best = score, state.step, 0
            state.best_scores = scores
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
