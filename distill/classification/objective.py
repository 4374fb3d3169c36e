"""Cross entropy with the labels of rows: what a classifier is taught by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    import numpy as np

    from distill.data.collate import Batch
    from distill.data.source import Share
    from distill.reaugkd.head import LabelHead


class CrossEntropy:
    """Draws the classifier's answers to the labels.

    Args:
        head: the classifier; trained along.
        labels: int64, shape (rows,); the label of every row.
    """

    def __init__(self, head: LabelHead, labels: NDArray[np.int64]) -> None:
        self.module: nn.Module = head
        # A buffer follows the model to its device; a checkpoint need not hold what the file does.
        head.register_buffer("row_labels", torch.from_numpy(labels), persistent=False)

    def begin_step(self, batch: Batch) -> None:
        """Do nothing: the batch is all there is to know."""

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return this process's share of the mean loss; see :class:`distill.training.objective.Objective`."""
        own = batch.rows[batch.offset : batch.offset + len(batch)]
        labels = self.module.get_buffer("row_labels")[own]
        losses = F.cross_entropy(self.module(vectors), labels, reduction="none")
        return losses[: batch.counted].sum() * (share.processes / len(batch.rows))

    def end_step(self, batch: Batch) -> None:
        """Do nothing: the batch leaves nothing behind."""

    def restored(self) -> None:
        """Do nothing: nothing is kept."""

    def metrics(self) -> dict[str, float]:
        """Return nothing."""
        return {}
