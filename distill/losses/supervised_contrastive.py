"""The supervised contrastive loss: rows of one label are drawn together, rows of others pushed apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def supervised_contrastive(vectors: Tensor, labels: Tensor, tau: float) -> Tensor:
    r"""Return the loss of every row that has another of its label beside it.

    .. math:: \frac{-1}{|P(i)|}\sum_{p \in P(i)}
              \log\frac{e^{z_i z_p/\tau}}{\sum_{a \ne i} e^{z_i z_a/\tau}}

    with the other rows :math:`P(i)` of i's label, and rows scaled to length one. The mean over them stands
    outside the logarithm, and i is not compared with itself.

    Source: Khosla et al., 2020, Eq. 2 (:math:`L_{out}`), which ReAugKD names for its projection; its own
    Eq. 4 leaves the mean out and has the row itself among the others, and is not followed in that.

    Args:
        vectors: float32, shape (N, d), of any length; gradients flow to them.
        labels: int64, shape (N,).
        tau: the temperature.

    Returns:
        float32, shape (A,); the rows of the A that have a partner, in their order. The other N - A rows have
        no loss, and are among those that the A are pushed from.
    """
    unit = F.normalize(vectors, dim=-1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    similarities = unit @ unit.T / tau
    alike = (labels[:, None] == labels) & ~itself
    partners = alike.sum(dim=1)
    log_sums = similarities.masked_fill(itself, -torch.inf).logsumexp(dim=1)
    to_partners = (similarities * alike).sum(dim=1)
    anchors = partners > 0
    return log_sums[anchors] - to_partners[anchors] / partners[anchors]
