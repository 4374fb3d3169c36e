"""Tables of token vectors in int8, with a scale a column.

A column may be a principal component that is much smaller than the first, and a single token may be much
longer than all others: one scale for a whole table leaves most of its numbers few of the 255 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 127


def lookups(graph: Any) -> dict[str, list[Any]]:
    """Return the tables of a graph, each with the ``Gather`` nodes that look up its rows.

    Args:
        graph: an ``onnx.GraphProto``.

    Returns:
        By name of the initializer. A table is a float32 matrix that nothing reads but by row.
    """
    from onnx import TensorProto

    tables = {
        tensor.name: list[Any]()
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
    }
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name not in tables:
                continue
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            if node.op_type == "Gather" and place == 0 and axis == 0:
                tables[name].append(node)
            else:
                del tables[name]
    return {name: nodes for name, nodes in tables.items() if nodes}


def quantise_tables(graph: Any) -> None:
    """Turn each table of ``graph`` into int8, with a node behind each lookup that makes its rows float32.

    Only the rows that were looked up are ever float32, and the file grows by one number a column.

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
            # The last axis: a column of the table is a component of each row, however many there are.
            behind[raw] = helper.make_node(
                "DequantizeLinear", [raw, f"{name}_scale"], [found], f"{node.name}_dequantised", axis=-1
            )
    ordered = []
    for node in graph.node:
        ordered.append(node)
        ordered += [behind[name] for name in node.output if name in behind]
    del graph.node[:]
    graph.node.extend(ordered)


def scaled_columns(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 (V, e) and float32 scales (e,), whose product is ``table`` but for rounding.

    No component is off by more than half its column's scale, the column's largest magnitude / 127.
    """
    scale = np.abs(table).max(axis=0) / np.float32(_LARGEST)
    scale[scale == 0] = 1
    return np.rint(table / scale).astype(np.int8), scale.astype(np.float32)
