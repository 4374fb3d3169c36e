"""Sentence vectors from an exported ONNX graph without torch, and the graph's int8 form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError, ExportError, MissingExtraError
from embedcache.fsio import write_bytes

GRAPH, INT8_GRAPH, RECIPE = "model.onnx", "model_int8.onnx", "encoder.json"
RECIPE_FORMAT = 1
TOKEN_OUTPUT, VECTOR_OUTPUT = "last_hidden_state", "sentence_embedding"

INT8_FLOOR = 0.99
# The check uses a hundred sentences and a user's texts differ, so a setting needs some room.
_INT8_TARGET = 0.9925
_LARGEST = 127

_COLOUR = r"\x1b\[[0-9;]*m"
_ACTIVATIONS = {"Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "Softplus", "Tanh"}
# Parts of activations, biases and gates. A normalisation or a softmax ends the way back.
_PASSED = {"Add", "Cast", "Div", "Identity", "Mul", "Pow", "Reshape", "Slice", "Split", "Sub", "Transpose"}


class OnnxEncoder:
    """Encoder of an exported folder that needs ``tokenizers`` and ``onnxruntime`` only.

    Args:
        folder: a folder written by ``distill export --to onnx``.
        int8: run the quantised graph. Its activations are scaled per batch, so a vector depends slightly on
            the other sentences of its batch.
        threads: threads of one forward pass; default: one per physical core.

    Raises:
        ExportError: if the folder is not an export.
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
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
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
            DataError: if ``texts`` is one string.
        """
        if isinstance(texts, str):
            raise DataError("encode takes a list of texts, found one string; put it into a list")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        # Texts of similar length share a batch, so there is little padding.
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
    """Return the onnxruntime module, or raise ``MissingExtraError`` with the install line."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            "onnxruntime is not installed; run: pip install 'embedcache-distill[onnx]'"
        ) from error
    return onnxruntime


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without colours, or its type where it has none."""
    return (re.sub(_COLOUR, "", str(error)).strip().splitlines() or [type(error).__name__])[0]


def _read_recipe(folder: Path) -> dict[str, Any]:
    path = folder / "onnx" / RECIPE
    try:
        recipe: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ExportError(
            f"cannot read {path} ({first_line(error)}); make an export with `distill export`"
        ) from error
    if recipe.get("format") != RECIPE_FORMAT:
        raise ExportError(f"{path} has format {recipe.get('format')}, expected {RECIPE_FORMAT}; export again")
    return recipe


def quantise(graph: Any, path: Path, closeness: Callable[[], float]) -> tuple[float, str]:
    """Write the smallest int8 graph that is close enough to the float32 graph.

    Token tables are always int8, with a scale per column. Of the matrices, the second feed-forward one has
    input outliers that one int8 scale per batch cannot represent, so it is the first to stay in float32; in
    deep models the first one follows.

    Args:
        graph: an ``onnx.ModelProto`` in float32, its constants folded and its shapes inferred.
        path: the file to write.
        closeness: measures the graph at ``path``: the mean cosine of its vectors to the model's.

    Returns:
        The closeness of the graph, and a description of its setting.

    Raises:
        ExportError: if no setting reaches ``INT8_FLOOR``; ``path`` then holds an unusable graph.
        StorageError: if ``path`` cannot be written.
    """
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    first, second = feed_forward(graph.graph)
    settings = {
        "all matrices in int8": [],
        "second feed-forward matrices in float32": second,
        "feed-forward matrices in float32": [*first, *second],
    }
    if not second:
        # One int8 scale for a batch would make a text's vector depend on the others, and the one matrix of a
        # static model is small beside its table.
        matrices = [node.name for node in graph.graph.node if node.op_type in ("MatMul", "Gemm")]
        settings = {"token tables in int8": matrices}
    # The exporter has folded constants and inferred shapes, which is all that the preprocessing does.
    add_pre_process_metadata(graph)
    for setting, kept in settings.items():
        _write_int8(path, graph, kept)
        found = closeness()
        if found >= _INT8_TARGET:
            return found, setting
    if not found >= INT8_FLOOR:
        raise ExportError(
            f"the int8 graph's vectors have a mean cosine of {found:.4f} to the model's, "
            f"expected at least {INT8_FLOOR}; nothing was written: export without --int8"
        )
    return found, setting


def _write_int8(path: Path, graph: Any, kept: list[str]) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    tables = [node.name for nodes in lookups(graph.graph).values() for node in nodes]
    # A Gemm has become a MatMul of another name when names are compared.
    excluded = [*kept, *(f"{name}_MatMul" for name in kept), *tables]
    # 7 bits of range: CPUs without VNNI add pairs of products in 16 bits and would overflow with 8.
    quantize_dynamic(
        graph,
        str(path),
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=excluded,
    )
    small = onnx.load(str(path))
    quantise_tables(small.graph)
    write_bytes(path, small.SerializeToString(deterministic=True))


def feed_forward(graph: Any) -> tuple[list[str], list[str]]:
    """Return the nodes of the first and of the second matrices of feed-forward parts.

    A second matrix reads the output of an activation function (GELU, ReLU, a gated SiLU ...), and the first
    ones are those whose products went in; shapes and names differ between models. Attention has no activation
    function between its matrices, and a head's products of whole sentences are ``Gemm`` nodes.

    Args:
        graph: an ``onnx.GraphProto``; weights are initializers.

    Returns:
        Names of ``MatMul`` nodes, in the graph's order; a layer with a gate has two first matrices.
    """
    weights = {tensor.name for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    matrices = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    names = {node.name for node in matrices}
    first, second = set[str](), set[str]()
    for node in matrices:
        before, activated = _sources(node.input[0], makers)
        if activated and (before := before & names):
            first |= before
            second.add(node.name)
    return [n.name for n in matrices if n.name in first], [n.name for n in matrices if n.name in second]


def _sources(tensor: str, makers: dict[str, Any]) -> tuple[set[str], bool]:
    """Return the ``MatMul`` nodes that a tensor comes from, and True if an activation lies between."""
    found, activated = set[str](), False
    waiting, seen = [tensor], {tensor}
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None:
            continue
        if maker.op_type == "MatMul":
            found.add(maker.name)
        elif maker.op_type in _ACTIVATIONS or maker.op_type in _PASSED:
            activated = activated or maker.op_type in _ACTIVATIONS
            waiting += [name for name in maker.input if name not in seen]
            seen.update(maker.input)
    return found, activated


def lookups(graph: Any) -> dict[str, list[Any]]:
    """Return the tables of a graph by name, each with the ``Gather`` nodes that look up its rows.

    A table is a float32 matrix that is only read by row.
    """
    from onnx import TensorProto

    tables = {
        tensor.name: list[Any]()
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
    }
    for node in graph.node:
        for place, name in enumerate(node.input):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            if name in tables and node.op_type == "Gather" and place == 0 and axis == 0:
                tables[name].append(node)
            else:
                tables.pop(name, None)
    return {name: nodes for name, nodes in tables.items() if nodes}


def quantise_tables(graph: Any) -> None:
    """Convert each table of ``graph`` to int8, with a node after each lookup that makes its rows float32.

    The scales are per column: columns may be principal components of very different sizes, and a few tokens
    are much longer than the others. Only rows that are looked up are ever float32.

    Args:
        graph: an ``onnx.GraphProto``, changed in place.
    """
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    behind: dict[str, Any] = {}
    for name, nodes in lookups(graph).items():
        small, scale = scaled_columns(numpy_helper.to_array(weights[name]))
        weights[name].CopyFrom(numpy_helper.from_array(small, name))
        graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
        for node in nodes:
            found, raw = node.output[0], f"{node.output[0]}_int8"
            node.output[0] = raw
            # The last axis: a column of the table is a component of each row.
            behind[raw] = helper.make_node(
                "DequantizeLinear", [raw, f"{name}_scale"], [found], f"{node.name}_dequantised", axis=-1
            )
    ordered = []
    for node in graph.node:
        ordered += [node, *(behind[name] for name in node.output if name in behind)]
    del graph.node[:]
    graph.node.extend(ordered)


def scaled_columns(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 (V, e) and float32 scales (e,), whose product is ``table`` up to rounding.

    No component is off by more than half its column's scale, the column's largest magnitude / 127.
    """
    scale = np.abs(table).max(axis=0) / np.float32(_LARGEST)
    scale[scale == 0] = 1
    return np.rint(table / scale).astype(np.int8), scale.astype(np.float32)
