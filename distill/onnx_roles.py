"""The feed-forward matrices of an ONNX graph, found by what they are fed: shapes and names differ."""

from __future__ import annotations

from typing import Any

_ACTIVATIONS = {"Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "Softplus", "Tanh"}
# What activations are spelled with, biases and gates. A normalisation or a softmax ends the way back.
_PASSED = {"Add", "Cast", "Div", "Identity", "Mul", "Pow", "Reshape", "Slice", "Split", "Sub", "Transpose"}


def feed_forward(graph: Any) -> tuple[list[str], list[str]]:
    """Return the nodes that multiply by the first and by the second matrices of feed-forward parts.

    A second matrix is fed what came out of an activation function (GELU, ReLU, a gated SiLU ...), and the
    first ones are those whose products went in. Attention has no activation function between its matrices,
    and the products of whole sentences, in a head, are ``Gemm`` nodes: neither is taken for one.

    Args:
        graph: an ``onnx.GraphProto``; weights are initializers.

    Returns:
        Names of ``MatMul`` nodes, in the graph's order; a layer with a gate has two first matrices.
    """
    weights = {tensor.name for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    matrices = [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]
    names = {node.name for node in matrices}
    first: set[str] = set()
    second: set[str] = set()
    for node in matrices:
        before, activated = _sources(node.input[0], makers)
        if activated and (before := before & names):
            first |= before
            second.add(node.name)
    return [n.name for n in matrices if n.name in first], [n.name for n in matrices if n.name in second]


def _sources(tensor: str, makers: dict[str, Any]) -> tuple[set[str], bool]:
    """Return the ``MatMul`` nodes that a tensor comes from, and whether by way of an activation function."""
    found: set[str] = set()
    activated = False
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
