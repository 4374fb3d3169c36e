"""AdamW with the usual two groups."""

from __future__ import annotations

import torch
from torch import nn

from distill.config.models import OptimizerConfig


def make_optimizer(modules: list[nn.Module], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters of ``modules``.

    Vectors and scalars (biases, LayerNorm weights, a learned temperature) are not decayed.
    """
    if config.lr is None:
        raise ValueError("the configuration is not resolved yet: optimizer.lr is missing")
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    for group in groups:
        group["initial_lr"] = config.lr
    # The fused form walks through memory once; with a large embedding table that is most of the step.
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
