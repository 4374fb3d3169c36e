"""The learning rate over a run, as a factor on the peak."""

from __future__ import annotations

import math
from collections.abc import Callable

from distill.errors import ConfigError


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Return the warm-up in steps: a share of the run below 1, a number of steps from 1 on.

    Raises:
        ConfigError: if the warm-up would outlast the run, so that the peak is never reached.
    """
    steps = round(warmup * total_steps) if warmup < 1 else round(warmup)
    if steps >= total_steps and steps > 0:
        raise ConfigError(
            f"{steps} steps of warm-up in a run of {total_steps} steps never reach the "
            "peak learning rate; lower it, or give a share below 1 such as 0.06",
            "optimizer.warmup",
        )
    return steps


def learning_rate_factor(schedule: str, warmup: int, total_steps: int) -> Callable[[int], float]:
    """Return the function from step (0-based) to the factor on the peak learning rate.

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
