"""A bank of past teacher vectors: first in, first out, updated in place."""

from __future__ import annotations

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
        self.register_buffer("vectors", torch.zeros(size, dimension))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def content(self) -> Tensor:
        """Return the vectors in the bank, shape (filled, d); a view, in no particular order."""
        return self.vectors[: int(self.filled)]

    @torch.no_grad()
    def push(self, vectors: Tensor) -> None:
        """Put vectors (B, d) in; of more than ``size``, the last ``size`` stay."""
        vectors = vectors[-self.size :] if self.size else vectors[:0]
        count = len(vectors)
        start = int(self.pointer)
        until_end = min(count, self.size - start)
        self.vectors[start : start + until_end] = vectors[:until_end]
        self.vectors[: count - until_end] = vectors[until_end:]
        if self.size:
            self.pointer.fill_((start + count) % self.size)
            self.filled.fill_(min(self.size, int(self.filled) + count))
