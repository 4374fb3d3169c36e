"""From rows to padded tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distill.data.tokens import TokenArrays


@dataclass(frozen=True)
class Batch:
    """One training batch of B rows.

    Attributes:
        input_ids: int64, shape (B, longest).
        attention_mask: int64, shape (B, longest); 1 on real tokens.
        targets: float32 or float16, shape (B, d_T); one a row, in the rows' order.
        rows: uint32, shape (B,); corpus rows.
    """

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    rows: NDArray[np.uint32]

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on ``device``."""
        if device.type == "cpu":
            return self
        return Batch(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
            self.rows,
        )


def pad_rows(tokens: TokenArrays, rows: NDArray[np.integer]) -> tuple[Tensor, Tensor]:
    """Return (input_ids, attention_mask) of corpus ``rows``, int64 of shape (B, longest)."""
    starts = tokens.offsets[rows]
    lengths = tokens.lengths(rows)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    # Past a row's end the address may run into the next row or past the array: clipped, overwritten below.
    ids = np.take(tokens.ids, starts[:, None] + columns, mode="clip").astype(np.int64)
    ids[~real] = tokens.pad_id
    return torch.from_numpy(ids), torch.from_numpy(real.astype(np.int64))
