"""Log-sum-exp over many keys, without holding all similarities in memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A CPU's caches hold the similarities to 2048 keys. On other devices starting a kernel costs more.
_KEYS_AT_ONCE = {"cpu": 2048}
_KEYS_AT_ONCE_ELSEWHERE = 65536


# Largest similarity where every key so far was left out; relative to minus infinity nothing is defined.
_LOWEST = -1e30


def log_sum_exp(
    queries: Tensor,
    keys: Sequence[Tensor],
    rows: Tensor | None = None,
    key_rows: Sequence[Tensor | None] = (),
) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\log\sum_k e^{q \cdot k}` of each query, and the mean of the keys it is a softmax over.

    Args:
        queries: float32, shape (N, d); gradients flow to them.
        keys: float32, tensors of shape (K, d), taken together; always constants.
        rows: int64, shape (N,); the row that each query is of. Keys of that row are left out.
        key_rows: int64, shape (K,) for each of ``keys``; the row that each is of, None for keys that all
            count. Without ``rows`` all count.

    Returns:
        The logarithms, shape (N,), minus infinity without any key; and
        :math:`\sum_k \mathrm{softmax}_k(q \cdot k)\, k`, shape (N, d), a constant.
    """
    own = [None] * len(keys) if rows is None or not key_rows else list(key_rows)
    logs, means = _LogSumExp.apply(queries, rows, own, *keys)  # type: ignore[no-untyped-call]
    return logs, means


class _LogSumExp(torch.autograd.Function):
    """Its gradient is the mean of the keys, so the backward pass needs no similarities."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, rows: Tensor | None, key_rows: list[Tensor | None], *keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        largest = queries.new_full((len(queries), 1), -torch.inf)
        total, weighted = queries.new_zeros(len(queries), 1), torch.zeros_like(queries)
        at_once = _KEYS_AT_ONCE.get(queries.device.type, _KEYS_AT_ONCE_ELSEWHERE)
        for part, of in _parts(keys, key_rows, at_once):
            similarities = queries @ part.T
            if rows is not None and of is not None:
                similarities.masked_fill_(rows[:, None] == of, -torch.inf)
            highest = similarities.amax(dim=1, keepdim=True).clamp_min_(_LOWEST)
            before, largest = largest, torch.maximum(largest, highest)
            weights = similarities.sub_(largest).exp_()
            # What was added up so far was relative to the largest similarity until then.
            shrink = (before - largest).exp()
            total = total * shrink + weights.sum(dim=1, keepdim=True)
            weighted = torch.addmm(weighted * shrink, weights, part)
        means = weighted / total.clamp_min(torch.finfo(total.dtype).tiny)
        ctx.save_for_backward(means)
        ctx.mark_non_differentiable(means)
        return (largest + total.log()).squeeze(1), means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (means,) = ctx.saved_tensors
        return gradients[0][:, None] * means, *[None] * (len(ctx.needs_input_grad) - 1)


def _parts(
    keys: Sequence[Tensor], key_rows: Sequence[Tensor | None], at_once: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the keys in pieces, with the rows they are of."""
    for tensor, rows in zip(keys, key_rows, strict=True):
        for start in range(0, len(tensor), at_once):
            piece = slice(start, start + at_once)
            yield tensor[piece], None if rows is None else rows[piece]
