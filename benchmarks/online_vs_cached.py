"""Time of a training step with the teacher's vectors from a cache, against the live teacher.

Per step, on the same batches of real sentences, in turns so that a busy machine slows all of them alike:

  student  the student's step alone, on batches and targets that are ready
  teacher  the teacher's forward pass alone, on batches that are tokenised and ready
  live     the step as it is without a cache: the teacher's forward pass, then the student's step
  cached   the step as ``distill run`` makes it: batches from the loader, then the student's step

The cache has paid where live / cached is at least (teacher + student) / student, less 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

import embedcache
from distill.config.models import TrainingConfig
from distill.config.training import OptimizerConfig
from distill.data.collate import Batch, pad_texts
from distill.data.dataset import open_rows
from distill.data.loader import Loader
from distill.data.sampler import epoch_batches
from distill.data.source import DistillSource, Share
from distill.data.tokens import TokenArrays, tokenise_corpus
from distill.device import make_accelerator
from distill.losses.registry import get_loss
from distill.students.build import build_student, forward
from distill.training.objectives import Distillation
from distill.training.optimizer import make_optimizer
from distill.training.task import tokenizer_of
from embedcache.cache import Cache
from embedcache.corpus.readers import ReadOptions
from embedcache.teacher.inference import use_short_attention
from embedcache.teacher.load import load_teacher
from embedcache.teacher.options import EncodeOptions
from embedcache.teacher.tokenize import fast_tokenizer

KINDS = ("student", "teacher", "live", "cached")


class Bench:
    """A student, its teacher, and batches of the rows they are given."""

    def __init__(self, cache: Cache, teacher: str, student: str, batch_size: int, device: str) -> None:
        self.accelerator = make_accelerator(TrainingConfig(device=device))
        self.device = self.accelerator.device
        self.dataset = open_rows(cache).split()
        loaded = load_teacher(teacher, device=str(self.device))
        self.teacher = loaded.model.eval().requires_grad_(False)
        self.student = build_student(student, loaded.contract, lambda: loaded).to(self.device)
        own = tokenizer_of(self.student, student)
        theirs = fast_tokenizer(self.teacher, loaded.contract.max_length, loaded.contract.prompt)
        assert theirs is not None  # noqa: S101 - the teachers of this benchmark have one
        self.tokens = tokenise_corpus(cache, self.dataset.corpus, own)
        self.teacher_tokens = tokenise_corpus(cache, self.dataset.corpus, theirs)
        self.objective = Distillation(get_loss("mse").make({}), self.dataset)
        self.optimizer = make_optimizer([self.student], OptimizerConfig(lr=1e-4))
        if self.device.type == "cpu":
            use_short_attention(self.student)
            use_short_attention(self.teacher)
        self.source = DistillSource(self.dataset, (self.tokens,))
        self.batches = epoch_batches(self.source.lengths, batch_size, seed=0, epoch=0)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision both models compute in."""
        context: AbstractContextManager[Any] = self.accelerator.autocast()
        return context

    def loaded(self) -> Iterator[Batch]:
        """Batches out of the loader, from the first on."""
        yield from Loader(self.source, self.batches, pin=self.device.type == "cuda")

    def teacher_batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids of a batch as the teacher takes them."""
        rows = self.dataset.rows[self.batches[number]]
        ids, mask = _padded(self.teacher_tokens, rows)
        return ids.to(self.device), mask.to(self.device)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The teacher's forward pass."""
        with torch.inference_mode(), self.autocast():
            return forward(self.teacher, ids, mask).float()

    def step(self, batch: Batch, targets: torch.Tensor | None = None) -> None:
        """The student's step; with the targets of the batch or those given."""
        batch = batch.to(self.device)
        if targets is not None:
            batch = Batch(
                batch.input_ids, batch.attention_mask, 1, batch.rows, targets.clone(), 0, batch.counted
            )
        with self.autocast():
            vectors = forward(self.student, batch.input_ids, batch.attention_mask)
        self.objective.loss(vectors.float(), batch, Share()).backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def _padded(tokens: TokenArrays, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import numpy as np

    ids, mask, _ = pad_texts((tokens,), np.zeros((1, len(rows)), dtype=np.int64), rows)
    return ids, mask


def measure(bench: Bench, steps: int, rounds: int) -> dict[str, float]:
    """The least seconds a step over several rounds, of each kind."""
    least = dict.fromkeys(KINDS, float("inf"))
    # The loader goes on all the time, as in a run; the other kinds are given the same batches.
    ahead, loader = bench.loaded(), bench.loaded()
    for number in range(rounds + 1):
        start = number * steps
        ready = list(itertools.islice(ahead, steps))
        texts = [bench.teacher_batch(start + i) for i in range(steps)]

        def student(ready: list[Batch] = ready) -> None:
            for batch in ready:
                bench.step(batch)

        def teacher(texts: list[tuple[torch.Tensor, torch.Tensor]] = texts) -> None:
            for ids, mask in texts:
                bench.encode(ids, mask)

        def live(ready: list[Batch] = ready, texts: Any = texts) -> None:
            for batch, (ids, mask) in zip(ready, texts, strict=True):
                bench.step(batch, bench.encode(ids, mask))

        def cached() -> None:
            for batch in itertools.islice(loader, steps):
                bench.step(batch)

        kinds: dict[str, Callable[[], None]] = {
            "student": student,
            "teacher": teacher,
            "live": live,
            "cached": cached,
        }
        for name, work in kinds.items():
            seconds = _seconds(work, bench.device) / steps
            # The first round warms up.
            if number:
                least[name] = min(least[name], seconds)
    return least


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="file of sentences")
    parser.add_argument("--text-column")
    parser.add_argument("--teacher", action="append", help="alias, folder or hub id; repeatable")
    parser.add_argument("--student", default="layers:3")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8, help="steps a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    rows = arguments.batch_size * arguments.steps * (arguments.rounds + 2)
    figures = {}
    print(f"{'teacher':24} {'student':>9} {'teacher':>9} {'live':>9} {'cached':>9}   live/cached   expected")
    for teacher in arguments.teacher or ["minilm-l6"]:
        with tempfile.TemporaryDirectory() as folder:
            cache = embedcache.build(
                arguments.corpus,
                teacher=teacher,
                cache=Path(folder) / "cache",
                read=ReadOptions(text_column=arguments.text_column, limit=rows),
                encode=EncodeOptions(device=arguments.device),
            )
            bench = Bench(cache, teacher, arguments.student, arguments.batch_size, arguments.device)
            found = measure(bench, arguments.steps, arguments.rounds)
        found["ratio"] = found["live"] / found["cached"]
        found["expected"] = (found["teacher"] + found["student"]) / found["student"]
        name = Path(teacher).name
        figures[name] = found
        times = " ".join(f"{1000 * found[kind]:6.0f} ms" for kind in KINDS)
        print(f"{name:24} {times}   {found['ratio']:11.2f}   {found['expected']:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
