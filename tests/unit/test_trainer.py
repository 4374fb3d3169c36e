"""The training loop: steps, the best checkpoint, early stopping, and numbers that go wrong."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from distill_helpers import HELD_OUT, TEXTS, metrics, small_run
from safetensors.torch import load_file

from distill.data import source as source_module
from distill.errors import TrainingError
from distill.evaluation import evaluate
from distill.losses.base import LossBatch
from distill.losses.pointwise import MSELoss
from distill.losses.registry import Loss
from distill.training import preparation as preparation
from distill.training import trainer as trainer_module
from distill.training.checkpoint import Checkpoint
from distill.training.trainer import Trainer
from embedcache.cache import Cache

pytest_plugins = ["distill_fixtures"]

PROBES = TEXTS[:6]


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(run.best / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def encode(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(PROBES))


@dataclass
class Scripted:
    """A selector that gives scripted scores, and remembers the student at each of them."""

    scores: list[float]
    probes: object = None
    name: str = "scripted"
    vectors: list[np.ndarray] = field(default_factory=list)

    def score(self, encode) -> dict[str, float]:
        self.vectors.append(encode(self.probes))
        return {self.name: self.scores[len(self.vectors) - 1]}


@pytest.fixture
def scripted(monkeypatch):
    """Return a function that puts a scripted selector into the next run."""

    def use(*scores: float) -> Scripted:
        selector = Scripted(list(scores))

        def make(dataset, tokenizer):
            selector.probes = tokenizer(PROBES)
            return selector

        monkeypatch.setattr(preparation, "held_out_selector", make)
        return selector

    return use


class Spoiled(MSELoss):
    """Mean squared error that becomes ``value`` at a given step."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__()
        self.at, self.value, self.calls = at, value, 0

    def forward(self, batch):
        self.calls += 1
        loss = super().forward(batch)
        return loss * self.value if self.calls == self.at else loss


@pytest.mark.parametrize(
    ("given", "steps", "epochs"),
    [
        ({"max_steps": 7}, 7, 2),
        ({"max_steps": 1}, 1, 1),
        ({"max_steps": 7, "epochs": 1}, 5, 1),
        ({"max_steps": 7, "epochs": 9}, 7, 9),
    ],
)
def test_a_run_ends_after_the_steps_it_was_given(built_cache, tmp_path, given, steps, epochs):
    run = small_run(built_cache, tmp_path / "run", **{"epochs": None, **given}, lr=0.01, eval_every=100)
    assert (run.result.steps, run.result.total_steps) == (steps, steps)
    assert run.config.training.epochs == epochs
    assert not run.result.stopped_early
    # The last step is looked at like that of any run.
    assert run.result.best_step == metrics(run.folder)[-1]["step"] == steps


def test_the_best_folder_holds_the_best_scoring_student(built_cache, tmp_path, scripted):
    selector = scripted(0.1, 0.7, 0.3, 0.7, 0.2)
    run = small_run(built_cache, tmp_path / "run", eval_every=1, lr=0.05, warmup=0)
    assert len(selector.vectors) == run.result.steps == 5
    assert (run.result.best_step, run.result.best_score) == (2, 0.7)
    found = encode(run.best)
    distances = [float(np.abs(found - vectors).max()) for vectors in selector.vectors]
    assert distances[1] < 1e-5
    assert min(distances[:1] + distances[2:]) > 1e-3


@pytest.mark.parametrize(("epochs", "last"), [(0.4, 4), (1.0, 7), (1.6, 10), (9.0, 20)])
def test_patience_may_be_counted_in_epochs(built_cache, tmp_path, scripted, epochs, last):
    scripted(0.5, 0.6, *[0.4] * 18)
    settings = {"eval_every": 1, "patience_epochs": epochs, "epochs": 4}
    result = small_run(built_cache, tmp_path / "run", **settings).result
    # The best came at step 2, and an epoch has five steps.
    assert (result.best_step, result.steps, result.total_steps) == (2, last, 20)
    assert result.stopped_early == (last < 20)


