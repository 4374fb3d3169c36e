"""Compact students through the ONNX export: no code of our own is needed to open what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from distill.export import OnnxEncoder, export_onnx
from distill.students.build import build_student
from distill.students.registry import StudentOptions
from embedcache.teacher.load import Teacher, load_teacher, quiet_transformers
from embedcache.testing import sentences, tiny_encoder

pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
pytestmark = pytest.mark.integration

TEXTS = [*sentences(20, seed=8, longest=12), "", "cat " * 100]


def built(teacher: Teacher, spec: str) -> SentenceTransformer:
    def count(tokenizer) -> np.ndarray:
        return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)

    return build_student(spec, teacher.contract, lambda: teacher, StudentOptions(count_tokens=count))


def save(student: SentenceTransformer, folder: Path) -> Path:
    with quiet_transformers():
        student.save_pretrained(str(folder), create_model_card=False)
    return folder


def saved(teacher: Teacher, spec: str, folder: Path) -> Path:
    return save(built(teacher, spec), folder)


def kept(path: Path) -> list[np.ndarray]:
    """The matrices that a graph multiplies by in float32."""
    import onnx

    graph = onnx.load(str(path)).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return [weights[n.input[1]] for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]


def test_made_and_exported_twice_it_is_the_same_bytes(tmp_path):
    teacher = load_teacher(tiny_encoder(tmp_path / "tiny", dimension=32, layers=3), device="cpu")
    found = {}
    for name, spec in (("once", "vocab=90"), ("twice", "vocab=90"), ("other", "vocab=92")):
        source = saved(teacher, f"compact:e=16,layers=2,{spec}", tmp_path / name)
        out = export_onnx(source, tmp_path / f"{name}-out", int8=True).folder
        files = ("onnx/model.onnx", "onnx/model_int8.onnx", "onnx/encoder.json", "tokenizer.json")
        found[name] = {file: (out / file).read_bytes() for file in files}
    assert found["once"] == found["twice"]
    for file in ("onnx/model.onnx", "onnx/model_int8.onnx", "tokenizer.json"):
        assert found["once"][file] != found["other"][file]
    assert len(found["once"]["onnx/model_int8.onnx"]) < len(found["once"]["onnx/model.onnx"])


@pytest.mark.parametrize("vocab", ["", ",vocab=90"])
def test_a_compact_student_becomes_a_graph_with_the_same_vectors(tmp_path, vocab):
    teacher = load_teacher(tiny_encoder(tmp_path / "tiny", dimension=32, layers=3), device="cpu")
    source = saved(teacher, f"compact:e=16,layers=2{vocab}", tmp_path / "student")
    assert json.loads((source / "config.json").read_text())["model_type"] == "electra"
    result = export_onnx(source, tmp_path / "out", int8=True)
    wanted = load_teacher(source, device="cpu").model.encode(TEXTS)
    np.testing.assert_allclose(OnnxEncoder(result.folder).encode(TEXTS), wanted, atol=1e-4)
    assert result.model_int8_bytes is not None
    assert result.model_int8_bytes < result.model_bytes
    small = OnnxEncoder(result.folder, int8=True).encode(TEXTS)
    assert not np.array_equal(small, wanted)
    assert (small * wanted).sum(axis=1).mean() > 0.99


@pytest.mark.parametrize("neurons", [20, *(pytest.param(many, marks=pytest.mark.slow) for many in (32, 48))])
def test_a_neuron_that_is_too_large_keeps_its_matrix_and_no_other(tmp_path, neurons):
    """The width is 32: the feed-forward matrix is wide, square and tall, and the map from 16 is wide too."""
    import torch

    teacher = load_teacher(tiny_encoder(tmp_path / "tiny", dimension=32, layers=1), device="cpu")
    student = built(teacher, f"compact:e=16,layers=1,ff={neurons}")
    layer = student[0].model.encoder.layer[0]
    first, second = layer.intermediate.dense.weight, layer.output.dense.weight
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        first.normal_(std=32**-0.5, generator=draw)
        second.normal_(std=3 * neurons**-0.5, generator=draw)
    plain = export_onnx(save(student, tmp_path / "plain"), tmp_path / "plain-out", int8=True)
    assert plain.int8_setting == "all matrices in int8"
    assert kept(plain.folder / "onnx" / "model_int8.onnx") == []
    with torch.no_grad():
        first[0] *= 300
        second[:, 0] /= 300
    result = export_onnx(save(student, tmp_path / "large"), tmp_path / "out", int8=True)
    assert result.int8_setting == "second feed-forward matrices in float32"
    (found,) = kept(result.folder / "onnx" / "model_int8.onnx")
    np.testing.assert_array_equal(found, second.detach().numpy().T)
    wanted = student.encode(TEXTS)
    small = OnnxEncoder(result.folder, int8=True).encode(TEXTS)
    assert (small * wanted).sum(axis=1).mean() > 0.99
    assert not np.array_equal(small, wanted)


def test_the_token_table_is_int8_by_columns(tmp_path):
    import onnx

    teacher = load_teacher(tiny_encoder(tmp_path / "tiny", dimension=32, layers=1), device="cpu")
    student = built(teacher, "compact:e=16,layers=1")
    result = export_onnx(save(student, tmp_path / "student"), tmp_path / "out", int8=True)
    table = student[0].model.embeddings.word_embeddings.weight.detach().numpy()
    graph = onnx.load(str(result.folder / "onnx" / "model_int8.onnx")).graph
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    (found,) = [weight for weight in weights if weight.shape == table.shape]
    assert found.dtype == np.int8
    scale = np.abs(table).max(axis=0) / 127
    assert np.abs(found * scale - table).max() <= 0.501 * scale.max()
    assert any(weight.shape == scale.shape and np.allclose(weight, scale) for weight in weights)
