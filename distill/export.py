"""Export of a sentence-transformers model to ONNX or OpenVINO, checked against the model's own vectors.

The ONNX graph holds everything from token ids to the final vector: transformer, pooling, head, normalisation;
``distill.onnx.OnnxEncoder`` runs it without torch. With OpenVINO,
``SentenceTransformer(folder, backend="openvino")`` runs the transformer there and the rest in torch.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.errors import ExportError, MissingExtraError
from distill.layout import CONFIG, KNOWLEDGE_BASE, describe_unfinished
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
)
from distill.students.save import make_readable, saving
from embedcache.folders import folder_that_appears
from embedcache.fsio import write_bytes, write_json
from embedcache.teacher.classifier import CLASSIFIER, WEIGHTS

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

OPENVINO_GRAPH = Path("openvino") / "openvino_model.xml"
DEFAULT_OPSET = 18
DEFAULT_TOLERANCE = 1e-4
# The names that optimum-intel uses, too.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_EXAMPLE = ["A short example.", "Another one, which is a little longer."]
_SENTENCES = (
    "Hello.",
    "Is it raining?",
    "The cat sleeps on the warm stone wall.",
    "A man in a red jacket is climbing the steep side of a snowy mountain.",
    "Two children are building a castle of sand while their mother reads a book.",
    "She said that the meeting had been moved to Thursday afternoon at half past three.",
    "Prices rose by 3.2 % in March, more than most economists had expected.",
    "How do I reset my password if I no longer have access to that e-mail address?",
    "The function returns None when the key is missing, and raises an error in strict mode.",
    "Water boils at a lower temperature in the mountains, because the air pressure is lower there.",
    "After a long debate, parliament rejected the bill by a narrow majority of four votes.",
    "I would not recommend this hotel: the room was dirty and the staff were rude to everyone.",
    "An orchestra is playing on stage in front of a large audience.",
    "The first bridge across the river was finished in 1894 and replaced sixty years later.",
    "Nobody has been able to explain why the birds left the island so early that year.",
    "Cut the onions into thin slices and fry them gently in butter until they are golden.",
    "A black dog runs through the shallow water with a stick in its mouth.",
    "The treaty was signed in Paris, but it was never ratified by either government.",
    "Most of the students passed the examination; three of them have to repeat it in June.",
    "Light from the nearest star takes more than four years to reach us.",
    "Please send the parcel to our new office, not to the old address in Berlin.",
    "Their goalkeeper saved two penalties in the last ten minutes of the match.",
    "The patient was given a lower dose because of a mild reaction to the first injection.",
    "Café owners in Zürich and Kraków complained about the naïve new rules.",
)


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
    overwrite: bool = False,
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
        overwrite: replace an earlier export in ``out``.

    Raises:
        ExportError: if ``model`` cannot be exported, ``out`` cannot be replaced, or the vectors differ.
        MissingExtraError: if the ``onnx`` extra is not installed.
        TeacherError: if ``model`` cannot be loaded.
        StorageError: if ``out`` cannot be written.
    """
    import_onnxruntime()
    source, target = _places(model, out, overwrite, Path("onnx") / RECIPE)
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
    cosine, setting = None, None
    with _new_export(teacher, source, target) as folder:
        (folder / "onnx").mkdir()
        traced: Any = PaddedStatic(teacher.model) if static else teacher.model
        graph = _trace(teacher, traced, opset)
        outputs = [node.name for node in graph.graph.output]
        write_json(folder / "onnx" / RECIPE, {**_recipe(teacher, traced), "outputs": outputs})
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

        def closeness() -> float:
            found = OnnxEncoder(folder, int8=True).encode(texts, batch_size=16)
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
            return float(((found * wanted).sum(axis=1) / lengths).mean())

        if int8:
            cosine, setting = quantise(graph, folder / "onnx" / INT8_GRAPH, closeness)
    made, small = (target / "onnx" / name for name in (GRAPH, INT8_GRAPH))
    size = small.stat().st_size if int8 else None
    return ExportResult(
        target, made, made.stat().st_size, difference, small if int8 else None, size, cosine, setting
    )


