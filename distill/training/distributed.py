"""Collective operations of processes that train one student together, each on its part of every step."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

from distill.data.source import Share
from distill.errors import ConfigError

T = TypeVar("T")


def is_first_process() -> bool:
    """Return whether this is the first, or only, of the processes that a launcher has started."""
    return int(os.environ.get("RANK", "0")) == 0


def refuse_launcher(command: str) -> None:
    """Raise ``ConfigError`` where a launcher has started several processes of a command for one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        raise ConfigError(
            f"{command}: {count} processes were started, expected one; only 'distill run' and 'distill "
            "finetune' can be launched by torchrun or accelerate"
        )


def gather_step(vectors: Tensor, rows: int, share: Share) -> Tensor:
    """Return the vectors (rows, d) of a whole step in its order; only this process's carry a gradient.

    That gradient is multiplied by the number of processes: it is the whole one for these rows, and the
    gradients of the processes' weights are averaged afterwards.

    Args:
        vectors: shape (n, d); this process's, of which only those that count are gathered.
        rows: rows of the step, over all processes.
        share: this process's part of it.
    """
    counts = [Share(process, share.processes).of(rows)[1] for process in range(share.processes)]
    own = vectors[: counts[share.process]]
    # All tensors of a gathering have to be of one size.
    room = vectors.new_zeros(max(*counts, 1), vectors.shape[1])
    with torch.no_grad():
        room[: len(own)] = own
    gathered = [torch.empty_like(room) for _ in counts]
    distributed.all_gather(gathered, room)
    found = [part[:count] for part, count in zip(gathered, counts, strict=True)]
    if vectors.requires_grad:
        own = own.clone()
        own.register_hook(lambda gradient: gradient * share.processes)  # type: ignore[no-untyped-call]
        found[share.process] = own
    return torch.cat(found)


def average_gradients(module: nn.Module, processes: int) -> None:
    """Replace the gradients of ``module`` by their mean over all processes."""
    for parameter in module.parameters() if processes > 1 else ():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= processes


def mean_of(values: Tensor, processes: int) -> Tensor:
    """Return the mean of a tensor over all processes."""
    if processes > 1:
        values = values.clone()
        distributed.all_reduce(values)
        values /= processes
    return values


def broadcast(value: float, share: Share) -> float:
    """Return the number that the first process has."""
    if share.processes == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box)
    return box[0]


def gather_objects(value: T, share: Share) -> list[T]:
    """Return the values of all processes, in their order."""
    if share.processes == 1:
        return [value]
    found: list[T | None] = [None] * share.processes
    distributed.all_gather_object(found, value)
    return [one for one in found if one is not None]