def test_parameters_of_the_loss_are_clipped_with_the_student(built_cache, tmp_path, monkeypatch):
    norms = []

    def clip(accelerator, parameters, largest):
        parameters = list(parameters)
        total = torch.nn.utils.clip_grad_norm_(parameters, largest)
        clipped = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        norms.append((float(total), float(clipped), [tuple(p.shape) for p in parameters]))

    monkeypatch.setattr("accelerate.Accelerator.clip_grad_norm_", clip)
    optimizer = {"max_grad_norm": 1e-3}
    small_run(built_cache, tmp_path / "run", loss={"name": "ckd", "queue": 8}, optimizer=optimizer)
    assert len(norms) == 5
    for total, clipped, shapes in norms:
        assert total > 1e-3
        assert clipped == pytest.approx(1e-3, rel=1e-2)
        assert shapes.count(()) == 1, "the temperature is one of them"


def test_others_may_read_a_student_as_far_as_the_umask_says(built_cache, tmp_path):
    modes = set()

    def look(progress):
        modes.update(path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*.safetensors"))

    before = os.umask(0o027)
    try:
        run = small_run(built_cache, tmp_path / "run", head="linear", checkpoint_every=1, on_progress=look)
    finally:
        os.umask(before)
    modes.update(path.stat().st_mode & 0o777 for path in run.folder.rglob("*") if path.is_file())
    assert modes == {0o640}
    assert not list(run.folder.rglob(".tmp-*"))


def test_without_anything_to_select_by_the_last_state_is_saved(built_cache, tmp_path, monkeypatch):
    students = []
    build = preparation.build_student
    monkeypatch.setattr(
        preparation, "build_student", lambda *a, **k: students.append(build(*a, **k)) or students[-1]
    )
    run = small_run(built_cache, tmp_path / "run", held_out=0, eval_every=2)
    assert run.result.best_score is None
    assert run.result.best_step == run.result.steps == 5
    np.testing.assert_allclose(encode(run.best), students[0].eval().encode(PROBES), atol=1e-6)


class Watching(MSELoss):
    """Remembers in which dtype it was asked to compute."""

    seen: set[torch.dtype]

    def forward(self, batch: LossBatch):
        (student,) = batch.students
        self.seen = {student.dtype, batch.targets.dtype, (student @ batch.targets.T).dtype}
        return super().forward(batch)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_loss_is_computed_in_float32_at_any_precision_of_the_model(
    built_cache, tmp_path, monkeypatch, precision
):
    loss = Watching()
    monkeypatch.setattr(Loss, "make", lambda self, settings, **_: loss)
    students = []
    inner = []
    build = preparation.build_student

    def watched(spec, contract, live_teacher, options, **settings):
        model = build(spec, contract, live_teacher, options, **settings)
        model[0].model.encoder.layer[0].output.dense.register_forward_hook(
            lambda module, inputs, output: inner.append(output.dtype)
        )
        students.append(model)
        return model

    monkeypatch.setattr(preparation, "build_student", watched)
    run = small_run(built_cache, tmp_path / "run", mixed_precision=precision)
    assert loss.seen == {torch.float32}
    assert set(inner) == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert {value.dtype for value in weights(run).values()} == {torch.float32}
    assert run.result.final_loss > 0


@pytest.mark.parametrize("loss", ["mse", "ckd"])
def test_a_student_learns_the_order_of_the_teachers_similarities(built_cache, tmp_path, loss):
    settings = {"queue": 0, "tau": 0.2} if loss == "ckd" else {}
    settings |= {
        "student": "layers:3",
        "epochs": 16,
        "lr": 3e-3,
        "eval_every": 5,
        "tracking": {"log_every": 5},
    }
    run = small_run(built_cache, tmp_path / "run", loss=loss, **settings)
    lines, name = metrics(run.folder), "held_out_near_pairs_spearman"
    losses = [line["loss"] for line in lines if "loss" in line]
    scores = [line[name] for line in lines if name in line]
    assert len(losses) == len(scores) == run.result.steps // 5 == 16
    assert losses[-1] < 0.9 * losses[0]
    assert scores[-1] > scores[0] + 0.05
    # The run is shorter than the steps whose mean it ends with.
    assert run.result.final_loss == pytest.approx(sum(losses) / len(losses))
    assert scores.index(max(scores)) == run.result.best_step // 5 - 1
    assert max(scores) == run.result.best_score


def test_the_final_loss_is_that_of_the_last_steps_at_any_log_interval(built_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "LAST_STEPS", 6)
    settings = {"epochs": 2, "lr": 0.01, "warmup": 3}
    runs = [
        small_run(built_cache, tmp_path / str(every), **settings, tracking={"log_every": every})
        for every in (1, 3, 100)
    ]
    lines = metrics(runs[0].folder)
    by_step = [line["loss"] for line in lines if "loss" in line]
    for run in runs:
        assert run.result.final_loss == pytest.approx(sum(by_step[-6:]) / 6)
    # Each step is logged with the rate it was taken with: the last one is not zero.
    rates = [line["lr"] for line in lines if "lr" in line]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert 0 < rates[-1] < 0.0006


def test_rows_and_dropout_are_those_of_the_seed_and_the_callers_random_numbers_stay(
    built_cache, tmp_path, monkeypatch
):
    asked, reported = [], []
    original = source_module.epoch_batches

    def watched(lengths, batch_size, **settings):
        asked.append((len(lengths), batch_size, settings["seed"], settings["epoch"]))
        return original(lengths, batch_size, **settings)

    def look(progress):
        reported.append((progress.step, progress.phase, torch.get_num_threads()))

    monkeypatch.setattr(source_module, "epoch_batches", watched)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    runs = []
    for number, seed in enumerate((1, 1, 2)):
        settings = {"seed": seed, "student": {"spec": "layers:2", "dropout": 0.2}, "epochs": 2, "threads": 3}
        runs.append(small_run(built_cache, tmp_path / str(number), **settings, on_progress=look))
        if number == 0:
            assert torch.equal(torch.rand(2), expected)
    first, again, other = runs
    assert same(weights(first), weights(again))
    assert not same(weights(first), weights(other))
    held_out = [(run.folder / "held_out.txt").read_bytes() for run in runs]
    assert held_out[0] == held_out[1] != held_out[2]
    # Every row once an epoch: 130 rows are five steps.
    assert asked[:2] == [(len(TEXTS) - HELD_OUT, 32, 1, epoch) for epoch in range(2)]
    steps = [(step, threads) for step, phase, threads in reported if phase == "train"]
    assert steps[:10] == [(step, 3) for step in range(1, 11)]
    assert torch.get_num_threads() != 3


def test_patience_ends_a_run_that_gets_no_better(built_cache, tmp_path, scripted):
    selector = scripted(0.5, 0.6, 0.4, 0.6, 0.3, 0.9)
    run = small_run(built_cache, tmp_path / "run", eval_every=1, patience=2, epochs=4)
    result = run.result
    assert len(selector.vectors) == result.steps == 4 < result.total_steps == 20
    assert (result.best_step, result.best_score, result.stopped_early) == (2, 0.6, True)
    assert metrics(run.folder)[-1]["step"] == 4
    assert json.loads((run.folder / "run.json").read_text())["result"]["final_loss"] == result.final_loss > 0
    scripted(0.5, 0.4, 0.3)
    run = small_run(built_cache, tmp_path / "whole", eval_every=2, patience=4)
    assert [line["step"] for line in metrics(run.folder) if "scripted" in line] == [2, 4, 5]
    assert (run.result.stopped_early, run.result.steps) == (False, run.result.total_steps)


def test_a_head_that_is_dropped_is_trained_and_not_kept(built_cache, tmp_path, scripted):
    selector = scripted(*[0.5] * 8)
    run = small_run(built_cache, tmp_path / "run", head="tanh", drop_head=True, lr=0.01)
    kept = small_run(built_cache, tmp_path / "kept", head="tanh", lr=0.01)
    assert not list(run.best.glob("*_Dense"))
    (head,) = kept.best.glob("*_Dense")
    assert "Tanh" in (head / "config.json").read_text()
    np.testing.assert_allclose(encode(run.best), selector.vectors[0], atol=1e-5)
    assert np.abs(encode(run.best) - encode(kept.best)).max() > 1e-3
    assert same(weights(run), weights(kept)), "the encoder was trained otherwise without its head"
    assert run.result.final_loss == kept.result.final_loss
    assert run.parameters == kept.parameters - (16 * 16 + 16)
    assert f"| parameters | {run.parameters:,} |" in (run.best / "README.md").read_text(encoding="utf-8")
    assert [one.record.in_target_space for one in (run, kept)] == [False, True]
    figures = [evaluate(one.folder, suite="fidelity").models[-1][1].figures for one in (run, kept)]
    assert ["cosine_mean" in of for of in figures] == [False, True]


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [2, 4]), (3600.0, [])])
def test_default_checkpoints_are_written_at_evaluations_and_not_too_often(
    built_cache, tmp_path, monkeypatch, seconds, saved
):
    found = []
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    save = Checkpoint.save
    monkeypatch.setattr(
        Checkpoint, "save", lambda one, folder: found.append(one.facts["state"]["step"]) or save(one, folder)
    )
    run = small_run(built_cache, tmp_path / "run", eval_every=2)
    assert found == saved
    assert run.config.training.checkpoint_every is None
    assert not (run.folder / "checkpoint.safetensors").exists()


