"""The classifier while it is trained: what :class:`embedcache.teacher.classifier.ClassifierHead` keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from embedcache.pairs import Reads
from embedcache.teacher.classifier import ClassifierHead

_SPREAD = 0.02
"""Standard deviation of the first weights: what BERT begins new layers with."""


class LabelHead(nn.Module):
    """A linear map from sentence vectors to one logit a label; dropout before it while training.

    Args:
        labels: the names of the c labels, in the order of the logits.
        dimension: d, the width of the vectors.
        dropout: probability with which a component of a vector is left out in training.
        seed: of the first weights; the biases begin at zero.
        reads: what it is taught on: single texts or pairs.
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
        self.weight = nn.Parameter(_SPREAD * torch.randn(len(labels), dimension, generator=generator))
        self.bias = nn.Parameter(torch.zeros(len(labels)))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logits (n, c) of sentence vectors (n, d)."""
        return nn.functional.linear(self._dropout(vectors), self.weight, self.bias)

    def kept(self) -> ClassifierHead:
        """Return it as it is now, as a model's folder holds it."""
        weight, bias = (p.detach().float().cpu().numpy().copy() for p in (self.weight, self.bias))
        return ClassifierHead(self.labels, weight, bias, self.reads)
