"""Cost of a queue of 65 536 teacher vectors in a training step.

A step of CKD: forward pass, loss, backward pass, AdamW, push. Three ways in turn, the best of several rounds:

  none   no queue (K = 0)
  ring   the queue of ``distill.losses``: one matrix updated in place, similarities in pieces
  clone  the plain way: a queue that is concatenated again in each step, all similarities at once

Beside them what the queue costs by itself: its upkeep (``push``), and the comparison with its vectors (the
loss forward and backward with the queue, less without). Students are of well-known shapes with random
weights: for speed, weights do not matter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from distill.losses.base import DistillLoss, LossBatch
from distill.losses.contrastive import CKDLoss

# Layers, width, attention heads.
SHAPES = {
    "bert-tiny": (2, 128, 2),
    "minilm-l3": (3, 384, 12),
    "minilm-l6": (6, 384, 12),
    "minilm-l12": (12, 384, 12),
    "bert-base": (12, 768, 12),
}


class Student(nn.Module):
    """A BERT of a known shape, the mean of its tokens, and a linear head."""

    def __init__(self, shape: str, dimension: int) -> None:
        super().__init__()
        layers, width, heads = SHAPES[shape]
        config = BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(width, dimension)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors (B, d) of token ids (B, L)."""
        vectors: Tensor = self.head(self.bert(input_ids=ids).last_hidden_state.mean(dim=1))
        return vectors


class CloneCKDLoss(DistillLoss):
    """CKD with a queue that is concatenated again in each step, and all similarities at once."""

    def __init__(self, dimension: int, size: int) -> None:
        super().__init__()
        self.size, self.vectors = size, torch.zeros(0, dimension)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        queries, own = F.normalize(batch.students[0], dim=-1), F.normalize(batch.targets, dim=-1)
        keys = self.vectors.clone()
        logits = self.logit_scale.exp() * torch.cat([queries @ own.T, queries @ keys.T], dim=1)
        return F.cross_entropy(logits, torch.arange(len(queries)), reduction="none")

    def end_step(self, targets: Tensor, rows: Tensor) -> None:
        """Put the teacher's vectors (G, d) of the step into the queue."""
        self.vectors = torch.cat([self.vectors, F.normalize(targets, dim=-1)])[-self.size :]


@dataclass(frozen=True)
class Costs:
    """Milliseconds, each the best of the rounds.

    Attributes:
        student: the student's shape.
        none, ring, clone: a whole step.
        push, clone_push: the queue's upkeep.
        compare, clone_compare: extra time of the loss for the queue, forward and backward.
    """

    student: str
    none: float
    ring: float
    clone: float
    push: float
    clone_push: float
    compare: float
    clone_compare: float


class Measured:
    """The steps of one student, timed."""

    def __init__(self, shape: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options, dimension = options, options.dimension
        self.student = Student(shape, dimension)
        self.losses: dict[str, DistillLoss] = {
            "none": CKDLoss(dimension, queue=0),
            "ring": CKDLoss(dimension, queue=options.queue),
            "clone": CloneCKDLoss(dimension, options.queue),
        }
        full, rows = torch.randn(options.queue, dimension), torch.arange(options.queue)
        for loss in self.losses.values():
            loss.end_step(full, rows)
        learned = [p for loss in self.losses.values() for p in loss.parameters()]
        self.optimizer = torch.optim.AdamW([*self.student.parameters(), *learned], lr=1e-5)
        self.ids = torch.randint(1000, 30000, (options.batch, options.tokens))
        self.targets, self.rows = torch.randn(options.batch, dimension), torch.arange(options.batch)

    def step(self, name: str) -> None:
        """Train one step."""
        loss = self.losses[name]
        loss(LossBatch.alone((self.student(self.ids),), self.targets)).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.end_step(self.targets, self.rows)

    def loss_alone(self, name: str) -> None:
        """Compute a loss and its gradient."""
        vectors = torch.randn_like(self.targets).requires_grad_()
        self.losses[name](LossBatch.alone((vectors,), self.targets)).mean().backward()

    def costs(self, shape: str) -> Costs:
        """Return the best of the rounds."""
        works: dict[str, Callable[[], None]] = {}
        for name, loss in self.losses.items():
            works[name] = partial(self.step, name)
            works[f"{name} loss"] = partial(self.loss_alone, name)
            works[f"{name} push"] = partial(loss.end_step, self.targets, self.rows)
        best = dict.fromkeys(works, float("inf"))
        # On one thread, CPU time leaves out other programs on the machine.
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        for number in range(1 + self.options.rounds):
            for name, work in works.items():
                began = clock()
                work()
                # The first round is for memory to be taken and caches to fill.
                if number:
                    best[name] = min(best[name], 1000 * (clock() - began))
        return Costs(
            shape,
            best["none"],
            best["ring"],
            best["clone"],
            best["ring push"],
            best["clone push"],
            best["ring loss"] - best["none loss"],
            best["clone loss"] - best["none loss"],
        )


def report(all_costs: list[Costs]) -> None:
    """Print a table: milliseconds, and in brackets per cent of a step without a queue."""
    headings = ("ring push", "ring compare", "ring step +", "clone push", "clone compare", "clone step +")
    print(f"{'student':12}{'none step':>12}" + "".join(f"{heading:>20}" for heading in headings))
    for costs in all_costs:
        parts = (
            costs.push,
            costs.compare,
            costs.ring - costs.none,
            costs.clone_push,
            costs.clone_compare,
            costs.clone - costs.none,
        )
        cells = [f"{ms:.2f} ({ms / costs.none:.1%})" for ms in parts]
        print(f"{costs.student:12}{costs.none:12.1f}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--students", nargs="+", choices=SHAPES, default=["minilm-l3", "minilm-l6"])
    parser.add_argument("--queue", type=int, default=65536, help="vectors in the queue")
    parser.add_argument("--dimension", type=int, default=384, help="width of the teacher's vectors")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=20, help="tokens a sentence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [Measured(shape, options).costs(shape) for shape in options.students]
    print(
        f"queue {options.queue} x {options.dimension}, batch {options.batch} of {options.tokens} tokens, "
        f"{options.threads} threads, float32; ms (% of a step without a queue)"
    )
    report(found)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({**settings, "costs": [asdict(one) for one in found]}, indent=2))


if __name__ == "__main__":
    main()
