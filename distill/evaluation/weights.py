"""Sizes of saved models, read from their files without loading them."""

from __future__ import annotations

import json
import math
from pathlib import Path

from distill.errors import MissingExtraError

MEGABYTE = 1e6
_FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
# In the order of preference in which a folder with several formats is loaded.
_WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors", "*.safetensors", "pytorch_model*.bin")


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weights saved in a model's folder, in the format that is loaded."""
    return sum(path.stat().st_size for path in _weights(folder))


def saved_parameters(folder: Path) -> int | None:
    """Return the number of parameters saved in a model's folder; None unless all are in safetensors."""
    files = _weights(folder)
    if not files or any(path.suffix != ".safetensors" for path in files):
        return None
    total = 0
    for path in files:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors = [one for name, one in header.items() if name != "__metadata__"]
        total += sum(math.prod(one["shape"]) for one in tensors if one["dtype"] in _FLOATS)
    return total


def graph_size(graph: Path) -> tuple[int, float]:
    """Return the parameters in a graph and the megabytes of its files."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx is not installed; run: pip install 'embedcache[onnx]'") from error
    tensors = onnx.load(str(graph), load_external_data=False).graph.initializer
    kinds = onnx.TensorProto
    weights = {kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.INT8, kinds.UINT8}
    outside = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    files = {graph, *(graph.parent / location for location in outside)}
    parameters = sum(math.prod(tensor.dims) for tensor in tensors if tensor.data_type in weights)
    return parameters, sum(path.stat().st_size for path in files) / MEGABYTE


def _weights(folder: Path) -> list[Path]:
    found = []
    for place in (folder, *(sub for sub in sorted(folder.iterdir()) if sub.is_dir())):
        found += next((files for pattern in _WEIGHT_FILES if (files := sorted(place.glob(pattern)))), [])
    return found