@pytest.fixture
def losses(monkeypatch) -> list:
    """The losses of the next runs, as they are made."""
    made = []
    make = Loss.make

    def remembered(loss, settings, **facts):
        made.append(make(loss, settings, **facts))
        return made[-1]

    monkeypatch.setattr(Loss, "make", remembered)
    return made


def test_a_queue_starts_full_of_training_rows_and_every_batch_enters_it(
    built_cache, tmp_path, monkeypatch, losses
):
    started = []
    original = Trainer.train

    def train(trainer, tracker, on_progress):
        queue = losses[-1].queue
        started.append((queue.rows.tolist(), queue.content().clone().numpy()))
        return original(trainer, tracker, on_progress)

    monkeypatch.setattr(Trainer, "train", train)
    runs = [
        small_run(built_cache, tmp_path / str(number), loss="seed", variant=variant, queue=40, seed=seed)
        for number, (variant, seed) in enumerate([("paper", 0), ("paper", 0), ("paper", 1), ("code", 0)])
    ]
    vectors = Cache(built_cache).lookup(TEXTS)
    for run, (rows, content) in zip(runs, started, strict=True):
        assert len(set(rows)) == 40
        np.testing.assert_allclose(content, vectors[rows], atol=1e-6)
        held_out = [json.loads(line) for line in (run.folder / "held_out.txt").read_text().splitlines()]
        assert not {TEXTS[row] for row in rows} & set(held_out)
    assert started[0][0] == started[1][0] != started[2][0]
    assert [run.record.rows for run in runs] == [130, 130, 130, 90], "only the code takes them out"

    run = small_run(built_cache, tmp_path / "bank", loss="ckd", queue=130, tracking={"log_every": 5}, seed=0)
    held = losses[-1].queue.content().numpy()
    held_out = [json.loads(line) for line in (run.folder / "held_out.txt").read_text().splitlines()]
    expected = vectors[[text not in held_out for text in TEXTS]]
    np.testing.assert_allclose(held[np.lexsort(held.T)], expected[np.lexsort(expected.T)], atol=1e-6)
    (tau,) = [line["tau"] for line in metrics(run.folder) if "tau" in line]
    assert abs(tau - np.exp(-1)) > 1e-6, "the temperature was not learned"


