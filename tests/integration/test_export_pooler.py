"""Exports of models whose sentence vector comes out of the transformer itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distill.errors import ExportError
from distill.export import OnnxEncoder, export_onnx
from embedcache.teacher.load import load_teacher, quiet_transformers
from embedcache.testing import sentences, tiny_encoder

pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
pytestmark = pytest.mark.integration


@pytest.fixture
def saved(tmp_path) -> Path:
    """A student with a pooler, as a run saves it."""
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    with quiet_transformers():
        load_teacher(plain, pooling="pooler", device="cpu").model.save(
            str(tmp_path / "model"), create_model_card=False
        )
    return tmp_path / "model"


def test_a_model_with_a_pooler_is_exported_without_token_states(saved, tmp_path):
    texts = sentences(12)
    result = export_onnx(saved, tmp_path / "out")
    encoder = OnnxEncoder(result.folder)
    wanted = load_teacher(saved, device="cpu").model.encode(texts)
    np.testing.assert_allclose(encoder.encode(texts), wanted, atol=1e-4)
    assert np.abs(wanted - wanted[::-1]).max() > 0.1
    assert set(encoder.run(texts)) == {"sentence_embedding"}
    recipe = json.loads((result.folder / "onnx" / "encoder.json").read_text(encoding="utf-8"))
    assert recipe["outputs"] == ["sentence_embedding"]


def test_what_the_exporter_fails_at_is_named_and_not_its_banner(saved, tmp_path, monkeypatch):
    import torch

    def fail(model, arguments, **options):
        try:
            raise KeyError("\x1b[31mthe cause\x1b[0m")
        except KeyError as error:
            raise torch.onnx.OnnxExporterError("Failed to export. \x1b[96mThis is step 1/3\x1b[0m") from error

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ExportError) as caught:
        export_onnx(saved, tmp_path / "out")
    assert "KeyError" in str(caught.value)
    assert "the cause" in str(caught.value)
    assert "step 1/3" not in str(caught.value)
    assert not (tmp_path / "out").exists()
