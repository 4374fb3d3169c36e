"""Linear classifier in training; ``embedcache.teacher.classifier.ClassifierHead`` is its stored form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from embedcache.pairs import Reads
from embedcache.teacher.classifier import ClassifierHead

_INITIAL_STD = 0.02
"""Standard deviation of the initial weights, BERT's for new layers."""


class LabelHead(nn.Module):
    """Linear map from sentence vectors to one logit per label, with dropout before it in training.

    Args:
        labels: names of the c labels, in the order of the logits.
        dimension: width d of the vectors.
        dropout: probability of dropping a component of a vector in training.
        seed: seed of the initial weights; biases start at zero.
        reads: input it is trained on, ``texts`` or ``pairs``; None for both.
    """

    def __init__(
        self,
        labels: Sequence[str],
        dimension: int,
        *,
        dropout: float = 0.0,
        seed: int = 0,
        reads: Reads | None = None,
    ) -> None:
        super().__init__()
        self.labels, self.reads = tuple(labels), reads
        self._dropout = nn.Dropout(dropout)
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(_INITIAL_STD * torch.randn(len(labels), dimension, generator=generator))
        self.bias = nn.Parameter(torch.zeros(len(labels)))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logits (n, c) of sentence vectors (n, d)."""
        return nn.functional.linear(self._dropout(vectors), self.weight, self.bias)

    def kept(self) -> ClassifierHead:
        """Return the stored form of the current weights."""
        weight, bias = (p.detach().float().cpu().numpy().copy() for p in (self.weight, self.bias))
        return ClassifierHead(self.labels, weight, bias, self.reads)
