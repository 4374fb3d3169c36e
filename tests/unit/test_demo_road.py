"""The demo, end to end, with a tiny teacher and a small tree of documentation."""

from __future__ import annotations

import json

import pytest
from distill_helpers import TEXTS

from distill.demo import road
from distill.demo.harvest import harvest_sentences
from distill.demo.road import run_demo
from distill.errors import DataError
from embedcache.cache import Cache

pytest_plugins = ["distill_fixtures"]


@pytest.fixture
def documentation(tmp_path, monkeypatch):
    """A small tree of documentation, in the place of what is on this machine."""
    root = tmp_path / "documentation"
    root.mkdir()
    sentences = [f"The {' '.join(text.split()[:-1])} in the house." for text in TEXTS]
    (root / "guide.md").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    asked = []

    def harvest(minimum, maximum):
        asked.append((minimum, maximum))
        return harvest_sentences(100, maximum, roots=[root])

    monkeypatch.setattr(road, "harvest_sentences", harvest)
    return root, asked


def test_the_demo_goes_from_sentences_to_a_student_and_says_what_to_type_next(
    documentation, tmp_path, teacher_folder, capsys
):
    out = tmp_path / "demo"
    trained = run_demo(out, teacher=str(teacher_folder), student="layers:1", sentences=1000, epochs=1)
    printed = capsys.readouterr().out
    sentences = (out / "documentation.txt").read_text(encoding="utf-8").splitlines()
    assert len(sentences) > 100
    assert len(set(sentences)) == len(sentences)
    assert trained.folder == out / "run"
    assert (trained.best / "model.safetensors").exists()
    assert json.loads((trained.folder / "run.json").read_text())["corpus"]["rows"] == len(sentences)
    flat = " ".join(printed.split())
    for part in (
        "tiny",
        "fidelity",
        "tiny (teacher)",
        "100.00 %",
        str(trained.best),
        "distill export",
        "distill run --cache",
        "embedcache build",
    ):
        assert part in flat

    again = run_demo(out, teacher=str(teacher_folder), student="layers:2", sentences=1000, epochs=1)
    assert again.parameters > trained.parameters
    (cached,) = Cache(out / "cache").teachers()
    assert cached.name == "tiny"


def test_the_demo_asks_for_enough_sentences(documentation, tmp_path, teacher_folder, monkeypatch):
    _, asked = documentation

    def stop(corpus, **keywords):
        raise DataError("enough for this test")

    monkeypatch.setattr(road.embedcache, "build", stop)
    for count in (24_000, 1500):
        with pytest.raises(DataError, match="enough"):
            run_demo(
                tmp_path / "demo", teacher=str(teacher_folder), student="layers:1", sentences=count, epochs=1
            )
    assert asked == [(20_000, 24_000), (1500, 1500)]


def test_too_little_documentation_is_one_clear_error(tmp_path, teacher_folder, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(
        road,
        "harvest_sentences",
        lambda minimum, maximum: harvest_sentences(minimum, maximum, roots=[tmp_path / "empty"]),
    )
    with pytest.raises(DataError, match="found 0 distinct English sentences"):
        run_demo(tmp_path / "demo", teacher=str(teacher_folder), student="layers:1", sentences=1000, epochs=1)
    assert not (tmp_path / "demo" / "cache").exists()
