"""What losses that look inside the models are given: token embeddings and layers of student and teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from distill.data.collate import Batch
    from distill.data.source import Share
    from distill.losses.base import LossBatch


class Inside(Protocol):
    """Adds to a step what a loss is to see of the inside of the models."""

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with what the student made of ``batch``, this process's share, and the teacher."""
        ...
