"""Teachers in OpenVINO: the vectors of torch, a clear refusal, and repair in the backend of the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flat_build import build
from pair_helpers import classifier_folder, joined
from student_teachers import make_teacher

from embedcache.errors import ContractMismatchError, InputError, MissingExtraError, TeacherError
from embedcache.live import Computing
from embedcache.repair import repair
from embedcache.teacher import openvino_model
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_teacher, logits_teacher
from embedcache.teacher.openvino_model import OPENVINO, takes_openvino
from embedcache.testing import sentences

pytest.importorskip("openvino")

TEXTS = [*sentences(40), "the", "  blanks at   the ends  ", "the red cat " * 40, *joined(3)]
PROMPT = "the old road: "


def encoder(teacher: Teacher, **settings: Any) -> Encoder:
    return Encoder(teacher, **{"compute_dtype": "float32", "backend": OPENVINO, **settings})


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    # MPNet looks relative positions up.
    make_teacher("mpnet", tmp_path / "parts", "mean").save(str(tmp_path / "model"))
    teacher = load_teacher(tmp_path / "model", device="cpu")
    texts = TEXTS[:-3]
    found, wanted = encoder(teacher).encode(texts), Encoder(teacher, compute_dtype="float32").encode(texts)
    np.testing.assert_allclose(found.vectors, teacher.model.encode(texts), atol=1e-5)
    assert np.array_equal(found.tokens, wanted.tokens)
    assert np.array_equal(found.truncated, wanted.truncated)


def test_prompts_pairs_truncated_dimensions_and_logits(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "model")
    teacher = load_teacher(folder, device="cpu", prompt=PROMPT, normalize=True, truncate_dim=8)
    teacher.model[1].include_prompt = False
    for one in (teacher, logits_teacher(teacher)):
        found, wanted = encoder(one), Encoder(one, compute_dtype="float32")
        np.testing.assert_allclose(found.encode(TEXTS).vectors, wanted.encode(TEXTS).vectors, atol=1e-5)
        assert found.provenance.items() >= {"backend": "openvino", "compute_dtype": "float32"}.items()
        assert "backend" not in wanted.provenance


@pytest.mark.slow
def test_repair_takes_the_backend_of_the_vectors(tmp_path: Path, tiny_teacher: Path) -> None:
    settings = {"compute_dtype": "float32", "device": "cpu", "threads": 1, "backend": OPENVINO}
    cache = build(sentences(30), teacher=tiny_teacher, cache=tmp_path / "cache", **settings)
    (path,) = cache.folder.glob("teachers/*/shards/*.arrow")
    data = path.read_bytes()
    path.write_bytes(data[:-99] + b"?!" + data[-97:])
    assert repair(cache.folder, computing=Computing(device="cpu", threads=1)).left == []
    assert path.read_bytes() == data


def test_quantized_vectors_are_those_of_another_contract(tmp_path: Path, tiny_teacher: Path) -> None:
    settings = {"teacher": tiny_teacher, "cache": tmp_path / "cache", "device": "cpu"}
    cache = build(sentences(40), **settings, quantize="int8", codec="float32")
    assert cache.result is not None
    assert cache.result.quantized is not None
    mean, worst = cache.result.quantized
    assert 0.9 < worst <= mean < 1 - 1e-6
    wanted = load_teacher(tiny_teacher, device="cpu").model.encode(sentences(40))
    cosines = (cache.lookup(sentences(40)) * wanted).sum(axis=1)
    assert cosines.min() == pytest.approx(worst, abs=1e-4)
    with pytest.raises(ContractMismatchError, match="quantization"):
        build(sentences(30), **settings)
    with pytest.raises(InputError, match="backend torch"):
        build(sentences(30), **settings, quantize="int8", backend="torch")


def test_auto_takes_it_for_large_models_in_float32_on_a_cpu(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded_teacher.model
    assert not takes_openvino("auto", model, torch.float32)
    monkeypatch.setattr(openvino_model, "_LEAST_PARAMETERS", 1000)
    assert takes_openvino("auto", model, torch.float32)
    assert not takes_openvino("auto", model, torch.bfloat16)
    monkeypatch.setattr(openvino_model, "has_openvino", lambda: False)
    assert not takes_openvino("auto", model, torch.float32)


def test_a_backend_that_cannot_be_had_is_refused(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="bfloat16"):
        encoder(loaded_teacher, compute_dtype="bfloat16")
    with pytest.raises(InputError, match="onnx"):
        encoder(loaded_teacher, backend="onnx")
    monkeypatch.setattr(openvino_model, "has_openvino", lambda: False)
    with pytest.raises(MissingExtraError, match=r"embedcache-distill\[openvino\]"):
        encoder(loaded_teacher)


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_a_model_that_does_not_convert_runs_in_torch_unless_openvino_is_asked_for(
    fault: str, loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_model, "_LEAST_PARAMETERS", 1000)
    forward = type(loaded_teacher.model[1]).forward

    def broken(self: Any, features: dict[str, Any]) -> Any:
        if fault == "fails" and torch.jit.is_tracing():
            raise RuntimeError("no such operator")
        found = forward(self, features)
        if fault == "differs" and not torch.jit.is_tracing():
            found["sentence_embedding"] = found["sentence_embedding"].flip(1)
        return found

    monkeypatch.setattr(type(loaded_teacher.model[1]), "forward", broken)
    if fault == "fails":
        with pytest.raises(TeacherError, match="convert"):
            encoder(loaded_teacher)
    assert "backend" not in encoder(loaded_teacher, backend="auto").provenance
