"""What happens inside a training: steps, the best checkpoint, early stopping, numbers that go wrong."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_helpers import HELD_OUT, TEXTS, metrics, small_run
from safetensors.torch import load_file

from distill.data import windows
from distill.errors import TrainingError
from distill.evaluation import evaluate
from distill.losses.base import LossBatch
from distill.losses.pointwise import MSELoss
from distill.losses.registry import Loss
from distill.training import preparation as preparation
from distill.training import state
from distill.training import trainer as trainer_module
from distill.training.checkpoint import Checkpoint
from distill.training.train import Run
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
    """A selector that gives the scores it was told, and remembers the student at each of them."""

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


def learn(cache: Path, out: Path, loss: str) -> tuple[Run, list[float], list[float]]:
    """Train a student as long as takes it to learn something; return its losses and scores on the way."""
    run = small_run(
        cache,
        out,
        student="layers:3",
        loss=loss,
        epochs=16,
        **({"queue": 0, "tau": 0.2} if loss == "ckd" else {}),
        lr=3e-3,
        eval_every=5,
        tracking={"log_every": 5},
    )
    lines = metrics(run.folder)
    losses = [line["loss"] for line in lines if "loss" in line]
    name = "held_out_near_pairs_spearman"
    scores = [line[name] for line in lines if name in line]
    assert len(losses) == len(scores) == run.result.steps // 5 == 16
    return run, losses, scores


@pytest.mark.parametrize(("loss", "share"), [("mse", 0.3), ("cosine", 0.3), ("ckd", 0.9)])
def test_the_loss_falls(built_cache, tmp_path, loss, share):
    run, losses, scores = learn(built_cache, tmp_path / "run", loss)
    assert losses[-1] < share * losses[0]
    # The run is shorter than the steps whose mean it ends with.
    assert run.result.final_loss == pytest.approx(sum(losses) / len(losses))
    assert max(scores) == run.result.best_score
    assert scores.index(max(scores)) == run.result.best_step // 5 - 1


def test_the_loss_told_at_the_end_is_that_of_the_last_steps_however_often_it_is_logged(
    built_cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(state, "LAST_STEPS", 6)
    runs = [
        small_run(built_cache, tmp_path / str(every), epochs=2, lr=0.01, tracking={"log_every": every})
        for every in (1, 3, 100)
    ]
    by_step = [line["loss"] for line in metrics(runs[0].folder) if "loss" in line]
    assert len(by_step) == 10
    for run in runs:
        assert run.result.final_loss == pytest.approx(sum(by_step[-6:]) / 6)
    assert runs[0].result.final_loss != pytest.approx(by_step[-1])


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


def test_the_schedule_goes_over_the_steps_it_was_given(built_cache, tmp_path):
    settings = {"lr": 0.01, "warmup": 0, "schedule": "linear", "tracking": {"log_every": 1}}
    run = small_run(built_cache, tmp_path / "run", epochs=None, max_steps=4, **settings)
    rates = [line["lr"] for line in metrics(run.folder) if "lr" in line]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


def test_the_student_learns_the_order_of_the_teachers_similarities(built_cache, tmp_path):
    _, _, scores = learn(built_cache, tmp_path / "run", "ckd")
    assert scores[-1] > scores[0] + 0.1


def test_a_seed_is_a_student(built_cache, tmp_path):
    first, again, other = (
        small_run(built_cache, tmp_path / f"run{i}", seed=seed, student={"spec": "layers:2", "dropout": 0.2})
        for i, seed in enumerate((1, 1, 2))
    )
    assert same(weights(first), weights(again))
    assert not same(weights(first), weights(other))
    assert (first.folder / "held_out.txt").read_bytes() == (again.folder / "held_out.txt").read_bytes()
    assert (first.folder / "held_out.txt").read_bytes() != (other.folder / "held_out.txt").read_bytes()


def test_a_run_neither_reads_nor_moves_the_callers_random_numbers(built_cache, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = small_run(built_cache, tmp_path / "a", student={"dropout": 0.2})
    assert torch.equal(torch.rand(2), expected)
    assert same(weights(first), weights(small_run(built_cache, tmp_path / "b", student={"dropout": 0.2})))


def test_the_loss_decides_what_is_learnt(built_cache, tmp_path):
    found = [weights(small_run(built_cache, tmp_path / loss, loss=loss)) for loss in ("mse", "ckd")]
    assert not same(*found)


def test_the_best_folder_holds_the_best_scoring_student(built_cache, tmp_path, scripted):
    selector = scripted(0.1, 0.7, 0.3, 0.7, 0.2)
    run = small_run(built_cache, tmp_path / "run", eval_every=1, lr=0.05, warmup=0)
    assert len(selector.vectors) == run.result.steps == 5
    assert (run.result.best_step, run.result.best_score) == (2, 0.7)
    found = encode(run.best)
    distances = [float(np.abs(found - vectors).max()) for vectors in selector.vectors]
    assert distances[1] < 1e-5
    assert min(distances[:1] + distances[2:]) > 1e-3


def test_evaluations_come_every_so_many_steps_and_at_the_end(built_cache, tmp_path, scripted):
    scripted(0.1, 0.2, 0.3)
    run = small_run(built_cache, tmp_path / "run", eval_every=2)
    assert [line["step"] for line in metrics(run.folder) if "scripted" in line] == [2, 4, 5]


def test_patience_ends_a_run_that_gets_no_better(built_cache, tmp_path, scripted):
    selector = scripted(0.5, 0.6, 0.4, 0.6, 0.3, 0.9)
    run = small_run(built_cache, tmp_path / "run", eval_every=1, patience=2, epochs=4)
    result = run.result
    assert len(selector.vectors) == result.steps == 4 < result.total_steps == 20
    assert result.stopped_early
    assert (result.best_step, result.best_score) == (2, 0.6)
    record = json.loads((run.folder / "run.json").read_text())["result"]
    assert record["final_loss"] == result.final_loss > 0
    assert metrics(run.folder)[-1]["step"] == 4


def test_a_run_that_goes_to_its_end_has_not_stopped_early(built_cache, tmp_path, scripted):
    scripted(0.5, 0.4, 0.3, 0.2, 0.1)
    result = small_run(built_cache, tmp_path / "run", eval_every=1, patience=4).result
    assert not result.stopped_early
    assert result.steps == result.total_steps == 5


@pytest.mark.parametrize(("epochs", "last"), [(0.4, 4), (1.0, 7), (1.6, 10), (9.0, 20)])
def test_patience_may_be_counted_in_epochs(built_cache, tmp_path, scripted, epochs, last):
    scripted(0.5, 0.6, *[0.4] * 18)
    settings = {"eval_every": 1, "patience_epochs": epochs, "epochs": 4}
    result = small_run(built_cache, tmp_path / "run", **settings).result
    # The best came at step 2, and an epoch has five steps.
    assert (result.best_step, result.steps, result.total_steps) == (2, last, 20)
    assert result.stopped_early == (last < 20)


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
    cards = [(one.best / "README.md").read_text(encoding="utf-8") for one in (run, kept)]
    assert f"| parameters | {run.parameters:,} |" in cards[0]
    assert f"| parameters | {kept.parameters:,} |" in cards[1]
    assert ["close to the teacher" in card for card in cards] == [False, True]
    records = [json.loads((one.folder / "run.json").read_text()) for one in (run, kept)]
    assert [record["parameters"] for record in records] == [run.parameters, kept.parameters]
    assert [record["in_target_space"] for record in records] == [False, True]
    figures = [evaluate(one.folder, suite="fidelity").models[-1][1].figures for one in (run, kept)]
    assert ["cosine_mean" in of for of in figures] == [False, True]


def test_the_width_told_is_that_of_what_is_kept(two_teachers, tmp_path):
    run = small_run(two_teachers, tmp_path / "run", teacher=["tiny", "other"], drop_head=True)
    assert encode(run.best).shape[1] == 16
    assert "| dimension | 16 |" in (run.best / "README.md").read_text(encoding="utf-8")


def test_what_the_loss_learns_is_clipped_with_the_student(built_cache, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [2, 4]), (3600.0, [])])
def test_checkpoints_nobody_asked_for_are_written_at_evaluations_and_not_too_often(
    built_cache, tmp_path, monkeypatch, seconds, saved
):
    found = []
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    save = Checkpoint.save
    monkeypatch.setattr(
        Checkpoint,
        "save",
        lambda one, folder: found.append(one.facts["state"]["step"]) or time.sleep(0.5) or save(one, folder),
    )
    run = small_run(built_cache, tmp_path / "run", eval_every=2)
    assert found == saved
    assert run.config.training.checkpoint_every is None
    apart = 130 / run.result.rows_per_second
    assert apart < run.result.seconds - 0.5 * len(saved), "the time of checkpoints is not that of rows"


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


def test_a_queue_that_starts_full_holds_training_rows(built_cache, tmp_path, monkeypatch):
    losses = []
    make = Loss.make
    monkeypatch.setattr(
        Loss,
        "make",
        lambda *arguments, **more: losses.append(make(*arguments, **more)) or losses[-1],
    )
    started = []
    original = Trainer.train

    def train(trainer, tracker, on_progress, check):
        started.append((losses[-1].queue.rows.tolist(), losses[-1].queue.content().clone().numpy()))
        return original(trainer, tracker, on_progress, check)

    monkeypatch.setattr(Trainer, "train", train)
    runs = [
        small_run(
            built_cache,
            tmp_path / str(number),
            loss={"name": "seed", "variant": variant, "queue": 40},
            seed=seed,
        )
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


def test_the_folder_of_a_finished_run_holds_no_checkpoint(built_cache, tmp_path):
    seen = []

    def look(progress):
        seen.append({path.name for path in (tmp_path / "run").iterdir()})

    run = small_run(built_cache, tmp_path / "run", checkpoint_every=2, on_progress=look)
    assert ["checkpoint.safetensors" in names for names in seen[-5:]] == [False, False, True, True, True]
    assert not (run.folder / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_run_and_names_the_step(
    built_cache, tmp_path, monkeypatch, scripted, value
):
    selector = scripted(0.1, 0.2, 0.3)
    monkeypatch.setattr(Loss, "make", lambda self, settings, **_: Spoiled(3, value))
    with pytest.raises(TrainingError, match=rf"the loss became {value} at step 3: .*optimizer\.lr") as caught:
        small_run(built_cache, tmp_path / "run", eval_every=1)
    assert caught.value.exit_code == 1
    np.testing.assert_allclose(encode(tmp_path / "run" / "best"), selector.vectors[1], atol=1e-5)
    assert not [thread for thread in threading.enumerate() if thread.name == "loader"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"] is None


def test_a_loss_that_went_wrong_between_two_looks_is_named_by_its_own_step(
    built_cache, tmp_path, monkeypatch, scripted
):
    selector = scripted(0.1)
    monkeypatch.setattr(Loss, "make", lambda self, settings, **_: Spoiled(2, float("nan")))
    with pytest.raises(TrainingError, match="at step 2"):
        small_run(built_cache, tmp_path / "run", eval_every=4, tracking={"log_every": 50})
    assert selector.vectors == [], "a student that is no number was scored"
    assert not (tmp_path / "run" / "best").exists()


def test_a_score_that_is_no_number_is_never_the_best(built_cache, tmp_path, scripted):
    scripted(0.1, float("nan"))
    with pytest.raises(TrainingError, match="NaN or infinite by step 2"):
        small_run(built_cache, tmp_path / "run", eval_every=1)


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


def test_every_row_is_seen_once_an_epoch(built_cache, tmp_path):
    told = []
    run = small_run(built_cache, tmp_path / "run", epochs=2, on_progress=told.append)
    assert run.record.rows == len(TEXTS) - HELD_OUT
    assert run.result.total_steps == 2 * -(-run.record.rows // 32)
    steps = [progress.step for progress in told if progress.phase == "train"]
    assert steps == list(range(1, run.result.steps + 1))
    assert told[-1].best == run.result.best_score


def test_the_order_of_rows_is_that_of_seed_and_epoch(built_cache, tmp_path, monkeypatch):
    asked = []
    original = windows.epoch_batches

    def watched(lengths, batch_size, **settings):
        asked.append((len(lengths), batch_size, settings))
        return original(lengths, batch_size, **settings)

    monkeypatch.setattr(windows, "epoch_batches", watched)
    small_run(built_cache, tmp_path / "run", epochs=2, seed=9)
    assert asked == [(130, 32, {"seed": 9, "epoch": epoch}) for epoch in range(2)]


def test_the_rate_warms_up_and_falls(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run", epochs=2, lr=0.01, warmup=3, tracking={"log_every": 1})
    rates = [line["lr"] for line in metrics(run.folder) if "lr" in line]
    assert rates[:3] == pytest.approx([0.0025, 0.005, 0.0075])
    assert rates[3] == max(rates) == pytest.approx(0.01)
    # The rate of each step is the one it was taken with: zero would be that of the step after the last.
    assert 0 < rates[-1] < 0.0006


def test_gradients_are_clipped_where_asked(built_cache, tmp_path):
    common = {"betas": [0, 0], "eps": 1.0, "lr": 0.1}
    clipped, free = (
        weights(small_run(built_cache, tmp_path / name, optimizer={**common, "max_grad_norm": norm}))
        for name, norm in (("clipped", 1e-6), ("free", 0))
    )
    start = weights(
        small_run(built_cache, tmp_path / "still", optimizer={**common, "lr": 1e-12, "weight_decay": 0})
    )
    name = "encoder.layer.0.output.dense.bias"
    assert (clipped[name] - start[name]).abs().max() < 1e-5 < 10 * (free[name] - start[name]).abs().max()


def test_a_run_computes_on_the_threads_it_was_given(built_cache, tmp_path):
    before = torch.get_num_threads()
    told = []

    def look(progress):
        told.append(torch.get_num_threads())

    small_run(built_cache, tmp_path / "run", threads=3, limit=60, held_out=0, on_progress=look)
    assert told[-1] == 3
    assert torch.get_num_threads() == before


def test_every_batch_enters_the_bank_after_its_step(built_cache, tmp_path, monkeypatch):
    losses = []
    make = Loss.make

    def remembered(self, settings, **facts):
        losses.append(make(self, settings, **facts))
        return losses[0]

    monkeypatch.setattr(Loss, "make", remembered)
    run = small_run(
        built_cache, tmp_path / "run", loss={"name": "ckd", "queue": 130}, tracking={"log_every": 5}
    )
    held = losses[0].queue.content().numpy()
    cache = Cache(built_cache)
    vectors = cache.lookup(TEXTS)
    held_out = [json.loads(line) for line in (run.folder / "held_out.txt").read_text().splitlines()]
    expected = vectors[[text not in held_out for text in TEXTS]]
    assert len(held) == run.record.rows
    np.testing.assert_allclose(held[np.lexsort(held.T)], expected[np.lexsort(expected.T)], atol=1e-6)
    tau = [line["tau"] for line in metrics(run.folder) if "tau" in line]
    assert len(tau) == 1
    assert abs(tau[0] - np.exp(-1)) > 1e-6, "the temperature was not learned"


class Watching(MSELoss):
    """Remembers in which dtype it was asked to compute."""

    seen: set[torch.dtype]

    def forward(self, batch: LossBatch):
        (student,) = batch.students
        self.seen = {student.dtype, batch.targets.dtype, (student @ batch.targets.T).dtype}
        return super().forward(batch)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_loss_is_computed_in_float32_whatever_the_forward_pass(
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
