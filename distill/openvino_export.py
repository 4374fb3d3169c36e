"""Turn a sentence-transformers model into an OpenVINO model that sentence-transformers opens.

``SentenceTransformer(folder, backend="openvino")`` runs the transformer in OpenVINO, and pooling and what
follows in torch, as it does with models exported by optimum-intel.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from distill.errors import ExportError, MissingExtraError
from distill.export import DEFAULT_TOLERANCE, ExportResult, check_target, model_folder, new_folder
from distill.onnx_check import check_texts
from distill.students.save import saving

GRAPH = Path("openvino") / "openvino_model.xml"
# The names that optimum-intel's OVModelForFeatureExtraction knows.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUT = "last_hidden_state"


def export_openvino(
    model: str | Path, out: str | Path, *, tolerance: float = DEFAULT_TOLERANCE, force: bool = False
) -> ExportResult:
    """Write ``model`` to ``out`` as a sentence-transformers folder with ``openvino/`` in it, and check it.

    Args:
        model: a run folder (its ``best/`` is taken) or a sentence-transformers folder.
        out: the folder to write; it appears when every check has passed.
        tolerance: largest absolute difference allowed between a component of a vector and torch's.
        force: replace an earlier export in ``out``.

    Raises:
        ExportError: if ``model`` cannot be exported, ``out`` cannot be replaced, or the vectors differ.
        MissingExtraError: if the ``openvino`` extra is not installed.
        TeacherError: if ``model`` cannot be loaded, or does not convert.
        StorageError: if ``out`` cannot be written.
    """
    from embedcache.teacher.load import load_teacher, quiet_transformers
    from embedcache.teacher.openvino_model import has_openvino

    if not has_openvino():
        raise MissingExtraError("openvino is not installed; run: pip install 'embedcache[openvino]'")
    source, target = model_folder(model), Path(out).expanduser().resolve()
    check_target(source, target, force, GRAPH)
    encoder: Any = load_teacher(source, name="export", device="cpu").model.float()
    first = encoder[0]
    if type(first).__name__ != "Transformer" or first.module_output_name != "token_embeddings":
        raise ExportError(f"{source}: only a Transformer that gives token embeddings can be exported")
    with new_folder(target) as folder:
        with saving(target), quiet_transformers():
            encoder.save(str(folder), create_model_card=False)
        if (source / "README.md").is_file():
            shutil.copyfile(source / "README.md", folder / "README.md")
        _write(encoder, folder / GRAPH)
        difference = _largest_difference(encoder, folder / GRAPH)
        if not difference <= tolerance:
            raise ExportError(
                f"the OpenVINO model of {source} differs from it by {difference:.2g}, expected at most "
                f"{tolerance:.2g}; nothing was written: raise --tolerance"
            )
    size = (target / GRAPH).with_suffix(".bin").stat().st_size
    return ExportResult(target, target / GRAPH, size, difference)


def _write(encoder: Any, path: Path) -> None:
    """Convert the transformer of a model and save it in float32."""
    import openvino
    import torch

    from embedcache.teacher.openvino_model import convert

    features = encoder.preprocess(["A short example.", "Another one, which is a little longer."])
    example = {name: features[name] for name in _INPUTS if name in features}

    class TokensToStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = encoder[0]

        def forward(self, *columns: torch.Tensor) -> Any:
            return self.first(dict(zip(example, columns, strict=True)))["token_embeddings"]

    graph = convert(TokensToStates().eval(), example)
    graph.outputs[0].get_tensor().set_names({_OUTPUT})
    path.parent.mkdir()
    openvino.save_model(graph, path, compress_to_fp16=False)


def _largest_difference(encoder: Any, path: Path) -> float:
    """Return the largest difference between components of vectors by way of a graph and of torch."""
    import openvino
    import torch

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    largest = 0.0
    for text in check_texts(encoder.max_seq_length or 0):
        features = encoder.preprocess([text])
        states = compiled({name: features[name].numpy() for name in _INPUTS if name in features})[_OUTPUT]
        found = {**features, "token_embeddings": torch.from_numpy(states)}
        with torch.inference_mode():
            for module in list(encoder)[1:]:
                found = module(found)
            difference = found["sentence_embedding"] - encoder(features)["sentence_embedding"]
        largest = max(largest, float(difference.abs().max()))
    return largest
