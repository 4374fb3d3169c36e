"""A static model becomes a graph of padded ids, which gives the same vectors without torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from distill.evaluation.files import read_pairs
from distill.evaluation.models import open_model
from distill.export import export_onnx
from distill.onnx_encoder import OnnxEncoder
from distill.students.registry import StudentOptions
from distill.students.static import build_static
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import FastTokenizer
from embedcache.testing import sentences

pytestmark = pytest.mark.integration
pytest.importorskip("onnxruntime")

MODELS = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models"))
DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
TEXTS = [*sentences(40, seed=4), "", "漢字", "the cat " * 300]


@pytest.fixture(scope="module")
def saved(loaded_teacher: Teacher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "student"
    model = build_static("static", loaded_teacher, StudentOptions(), dim=8, vocab=None)
    model.append(Normalize())
    model.save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def exported(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "onnx"
    found = export_onnx(saved, out, int8=True)
    assert found.max_difference < 1e-5
    assert found.mean_cosine_int8 is not None
    assert found.mean_cosine_int8 > 0.99
    return out


def test_the_graph_gives_the_models_vectors(saved: Path, exported: Path) -> None:
    wanted = SentenceTransformer(str(saved), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(OnnxEncoder(exported).encode(TEXTS), wanted, atol=1e-5)
    np.testing.assert_allclose(OnnxEncoder(exported).encode([""]), wanted[40:41], atol=1e-5)
    np.testing.assert_allclose(open_model(exported).encode(TEXTS), wanted, atol=1e-5)
    again = SentenceTransformer(str(exported), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(again, wanted, atol=1e-6)


def test_in_int8_a_text_has_one_vector_whatever_stands_beside_it(exported: Path) -> None:
    small = OnnxEncoder(exported, int8=True)
    alone = np.concatenate([small.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(small.encode(TEXTS), alone, atol=1e-6)


def test_the_recipe_needs_no_padding_token(exported: Path) -> None:
    recipe = json.loads((exported / "onnx" / "encoder.json").read_text(encoding="utf-8"))
    assert recipe["padding"]["pad_id"] == 0
    assert recipe["truncation"]["max_length"] == 0
    assert recipe["outputs"] == ["sentence_embedding"]


def test_the_same_model_gives_the_same_graph(saved: Path, exported: Path, tmp_path: Path) -> None:
    export_onnx(saved, tmp_path / "again")
    one, other = (folder / "onnx" / "model.onnx" for folder in (exported, tmp_path / "again"))
    assert one.read_bytes() == other.read_bytes()


def test_in_int8_real_sentences_stay_where_they_are(tmp_path: Path) -> None:
    """Of vectors that have something to lose: a real teacher's, over real sentences."""
    if not (MODELS / "minilm-l6").is_dir() or not (DATA / "stsb_dev.tsv").is_file():
        pytest.skip("needs minilm-l6 in DISTILL_MODELS and stsb_dev.tsv in DISTILL_DATA")
    pairs = read_pairs(DATA / "stsb_dev.tsv", "stsb_dev")
    texts = [*pairs.left[:300], *pairs.right[:300]]

    def count(tokenizer: FastTokenizer) -> np.ndarray:
        return np.bincount(tokenizer(texts).ids, minlength=tokenizer.vocabulary_size)

    teacher = load_teacher(MODELS / "minilm-l6", device="cpu")
    model = build_static("static", teacher, StudentOptions(count_tokens=count), dim=128, vocab=3000)
    model.append(Normalize())
    model.save(str(tmp_path / "student"), create_model_card=False)
    found = export_onnx(tmp_path / "student", tmp_path / "out", int8=True)
    assert found.model_int8_bytes is not None
    # A quarter, and the matrix behind the table.
    assert found.model_int8_bytes < 0.25 * found.model_bytes + 4 * 384 * 128
    whole, small = (OnnxEncoder(tmp_path / "out", int8=int8).encode(texts) for int8 in (False, True))
    assert not np.array_equal(whole, small)
    cosines = (whole * small).sum(axis=1)
    assert cosines.mean() > 0.9995
    assert cosines.min() > 0.995
    ranks = [spearmanr((v[:300] * v[300:]).sum(axis=1), pairs.scores[:300]).statistic for v in (whole, small)]
    assert ranks[0] > 0.5
    assert abs(ranks[0] - ranks[1]) < 0.01


def test_tokens_that_the_tokenizer_would_add_are_left_out(loaded_teacher: Teacher, tmp_path: Path) -> None:
    """Static models of other makers keep a frame in their tokenizer that they never use."""
    backend = loaded_teacher.model.tokenizer.backend_tokenizer
    framed = type(backend).from_str(backend.to_str())
    framed.no_truncation()
    model = SentenceTransformer(modules=[StaticEmbedding(framed, embedding_dim=4)], device="cpu")
    model.save(str(tmp_path / "framed"), create_model_card=False)
    export_onnx(tmp_path / "framed", tmp_path / "out")
    wanted = model.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(OnnxEncoder(tmp_path / "out").encode(TEXTS), wanted, atol=1e-5)
