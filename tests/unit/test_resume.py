"""A run that is interrupted and resumed ends with the same student as an uninterrupted one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_helpers import TEXTS, build, metrics, small_run
from safetensors.torch import load_file

from distill.errors import CheckpointError, ConfigError
from distill.layout import BEST, CHECKPOINT, CONFIG, LOCK, METRICS, RECORD
from distill.training.folder import locked
from distill.training.run import Run
from distill.training.tracking import TrainProgress, train_progress
from distill.training.train import resume
from embedcache.testing import tiny_encoder
from embedcache.views.plan import ViewOptions

pytest_plugins = ["distill_fixtures"]

# Everything that a run can remember: a learned temperature, a queue that wraps around, dropout, a head, an
# optimiser, a schedule, the order of rows, a best checkpoint that is not the last.
CKD: dict[str, Any] = {
    "loss": "ckd",
    "queue": 50,
    "head": "tanh",
    "student": {"spec": "layers:1", "dropout": 0.2},
    "epochs": 2,
    "eval_every": 2,
    "lr": 0.02,
    "tracking": {"log_every": 3},
    "limit": 120,
}
CONGEN = {**CKD, "loss": "congen", "queue": 40, "variant": "paper"}
CODE = {**CONGEN, "variant": "code", "limit": 160}
SEED = {**CKD, "loss": "seed", "queue": 40}
RANDOM = {**CKD, "order": "random"}
STEPS = 6
RATES = {"rows_per_second"}
TIMES = {"seconds", "rows_per_second", "waited"}


class Stop(Exception):  # noqa: N818 - it is not an error
    """Stand-in for the end of a process."""


def stop_at(step: int):
    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == step:
            raise Stop

    return look


def interrupted(cache: Path, out: Path, step: int, **settings: Any) -> Path:
    with pytest.raises(Stop):
        small_run(cache, out, **settings, on_progress=stop_at(step))
    return out


def student(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted((folder / BEST).rglob("model.safetensors"))
    return {
        f"{path.parent.name}.{name}": tensor for path in files for name, tensor in load_file(path).items()
    }


def lines(folder: Path) -> list[dict[str, float]]:
    return [{key: line[key] for key in line.keys() - RATES} for line in metrics(folder)]


def result(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.result.model_dump().items() if key not in TIMES}


def assert_alike(run: Run, whole: Run) -> None:
    found, expected = student(run.folder), student(whole.folder)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    assert lines(run.folder) == lines(whole.folder)
    assert result(run) == result(whole)
    record = json.loads((run.folder / RECORD).read_text(encoding="utf-8"))["result"]
    assert {key: record[key] for key in record.keys() - TIMES} == result(whole)
    held_out = [(one.folder / "held_out.txt").read_bytes() for one in (run, whole)]
    assert held_out[0] == held_out[1]
    left = {path.name for path in run.folder.iterdir()}
    assert left == {path.name for path in whole.folder.iterdir()}


@pytest.fixture(scope="module")
def views_cache(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache whose corpus has two views beside the original."""
    folder = tmp_path_factory.mktemp("views")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(folder / "texts.txt", teacher_folder, folder / "cache", views=["crop", "delete-words"])
    return folder / "cache"


