"""Device, precision, threads and random numbers of a computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from distill.config.training import LoopConfig
from distill.errors import ConfigError
from embedcache.teacher.inference import has_fast_bfloat16

if TYPE_CHECKING:
    from accelerate import Accelerator


LoopT = TypeVar("LoopT", bound=LoopConfig)


def resolve_device(name: str) -> torch.device:
    """Return the device ``name`` means: ``auto`` is the GPU where there is one, else the CPU.

    Raises:
        ConfigError: if there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"{name!r} is not a device; use auto, cpu, cuda or cuda:1", "training.device"
        ) from error
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    count = there.get(device.type, 0)
    if (device.index or 0) >= count:
        raise ConfigError(
            f"no device {name!r} (this machine has {count} {device.type} devices); use auto or cpu",
            "training.device",
        )
    return device


def with_precision(config: LoopT) -> LoopT:
    """Return settings of a training with the precision that ``auto`` means on its device.

    Raises:
        ConfigError: if the device is missing or cannot compute in the precision.
    """
    device, precision = resolve_device(config.device), config.mixed_precision
    if precision == "auto":
        if device.type == "cuda":
            precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        else:
            precision = "bf16" if device.type == "cpu" and has_fast_bfloat16() else "no"
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("fp16 needs a GPU; use bf16, no or auto on a CPU", "training.mixed_precision")
    return config.model_copy(update={"mixed_precision": precision})


def make_accelerator(
    config: LoopConfig, log_with: Sequence[str] = (), logs: str | Path | None = None
) -> Accelerator:
    """Return the accelerator for the run's device and precision.

    Args:
        config: the device and the precision.
        log_with: trackers of accelerate.
        logs: folder of trackers that write files.

    Raises:
        ConfigError: if the device is missing or cannot compute in the precision.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState
    from accelerate.utils import ProjectConfiguration

    device, precision = resolve_device(config.device), with_precision(config).mixed_precision
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    # accelerate keeps one state a process and refuses a second run of another device or precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    # A pooler that the sentence vector does not come from gets no gradients.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(
        cpu=device.type == "cpu",
        mixed_precision=precision,
        kwargs_handlers=[unused],
        log_with=list(log_with) or None,
        project_config=ProjectConfiguration(logging_dir=None if logs is None else str(logs)),
    )


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of CPU threads inside the block; None leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the block, and restore the caller's after it."""
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
