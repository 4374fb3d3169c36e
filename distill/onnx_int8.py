"""The int8 graph: what of a float32 graph is quantised, and what stays where that is too coarse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distill.errors import ExportError
from distill.onnx_roles import feed_forward
from distill.onnx_tables import lookups, quantise_tables
from embedcache.fsio import write_bytes

INT8_FLOOR = 0.99
# The check sees a hundred sentences, a user's text is another sample: a setting is taken only with some room.
_INT8_TARGET = 0.9925


def quantise(graph: Any, path: Path, closeness: Callable[[], float]) -> tuple[float, str]:
    """Write the smallest int8 graph that is close enough; return its closeness and its setting, in words.

    Token tables are always int8, with a scale a column. Of the matrices, the inputs of the second
    feed-forward one have outliers that one int8 scale per batch cannot hold, so it is the first to stay in
    float32; in deep models the other one follows.

    Args:
        graph: an ``onnx.ModelProto`` in float32, its constants folded and its shapes inferred.
        path: the file to write.
        closeness: measures the graph that is at ``path``: the mean cosine of its vectors to the model's.

    Raises:
        ExportError: if no setting reaches :data:`INT8_FLOOR`; ``path`` then holds a graph that is not to be
            used.
        StorageError: if ``path`` cannot be written.
    """
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    first, second = feed_forward(graph.graph)
    settings: dict[str, list[str]] = {"all matrices in int8": []}
    if not second:
        # One int8 scale for a whole batch makes a text's vector depend on the others, and beside the table of
        # a static model its one matrix is nothing.
        kept = [node.name for node in graph.graph.node if node.op_type in ("MatMul", "Gemm")]
        settings = {"token tables in int8": kept}
    else:
        settings["second feed-forward matrices in float32"] = second
        settings["feed-forward matrices in float32"] = [*first, *second]
    # The exporter has folded constants and inferred shapes, which is all that the preprocessing would do.
    add_pre_process_metadata(graph)
    tried: dict[str, float] = {}
    for setting, kept in settings.items():
        _write(path, graph, kept)
        tried[setting] = closeness()
        if tried[setting] >= _INT8_TARGET:
            return tried[setting], setting
    best = max(tried, key=lambda setting: tried[setting])
    if not tried[best] >= INT8_FLOOR:
        raise ExportError(
            f"the int8 graph's vectors have a mean cosine of {tried[best]:.4f} to the model's, "
            f"expected at least {INT8_FLOOR}; nothing was written: export without --int8"
        )
    _write(path, graph, settings[best])
    return tried[best], best


def _write(path: Path, graph: Any, kept: list[str]) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    tables = [node.name for nodes in lookups(graph.graph).values() for node in nodes]
    # What was a Gemm is a MatMul of another name by the time that names are looked at.
    kept = [name for node in kept for name in (node, f"{node}_MatMul")]
    # 7 bits of range: CPUs without VNNI add pairs of products in 16 bits and would overflow with 8.
    quantize_dynamic(
        graph,
        str(path),
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*kept, *tables],
    )
    small = onnx.load(str(path))
    quantise_tables(small.graph)
    write_bytes(path, small.SerializeToString(deterministic=True))
