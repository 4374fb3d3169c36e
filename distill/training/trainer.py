"""The training loop: stream rows with their cached vectors, step, look, keep the best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distill.config import RunConfig
from distill.data.loader import Loader
from distill.data.sampler import epoch_batches
from distill.data.tokens import RowLengths
from distill.errors import TrainingError
from distill.students.student import forward
from distill.training.optimizer import make_optimizer
from distill.training.schedule import learning_rate_factor, warmup_steps
from distill.training.selection import StudentEncoder
from distill.training.tracking import OnProgress, Tracker, TrainProgress
from embedcache.teacher.attention import use_short_attention

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer

    from distill.data.collate import Batch
    from distill.data.dataset import DistillDataset
    from distill.data.tokens import TokenArrays
    from distill.losses.base import DistillLoss
    from distill.training.selection import Selector
    from embedcache.teacher.tokenize import FastTokenizer


@dataclass(frozen=True)
class TrainResult:
    """How a training ended.

    Attributes:
        steps: steps done.
        total_steps: steps planned; more than ``steps`` where it stopped early.
        best_step: step of the best checkpoint.
        best_score: its selection score; None where there was nothing to select by.
        final_loss: mean loss over the last stretch that was logged.
        seconds: wall-clock seconds of the loop, evaluations included.
        rows_per_second: training rows a second, evaluations excluded.
        waited: share of the time the step waited for data, 0 to 1.
        stopped_early: whether patience ran out.
    """

    steps: int
    total_steps: int
    best_step: int
    best_score: float | None
    final_loss: float
    seconds: float
    rows_per_second: float
    waited: float
    stopped_early: bool


class Trainer:
    """Trains one student.

    Args:
        model: the student.
        loss: the loss; trained along where it has parameters.
        dataset: rows and targets.
        tokens: the corpus's token ids for the student.
        tokenizer: the student's tokenizer.
        selector: chooses the best checkpoint; None keeps the last state.
        config: the resolved configuration.
        accelerator: device and precision.
        save_best: called whenever the model is the best so far.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        loss: DistillLoss,
        dataset: DistillDataset,
        tokens: TokenArrays,
        tokenizer: FastTokenizer,
        selector: Selector | None,
        config: RunConfig,
        accelerator: Accelerator,
        save_best: Callable[[], None],
    ) -> None:
        self._config, self._dataset, self._tokens = config, dataset, tokens
        self._selector, self._save_best, self._accelerator = selector, save_best, accelerator
        self._lengths = RowLengths(tokens, dataset.rows)
        self._batch_size = config.training.batch_size or 1
        self._epochs = config.training.epochs or 1
        self.total_steps = self._epochs * -(-len(dataset) // self._batch_size)
        warmup = warmup_steps(config.optimizer.warmup, self.total_steps)
        optimizer = make_optimizer([model, loss], config.optimizer)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, learning_rate_factor(config.optimizer.schedule, warmup, self.total_steps)
        )
        if accelerator.device.type == "cpu":
            use_short_attention(model)
        self._model, self._optimizer = accelerator.prepare(model, optimizer)
        # Not prepared: accelerate would run it in the precision of the forward pass.
        self._loss = loss.to(accelerator.device)
        self._schedule = schedule
        self._encoder = StudentEncoder(model, tokenizer, accelerator.device, self._autocast)

    def _autocast(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._accelerator.autocast()
        return context

    def train(self, tracker: Tracker, on_progress: OnProgress | None = None) -> TrainResult:
        """Run all epochs and return how it ended.

        Raises:
            TrainingError: if the loss becomes NaN or infinite; the best checkpoint so far stays.
        """
        config = self._config
        every = config.evaluation.every or self.total_steps
        started = time.perf_counter()
        step = rows = best_step = since_best = 0
        best: float | None = None
        recent = RecentLosses()
        final_loss = math.nan
        waited = evaluating = 0.0
        stop = False
        self._model.train()
        for epoch in range(self._epochs):
            loader = self._loader(epoch)
            for batch in loader:
                recent.add(self._step(batch))
                step += 1
                rows += len(batch.rows)
                rate = rows / (time.perf_counter() - started - evaluating)
                if step % every == 0 or step == self.total_steps:
                    recent.check(step)
                    began = time.perf_counter()
                    score = self._score(step)
                    if score is None or best is None or score > best:
                        best, best_step, since_best = score, step, 0
                        self._save_best()
                    else:
                        since_best += 1
                    if self._selector is not None and score is not None:
                        tracker.log(step, {self._selector.name: score})
                    evaluating += time.perf_counter() - began
                    stop = since_best >= (config.evaluation.patience or math.inf)
                if step % config.tracking.log_every == 0 or step == self.total_steps or stop:
                    final_loss = recent.take(step)
                    tracker.log(step, self._metrics(final_loss, epoch, rate))
                if on_progress is not None:
                    on_progress(TrainProgress("train", step, self.total_steps, recent.mean, rate, best))
                if stop:
                    break
            waited += loader.waited
            # The order of one epoch takes four bytes a row; two at once would take eight.
            del loader
            if stop:
                break
        seconds = time.perf_counter() - started
        return TrainResult(
            steps=step,
            total_steps=self.total_steps,
            best_step=best_step,
            best_score=best,
            final_loss=final_loss,
            seconds=seconds,
            rows_per_second=rows / (seconds - evaluating),
            waited=waited / seconds,
            stopped_early=stop and step < self.total_steps,
        )

    def _loader(self, epoch: int) -> Loader:
        batches = epoch_batches(self._lengths, self._batch_size, seed=self._config.seed, epoch=epoch)
        return Loader(self._dataset, self._tokens, batches)

    def _score(self, step: int) -> float | None:
        if self._selector is None:
            return None
        score = self._selector.score(self._encoder)
        if not math.isfinite(score):
            raise TrainingError(
                f"the student's vectors became NaN or infinite by step {step}: lower optimizer.lr, or use "
                "training.mixed_precision=no; the best checkpoint so far is kept"
            )
        return score

    def _step(self, batch: Batch) -> Tensor:
        batch = batch.to(self._accelerator.device)
        # The cache may hold half precision; a loss is computed in float32 whatever the forward pass runs in.
        targets = batch.targets.float()
        with self._accelerator.autocast():
            vectors = forward(self._model, batch.input_ids, batch.attention_mask)
        with torch.autocast(self._accelerator.device.type, enabled=False):
            loss: Tensor = self._loss(vectors.float(), targets)
        self._accelerator.backward(loss)
        if self._config.optimizer.max_grad_norm:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self._config.optimizer.max_grad_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._loss.after_step(targets)
        return loss.detach()

    def _metrics(self, loss: float, epoch: int, rate: float) -> dict[str, float]:
        learning_rate = float(self._schedule.get_last_lr()[0])
        return {
            "epoch": epoch,
            "loss": loss,
            "lr": learning_rate,
            "rows_per_second": rate,
            **self._loss.metrics(),
        }


class RecentLosses:
    """The losses since the last report, left on their device: reading one a step would make a GPU wait."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self.mean: float | None = None
        """The mean that was taken last; None at first."""

    def add(self, loss: Tensor) -> None:
        """Add the loss of one step, a scalar."""
        self._losses.append(loss)

    def check(self, step: int) -> list[float]:
        """Return the losses of the last steps, the last of them ``step``.

        Raises:
            TrainingError: if one is NaN or infinite; it names the first such step.
        """
        values: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        for number, value in enumerate(values, start=step - len(values) + 1):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss became {value} at step {number}: lower optimizer.lr, or use "
                    "training.mixed_precision=no; the best checkpoint so far is kept"
                )
        return values

    def take(self, step: int) -> float:
        """Return the mean of the losses since the last take, the last of them of ``step``, and start anew.

        Raises:
            TrainingError: as :meth:`check`.
        """
        values = self.check(step)
        self._losses = []
        self.mean = sum(values) / len(values) if values else math.nan
        return self.mean
