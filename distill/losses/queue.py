"""Queue of teacher vectors: first in, first out, updated in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TeacherQueue(nn.Module):
    """Keeps the last ``size`` teacher vectors, scaled to length one, on the training device.

    The queue is a ring: new vectors overwrite the oldest where the pointer stands, so nothing is ever moved.
    ``state_dict`` holds the corpus rows of the vectors; ``refill`` puts the vectors back after it is
    loaded.

    Args:
        size: vectors kept.
        dimension: width d of a vector.
    """

    vectors: Tensor
    rows: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.size = size
        # Read at every step; the buffers, which a GPU would have to be waited for, are for saving.
        self._at = self._count = 0
        self.register_buffer("vectors", torch.zeros(size, dimension), persistent=False)
        self.register_buffer("rows", torch.zeros(size, dtype=torch.long))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        """Return the number of vectors in the queue."""
        return self._count

    def content(self) -> Tensor:
        """Return the vectors in the queue, shape (len, d); a view, in no particular order."""
        return self.vectors[: self._count]

    def content_rows(self) -> Tensor:
        """Return the corpus rows that ``content`` is of, int64, shape (len,)."""
        return self.rows[: self._count]

    @torch.no_grad()
    def push(self, vectors: Tensor, rows: Tensor) -> None:
        """Put vectors in; the oldest leave.

        Args:
            vectors: shape (B, d), of any length; of more than ``size``, the last ``size`` stay.
            rows: int64, shape (B,); the corpus rows they are of.
        """
        if not self.size:
            return
        vectors, rows = F.normalize(vectors[-self.size :], dim=-1), rows[-self.size :]
        count, start = len(vectors), self._at
        until_end = min(count, self.size - start)
        for ring, new in ((self.vectors, vectors), (self.rows, rows)):
            ring[start : start + until_end] = new[:until_end]
            ring[: count - until_end] = new[until_end:]
        self._at, self._count = (start + count) % self.size, min(self.size, self._count + count)
        self.pointer.fill_(self._at)
        self.filled.fill_(self._count)

    @torch.no_grad()
    def refill(self, start: int, vectors: Tensor) -> None:
        """Put back the vectors of ``rows[start:]`` after a state was loaded, as many as are given."""
        self.vectors[start : start + len(vectors)] = F.normalize(vectors, dim=-1)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._at, self._count = int(self.pointer), int(self.filled)
