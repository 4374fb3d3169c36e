"""Several processes train together as one does on the same batches; killed ones are resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_helpers import HELD_OUT, TEXTS, build, metrics
from safetensors.torch import load_file
from streaming_helpers import pushed
from training_children import KILLED, Command, launch

from distill.errors import CheckpointError
from distill.layout import BEST, CHECKPOINT, LOCK
from distill.training.train import resume
from embedcache.cache import Cache

pytest_plugins = ["distill_fixtures"]

# With 129 rows in batches of 32, the last step of an epoch has one row: fewer than there are processes.
ROWS, BATCH = 129, 32
STEPS_AN_EPOCH = 5
LOSSES = {
    "mse": ["--loss", "mse"],
    "ckd": ["--loss", "ckd", "--set", "loss.queue=70"],
    "random": ["--loss", "ckd", "--set", "loss.queue=70", "--order", "random"],
    "rkd": ["--loss", "rkd"],
    "congen": ["--loss", "congen", "--set", "loss.queue=50"],
    "code": ["--loss", "congen", "--set", "loss.queue=40", "--set", "loss.variant=code"],
    "simtde": ["--loss", "simtde"],
    "vocabulary": ["--loss", "simtde", "--set", "loss.over=vocabulary"],
    "hidden": [
        "--loss",
        "simtde",
        "--set",
        "loss.hidden=1",
        "--set",
        "loss.scale=relative",
        "--teacher",
        "online",
    ],
    "lmx-kd": ["--loss", "lmx-kd", "--teacher", "online"],
}
STUDENTS = {
    "simtde": "compact:e=8,layers=2",
    "vocabulary": "compact:e=8,layers=2",
    "hidden": "compact:e=8,layers=2",
    "lmx-kd": "narrow:h=8,layers=2",
}


@pytest.fixture(scope="module")
def views_cache(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache whose corpus has a view beside the original, and that holds the teacher's token embeddings."""
    folder = tmp_path_factory.mktemp("views")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(
        folder / "texts.txt",
        teacher_folder,
        folder / "cache",
        views=["delete-words"],
        token_embeddings=True,
        shard_rows=16,
    )
    return folder / "cache"


def arguments(cache: Path | str, student: str | Path, out: Path, epochs: int, *more: str) -> list[str]:
    return [
        *("run", "--cache", str(cache), "--student", str(student), "--out", str(out)),
        *("--epochs", str(epochs), "--batch-size", str(BATCH), "--held-out", str(HELD_OUT)),
        *("--limit", str(ROWS + HELD_OUT), "--mixed-precision", "no", "--device", "cpu", "--threads", "1"),
        *("--set", "tracking.log_every=1", "--eval-every", "4", "--lr", "3e-3"),
        *more,
    ]


def losses(folder: Path) -> np.ndarray:
    return np.array([line["loss"] for line in metrics(folder) if "loss" in line])


def student_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / BEST / "model.safetensors")


def assert_two_are_one(
    cache: Path | str, student: str | Path, folder: Path, epochs: int, more: list[str]
) -> None:
    for processes in (1, 2):
        command = Command(arguments(cache, student, folder / str(processes), epochs, *more))
        ended = launch(command, folder / f"output-{processes}", processes)
        assert ended == [0] * processes, (folder / f"output-{processes}" / "0.txt").read_text()
    one, two = losses(folder / "1"), losses(folder / "2")
    assert len(one) == len(two) >= min(50, epochs * STEPS_AN_EPOCH)
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)
    # Relations are those of several rows: of the one row that is left over in an epoch, rkd is zero.
    moving = one[one > 0]
    assert len(np.unique(moving)) == len(moving) >= len(one) - epochs, "losses that do not move prove nothing"
    results = [json.loads((folder / name / "run.json").read_text())["result"] for name in "12"]
    assert results[0]["best_step"] == results[1]["best_step"]
    assert results[0]["best_score"] == pytest.approx(results[1]["best_score"], abs=1e-4)
    for name, tensor in student_of(folder / "1").items():
        # Attention does not depend on the keys' bias: its gradient is rounding alone, which AdamW magnifies.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(student_of(folder / "2")[name], tensor, rtol=0, atol=1e-4)
    # Only the first writes and prints; torch itself warns where every parameter has a gradient.
    printed = (folder / "output-2" / "1.txt").read_text().splitlines()
    assert [line for line in printed if "find_unused_parameters=True" not in line] == []
    assert "Check it:" in (folder / "output-2" / "0.txt").read_text()
    assert {path.name for path in (folder / "2").glob(".*")} <= {".lock"}


