"""Log-sum-exp over many keys, without holding all similarities in memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A CPU's caches hold the similarities to 2048 keys. On other devices starting a kernel costs more.
_KEYS_AT_ONCE = {"cpu": 2048}
_KEYS_AT_ONCE_ELSEWHERE = 65536


def log_sum_exp(queries: Tensor, keys: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\log\sum_k e^{q \cdot k}` of each query, and the mean of the keys it is a softmax over.

    Args:
        queries: float32, shape (N, d); gradients flow to them.
        keys: float32, tensors of shape (K, d), taken together; always constants.

    Returns:
        The logarithms, shape (N,), minus infinity without any key; and
        :math:`\sum_k \mathrm{softmax}_k(q \cdot k)\, k`, shape (N, d), a constant.
    """
    logs, means = _LogSumExp.apply(queries, *keys)  # type: ignore[no-untyped-call]
    return logs, means


class _LogSumExp(torch.autograd.Function):
    """Its gradient is the mean of the keys, so the backward pass needs no similarities."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, *keys: Tensor) -> tuple[Tensor, Tensor]:
        largest = queries.new_full((len(queries), 1), -torch.inf)
        total, weighted = queries.new_zeros(len(queries), 1), torch.zeros_like(queries)
        at_once = _KEYS_AT_ONCE.get(queries.device.type, _KEYS_AT_ONCE_ELSEWHERE)
        for part in (part for tensor in keys if len(tensor) for part in torch.split(tensor, at_once)):
            similarities = queries @ part.T
            before, largest = largest, torch.maximum(largest, similarities.amax(dim=1, keepdim=True))
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