@pytest.mark.parametrize(
    ("step", "value", "every"), [(3, float("nan"), 1), (3, float("inf"), 1), (2, float("nan"), 4)]
)
def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(
    built_cache, tmp_path, monkeypatch, scripted, step, value, every
):
    selector = scripted(0.1, 0.2, 0.3)
    monkeypatch.setattr(Loss, "make", lambda self, settings, **_: Spoiled(step, value))
    with pytest.raises(TrainingError, match=rf"{value} at step {step}: .*optimizer\.lr") as caught:
        small_run(built_cache, tmp_path / "run", eval_every=every)
    assert caught.value.exit_code == 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"] is None
    assert not [thread for thread in threading.enumerate() if thread.name == "loader"]
    if every == 1:
        np.testing.assert_allclose(encode(tmp_path / "run" / "best"), selector.vectors[1], atol=1e-5)
    else:
        assert selector.vectors == [], "a student with NaN was scored"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_running_out_of_memory_names_the_batch_size(built_cache, tmp_path, monkeypatch, error):
    monkeypatch.setattr(Trainer, "_step", Mock(side_effect=error))
    with pytest.raises(TrainingError, match=r"at step 1 with batches of 32 rows: lower batch_size"):
        small_run(built_cache, tmp_path / "run", batch_size=32)


def test_a_score_of_nan_is_never_the_best(built_cache, tmp_path, scripted):
    scripted(0.1, float("nan"))
    with pytest.raises(TrainingError, match="by step 2"):
        small_run(built_cache, tmp_path / "run", eval_every=1)
