"""Checkpoint: one safetensors file from which a run resumes bit for bit; opening it executes no code.

Tensors lie in it by name, numbers as JSON in its header.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from distill.errors import CheckpointError
from distill.layout import CHECKPOINT
from distill.students.save import make_readable, saving
from embedcache.fsio import commit, temporary_sibling

_VERSION = 2
_METADATA_KEY = "training"
_CHECKSUMS_KEY = "crc32"
_OPTIMIZER = "optimizer"


@dataclass
class TrainState:
    """Numbers of a training after a step.

    Attributes:
        step: steps done.
        epoch: the epoch it is in, from 0.
        batch: batches of this epoch that were trained on.
        rows: rows trained on.
        losses: losses of the last steps, as far as anything is computed of them.
        reported: step of the last report.
        loss: mean loss at the last report; None before the first.
        best_step: step of the best checkpoint.
        best_score: its selection score; None before the first, and where there is nothing to select by.
        best_scores: all its scores by name.
        since_best: evaluations since then.
        seconds: wall-clock seconds, evaluations and checkpoints included.
        evaluating: seconds of evaluations.
        saving: seconds of checkpoints.
        waited: seconds the step waited for data.
        stopped: True if patience ran out.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    rows: int = 0
    losses: list[float] = field(default_factory=list)
    reported: int = 0
    loss: float | None = None
    best_step: int = 0
    best_score: float | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    since_best: int = 0
    seconds: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    waited: float = 0.0
    stopped: bool = False

    @property
    def rows_per_second(self) -> float:
        """Rows a second, evaluations and checkpoints left out."""
        return self.rows / max(self.seconds - self.evaluating - self.saving, 1e-9)


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint.

    Attributes:
        tensors: by name; the part before the first dot is the owner.
        facts: numbers and strings, as JSON has them.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def of(self, owner: str) -> dict[str, Tensor]:
        """Return the tensors of one owner, by their names without it."""
        prefix = f"{owner}."
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def save(self, folder: Path) -> None:
        """Replace the checkpoint in ``folder`` atomically; after a failure the old one is whole.

        Raises:
            StorageError: if it cannot be written.
        """
        target = folder / CHECKPOINT
        facts = json.dumps({"version": _VERSION, **self.facts})
        with saving(target), temporary_sibling(target) as temporary:
            tensors = _apart(self.tensors)
            checksums = json.dumps({name: _checksum(tensor) for name, tensor in tensors.items()})
            save_file(tensors, temporary, {_METADATA_KEY: facts, _CHECKSUMS_KEY: checksums})
            make_readable(temporary)
            commit(temporary, target)

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """Return the checkpoint in ``folder``; None where there is none.

        Raises:
            CheckpointError: if it is damaged or of another version.
        """
        path = folder / CHECKPOINT
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                facts = json.loads(metadata[_METADATA_KEY])
                if facts["version"] != _VERSION:
                    raise ValueError(f"format version {facts['version']}, expected {_VERSION}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            checksums = json.loads(metadata[_CHECKSUMS_KEY])
            if damaged := [name for name in tensors if _checksum(tensors[name]) != checksums[name]]:
                raise ValueError(f"{damaged[0]} has changed since it was written")
            return cls(tensors, facts)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is not a checkpoint that this version can resume ({type(error).__name__}: "
                f"{error}): start the run again with --overwrite"
            ) from error


def owned(owner: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` under the names they have in a checkpoint."""
    return {f"{owner}.{name}": tensor for name, tensor in tensors.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's state of each parameter, by the names it has in a checkpoint."""
    return {
        f"{_OPTIMIZER}.{number}.{name}": tensor
        for number, memory in optimizer.state_dict()["state"].items()
        for name, tensor in memory.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Restore the state that ``optimizer_tensors`` returned.

    Raises:
        CheckpointError: if that is of other parameters.
    """
    state = optimizer.state_dict()
    memories: dict[int, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.of(_OPTIMIZER).items():
        number, _, what = name.partition(".")
        memories.setdefault(int(number), {})[what] = tensor
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, memory in memories.items():
        shape = parameters[place].shape if place < len(parameters) else None
        if any(tensor.ndim and tensor.shape != shape for tensor in memory.values()):
            raise CheckpointError(
                f"the checkpoint's optimiser remembers a parameter {place} of another shape than {shape}: "
                "the student or the loss was changed; start the run again with --overwrite"
            )
    optimizer.load_state_dict({**state, "state": memories})


def restore_module(module: nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Restore the state of a module.

    Raises:
        CheckpointError: if that is of another module.
    """
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"the checkpoint is of another {what} ({reason[:300]}): start the run again with --overwrite"
        ) from error


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's random numbers, which dropout draws."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_random(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on drawing random numbers where ``random_state`` was taken."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, none of them sharing memory with another, which a file cannot tell."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        found[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    return found


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)
