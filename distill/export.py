"""Turn a sentence-transformers model into an ONNX graph and prove that it gives the same vectors.

The graph holds all from token ids to the final vector: transformer, pooling, Dense head, normalisation.
:class:`~distill.onnx_encoder.OnnxEncoder` runs it without torch.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import ExportError, MissingExtraError
from distill.layout import CONFIG, describe_unfinished
from distill.onnx_check import check_texts, largest_difference, mean_cosine
from distill.onnx_encoder import (
    GRAPH,
    INT8_GRAPH,
    RECIPE,
    RECIPE_FORMAT,
    TOKEN_OUTPUT,
    VECTOR_OUTPUT,
    OnnxEncoder,
    first_line,
    import_onnxruntime,
    root_cause,
)
from distill.onnx_int8 import quantise
from distill.students.save import saving
from embedcache.fsio import explain_os_error, fsync_directory, make_directory, write_bytes, write_json

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

__all__ = ["ExportResult", "OnnxEncoder", "export_onnx", "model_folder"]

DEFAULT_OPSET = 18
DEFAULT_TOLERANCE = 1e-4
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# One protobuf message holds at most 2 GiB.
_LARGEST_GRAPH = 2_000_000_000


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote and how close it is to the torch model.

    Attributes:
        folder: the finished sentence-transformers folder.
        model: the float32 graph.
        model_bytes: its size.
        max_difference: largest absolute difference of a vector component between graph and torch model.
        model_int8: the quantised graph, where it was asked for.
        model_int8_bytes: its size.
        mean_cosine_int8: mean cosine between its vectors and those of the torch model.
        int8_setting: what it quantises, in words.
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

    The folder appears at once, when every check has passed; the same model and the same library versions give
    the same bytes.

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
    check_target(source, target, force, Path("onnx") / RECIPE)
    from distill.students.static import PaddedStatic, is_static
    from embedcache.teacher.load import load_teacher, quiet_transformers

    teacher = load_teacher(source, name="export", device="cpu")
    static = is_static(teacher.model)
    if static:
        # It leaves special tokens out; who reads nothing but the tokenizer's file has to leave them out too.
        teacher.model[0].tokenizer.post_processor = None
    elif (first := type(teacher.model[0]).__name__) != "Transformer":
        raise ExportError(
            f"{source} starts with {first}; only Transformer and StaticEmbedding models can be exported"
        )
    teacher.model.float()
    with new_folder(target) as folder:
        # Saved before anything is encoded: the tokenizer file also carries the settings of its last call.
        with saving(target), quiet_transformers():
            teacher.model.save(str(folder), create_model_card=False)
        if (source / "README.md").is_file():
            shutil.copyfile(source / "README.md", folder / "README.md")
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
        difference = largest_difference(OnnxEncoder(folder), texts, wanted)
        if not difference <= tolerance:
            raise ExportError(
                f"the exported graph of {source} differs from the model by {difference:.2g}, "
                f"expected at most {tolerance:.2g}; nothing was written: try another --opset, or --tolerance"
            )
        cosine: float | None = None
        setting: str | None = None
        if int8:
            path = folder / "onnx" / INT8_GRAPH
            cosine, setting = quantise(
                graph, path, lambda: mean_cosine(OnnxEncoder(folder, int8=True), texts, wanted)
            )
    written = target / "onnx" / INT8_GRAPH if int8 else None
    return ExportResult(
        folder=target,
        model=target / "onnx" / GRAPH,
        model_bytes=(target / "onnx" / GRAPH).stat().st_size,
        max_difference=difference,
        model_int8=written,
        model_int8_bytes=written.stat().st_size if written else None,
        mean_cosine_int8=cosine,
        int8_setting=setting,
    )


def model_folder(model: str | Path) -> Path:
    """Return the sentence-transformers folder that ``model`` means; for a run that is its ``best/``.

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


def check_target(source: Path, target: Path, force: bool, mark: Path) -> None:
    """Refuse a target that holds something else than an earlier export, which has the file ``mark``."""
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


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that becomes ``target`` when the block ends well."""
    make_directory(target.parent)
    building, replaced = (target.with_name(f".tmp-{uuid.uuid4().hex}-{target.name}") for _ in range(2))
    try:
        building.mkdir()
        yield building
        reference = building.stat().st_mode & 0o666
        for path in building.rglob("*"):
            if path.is_file():
                # safetensors writes files that only their owner can read, which a server may not be.
                path.chmod(reference)
                with path.open("rb") as handle:
                    os.fsync(handle.fileno())
        if target.exists():
            target.replace(replaced)
        building.replace(target)
        fsync_directory(target.parent)
    except OSError as error:
        raise explain_os_error(error, target) from error
    finally:
        if replaced.exists() and not target.exists():
            replaced.replace(target)
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _recipe(teacher: Teacher, model: Any, folder: Path) -> dict[str, object]:
    """Return what, beside tokenizer and graph, is needed to encode a text."""
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
            # Nothing of what stands there is read.
            "pad_id": tokenizer.pad_token_id or 0,
            "pad_type_id": tokenizer.pad_token_type_id,
            "pad_token": tokenizer.pad_token or "",
        },
        "truncation": {"max_length": teacher.contract.max_length, "direction": tokenizer.truncation_side},
    }


def _trace(teacher: Teacher, model: Any, opset: int) -> Any:
    """Return the teacher's ``model`` as an ``onnx.ModelProto`` that names no file of this machine."""
    import torch

    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    if size > _LARGEST_GRAPH:
        raise ExportError(
            f"the weights take {size / 1e9:.1f} GB, one ONNX file holds at most 2 GB; take a smaller model"
        )
    example = model.preprocess(["A short example.", "Another one, which is a little longer."])
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
            # A pooler inside the transformer leaves nothing but its output.
            tokens = features.get("token_embeddings")
            return (vectors,) if tokens is None else (tokens, vectors)

    wrapped = TokensToVector().eval()
    columns = tuple(tensors[name] for name in names)
    with torch.inference_mode():
        outputs = [TOKEN_OUTPUT, VECTOR_OUTPUT][-len(wrapped(*columns)) :]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    try:
        with torch.inference_mode(), _quiet_exporter():
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
        raise ExportError(f"torch cannot export this model: {root_cause(error)}") from error
    assert program is not None  # noqa: S101  # None is only returned by the exporter that dynamo=True replaces
    return _without_traces(program.model_proto)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    # Says that torchvision's operators are left out, which no text model has.
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # torch's own use of a class that torch itself deprecates.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            # The inputs share their axes, so each axis' name is needed only once.
            warnings.filterwarnings("ignore", r"# The axis name: \w+ will not be used", UserWarning)
            yield
    finally:
        registry.setLevel(level)


def _without_traces(proto: Any) -> Any:
    """Remove the exporter's stack traces: they hold paths of this machine and change from one to the next."""
    graph = proto.graph
    for part in (
        proto,
        graph,
        *graph.node,
        *graph.value_info,
        *graph.input,
        *graph.output,
        *graph.initializer,
    ):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    # Initializers carry their own shape; a second statement of it turns wrong when one is transposed.
    weights = {tensor.name for tensor in graph.initializer}
    stated = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    return proto
