"""Compact students through the ONNX export: no code of our own is needed to open what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distill.export import OnnxEncoder, export_onnx
from distill.students.student import build_student
from embedcache.teacher.load import Teacher, load_teacher, quiet_transformers
from embedcache.testing import sentences, tiny_encoder

pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
pytestmark = pytest.mark.integration

TEXTS = [*sentences(20, seed=8, longest=12), "", "cat " * 100]


def saved(teacher: Teacher, spec: str, folder: Path) -> Path:
    def count(tokenizer) -> np.ndarray:
        return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)

    student = build_student(spec, teacher.contract, lambda: teacher, count_tokens=count)
    with quiet_transformers():
        student.save_pretrained(str(folder), create_model_card=False)
    return folder


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
