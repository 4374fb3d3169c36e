"""What student and teacher take the rows of a step to be, for losses that look at labels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from distill.errors import ConfigError
from distill.losses.base import ClassPairs
from distill.losses.registry import get_loss
from distill.reaugkd.soft_labels import SoftLabels, open_soft_labels

if TYPE_CHECKING:
    from distill.config.models import RunConfig
    from distill.data.collate import Batch
    from distill.data.dataset import DistillDataset
    from distill.data.source import Share
    from distill.losses.base import LossBatch
    from distill.reaugkd.head import LabelHead
    from embedcache.cache import Cache


class ClassOutputs(nn.Module):
    """Gives a loss what student and teacher take the rows of a step to be.

    It is a part of the loss's module, so that the classifier is optimised and saved with the student.

    Args:
        head: the student's classifier.
        soft: what it learns from.
    """

    def __init__(self, head: LabelHead, soft: SoftLabels) -> None:
        super().__init__()
        self.head = head
        # Buffers follow the model to its device; a checkpoint need not hold what the cache does.
        self.register_buffer("rows", torch.from_numpy(soft.rows), persistent=False)
        self.register_buffer("logits", torch.from_numpy(soft.logits), persistent=False)
        labels = None if soft.labels is None else torch.from_numpy(soft.labels)
        self.register_buffer("labels", labels, persistent=False)

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with logits and labels; see :class:`distill.training.inside.Inside`."""
        vectors = step.students[0]
        # A loss that compares rows with each other is given those of all processes.
        first = 0 if len(vectors) == len(batch.rows) else batch.offset
        places = torch.searchsorted(self._of("rows"), batch.rows[first : first + len(vectors)])
        labels = None if self.labels is None else self._of("labels")[places]
        return replace(step, classes=ClassPairs(self.head(vectors), self._of("logits")[places], labels))

    def _of(self, name: str) -> Tensor:
        return self.get_buffer(name)


def soft_labels(cache: Cache, config: RunConfig, dataset: DistillDataset) -> SoftLabels:
    """Return the soft labels of a dataset's training and held-out rows.

    Raises:
        ConfigError: if the head that the classifier reads is to be dropped, or the loss needs labels and the
            corpus has none.
        DataError: as :func:`distill.reaugkd.soft_labels.open_soft_labels`.
    """
    if config.student.drop_head:
        raise ConfigError(f"the classifier of loss {config.loss.name} needs the head", "student.drop_head")
    rows = np.concatenate([dataset.rows, dataset.held_out])
    labelled = get_loss(config.loss.name).needs_labels(config.loss.settings)
    return open_soft_labels(cache, dataset.teacher, dataset.corpus, dataset.view, rows, labelled=labelled)
