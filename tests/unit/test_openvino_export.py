"""Export to OpenVINO: the files that sentence-transformers looks for, with the model's own vectors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from student_teachers import make_teacher

import distill.export
from distill.errors import ExportError
from distill.export import OPENVINO_GRAPH, export_openvino
from distill.layout import KNOWLEDGE_BASE
from embedcache.teacher.classifier import ClassifierHead
from embedcache.testing import sentences

openvino = pytest.importorskip("openvino")


def test_the_folder_holds_a_graph_that_gives_the_models_vectors(tmp_path: Path, tiny_teacher: Path) -> None:
    result = export_openvino(tiny_teacher, tmp_path / "out")
    assert result.max_difference < 1e-5
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    wanted = model.encode(sentences(9))
    features = model.preprocess(sentences(9))
    # These names are those that optimum-intel asks for.
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = openvino.Core().compile_model(
        tmp_path / "out" / OPENVINO_GRAPH, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    states = graph({name: features[name].numpy() for name in names})["last_hidden_state"]
    found = model[2](model[1]({**features, "token_embeddings": torch.from_numpy(states)}))
    np.testing.assert_allclose(found["sentence_embedding"].numpy(), wanted, atol=1e-5)


def test_a_classifier_keeps_its_head_and_its_knowledge_base(tmp_path: Path, tiny_teacher: Path) -> None:
    source = Path(shutil.copytree(tiny_teacher, tmp_path / "model"))
    width = SentenceTransformer(str(source), device="cpu").get_embedding_dimension()
    head = ClassifierHead(("no", "yes"), np.ones((2, width), np.float32), np.zeros(2, np.float32))
    head.write(source)
    (source / KNOWLEDGE_BASE).mkdir()
    (source / KNOWLEDGE_BASE / "header.json").write_text("{}")
    out = export_openvino(source, tmp_path / "out").folder
    found = ClassifierHead.read(out)
    assert found is not None
    assert (found.labels, found.digest) == (head.labels, head.digest)
    assert (out / KNOWLEDGE_BASE / "header.json").is_file()


def test_a_failed_export_leaves_nothing(
    tmp_path: Path, tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_teacher("bert", tmp_path / "parts", None).save(str(tmp_path / "pooler"))
    with pytest.raises(ExportError, match="token embeddings"):
        export_openvino(tmp_path / "pooler", tmp_path / "out")
    monkeypatch.setattr(distill.export, "_openvino_difference", lambda *_: float("nan"))
    with pytest.raises(ExportError, match="differs"):
        export_openvino(tiny_teacher, tmp_path / "out")
    assert not (tmp_path / "out").exists()
