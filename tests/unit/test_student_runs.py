"""Students built from their teacher in whole runs: notes, record, card, resume, two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distill_helpers import HELD_OUT, TEXTS, build, small_run
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from training_children import Command, launch

from distill.layout import BEST
from distill.training.tracking import TrainProgress
from distill.training.train import resume

pytest_plugins = ["distill_fixtures"]

SPECS = ["compact:e=8,layers=2,vocab=106", "narrow:h=8,layers=2", "static:dim=8,vocab=110"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A corpus with a text of which a static student knows no token."""
    folder = tmp_path_factory.mktemp("students")
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join([*TEXTS, "漢字"]) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, folder / "cache")
    return folder / "cache"


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {
        f"{path.parent.name}/{name}": array
        for path in sorted(folder.rglob("*.safetensors"))
        for name, array in load_file(path).items()
    }


class Stop(Exception):  # noqa: N818 - stands for the end of a process
    pass


@pytest.mark.parametrize("spec", SPECS)
def test_a_student_learns_keeps_its_notes_and_resumes_with_the_same_weights(cache, tmp_path, spec):
    settings = {"student": spec, "epochs": 4, "eval_every": 2, "lr": 5e-3, "checkpoint_every": 2}
    seen: list[TrainProgress] = []
    run = small_run(cache, tmp_path / "run", **settings, on_progress=seen.append)
    start = small_run(cache, tmp_path / "start", student=spec, max_steps=1, lr=1e-9)
    assert run.result.final_loss < start.result.final_loss
    notes = [progress.text for progress in seen if progress.phase == "note"]
    assert notes == [*run.record.notes, "loss mse, learning rate 0.005"]
    assert "parameters" in notes[-2]
    assert any(note.startswith("vocabulary") for note in notes) == ("vocab" in spec)
    card = (run.best / "README.md").read_text(encoding="utf-8")
    assert all(text in card for text in (*run.record.notes, spec))
    vectors = SentenceTransformer(str(run.best), device="cpu").encode([*TEXTS[:5], "", "漢字"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)

    def stop(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == 3:
            raise Stop

    with pytest.raises(Stop):
        small_run(cache, tmp_path / "cut", **settings, on_progress=stop)
    resumed = resume(tmp_path / "cut", threads=1)
    assert (resumed.resumed, resumed.record.notes) == (2, run.record.notes)
    found, wanted = (arrays(one.best) for one in (resumed, run))
    assert found.keys() == wanted.keys()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


@pytest.mark.slow
def test_two_processes_train_a_static_student_as_one(cache, tmp_path):
    for processes in (1, 2):
        out = tmp_path / str(processes)
        command = [
            *("run", "--cache", str(cache), "--student", SPECS[2], "--out", str(out), "--epochs", "2"),
            *("--batch-size", "32", "--held-out", str(HELD_OUT), "--lr", "5e-3", "--mixed-precision", "no"),
            *("--device", "cpu", "--threads", "1"),
        ]
        ended = launch(Command(command), tmp_path / f"output-{processes}", processes)
        assert ended == [0] * processes, (tmp_path / f"output-{processes}" / "0.txt").read_text()
    one, two = (arrays(tmp_path / name / BEST) for name in "12")
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=0, atol=1e-4)
    start = small_run(cache, tmp_path / "start", student=SPECS[2], max_steps=1, lr=1e-9)
    moved = [np.abs(array - one[name]).max() for name, array in arrays(start.best).items()]
    assert min(moved) > 1e-3, "students that do not move prove nothing"


def test_without_its_head_a_student_is_saved_without_it(cache, tmp_path):
    found = small_run(cache, tmp_path / "bare", student="static:dim=8", head="linear", drop_head=True)
    names = [type(module).__name__ for module in SentenceTransformer(str(found.best), device="cpu")]
    assert names == ["StaticEmbedding", "Dense", "Normalize"]
