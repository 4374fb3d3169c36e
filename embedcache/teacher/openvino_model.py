"""Sentence encoder as an OpenVINO model: token ids to sentence vectors on a CPU, in float32.

The graph is traced from the torch modules and compared with them before it is used.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch

from embedcache.errors import InputError, MissingExtraError, TeacherError, first_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TORCH, OPENVINO = "torch", "openvino"
BACKENDS = ("auto", TORCH, OPENVINO)
PROBES = ("A probe.", "Another one, which is a little longer.", "word " * 200)
"""Texts to trace a model with, and to compare the graph with it."""

_TOLERANCE = 1e-5
# Converting takes a few seconds, which a model below this size hardly wins back.
_LEAST_PARAMETERS = 10_000_000


def has_openvino() -> bool:
    """Check if OpenVINO, and NNCF which makes weights smaller for it, are installed."""
    return find_spec("openvino") is not None and find_spec("nncf") is not None


def takes_openvino(backend: str, model: SentenceTransformer, dtype: torch.dtype) -> bool:
    """Decide if a model runs in OpenVINO; it does not depend on the texts, so a build goes on as it began.

    Args:
        backend: one of ``BACKENDS``. ``auto`` takes OpenVINO for models of at least 10 million
            parameters on a CPU in float32, where it is installed.
        model: the model.
        dtype: dtype of the forward pass.

    Raises:
        InputError: if the backend is unknown, or it is OpenVINO and device or dtype are not its own.
        MissingExtraError: if it is OpenVINO, which is not installed.
    """
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    device = torch.device(model.device).type
    fits = device == "cpu" and dtype == torch.float32
    if backend == "auto":
        large = sum(parameter.numel() for parameter in model.parameters()) >= _LEAST_PARAMETERS
        return fits and large and has_openvino()
    if backend == OPENVINO and not fits:
        found = f"{device} in {str(dtype).removeprefix('torch.')}"
        raise InputError(
            f"backend openvino computes on cpu in float32, found {found}: set both, or leave it out"
        )
    if backend == OPENVINO and not has_openvino():
        raise MissingExtraError("backend openvino needs OpenVINO: pip install 'embedcache-distill[openvino]'")
    return backend == OPENVINO


class OpenVinoModel:
    """OpenVINO model of a sentence encoder, called like the encoder.

    Args:
        model: the encoder, in float32 on the CPU, its linear layers not packed.
        examples: padded model input of ``PROBES``: of the first two, and of all.
        constants: features that are the same in every batch.
        quantizes: make the weights int8.
        threads: CPU threads.
        streams: batches that run at once.

    Raises:
        TeacherError: if the model does not convert, or the graph gives other vectors.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        examples: Sequence[Mapping[str, torch.Tensor]],
        constants: Mapping[str, Any],
        *,
        quantizes: bool = False,
        threads: int,
        streams: int,
    ) -> None:
        wrapped = _TokensToVector(model, list(examples[0]), dict(constants))
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
        try:
            graph = convert(wrapped, examples[0])
            self._compile(graph, settings)
            with torch.inference_mode():
                wanted = wrapped(*examples[1].values())
            difference = float((self(examples[1])["sentence_embedding"] - wanted).abs().max())
        except Exception as error:
            reason = first_line(error)
            raise TeacherError(f"the model does not convert to OpenVINO: {reason[:200]}") from error
        if not difference <= _TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise TeacherError(
                f"the model does not convert to OpenVINO: its vectors differ by {difference:.2g}, "
                f"expected at most {_TOLERANCE:.0e}; use backend torch"
            )
        if quantizes:
            self._compile(_quantized(graph), settings)

    def _compile(self, graph: Any, settings: Mapping[str, object]) -> None:
        # Beside int8 weights, activations are rounded to int8 in groups of 32 where the CPU multiplies int8.
        fixed = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
        self._compiled = _openvino().Core().compile_model(graph, "CPU", {**fixed, **settings})
        self._requests = threading.local()

    @property
    def provenance(self) -> dict[str, object]:
        """Name and version of the backend."""
        return {"backend": OPENVINO, OPENVINO: version(OPENVINO)}

    def __call__(self, features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return ``sentence_embedding``, float32 of shape (rows, width), of padded model input."""
        if not hasattr(self._requests, "own"):
            self._requests.own = self._compiled.create_infer_request()
        arrays = {key: value.numpy() for key, value in features.items() if isinstance(value, torch.Tensor)}
        found = self._requests.own.infer(arrays, share_inputs=True)[0]
        return {"sentence_embedding": torch.from_numpy(found.copy())}


class _TokensToVector(torch.nn.Module):
    """A model in the form that is traced: tensors in, one tensor out."""

    def __init__(self, model: SentenceTransformer, names: list[str], constants: dict[str, Any]) -> None:
        super().__init__()
        self.model, self._names, self._constants = model, names, constants

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        features = {**self._constants, **dict(zip(self._names, columns, strict=True))}
        found: torch.Tensor = self.model(features)["sentence_embedding"]
        return found


def convert(module: torch.nn.Module, example: Mapping[str, torch.Tensor]) -> Any:
    """Return the ``openvino.Model`` of a module, for batches of any size and length.

    Args:
        module: takes the tensors of ``example`` in their order, gives one tensor.
        example: padded model input by name.
    """
    from embedcache.teacher.modules import quiet_transformers

    level = logging.root.level
    try:
        with warnings.catch_warnings(), quiet_transformers(), torch.inference_mode():
            # Tracing warns of every shape that Python looks at; the comparison finds what that breaks.
            warnings.simplefilter("ignore")
            graph = _openvino().convert_model(module, example_input=tuple(example.values()))
    finally:
        logging.root.setLevel(level)  # which a failed conversion leaves raised
    for port, name in zip(graph.inputs, example, strict=True):
        port.get_tensor().set_names({name})
    return graph


def _openvino() -> Any:
    # OpenVINO and NNCF do without it. It sends usage statistics from threads that outlive Python.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def _quantized(graph: Any) -> Any:
    """Return a graph with weights of int8, a scale each output channel; rounding depends on nothing else."""
    import nncf

    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # NNCF prints a progress bar
        return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
