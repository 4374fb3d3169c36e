"""Runs from several teachers or with reduced targets: the student, the record, and its evaluation."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import yaml
from distill_helpers import TEXTS, small_run

import distill
from distill.data.combination import Combination
from distill.errors import ConfigError, DataError, StudentError
from embedcache.cache import Cache
from embedcache.errors import InputError

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(scope="module")
def combined(two_teachers, tmp_path_factory):
    """One run from two teachers of other widths, projected; not to be changed."""
    return small_run(
        two_teachers,
        tmp_path_factory.mktemp("runs") / "both",
        teacher=["tiny", "other"],
        teacher_weights=[1, 0.5],
        target_dim=12,
        student="layers:2",
        epochs=3,
        lr=3e-3,
    )


def test_the_student_is_as_wide_as_the_targets_and_cut_from_the_first_teacher(combined):
    from sentence_transformers import SentenceTransformer

    student = SentenceTransformer(str(combined.best), device="cpu")
    vectors = student.encode(TEXTS[:5])
    assert vectors.shape == (5, 12)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert student[0].auto_model.config.hidden_size == 16


def test_the_record_and_the_card_name_all_teachers(combined, two_teachers):
    record = json.loads((combined.folder / "run.json").read_text(encoding="utf-8"))
    cache = Cache(two_teachers)
    assert record["teacher"] == record["teachers"][0]
    assert [one["name"] for one in record["teachers"]] == ["tiny", "other"]
    assert [one["contract_id"] for one in record["teachers"]] == [
        cache.teacher(name).contract.id for name in ("tiny", "other")
    ]
    assert [one["share"] for one in record["teachers"]] == pytest.approx([2 / 3, 1 / 3])
    targets = record["targets"]
    assert (targets["dimension"], targets["projected_from"]) == (12, 24)
    assert 0.5 < targets["energy"] < 1
    assert (combined.folder / targets["file"]).is_file()
    written = yaml.safe_load((combined.folder / "config.yaml").read_text(encoding="utf-8"))
    assert written["teacher"] == ["tiny", "other"]
    card = (combined.best / "README.md").read_text(encoding="utf-8")
    assert "distilled from tiny and other" in card
    assert "tiny 0.6667, other 0.3333" in card
    assert "from 24 to 12 dimensions" in card


def cosine(found: dict) -> float:
    """Return the mean cosine of the student's vectors to the teacher's."""
    return found["models"][1]["figures"]["cosine_mean"]["value"]


def test_fidelity_is_to_the_combined_targets(combined, two_teachers):
    from sentence_transformers import SentenceTransformer

    result = distill.evaluate(combined.folder, suite="fidelity", device="cpu").to_json()
    assert result["teacher"] == "tiny + other"
    assert [model["name"] for model in result["models"]] == ["tiny + other", "both"]
    assert [model["dimension"] for model in result["models"]] == [12, 12]
    assert any("tiny (66.7%), other (33.3%), reduced from 24 to 12" in note for note in result["notes"])

    lines = (combined.folder / "held_out.txt").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines]
    cache = Cache(two_teachers)
    targets = Combination.load(combined.folder).apply(
        [cache.lookup(texts, teacher=name) for name in ("tiny", "other")]
    )
    student = SentenceTransformer(str(combined.best), device="cpu").encode(texts)
    expected = (student * targets).sum(axis=1).mean()
    assert cosine(result) == pytest.approx(expected, abs=1e-5)


def test_without_the_cache_the_teachers_themselves_are_combined(combined, two_teachers, tmp_path):
    cached = distill.evaluate(combined.folder, suite="fidelity", device="cpu").to_json()
    elsewhere = tmp_path / "both"
    shutil.copytree(combined.folder, elsewhere)
    record = json.loads((elsewhere / "run.json").read_text(encoding="utf-8"))
    (elsewhere / "run.json").write_text(json.dumps({**record, "cache": "gone"}), encoding="utf-8")
    live = distill.evaluate(elsewhere, suite="fidelity", device="cpu").to_json()
    assert cosine(live) == pytest.approx(cosine(cached), abs=1e-4)
    assert live["models"][0]["parameters"] > live["models"][1]["parameters"]
    given = distill.evaluate(elsewhere, suite="fidelity", device="cpu", cache=two_teachers).to_json()
    assert cosine(given) == cosine(cached)


def test_a_run_that_lost_its_targets_file_says_so(combined, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(combined.folder, broken)
    (broken / "targets.safetensors").unlink()
    with pytest.raises(DataError, match=r"targets\.safetensors.*teacher"):
        distill.evaluate(broken, suite="fidelity", device="cpu")


def test_weights_lead_to_other_students(two_teachers, tmp_path):
    a, b, same_as_a = (
        small_run(two_teachers, tmp_path / name, teacher=["tiny", "other"], teacher_weights=weights)
        for name, weights in (("a", [1, 3]), ("b", [3, 1]), ("c", [2, 6]))
    )
    name = "model.safetensors"
    assert (a.best / name).read_bytes() == (same_as_a.best / name).read_bytes()
    assert (a.best / name).read_bytes() != (b.best / name).read_bytes()
    record = json.loads((a.folder / "run.json").read_text(encoding="utf-8"))
    assert record["targets"] == {
        "dimension": 24,
        "file": "targets.safetensors",
        "projected_from": None,
        "energy": None,
    }


def test_one_teacher_is_projected_on_request(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run", target_dim=6)
    result = distill.evaluate(run.folder, suite="fidelity", device="cpu").to_json()
    assert result["teacher"] == "tiny"
    assert [model["dimension"] for model in result["models"]] == [6, 6]
    assert -1 <= cosine(result) <= 1


@pytest.mark.parametrize(
    "bad",
    [{"target_dim": 25}, {"teacher": ["tiny", "third"]}, {"head": "none"}, {"where": "row < 0"}],
)
def test_an_impossible_run_is_refused_before_anything_is_written(two_teachers, tmp_path, bad):
    with pytest.raises((ConfigError, StudentError, DataError, InputError)):
        small_run(two_teachers, tmp_path / "new", **{"teacher": ["tiny", "other"], **bad})
    assert not (tmp_path / "new").exists()