def export_openvino(
    model: str | Path, out: str | Path, *, tolerance: float = DEFAULT_TOLERANCE, overwrite: bool = False
) -> ExportResult:
    """Write ``model`` to ``out`` as a sentence-transformers folder with ``openvino/`` in it, and check it.

    Args:
        model, out, tolerance, overwrite: as ``export_onnx``.

    Raises:
        MissingExtraError: if the ``openvino`` extra is not installed.
        TeacherError: if ``model`` cannot be loaded, or does not convert.
        ExportError, StorageError: as ``export_onnx``.
    """
    from embedcache.teacher.load import load_teacher
    from embedcache.teacher.openvino_model import has_openvino

    if not has_openvino():
        raise MissingExtraError("openvino is not installed; run: pip install 'embedcache-distill[openvino]'")
    source, target = _places(model, out, overwrite, OPENVINO_GRAPH)
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


def _places(model: str | Path, out: str | Path, overwrite: bool, mark: Path) -> tuple[Path, Path]:
    """Return the folders to read and to write.

    Raises:
        ExportError: if the model is missing, or ``out`` holds files (with ``overwrite``: but an export's).
    """
    source, target = model_folder(model), Path(out).expanduser().resolve()
    if target == source or target in source.parents:
        raise ExportError(f"--out {target} is or contains the model itself; choose another folder")
    is_used = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_used and not (overwrite and (target / mark).is_file()):
        raise ExportError(
            f"--out {target} exists; choose another folder, or replace an earlier export by --overwrite"
        )
    return source, target


def _check_difference(source: Path, difference: float, tolerance: float) -> None:
    # NaN is not below the tolerance either.
    if not difference <= tolerance:
        raise ExportError(
            f"the exported graph of {source} differs from the model by {difference:.2g}, expected at most "
            f"{tolerance:.2g}; nothing was written: raise --tolerance, or try another --opset"
        )


@contextmanager
def _new_export(teacher: Teacher, source: Path, target: Path) -> Iterator[Path]:
    """Yield a new folder with the model, its card and its classifier; it becomes ``target`` at the end."""
    from embedcache.teacher.load import quiet_transformers

    with folder_that_appears(target, overwrite=True) as folder:
        # Before anything is encoded: the tokenizer's file carries the settings of its last call.
        with saving(target), quiet_transformers():
            teacher.model.save(str(folder), create_model_card=False)
        for name in ("README.md", CLASSIFIER, WEIGHTS):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if (source / KNOWLEDGE_BASE).is_dir():
            shutil.copytree(source / KNOWLEDGE_BASE, folder / KNOWLEDGE_BASE)
        yield folder
        for path in folder.rglob("*.safetensors"):
            make_readable(path)


def _recipe(teacher: Teacher, model: Any) -> dict[str, object]:
    """Return the settings that encoding needs beside tokenizer and graph."""
    tokenizer = model.tokenizer
    return {
        "format": RECIPE_FORMAT,
        "prompt": teacher.contract.prompt,
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

    example = model.preprocess(_EXAMPLE)
    names = [name for name in _INPUTS if name in example]

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
    columns = tuple(example[name] for name in names)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    # Reports missing torchvision operators, which no text model needs.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                wrapped,
                columns,
                dynamo=True,
                input_names=names,
                output_names=[TOKEN_OUTPUT, VECTOR_OUTPUT][-len(wrapped(*columns)) :],
                dynamic_shapes=(tuple(axes for _ in names),),
                opset_version=opset,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = first_line(error.__cause__ or error)
        raise ExportError(f"torch cannot export this model: {cause}") from error
    assert program is not None  # noqa: S101  # None is only returned by the exporter that dynamo=True replaces
    proto = program.model_proto
    graph = proto.graph
    # The exporter's stack traces hold paths of this machine.
    values = (*graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for part in (proto, graph, *graph.node, *values):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    # Initializers have their own shapes; a second one becomes wrong when a weight is transposed.
    weights = {tensor.name for tensor in graph.initializer}
    stated = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    return proto


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


def check_texts(max_length: int) -> list[str]:
    """Return texts from empty to longer than the model reads."""
    joined = [" ".join(_SENTENCES[i : i + 3]) for i in range(len(_SENTENCES))]
    lead = [sentence.split(", ")[0].rstrip(".?!").lower() for sentence in _SENTENCES]
    everything = " ".join(_SENTENCES)
    # Twice as many words as the model reads tokens, so the text is certainly cut.
    words = everything.split() * (1 + 2 * min(max_length, 1024) // len(everything.split()))
    return ["", *_SENTENCES, *lead, *joined, everything, " ".join(words)]
