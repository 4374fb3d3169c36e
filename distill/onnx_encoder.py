"""Sentence vectors from an exported ONNX graph, with ``tokenizers`` and ``onnxruntime`` alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError, ExportError, MissingExtraError

GRAPH, INT8_GRAPH, RECIPE = "model.onnx", "model_int8.onnx", "encoder.json"
RECIPE_FORMAT = 1
_COLOUR = r"\x1b\[[0-9;]*m"
TOKEN_OUTPUT, VECTOR_OUTPUT = "last_hidden_state", "sentence_embedding"


class OnnxEncoder:
    """Sentence vectors from an exported folder, without torch.

    Args:
        folder: what ``distill export`` wrote.
        int8: run the quantised graph. Its activations are scaled per batch, so a vector moves a little with
            the other sentences of its batch.
        threads: threads of one forward pass; default: one per physical core.

    Raises:
        ExportError: if the folder is no export, or its graph cannot be read.
        MissingExtraError: if onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, int8: bool = False, threads: int | None = None) -> None:
        ort = import_onnxruntime()
        from tokenizers import Tokenizer

        folder = Path(folder)
        path = folder / "onnx" / (INT8_GRAPH if int8 else GRAPH)
        recipe = _read_recipe(folder)
        if not path.is_file():
            flag = " --int8" if int8 else ""
            raise ExportError(f"no graph at {path}; write it with `distill export MODEL --to onnx{flag}`")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0
        errors = ort.capi.onnxruntime_pybind11_state
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.InvalidProtobuf, errors.InvalidGraph, errors.NotImplemented) as error:
            raise ExportError(
                f"onnxruntime cannot read {path} ({first_line(error)}); export again"
            ) from error
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._outputs = [node.name for node in self._session.get_outputs()]
        self._prompt = str(recipe["prompt"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding(**recipe["padding"])
        self._tokenizer.no_truncation()
        if recipe["truncation"]["max_length"]:
            self._tokenizer.enable_truncation(**recipe["truncation"])
        self.dimension = int(recipe["dimension"])

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, (n, dimension) float32, in their order.

        Raises:
            DataError: if ``texts`` is one string, or holds something else than strings.
        """
        if isinstance(texts, str):
            raise DataError("encode takes a list of texts, found one string; put it into a list")
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"text {position} is a {type(text).__name__}, expected str; convert it first")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        # Neighbours in length share a batch, so little of the work is padding.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self.run([texts[i] for i in rows])[VECTOR_OUTPUT]
        return vectors

    def run(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Run one batch: ``sentence_embedding`` (n, dimension), ``last_hidden_state`` (n, length, width).

        Models that pool inside, by a pooler, have no ``last_hidden_state``.
        """
        encoded = self._tokenizer.encode_batch([self._prompt + text for text in texts])
        columns = {
            "input_ids": [row.ids for row in encoded],
            "attention_mask": [row.attention_mask for row in encoded],
            "token_type_ids": [row.type_ids for row in encoded],
        }
        feed = {name: np.asarray(columns[name], dtype=np.int64) for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))


def import_onnxruntime() -> Any:
    """Return the onnxruntime module, or raise :class:`MissingExtraError` with the install line."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            "onnxruntime is not installed; run: pip install 'embedcache[onnx]'"
        ) from error
    return onnxruntime


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def root_cause(error: BaseException) -> str:
    """Return type and first line of what first went wrong, without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {re.sub(_COLOUR, '', first_line(error))}"


def _read_recipe(folder: Path) -> dict[str, Any]:
    path = folder / "onnx" / RECIPE
    try:
        recipe: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ExportError(
            f"{folder} is no export: it has no onnx/{RECIPE}; make one with `distill export`"
        ) from error
    except ValueError as error:
        raise ExportError(f"{path} is damaged ({first_line(error)}); export again") from error
    if recipe.get("format") != RECIPE_FORMAT:
        raise ExportError(f"{path} has format {recipe.get('format')}, expected {RECIPE_FORMAT}; export again")
    return recipe
