"""Loading anything that can be evaluated.

A model is named by a run folder (its ``best/`` is meant), a sentence-transformers folder, an ONNX export, a
hub id, a teacher alias, or ``cache:FOLDER#TEACHER``: a teacher whose vectors a cache holds. Of an
export the float32 graph is run; ``EXPORT/onnx/model_int8.onnx`` names the quantised one. A folder with graphs
of another origin is run by torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError, MissingExtraError
from distill.evaluation.cached_teacher import cached_teacher, find_cached
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.record import RunTeacher
from distill.layout import BEST, describe_unfinished
from distill.record import run_folder

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.store.base import VectorBatch

__all__ = ["EvaluatedModel", "load_model", "weight_bytes"]

_GRAPH = Path("onnx") / "model.onnx"
_INT8_GRAPH = "model_int8.onnx"
_EXPORT_RECIPE = Path("onnx") / "encoder.json"
_BYTES_PER_MEGABYTE = 1e6
# In the order of preference in which a folder with several formats is loaded.
_WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors", "*.safetensors", "pytorch_model*.bin")


def load_model(
    spec: str | Path | EvaluatedModel,
    *,
    device: str = "auto",
    compute_dtype: str = "float32",
    teacher: RunTeacher | None = None,
) -> EvaluatedModel:
    """Load a model for evaluation; an already loaded one is returned as it is.

    Args:
        spec: run folder, sentence-transformers folder, ONNX export (folder or graph), hub id, alias or
            ``cache:FOLDER#TEACHER``, which encodes what the cache lacks and stores it there.
        device: ``auto``, ``cpu``, ``cuda`` ...; an ONNX graph runs on the CPU.
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``; an ONNX graph has its own.
        teacher: where ``spec`` is a run's teacher: what it was then, settings included. Of several teachers,
            or one whose vectors were projected, the model gives the targets that they were made into.

    Raises:
        ContractMismatchError: if ``spec`` no longer is that teacher.
        EmbedCacheError: if a cache cannot be opened, or holds no such teacher.
        DataError: if a run has no saved model yet, a graph is not there, or a setting does not apply to it.
        TeacherError: if no model of that name can be found or loaded.
    """
    if isinstance(spec, EvaluatedModel):
        return spec
    if teacher is not None and teacher.parts:
        parts = [
            load_model(part.spec, device=device, compute_dtype=compute_dtype, teacher=part)
            for part in teacher.parts
        ]
        return _combine(teacher, parts)
    cached = find_cached(spec)
    if cached is not None:
        place, found = cached
        return cached_teacher(
            place,
            found,
            lambda: load_model(found.spec, device=device, compute_dtype=compute_dtype, teacher=found),
            keep=True,
        )
    run = run_folder(spec)
    if run is not None:
        folder: str | Path = run / BEST
        if not (run / BEST).is_dir():
            raise DataError(describe_unfinished(run))
    else:
        folder = spec
    graph = _graph_of(Path(folder))
    if graph is not None:
        _require_plain_settings(graph, device, compute_dtype)
        return _load_onnx(graph)
    name = run.name if run else teacher.name if teacher else None
    return _load_torch(folder, name, device, compute_dtype, teacher.contract if teacher else None)


def _combine(teacher: RunTeacher, parts: Sequence[EvaluatedModel]) -> EvaluatedModel:
    combination = teacher.combination()

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return combination.apply([part.encode(texts) for part in parts])

    parameters = _total([part.parameters for part in parts])
    return EvaluatedModel(
        name=teacher.name,
        parameters=None if parameters is None else int(parameters),
        megabytes=_total([part.megabytes for part in parts]),
        dimension=combination.dimension,
        encoder=encode,
    )


def _total(sizes: Sequence[float | None]) -> float | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weights saved in a sentence-transformers or transformers folder.

    Each module's folder is counted once: where the same weights lie in several formats, the one that is
    loaded. Exports for other runtimes are not counted.
    """
    return sum(_bytes_in(place) for place in (folder, *(sub for sub in folder.iterdir() if sub.is_dir())))


def _bytes_in(folder: Path) -> int:
    for pattern in _WEIGHT_FILES:
        sizes = [path.stat().st_size for path in folder.glob(pattern)]
        if sizes:
            return sum(sizes)
    return 0