@pytest.fixture(scope="module")
def whole_runs(views_cache: Path, two_teachers: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives the uninterrupted run of some settings."""
    runs: dict[str, Run] = {}

    def get(settings: dict[str, Any], cache: Path | None = None) -> Run:
        key = repr((sorted(settings.items(), key=str), cache))
        if key not in runs:
            out = tmp_path_factory.mktemp("whole") / "run"
            runs[key] = small_run(cache or views_cache, out, **settings)
            assert runs[key].result.total_steps == STEPS
        return runs[key]

    return get


@pytest.mark.parametrize(
    ("settings", "every", "stops"),
    [
        pytest.param(CKD, 1, range(1, STEPS + 1), id="ckd"),
        pytest.param(CONGEN, 3, (2, 5), id="congen"),
        pytest.param(CODE, 2, (4, 5), id="code"),
        pytest.param(RANDOM, 1, (2, 5), id="random"),
        pytest.param(CONGEN, 1, range(1, STEPS + 1), id="congen-every-step", marks=pytest.mark.slow),
        pytest.param(CODE, 1, range(1, STEPS + 1), id="code-every-step", marks=pytest.mark.slow),
    ],
)
def test_resumed_from_any_step_it_is_the_same_run(views_cache, tmp_path, whole_runs, settings, every, stops):
    whole = whole_runs(settings)
    for step in stops:
        folder = interrupted(views_cache, tmp_path / f"at{step}", step, **settings, checkpoint_every=every)
        saved = (step - 1) // every * every
        assert (folder / CHECKPOINT).exists() == (saved > 0)
        run = resume(folder)
        assert run.resumed == saved
        assert_alike(run, whole)
    assert len(student(whole.folder)) > 10
    assert any("loss" in line for line in lines(whole.folder))


def test_random_rows_train_another_student(whole_runs):
    first, other = (student(whole_runs(settings).folder) for settings in (CKD, RANDOM))
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_saved_state_matters(views_cache, tmp_path, whole_runs):
    """Without one part of a checkpoint the weights are others, so that the tests above prove something."""
    from distill.training import trainer as trainer_module

    whole = whole_runs(CKD)
    for number, forgotten in enumerate(("restore_random", "restore_optimizer")):
        folder = interrupted(views_cache, tmp_path / str(number), 4, **CKD, checkpoint_every=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer_module, forgotten, lambda *arguments: None)
            run = resume(folder)
        found, expected = student(run.folder), student(whole.folder)
        assert any(not torch.equal(found[name], expected[name]) for name in found), forgotten
    folder = interrupted(views_cache, tmp_path / "queue", 4, **CKD, checkpoint_every=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distill.losses.queue.TeacherQueue.refill", lambda *arguments: None)
        run = resume(folder)
    assert lines(run.folder) != lines(whole.folder)


@pytest.mark.parametrize("settings", [{"target_dim": 8}, {"teacher_weights": [1, 3]}], ids=str)
def test_combined_targets_come_back_bit_for_bit(two_teachers, tmp_path, whole_runs, settings):
    settings = {**SEED, "teacher": ["tiny", "other"], **settings}
    whole = whole_runs(settings, two_teachers)
    for step in (2, 5):
        folder = interrupted(two_teachers, tmp_path / f"at{step}", step, **settings, checkpoint_every=1)
        assert_alike(resume(folder), whole)


def test_the_command_that_began_a_run_refuses_to_lose_its_checkpoint(views_cache, tmp_path, whole_runs):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=2)
    before = (folder / CHECKPOINT).read_bytes()
    with pytest.raises(ConfigError, match=r"resume it with 'distill run --resume .*overwrite=True"):
        small_run(views_cache, folder, **CKD)
    assert (folder / CHECKPOINT).read_bytes() == before
    assert_alike(small_run(views_cache, folder, **CKD, overwrite=True), whole_runs(CKD))


def test_a_cache_that_moved_is_found_where_one_says(views_cache, tmp_path, whole_runs):
    shutil.copytree(views_cache, tmp_path / "cache")
    folder = interrupted(tmp_path / "cache", tmp_path / "run", 3, **CKD, checkpoint_every=2)
    (tmp_path / "cache").rename(tmp_path / "moved")
    with pytest.raises(Stop):
        resume(folder, cache=str(tmp_path / "moved"), on_progress=stop_at(5))
    run = resume(folder, device="cpu", threads=1)
    assert run.resumed == 4
    assert_alike(run, whole_runs(CKD))
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    assert record["cache"] == str((tmp_path / "moved").resolve())
    assert str(tmp_path / "moved") in (folder / CONFIG).read_text(encoding="utf-8")


def test_without_a_checkpoint_it_starts_again_with_a_message(views_cache, tmp_path, whole_runs, capsys):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=100)
    assert not (folder / CHECKPOINT).exists()
    (folder / ".tmp-0-best").mkdir()
    with train_progress() as on_progress:
        run = resume(folder, on_progress=on_progress)
    assert run.resumed == 0
    assert_alike(run, whole_runs(CKD))
    assert "no checkpoint" in capsys.readouterr().err


def test_a_folder_without_an_interrupted_run_is_refused(views_cache, tmp_path, whole_runs):
    with pytest.raises(CheckpointError, match="holds no run"):
        resume(tmp_path)
    with pytest.raises(CheckpointError, match="holds no run"):
        resume(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    whole = whole_runs(CKD)
    with pytest.raises(CheckpointError, match=r"is finished: its student is .*best"):
        resume(whole.folder)
    folder = interrupted(views_cache, tmp_path / "run", 1, **CKD)
    (folder / CONFIG).unlink()
    with pytest.raises(CheckpointError, match="interrupted before it began"):
        resume(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("corpus", "the run's corpus was .* and is .* now"),
        ("teacher", "the run's teachers was .*"),
        ("views", "the run's views was .*crop"),
    ],
)
def test_a_run_is_not_resumed_on_other_data(views_cache, teacher_folder, tmp_path, change, named):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CONGEN, checkpoint_every=1)
    texts, teacher, seed = TEXTS, teacher_folder, 0
    if change == "corpus":
        texts = [*TEXTS[:-1], "something else altogether"]
    elif change == "teacher":
        teacher = tiny_encoder(tmp_path / "other" / "tiny", layers=4, seed=99)
    else:
        seed = 5
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    other = tmp_path / "cache"
    build(
        tmp_path / "texts.txt", teacher, other, views=ViewOptions(views=("crop", "delete-words"), seed=seed)
    )
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(CheckpointError, match=named):
        resume(folder, cache=str(other))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_is_not_resumed_on_another_development_set(views_cache, tmp_path):
    dev = tmp_path / "dev.tsv"
    pairs = [f"dev\t{number}.0\t{TEXTS[number]}\t{TEXTS[number + 1]}" for number in range(12)]
    dev.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *pairs, ""]), encoding="utf-8")
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, dev=str(dev), checkpoint_every=1)
    before = dev.read_bytes()
    dev.write_bytes(before.replace(b"11.0", b"9.5"))
    with pytest.raises(CheckpointError, match=r"the run's dev was .*'dev.tsv'.* and is .* now"):
        resume(folder)
    dev.write_bytes(before)
    assert resume(folder).resumed == 2


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    place = len(content) * 3 // 4
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_checkpoint_is_refused(views_cache, tmp_path, damage):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=1)
    path = folder / CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"not a checkpoint that this version can resume.*overwrite"):
        resume(folder)
    assert path.exists()


def test_a_checkpoint_of_another_student_is_refused(views_cache, tmp_path):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=1)
    other = interrupted(
        views_cache, tmp_path / "other", 3, **{**CKD, "student": {"spec": "layers:2"}}, checkpoint_every=1
    )
    shutil.copy(other / CHECKPOINT, folder / CHECKPOINT)
    with pytest.raises(CheckpointError, match="of another student"):
        resume(folder)


def test_a_folder_belongs_to_one_process_at_a_time(views_cache, tmp_path, whole_runs):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=1)
    before = (folder / METRICS).read_bytes()
    with locked(folder):
        with pytest.raises(ConfigError, match=r"is training into"):
            resume(folder)
        with pytest.raises(ConfigError, match="is training into"):
            small_run(views_cache, folder, **CKD, overwrite=True)
        with pytest.raises(ConfigError, match="is training into"), locked(folder):
            pass
        assert (folder / METRICS).read_bytes() == before
    # What a killed process left.
    (folder / LOCK).write_text("1\n")
    assert_alike(resume(folder), whole_runs(CKD))


def test_a_student_that_was_being_replaced_is_put_back(views_cache, tmp_path, whole_runs):
    folder = interrupted(views_cache, tmp_path / "run", 3, **CKD, checkpoint_every=1)
    (folder / BEST).rename(folder / ".tmp-0123-old")
    (folder / ".tmp-4567-best").mkdir()
    (folder / ".tmp-89-checkpoint.safetensors").write_bytes(b"half")
    assert_alike(resume(folder), whole_runs(CKD))