# The others, over fifty steps below.
@pytest.mark.parametrize("loss", ["ckd", pytest.param("hidden", marks=pytest.mark.slow)])
def test_two_processes_train_as_one(views_cache, tmp_path, loss):
    assert_two_are_one(views_cache, STUDENTS.get(loss, "layers:1"), tmp_path, 2, LOSSES[loss])


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_two_processes_train_as_one_over_fifty_steps(views_cache, tmp_path, loss):
    # The code's queue takes rows out of the training, which leaves three steps an epoch.
    student, epochs = STUDENTS.get(loss, "layers:1"), 17 if loss == "code" else 10
    assert_two_are_one(views_cache, student, tmp_path, epochs, LOSSES[loss])


@pytest.mark.slow
def test_two_processes_train_a_student_with_a_head(views_cache, tmp_path, second_folder):
    """The other encoder has a pooler too, which gets no gradients."""
    more = [*LOSSES["ckd"], "--head", "tanh", "--drop-head"]
    assert_two_are_one(views_cache, second_folder, tmp_path, 4, more)


@pytest.mark.slow
def test_one_of_two_processes_tokenises_for_both(own_cache, teacher, tmp_path):
    """Once to count tokens for the student, and once with the tokenizer that it got."""
    student = f"compact:e=8,layers=1,vocab={len(teacher.model.tokenizer) - 8}"
    command = Command(arguments(own_cache, student, tmp_path / "run", 1), slow_write="tokens.json")
    assert launch(command, tmp_path / "output", 2) == [0, 0], (tmp_path / "output" / "0.txt").read_text()
    assert len(list((own_cache / "derived" / "tokens").iterdir())) == 2
    assert sum(len(mark.read_text()) for mark in (tmp_path / "output").glob("*.wrote")) == 2


@pytest.mark.slow
def test_two_processes_resume_a_run_of_two_and_one_does_not(views_cache, tmp_path):
    more = [*LOSSES["congen"], "--set", "student.dropout=0.2", "--checkpoint-every", "3"]
    for name, kill in (("whole", None), ("run", 8)):
        command = Command(arguments(views_cache, "layers:1", tmp_path / name, 2, *more), kill_at_step=kill)
        ended = launch(command, tmp_path / f"output-{name}", 2)
        # The other one is ended by the launcher, or ends because it hears no more of the first.
        assert ended == [0, 0] if kill is None else ended[0] == KILLED != 0 != ended[1]
    with pytest.raises(CheckpointError, match="written by 2 processes and this run has 1: start it with 2"):
        resume(tmp_path / "run")
    again = launch(Command(["run", "--resume", str(tmp_path / "run")]), tmp_path / "output-again", 2)
    assert again == [0, 0], (tmp_path / "output-again" / "0.txt").read_text()
    assert "resumed from step 6" in (tmp_path / "output-again" / "0.txt").read_text()
    expected = student_of(tmp_path / "whole")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in student_of(tmp_path / "run").items())
    np.testing.assert_array_equal(losses(tmp_path / "run"), losses(tmp_path / "whole"))


