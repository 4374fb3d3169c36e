"""A bank of past teacher vectors: first in, first out, updated in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TeacherBank(nn.Module):
    """Keeps the last ``size`` teacher vectors on the training device; starts empty.

    The bank is a ring: new vectors overwrite the oldest where the pointer stands, so nothing is ever moved.
    Its buffers are part of ``state_dict``.

    Args:
        size: vectors kept.
        dimension: width of a vector.
    """

    vectors: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.size = size
        # Read at every step; the buffers, which a GPU would have to be waited for, are for saving.
        self._at = self._count = 0
        self.register_buffer("vectors", torch.zeros(size, dimension))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def content(self) -> Tensor:
        """Return the vectors in the bank, shape (filled, d); a view, in no particular order."""
        return self.vectors[: self._count]

    @torch.no_grad()
    def push(self, vectors: Tensor) -> None:
        """Put vectors (B, d) in; of more than ``size``, the last ``size`` stay."""
        vectors = vectors[-self.size :] if self.size else vectors[:0]
        count = len(vectors)
        start = self._at
        until_end = min(count, self.size - start)
        self.vectors[start : start + until_end] = vectors[:until_end]
        self.vectors[: count - until_end] = vectors[until_end:]
        if self.size:
            self._at, self._count = (start + count) % self.size, min(self.size, self._count + count)
            self.pointer.fill_(self._at)
            self.filled.fill_(self._count)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._at, self._count = int(self.pointer), int(self.filled)