def _graph_of(path: Path) -> Path | None:
    """Return the ONNX graph that ``path`` means; None where torch is to run the model."""
    if path.suffix == ".onnx":
        if not path.is_file():
            raise DataError(f"no ONNX graph at {path}; make one with `distill export MODEL --to onnx`")
        return path
    # Folders from a hub often carry graphs too, but without the final vector; our exports have a recipe.
    return path / _GRAPH if (path / _EXPORT_RECIPE).is_file() else None


def _require_plain_settings(graph: Path, device: str, compute_dtype: str) -> None:
    if device not in ("auto", "cpu"):
        raise DataError(f"{graph} runs on the CPU, found --device {device}; leave it out")
    if compute_dtype not in ("auto", "float32"):
        raise DataError(
            f"{graph} has its own number format, found --compute-dtype {compute_dtype}; leave it out"
        )


def _load_torch(
    folder: str | Path, name: str | None, device: str, compute_dtype: str, contract: Contract | None
) -> EvaluatedModel:
    from distill.students.build import count_parameters
    from embedcache.errors import PoolingNeededError, TeacherError
    from embedcache.teacher.lazy import encoder_of
    from embedcache.teacher.load import load_by_contract, load_teacher
    from embedcache.teacher.options import EncodeOptions

    if contract is None:
        try:
            teacher = load_teacher(folder, name=name, device=device)
        except PoolingNeededError as error:
            raise TeacherError(
                f"{folder} is a plain transformers folder, which does not say how token vectors become a "
                "sentence vector: evaluate a sentence-transformers folder"
            ) from error
    else:
        remedy = "give --teacher to compare with another one"
        teacher = load_by_contract(folder, contract, name=name or "teacher", remedy=remedy, device=device)
    is_here = not teacher.contract.is_served
    # One encoder for all calls: making it ready lays out the weights anew.
    encoder = encoder_of([teacher], EncodeOptions(compute_dtype=compute_dtype, backend="torch"))

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return encoder.encode(texts).vectors

    def encode_rows(texts: Sequence[str]) -> VectorBatch:
        from embedcache.keys import key_array
        from embedcache.store.base import VectorBatch

        found = encoder.encode(texts)
        return VectorBatch(key_array(texts), found.vectors, found.tokens, found.truncated, encoder.provenance)

    return EvaluatedModel(
        name=teacher.name,
        parameters=count_parameters(teacher.model) if is_here else None,
        megabytes=weight_bytes(teacher.folder) / _BYTES_PER_MEGABYTE if is_here else None,
        dimension=teacher.dimension,
        encoder=encode,
        contract=teacher.contract,
        encode_rows=encode_rows,
        source=teacher.folder if is_here else None,
    )


def _load_onnx(graph: Path) -> EvaluatedModel:
    from distill.onnx_encoder import OnnxEncoder

    if graph.name not in (_GRAPH.name, _INT8_GRAPH) or graph.parent.name != _GRAPH.parent.name:
        raise DataError(f"{graph}: expected EXPORT/{_GRAPH} or EXPORT/{_GRAPH.parent}/{_INT8_GRAPH}")
    folder = graph.resolve().parent.parent
    encoder = OnnxEncoder(folder, int8=graph.name == _INT8_GRAPH)
    parameters, size = _graph_size(graph)
    return EvaluatedModel(
        name=f"{folder.name}/{graph.name}",
        parameters=parameters,
        megabytes=size / _BYTES_PER_MEGABYTE,
        dimension=encoder.dimension,
        encoder=encoder.encode,
        source=graph,
    )


def _graph_size(graph: Path) -> tuple[int, int]:
    """Return the parameters in a graph and the bytes of its files."""
    import math

    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx is not installed; run: pip install 'embedcache[onnx]'") from error
    model = onnx.load(str(graph), load_external_data=False)
    weights = {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT8,
    }
    parameters = sum(
        math.prod(tensor.dims) for tensor in model.graph.initializer if tensor.data_type in weights
    )
    return parameters, sum(path.stat().st_size for path in _files_of(graph, model.graph.initializer))


def _files_of(graph: Path, tensors: Iterable[onnx.TensorProto]) -> set[Path]:
    """Return the graph's own file and those that hold its larger tensors."""
    outside = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return {graph, *(graph.parent / location for location in outside)}
