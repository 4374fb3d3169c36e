"""Sizes of the weights saved in a model's folder."""

from __future__ import annotations

import math
from pathlib import Path


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weights saved in a model's folder, in the format that is loaded."""
    return sum(path.stat().st_size for path in _weights(folder))


def saved_parameters(folder: Path) -> int | None:
    """Return the number of parameters saved in a model's folder; None unless all are in safetensors."""
    from safetensors import safe_open

    files = _weights(folder)
    if not files or any(path.suffix != ".safetensors" for path in files):
        return None
    total = 0
    for path in files:
        with safe_open(path, "np") as file:
            tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 - it is no mapping
            floats = [one for one in tensors if one.get_dtype().startswith(("F", "BF"))]
            total += sum(math.prod(one.get_shape()) for one in floats)
    return total


def _weights(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place in (folder, *(sub for sub in sorted(folder.iterdir()) if sub.is_dir())):
        found += sorted(place.glob("*.safetensors")) or sorted(place.glob("pytorch_model*.bin"))
    return found