def limited(cache: Path, mirror: Path, teacher: Path) -> list[str]:
    """Return the options of a run in three windows."""
    opened = Cache(cache)
    sizes = [shard.bytes for shard in opened.store(opened.teacher().contract).shards]
    few = ["--cache-limit", str(sum(sizes) - 1), "--set", "loss.queue=30", "--loss", "congen"]
    return [*few, "--mirror", str(mirror), "--teacher-model", str(teacher)]


@pytest.fixture(scope="module")
def remote(views_cache, tmp_path_factory):
    """The cache with views, in a folder that is a remote."""
    return pushed(views_cache, tmp_path_factory.mktemp("remote") / "team")


@pytest.mark.slow
def test_two_processes_train_as_one_through_one_mirror(views_cache, remote, tmp_path, teacher_folder):
    more = limited(views_cache, tmp_path / "mirror", teacher_folder)
    assert_two_are_one(remote, "layers:1", tmp_path, 2, more)


@pytest.fixture(scope="module")
def windowed(views_cache, remote, teacher_folder):
    """Returns the arguments of a run in three windows that draws random numbers."""

    def of(out: Path) -> list[str]:
        more = limited(views_cache, out.parent / "mirror", teacher_folder)
        return arguments(remote, "layers:1", out, 2, *more, "--set", "student.dropout=0.2")

    return of


@pytest.fixture(scope="module")
def whole_of_two(windowed, tmp_path_factory):
    """A run of two processes in windows that nothing happens to."""
    folder = tmp_path_factory.mktemp("two")
    command = Command(windowed(folder / "run"))
    assert launch(command, folder / "output", 2) == [0, 0], (folder / "output" / "0.txt").read_text()
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "step"), [((0, 1), 1), ((1, 3), STEPS_AN_EPOCH)])
def test_two_processes_write_a_checkpoint_where_a_remote_fails_one_of_them(
    windowed, tmp_path, whole_of_two, lost, step
):
    """There are three windows in an epoch."""
    command = Command(windowed(tmp_path / "run"), lose_remote=lost)
    ended = launch(command, tmp_path / "output", 2)
    printed = (tmp_path / "output" / "0.txt").read_text()
    assert ended[0] == 1, printed
    assert ended[1] != 0
    assert "checkpoint with 'distill run --resume" in printed
    command = Command(["run", "--resume", str(tmp_path / "run")])
    again = launch(command, tmp_path / "output-again", 2)
    assert again == [0, 0], (tmp_path / "output-again" / "0.txt").read_text()
    assert f"resumed from step {step}" in (tmp_path / "output-again" / "0.txt").read_text()
    expected = student_of(whole_of_two)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in student_of(tmp_path / "run").items())


KILLS = [
    pytest.param({"kill_at_step": 4}, id="step-4"),
    # Each checkpoint takes five steps: create, written, synced, renamed, recorded.
    *(pytest.param({"kill_at_write": (CHECKPOINT, n)}, id=f"write-{n}") for n in range(10)),
]


@pytest.fixture(scope="module")
def whole(views_cache, tmp_path_factory):
    """The run of ``test_killed_for_real`` that is not killed."""
    folder = tmp_path_factory.mktemp("whole")
    command = Command(arguments(views_cache, "layers:1", folder / "run", 2, *LOSSES["ckd"]))
    assert launch(command, folder / "output") == [0]
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS)
def test_killed_for_real(views_cache, tmp_path, whole, kill):
    folder = tmp_path / "run"
    more = [*LOSSES["ckd"], "--checkpoint-every", "3"]
    command = Command(arguments(views_cache, "layers:1", folder, 2, *more), **kill)
    assert launch(command, tmp_path / "output") == [KILLED]
    assert (folder / LOCK).exists(), "it was not killed while it trained"
    resume(folder)
    np.testing.assert_array_equal(losses(folder), losses(whole))
    expected = student_of(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in student_of(folder).items())
    assert {path.name for path in folder.glob(".*")} <= {".lock"}
    assert not (folder / CHECKPOINT).exists()
