"""A static student goes every way that other students go: run, resume, evaluation, card, export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distill_helpers import HELD_OUT, TEXTS, build, small_run
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from training_children import Command, launch

from distill.errors import StudentError
from distill.evaluation import load_model
from distill.layout import BEST
from distill.training.run import resume
from distill.training.tracking import TrainProgress
from embedcache.testing import sentences

pytest_plugins = ["distill_fixtures"]

SPEC = "static:dim=8,vocab=110"


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {
        f"{path.parent.name}/{name}": array
        for path in sorted(folder.rglob("*.safetensors"))
        for name, array in load_file(path).items()
    }


def weights(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays(folder).items()}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A corpus with a text of which the student knows no token at all."""
    folder = tmp_path_factory.mktemp("static")
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join([*TEXTS, "漢字"]) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="module")
def run(cache: Path, tmp_path_factory: pytest.TempPathFactory):
    return small_run(cache, tmp_path_factory.mktemp("run") / "run", student=SPEC, epochs=6, lr=5e-3)


def test_it_learns(cache, run, tmp_path) -> None:
    losses = small_run(cache, tmp_path / "short", student=SPEC, max_steps=1, lr=1e-9)
    assert run.result.best_score is not None
    assert losses.result.best_score is not None
    assert run.result.best_score > losses.result.best_score


def test_what_is_saved_is_evaluated_as_it_is(run) -> None:
    texts = [*sentences(20, seed=9), "", "漢字"]
    plain = SentenceTransformer(str(run.best), device="cpu").encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(load_model(run.best).encode(texts), plain, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(plain, axis=1), 1, rtol=1e-5)


def test_the_card_and_the_record_tell_how_it_was_made(run) -> None:
    assert any(note.startswith("vocabulary: 110 of ") for note in run.notes)
    card = (run.best / "README.md").read_text(encoding="utf-8")
    assert SPEC in card
    assert "vocabulary: 110 of " in card
    # Said of a sample of the texts to train on.
    assert "tokens a text (before: " in card


class Stop(Exception):  # noqa: N818 - what stops a run here is no error
    """Stands for whatever ends a process."""


def test_a_run_that_stops_and_goes_on_ends_with_the_same_weights(cache, tmp_path) -> None:
    settings = {"student": SPEC, "epochs": 3, "lr": 5e-3, "eval_every": 4, "checkpoint_every": 5}
    whole = small_run(cache, tmp_path / "whole", **settings)

    def stop(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == 6:
            raise Stop

    with pytest.raises(Stop):
        small_run(cache, tmp_path / "broken", **settings, on_progress=stop)
    resumed = resume(tmp_path / "broken")
    assert resumed.resumed == 5
    assert resumed.result.steps == whole.result.steps
    assert weights(resumed.best) == weights(whole.best)


def test_two_processes_train_as_one(cache, tmp_path) -> None:
    for processes in (1, 2):
        out = tmp_path / str(processes)
        command = [
            *("run", "--cache", str(cache), "--student", SPEC, "--out", str(out), "--epochs", "2"),
            *("--batch-size", "32", "--held-out", str(HELD_OUT), "--lr", "5e-3", "--mixed-precision", "no"),
            *("--device", "cpu", "--threads", "1"),
        ]
        ended = launch(Command(command), tmp_path / f"output-{processes}", processes)
        assert ended == [0] * processes, (tmp_path / f"output-{processes}" / "0.txt").read_text()
    one, two = (arrays(tmp_path / name / BEST) for name in "12")
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=0, atol=1e-4)
    start = small_run(cache, tmp_path / "start", student=SPEC, max_steps=1, lr=1e-9)
    moved = [np.abs(array - one[name]).max() for name, array in arrays(start.best).items()]
    assert min(moved) > 1e-3, "students that do not move prove nothing"


def test_without_its_head_it_is_saved_without_it(cache, tmp_path) -> None:
    found = small_run(cache, tmp_path / "bare", student="static:dim=8", head="linear", drop_head=True)
    names = [type(module).__name__ for module in SentenceTransformer(str(found.best), device="cpu")]
    assert names == ["StaticEmbedding", "Dense", "Normalize"]


def test_a_length_is_refused(cache, tmp_path) -> None:
    with pytest.raises(StudentError, match=r"student\.max_length 12"):
        small_run(cache, tmp_path / "cut", student="static:dim=8", max_length=12)
