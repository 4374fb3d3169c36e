"""Parts of a graph that become int8: matrices by their role at any shape, tables by column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.errors import ExportError
from distill.onnx import feed_forward, lookups, quantise, quantise_tables

onnx = pytest.importorskip("onnx", reason="needs the [onnx] extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")

TOKENS, NARROW, WIDTH, OUTLIER = 60, 8, 32, 300.0
IDS = np.random.default_rng(5).integers(0, TOKENS, size=(16, 10))
SHAPES = [12, WIDTH, 80]


class Graph:
    """A graph as it grows: weights are drawn, and what a node gives is named after the node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(0)

    def add(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def weight(self, name: str, *shape: int, scale: float = 1.0) -> str:
        drawn = self.random.standard_normal(shape) * scale if shape else np.array(scale)
        self.weights[name] = drawn.astype(np.float32)
        return name

    def multiply(self, name: str, tensor: str, rows: int, columns: int, scale: float = 1.0) -> str:
        matrix = self.weight(f"{name}.weight", rows, columns, scale=scale / rows**0.5)
        bias = self.weight(f"{name}.bias", columns, scale=0.1)
        return self.add("Add", f"{name}_biased", self.add("MatMul", name, tensor, matrix), bias)

    def normalise(self, name: str, tensor: str, width: int) -> str:
        gain = self.weight(f"{name}.gain", width, scale=0.0)
        self.weights[gain] += 1
        shift = self.weight(f"{name}.shift", width, scale=0.1)
        return self.add("LayerNormalization", name, tensor, gain, shift)

    def model(self, output: str) -> Any:
        found = onnx.helper.make_graph(
            self.nodes,
            "encoder",
            [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "length"])],
            [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        model = onnx.helper.make_model(found, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def activate(graph: Graph, tensor: str, how: str) -> str:
    """Add an activation function; ``erf`` is GELU as exporters write it out."""
    if how == "erf":
        numbers = {"half": 0.5, "one": 1.0, "root": 2**0.5}
        half, one, root = (graph.weight(name, scale=value) for name, value in numbers.items())
        risen = graph.add("Add", "rise", graph.add("Erf", "erf", graph.add("Div", "div", tensor, root)), one)
        return graph.add("Mul", "halve", graph.add("Mul", "gelu", tensor, risen), half)
    return graph.add(how, "activation", tensor)


def encoder(neurons: int, *, activation: str = "erf", gated: bool = False, outlier: str = "") -> Any:
    """One layer on a narrow table: lookup, map, attention, feed-forward part, mean, head.

    ``outlier`` is where one number is blown up and taken back by the next matrix: ``neuron``, what the second
    feed-forward matrix is fed, or ``input``, what the first one is fed.
    """
    graph = Graph()
    tokens = graph.add("Gather", "lookup", graph.weight("table", TOKENS, NARROW), "input_ids")
    state = graph.multiply("project", graph.normalise("norm_tokens", tokens, NARROW), NARROW, WIDTH)
    state = graph.normalise("norm_in", state, WIDTH)
    query, key, value = (graph.multiply(name, state, WIDTH, WIDTH) for name in ("query", "key", "value"))
    turned = graph.add("Transpose", "turn", key, perm=[0, 2, 1])
    weights = graph.add("Softmax", "softmax", graph.add("MatMul", "scores", query, turned), axis=-1)
    mixed = graph.multiply("mix", graph.add("MatMul", "context", weights, value), WIDTH, WIDTH)
    state = graph.add("Add", "residual", state, mixed)
    normed = graph.normalise("norm_middle", state, WIDTH)
    inner = activate(graph, graph.multiply("first", normed, WIDTH, neurons), activation)
    if gated:
        inner = graph.add("Mul", "gate", inner, graph.multiply("open", normed, WIDTH, neurons))
    state = graph.add("Add", "out", state, graph.multiply("second", inner, neurons, WIDTH, scale=3.0))
    if outlier == "neuron":
        graph.weights["first.weight"][:, 0] *= OUTLIER
        graph.weights["second.weight"][0] /= OUTLIER
    if outlier == "input":
        graph.weights["norm_middle.gain"][0] *= OUTLIER
        graph.weights["norm_middle.shift"][0] *= OUTLIER
        graph.weights["first.weight"][0] /= OUTLIER
    graph.weights["axes"] = np.array([1])
    mean = graph.add("ReduceMean", "mean", graph.normalise("norm_out", state, WIDTH), "axes", keepdims=0)
    head = graph.weight("head.weight", WIDTH, 2 * WIDTH)
    return graph.model(graph.add("Gemm", "head", mean, head))


def run(model: Any, ids: np.ndarray = IDS) -> np.ndarray:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": ids})[0]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(axis=-1) / lengths).mean())


@pytest.mark.parametrize("neurons", SHAPES)
def test_feed_forward_matrices_are_found_at_any_shape(neurons: int) -> None:
    for activation in ("erf", "Relu", "Gelu", "Tanh"):
        assert feed_forward(encoder(neurons, activation=activation).graph) == (["first"], ["second"])
    # A gate adds another first matrix.
    gated = encoder(neurons, activation="Sigmoid", gated=True)
    assert feed_forward(gated.graph) == (["first", "open"], ["second"])
    assert feed_forward(encoder(neurons, activation="Identity").graph) == ([], [])


@pytest.mark.parametrize("neurons", SHAPES)
@pytest.mark.parametrize(
    ("outlier", "setting", "kept"),
    [
        ("", "all matrices in int8", set()),
        ("neuron", "second feed-forward matrices in float32", {"second"}),
        ("input", "feed-forward matrices in float32", {"first", "second"}),
    ],
)
def test_matrices_whose_input_has_outliers_stay_in_float32(neurons, outlier, setting, kept, tmp_path) -> None:
    model, path = encoder(neurons, outlier=outlier), tmp_path / "small.onnx"
    wanted = run(model)
    found = quantise(model, path, lambda: cosine(run(path), wanted))
    assert found[1] == setting
    assert 0.9925 <= found[0] < 1.0
    graph = onnx.load(str(path)).graph
    floats = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    assert {n.name for n in graph.node if n.op_type == "MatMul" and n.input[1] in floats} == kept


@pytest.mark.parametrize(
    ("activation", "measured", "setting"),
    [
        ("erf", [0.98, 0.9912, 0.9913], "feed-forward matrices in float32"),
        ("erf", [0.8, 0.9, 0.7], None),
        ("Identity", [0.999], "token tables in int8"),
        ("Identity", [0.8], None),
    ],
)
def test_a_graph_that_is_not_close_enough_is_refused(activation, measured, setting, tmp_path) -> None:
    values = iter(measured)
    model = encoder(WIDTH, activation=activation)
    if setting is None:
        with pytest.raises(ExportError, match=f"{measured[-1]:.4f}"):
            quantise(model, tmp_path / "small.onnx", lambda: next(values))
    else:
        assert quantise(model, tmp_path / "small.onnx", lambda: next(values)) == (measured[-1], setting)
    assert next(values, None) is None


def test_a_table_in_int8_gives_its_rows_and_is_a_quarter_of_the_size() -> None:
    graph = Graph()
    table = graph.weight("table", 2000, 32)
    # By one scale for all, the small columns would be gone.
    graph.weights[table] *= np.geomspace(1, 1e-4, 32, dtype=np.float32)
    graph.weights[table][:, 0] = 0
    rows = graph.weights[table]
    model = graph.model(graph.add("Gather", "lookup", table, "input_ids"))
    before = model.ByteSize()
    quantise_tables(model.graph)
    onnx.checker.check_model(model)
    assert model.ByteSize() < 0.26 * before
    for ids in (np.array([[5]]), np.arange(2000).reshape(40, 50)):
        found = run(model, ids)
        assert found.dtype == np.float32
        assert (np.abs(found - rows[ids]) <= np.abs(rows).max(axis=0) / 127 * 0.501).all()
        assert not np.array_equal(found, rows[ids])


def test_only_a_matrix_read_by_row_is_a_table() -> None:
    graph = Graph()
    for name in ("words", "tied", "across"):
        graph.weight(name, 16, 16)
    graph.weight("numbers", 16)
    one = graph.add("Gather", "word", "words", "input_ids")
    two = graph.add("Gather", "again", "words", "input_ids")
    three = graph.add("MatMul", "scores", graph.add("Gather", "token", "tied", "input_ids"), "tied")
    graph.add("Gather", "column", "across", "input_ids", axis=1)
    graph.add("Gather", "number", "numbers", "input_ids")
    found = graph.model(graph.add("Sum", "sum", one, two, three))
    assert {name: [n.name for n in nodes] for name, nodes in lookups(found.graph).items()} == {
        "words": ["word", "again"]
    }
    before = run(found, IDS % 16)
    quantise_tables(found.graph)
    np.testing.assert_allclose(run(found, IDS % 16), before, atol=0.05)
