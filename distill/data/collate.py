"""Collation of rows into padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distill.data.tokens import TokenArrays


@dataclass(frozen=True)
class Batch:
    """Texts that a process encodes in one step: B rows, V texts of each.

    Attributes:
        input_ids: int64, shape (V * B, longest); the first text of every row, then the second of every row.
        attention_mask: int64, shape (V * B, longest); 1 on real tokens.
        texts: V, the texts of a row.
        rows: int64, shape (G,); the rows of the whole step, those of all processes.
        targets: float32 or float16, shape (G, d_T), one for each of ``rows``; of width 0 where texts are
            compared with each other and not with a teacher.
        offset: position in ``rows`` of the first of the B rows.
        counted: B, or 0 if this process only repeats a row to take part in the step.
        tokens: real tokens of the first texts of all ``rows``; 0 if not counted.
        token_types: int64, shape (V * B, longest); 1 on the second texts of pairs; None where no text is a
            pair, or the student does not look at it.
    """

    input_ids: Tensor
    attention_mask: Tensor
    texts: int
    rows: Tensor
    targets: Tensor
    offset: int
    counted: int
    tokens: int = 0
    token_types: Tensor | None = None

    def __len__(self) -> int:
        """Return B."""
        return len(self.input_ids) // self.texts

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on ``device``."""
        if device.type == "cpu":
            return self
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies while the CPU goes on."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            input_ids=change(self.input_ids),
            attention_mask=change(self.attention_mask),
            rows=change(self.rows),
            targets=change(self.targets),
            token_types=None if self.token_types is None else change(self.token_types),
        )


def pad_texts(
    arrays: Sequence[TokenArrays], which: NDArray[np.integer], rows: NDArray[np.integer]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (input_ids, attention_mask, token_types) of several texts of each row, padded to the longest.

    Args:
        arrays: token arrays of one tokenizer, one a view.
        which: shape (V, B); the array that each text is in.
        rows: shape (B,); the rows.

    Returns:
        int64, shape (V * B, longest); the token types are None where the arrays know of no pairs.
    """
    flat, rows = which.reshape(-1), np.tile(rows, len(which))
    starts, lengths = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int32)
    inside = [flat == number for number in range(len(arrays))]
    for tokens, here in zip(arrays, inside, strict=True):
        starts[here], lengths[here] = tokens.offsets[rows[here]], tokens.lengths(rows[here])
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    ids = np.full(real.shape, arrays[0].pad_id, dtype=np.int64)
    for tokens, here in zip(arrays, inside, strict=True):
        # Past a row's end the address may run into the next row or past the array: overwritten below.
        ids[here] = np.take(tokens.ids, starts[here, None] + columns, mode="clip")
    ids[~real] = arrays[0].pad_id
    types = None
    if any(tokens.first is not None for tokens in arrays):
        second = lengths.copy()
        for tokens, here in zip(arrays, inside, strict=True):
            if tokens.first is not None:
                second[here] = tokens.first[rows[here]]
        types = torch.from_numpy((real & (columns >= second[:, None])).astype(np.int64))
    return torch.from_numpy(ids), torch.from_numpy(real.astype(np.int64)), types
