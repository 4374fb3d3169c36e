"""AdamW with the usual two groups, and its learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from distill.config.training import OptimizerConfig
from distill.errors import ConfigError


def make_optimizer(modules: list[nn.Module], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters of ``modules``.

    Vectors and scalars (biases, LayerNorm weights, a learned temperature) are not decayed.
    """
    if config.lr is None:
        raise ValueError("the configuration is not resolved: optimizer.lr is missing")
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    for group in groups:
        group["initial_lr"] = config.lr
    # The fused form walks through memory once; with a large embedding table that is most of the step.
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Return the warm-up in steps: a share of the run below 1, a number of steps from 1 on.

    Raises:
        ConfigError: if the warm-up outlasts the run, so that the peak is never reached.
    """
    steps = round(warmup * total_steps) if warmup < 1 else round(warmup)
    if steps >= total_steps and steps > 0:
        raise ConfigError(
            f"{steps} steps in a run of {total_steps} steps never reach the peak learning rate; "
            "lower it, or give a share below 1 such as 0.06",
            "optimizer.warmup",
        )
    return steps


def learning_rate_factor(schedule: str, warmup: int, total_steps: int) -> Callable[[int], float]:
    """Return the function from a step, from 0, to the factor on the peak learning rate.

    Linear from 0 to 1 over ``warmup`` steps, then ``cosine`` or ``linear`` down to 0 at ``total_steps``, or
    ``constant``.
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1 - done if schedule == "linear" else 1.0

    return factor
