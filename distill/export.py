"""Export of a sentence-transformers model to ONNX or OpenVINO, checked against the model's own vectors.

The ONNX graph holds everything from token ids to the final vector: transformer, pooling, head, normalisation;
:class:`~distill.onnx.OnnxEncoder` runs it without torch. With OpenVINO,
``SentenceTransformer(folder, backend="openvino")`` runs the transformer there and the rest in torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.check_texts import check_texts
from distill.errors import ExportError, MissingExtraError
from distill.layout import CONFIG, describe_unfinished
from distill.onnx import (
    GRAPH,
    INT8_GRAPH,
    RECIPE,
    RECIPE_FORMAT,
    TOKEN_OUTPUT,
    VECTOR_OUTPUT,
    OnnxEncoder,
    first_line,
    import_onnxruntime,
    quantise,
    quiet_exporter,
    without_traces,
)
from distill.students.save import saving, share
from embedcache.folders import folder_that_appears
from embedcache.fsio import write_bytes, write_json

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

OPENVINO_GRAPH = Path("openvino") / "openvino_model.xml"
DEFAULT_OPSET = 18
DEFAULT_TOLERANCE = 1e-4
# The names that optimum-intel uses, too.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# One protobuf message holds at most 2 GiB.
_LARGEST_GRAPH = 2_000_000_000
_EXAMPLE = ["A short example.", "Another one, which is a little longer."]


@dataclass(frozen=True)
class ExportResult:
    """Files of an export, and their distance from the torch model.

    Attributes:
        folder: the finished sentence-transformers folder.
        model: the graph in float32.
        model_bytes: its size.
        max_difference: largest absolute difference of a vector component between graph and torch model.
        model_int8: the quantised graph; None without ``int8``.
        model_int8_bytes: its size.
        mean_cosine_int8: mean cosine between its vectors and those of the torch model.
        int8_setting: description of what is quantised.
    """

    folder: Path
    model: Path
    model_bytes: int
    max_difference: float
    model_int8: Path | None = None
    model_int8_bytes: int | None = None
    mean_cosine_int8: float | None = None
    int8_setting: str | None = None


def export_onnx(
    model: str | Path,
    out: str | Path,
    *,
    int8: bool = False,
    opset: int = DEFAULT_OPSET,
    tolerance: float = DEFAULT_TOLERANCE,
    force: bool = False,
) -> ExportResult:
    """Write ``model`` to ``out`` as a sentence-transformers folder with ``onnx/`` in it, and check it.

    The folder appears at once, after every check has passed; the same model and library versions give the
    same bytes.

    Args:
        model: a run folder (its ``best/`` is taken) or a sentence-transformers folder.
        out: the folder to write.
        int8: also write a dynamically quantised graph.
        opset: version of the ONNX operators.
        tolerance: largest absolute difference allowed between a component of the graph's vector and torch's.
        force: replace an earlier export in ``out``.

    Raises:
        ExportError: if ``model`` cannot be exported, ``out`` cannot be replaced, or the vectors differ.
        MissingExtraError: if the ``onnx`` extra is not installed.
        TeacherError: if ``model`` cannot be loaded.
        StorageError: if ``out`` cannot be written.
    """
    import_onnxruntime()
    source, target = model_folder(model), Path(out).expanduser().resolve()
    _check_target(source, target, force, Path("onnx") / RECIPE)
    from distill.students.static import PaddedStatic, is_static
    from embedcache.teacher.load import load_teacher

    teacher = load_teacher(source, name="export", device="cpu")
    static = is_static(teacher.model)
    if static:
        # Readers of the tokenizer's file alone must leave special tokens out, too.
        teacher.model[0].tokenizer.post_processor = None
    elif (first := type(teacher.model[0]).__name__) != "Transformer":
        raise ExportError(
            f"{source} starts with {first}; only Transformer and StaticEmbedding models can be exported"
        )
    teacher.model.float()
    cosine: float | None = None
    setting: str | None = None
    with _new_export(teacher, source, target) as folder:
        (folder / "onnx").mkdir()
        traced: Any = PaddedStatic(teacher.model) if static else teacher.model
        recipe = _recipe(teacher, traced, folder)
        graph = _trace(teacher, traced, opset)
        write_json(folder / "onnx" / RECIPE, {**recipe, "outputs": [n.name for n in graph.graph.output]})
        write_bytes(folder / "onnx" / GRAPH, graph.SerializeToString(deterministic=True))
        texts = check_texts(teacher.contract.max_length)
        wanted = teacher.model.encode(
            texts, prompt=teacher.contract.prompt or None, batch_size=16, show_progress_bar=False
        )
        encoder = OnnxEncoder(folder)
        # In batches, and some one text at a time; NaN if the graph gives NaN.
        alone = range(0, len(texts), 16)
        single = np.concatenate([encoder.encode([texts[i]]) for i in alone]) - wanted[alone]
        batches = encoder.encode(texts, batch_size=16) - wanted
        difference = float(np.max([np.abs(batches).max(), np.abs(single).max()]))
        _check_difference(source, difference, tolerance)
        if int8:

            def closeness() -> float:
                found = OnnxEncoder(folder, int8=True).encode(texts, batch_size=16)
                lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
                return float(((found * wanted).sum(axis=1) / lengths).mean())

            cosine, setting = quantise(graph, folder / "onnx" / INT8_GRAPH, closeness)
    made, small = (target / "onnx" / name for name in (GRAPH, INT8_GRAPH))
    size = small.stat().st_size if int8 else None
    return ExportResult(
        target, made, made.stat().st_size, difference, small if int8 else None, size, cosine, setting
    )


def export_openvino(
    model: str | Path, out: str | Path, *, tolerance: float = DEFAULT_TOLERANCE, force: bool = False
) -> ExportResult:
    """Write ``model`` to ``out`` as a sentence-transformers folder with ``openvino/`` in it, and check it.

    Args:
        model, out, tolerance, force: as :func:`export_onnx`.

    Raises:
        MissingExtraError: if the ``openvino`` extra is not installed.
        TeacherError: if ``model`` cannot be loaded, or does not convert.
        ExportError, StorageError: as :func:`export_onnx`.
    """
    from embedcache.teacher.load import load_teacher
    from embedcache.teacher.openvino_model import has_openvino

    if not has_openvino():
        raise MissingExtraError("openvino is not installed; run: pip install 'embedcache[openvino]'")
    source, target = model_folder(model), Path(out).expanduser().resolve()
    _check_target(source, target, force, OPENVINO_GRAPH)
    teacher = load_teacher(source, name="export", device="cpu")
    encoder: Any = teacher.model.float()
    first = encoder[0]
    if type(first).__name__ != "Transformer" or first.module_output_name != "token_embeddings":
        raise ExportError(f"{source}: only a Transformer that gives token embeddings can be exported")
    with _new_export(teacher, source, target) as folder:
        _write_openvino(encoder, folder / OPENVINO_GRAPH)
        difference = _openvino_difference(encoder, folder / OPENVINO_GRAPH)
        _check_difference(source, difference, tolerance)
    size = (target / OPENVINO_GRAPH).with_suffix(".bin").stat().st_size
    return ExportResult(target, target / OPENVINO_GRAPH, size, difference)


def model_folder(model: str | Path) -> Path:
    """Return the sentence-transformers folder of ``model``; of a run, its ``best/``.

    Raises:
        ExportError: if there is none.
    """
    folder = Path(model).expanduser().resolve()
    for candidate in (folder, folder / "best"):
        if (candidate / "modules.json").is_file():
            return candidate
    if (folder / CONFIG).is_file():
        raise ExportError(describe_unfinished(folder))
    found = "has no modules.json" if folder.is_dir() else "does not exist"
    raise ExportError(
        f"{folder} {found}; expected a run folder with best/ in it, or a sentence-transformers folder"
    )


def _check_target(source: Path, target: Path, force: bool, mark: Path) -> None:
    """Raise :class:`ExportError` unless ``target`` is new, empty or, with ``force``, an earlier export."""
    if target == source or target in source.parents:
        raise ExportError(f"--out {target} is or contains the model itself; choose another folder")
    if target.exists() and not target.is_dir():
        raise ExportError(f"--out {target} is a file, expected a folder that is new or empty; choose another")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        raise ExportError(
            f"--out {target} is not empty; choose another folder, or replace an earlier export by --force"
        )
    if not (target / mark).is_file():
        raise ExportError(
            f"--out {target} holds something else than an earlier export; --force replaces only those"
        )


def _check_difference(source: Path, difference: float, tolerance: float) -> None:
    # NaN is not below the tolerance either.
    if not difference <= tolerance:
        raise ExportError(
            f"the exported graph of {source} differs from the model by {difference:.2g}, expected at most "
            f"{tolerance:.2g}; nothing was written: raise --tolerance, or try another --opset"
        )


@contextmanager
def _new_export(teacher: Teacher, source: Path, target: Path) -> Iterator[Path]:
    """Yield a new folder with the model and its card that becomes ``target`` at the end."""
    from embedcache.teacher.load import quiet_transformers

    with folder_that_appears(target, overwrite=True) as folder:
        # Before anything is encoded: the tokenizer's file carries the settings of its last call.
        with saving(target), quiet_transformers():
            teacher.model.save(str(folder), create_model_card=False)
        if (source / "README.md").is_file():
            shutil.copyfile(source / "README.md", folder / "README.md")
        yield folder
        for path in folder.rglob("*.safetensors"):
            share(path)


def _recipe(teacher: Teacher, model: Any, folder: Path) -> dict[str, object]:
    """Return the settings that encoding needs beside tokenizer and graph."""
    if not (folder / "tokenizer.json").is_file():
        raise ExportError(
            "the model's tokenizer has no tokenizer.json form, which serving without torch needs"
        )
    prompt = teacher.contract.prompt
    if prompt and any(not getattr(module, "include_prompt", True) for module in model):
        raise ExportError(
            f"the pooling leaves out the tokens of the prompt {prompt!r}; such models cannot be exported"
        )
    tokenizer = model.tokenizer
    return {
        "format": RECIPE_FORMAT,
        "prompt": prompt,
        "dimension": teacher.dimension,
        "padding": {
            "direction": tokenizer.padding_side,
            # Padding is masked.
            "pad_id": tokenizer.pad_token_id or 0,
            "pad_type_id": tokenizer.pad_token_type_id,
            "pad_token": tokenizer.pad_token or "",
        },
        "truncation": {"max_length": teacher.contract.max_length, "direction": tokenizer.truncation_side},
    }


def _trace(teacher: Teacher, model: Any, opset: int) -> Any:
    """Return ``model`` as an ``onnx.ModelProto`` without paths of this machine."""
    import torch

    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    if size > _LARGEST_GRAPH:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, one ONNX file holds at most 2 GB; take a smaller model"
        )
    example = model.preprocess(_EXAMPLE)
    tensors = {name: value for name, value in example.items() if isinstance(value, torch.Tensor)}
    if unknown := sorted(set(tensors) - set(_INPUTS)):
        raise ExportError(f"the model takes the inputs {unknown}; only {', '.join(_INPUTS)} can be exported")
    names = [name for name in _INPUTS if name in tensors]

    class TokensToVector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
            features = self.model({**dict(zip(names, columns, strict=True)), "modality": "text"})
            vectors = features["sentence_embedding"][:, : teacher.dimension]
            # A transformer with a pooler returns the pooler's output only.
            tokens = features.get("token_embeddings")
            return (vectors,) if tokens is None else (tokens, vectors)

    wrapped = TokensToVector().eval()
    columns = tuple(tensors[name] for name in names)
    with torch.inference_mode():
        outputs = [TOKEN_OUTPUT, VECTOR_OUTPUT][-len(wrapped(*columns)) :]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    try:
        with torch.inference_mode(), quiet_exporter():
            program = torch.onnx.export(
                wrapped,
                columns,
                dynamo=True,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(tuple(axes for _ in names),),
                opset_version=opset,
                verbose=False,
            )
    except ImportError as error:
        raise MissingExtraError(f"{first_line(error)}; run: pip install 'embedcache[onnx]'") from error
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        words = f"{type(cause).__name__}: {first_line(cause)}"
        raise ExportError(f"torch cannot export this model: {words}") from error
    assert program is not None  # noqa: S101  # None is only returned by the exporter that dynamo=True replaces
    return without_traces(program.model_proto)


def _write_openvino(encoder: Any, path: Path) -> None:
    """Convert the transformer of a model and save it in float32."""
    import openvino
    import torch

    from embedcache.teacher.openvino_model import convert

    features = encoder.preprocess(_EXAMPLE)
    example = {name: features[name] for name in _INPUTS if name in features}

    class TokensToStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = encoder[0]

        def forward(self, *columns: torch.Tensor) -> Any:
            return self.first(dict(zip(example, columns, strict=True)))["token_embeddings"]

    graph = convert(TokensToStates().eval(), example)
    graph.outputs[0].get_tensor().set_names({TOKEN_OUTPUT})
    path.parent.mkdir()
    openvino.save_model(graph, path, compress_to_fp16=False)


def _openvino_difference(encoder: Any, path: Path) -> float:
    """Return the largest difference between components of the vectors of a graph and of torch."""
    import openvino
    import torch

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    largest = 0.0
    for text in check_texts(encoder.max_seq_length or 0):
        features = encoder.preprocess([text])
        states = compiled({name: features[name].numpy() for name in _INPUTS if name in features})[
            TOKEN_OUTPUT
        ]
        found = {**features, "token_embeddings": torch.from_numpy(states)}
        with torch.inference_mode():
            for module in list(encoder)[1:]:
                found = module(found)
            difference = found["sentence_embedding"] - encoder(features)["sentence_embedding"]
        largest = max(largest, float(difference.abs().max()))
    return largest
