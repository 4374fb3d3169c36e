"""The optimiser and its schedule; a checkpoint gives back its tensors bit for bit, or is refused."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
import torch
from torch import nn

from distill.config.training import OptimizerConfig
from distill.errors import CheckpointError, ConfigError
from distill.layout import CHECKPOINT
from distill.losses.contrastive import CKDLoss
from distill.training.checkpoint import (
    Checkpoint,
    optimizer_tensors,
    owned,
    random_state,
    restore_module,
    restore_optimizer,
    restore_random,
)
from distill.training.optimizer import learning_rate_factor, make_optimizer, warmup_steps
from embedcache import fsio
from embedcache.errors import StorageError

CPU = torch.device("cpu")


def test_saved_tensors_come_back_with_dtype_and_shape(tmp_path):
    shared = torch.randn(4, 3)
    tensors = {
        "a.half": torch.randn(3).to(torch.bfloat16),
        "a.long": torch.arange(5),
        "a.scalar": torch.tensor(2.5),
        "a.empty": torch.empty(0, 7),
        "b.one": shared,
        "b.two": shared,
        "b.turned": shared.T,
    }
    facts = {"state": {"step": 3, "score": 0.1 + 0.2, "best": None}}
    Checkpoint(tensors, facts).save(tmp_path)
    found = Checkpoint.load(tmp_path)
    assert found is not None
    assert found.facts["state"] == facts["state"]
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    assert found.of("a").keys() == {"half", "long", "scalar", "empty"}
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_where_there_is_none_there_is_none(tmp_path):
    assert Checkpoint.load(tmp_path) is None


@pytest.mark.parametrize("step", ["create", "written", "synced"])
def test_one_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch, step):
    Checkpoint({"a.x": torch.ones(3)}, {"number": 1}).save(tmp_path)

    def fail(at, path):
        if at == step:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fsio, "on_write_step", fail)
    with pytest.raises(StorageError, match="disk is full"):
        Checkpoint({"a.x": torch.zeros(3)}, {"number": 2}).save(tmp_path)
    found = Checkpoint.load(tmp_path)
    assert found is not None
    assert found.facts["number"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_newer_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("distill.training.checkpoint._VERSION", 99)
        Checkpoint({}, {}).save(tmp_path)
    with pytest.raises(CheckpointError, match="format version 99, expected 2"):
        Checkpoint.load(tmp_path)


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    unused = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([*model.parameters(), unused], lr=0.1)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(5, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_an_optimizer_goes_on_as_it_would_have(tmp_path):
    model, optimizer = trained(3)
    tensors = {
        **owned("model", model.state_dict()),
        **optimizer_tensors(optimizer),
        **owned("random", random_state(CPU)),
    }
    Checkpoint(tensors, {}).save(tmp_path)
    step(model, optimizer)
    found = Checkpoint.load(tmp_path)
    assert found is not None
    other, its_optimizer = trained(0)
    restore_module(other, found.of("model"), "student")
    restore_optimizer(its_optimizer, found)
    torch.manual_seed(5)
    restore_random(found.of("random"), CPU)
    step(other, its_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_checkpoint_of_other_parameters_is_refused():
    _, optimizer = trained(1)
    checkpoint = Checkpoint(optimizer_tensors(optimizer), {})
    model = nn.Linear(5, 5)
    with pytest.raises(CheckpointError, match="a parameter 0 of another shape"):
        restore_optimizer(torch.optim.AdamW(model.parameters()), checkpoint)
    with pytest.raises(CheckpointError, match=r"another student .*overwrite"):
        restore_module(model, {"weight": torch.ones(2, 2)}, "student")


# --- the optimiser and its schedule ---


def factors(schedule: str, warmup: int, total: int) -> list[float]:
    factor = learning_rate_factor(schedule, warmup, total)
    return [factor(step) for step in range(total)]


@pytest.mark.parametrize(
    ("warmup", "total", "steps"),
    [(0.1, 100, 10), (0.06, 50, 3), (0, 10, 0), (1, 10, 1), (7, 10, 7), (0.06, 1, 0)],
)
def test_warm_up_is_a_share_below_one_and_a_number_of_steps_above(warmup, total, steps):
    assert warmup_steps(warmup, total) == steps


@pytest.mark.parametrize(("warmup", "total"), [(10, 10), (500, 100), (0.99, 10), (1, 1)])
def test_a_warm_up_that_outlasts_the_run_is_refused(warmup, total):
    with pytest.raises(ConfigError, match=rf"optimizer\.warmup: .*run of {total} steps"):
        warmup_steps(warmup, total)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_warm_up_rises_in_equal_steps_to_the_peak(schedule):
    rates = factors(schedule, 4, 20)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert max(rates) == pytest.approx(1.0)


def test_after_the_warm_up_each_schedule_has_its_shape():
    cosine, linear, constant = (factors(name, 0, 100) for name in ("cosine", "linear", "constant"))
    assert constant == [1.0] * 100
    assert linear == pytest.approx([1 - step / 100 for step in range(100)])
    assert cosine[50] == pytest.approx(0.5)
    assert cosine[25] == pytest.approx(0.5 + 0.5 * 0.5**0.5)
    assert all(a > b for a, b in pairwise(cosine))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 5])
def test_the_rate_ends_near_zero_and_never_below(schedule, warmup):
    factor = learning_rate_factor(schedule, warmup, 50)
    assert 0 < factor(49) < 0.05
    assert factor(50) == factor(60) == pytest.approx(0, abs=1e-12)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def test_vectors_and_scalars_are_not_decayed():
    model, loss = Small(), CKDLoss(4)
    optimizer = make_optimizer([model, loss], OptimizerConfig(lr=0.1, weight_decay=0.3))
    decayed, free = (
        {id(p) for p in group["params"]}
        for group in sorted(optimizer.param_groups, key=lambda group: -group["weight_decay"])
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert decayed == {id(model.table.weight), id(model.linear.weight)}
    assert free == {id(p) for p in (model.linear.bias, model.norm.weight, model.norm.bias, loss.logit_scale)}


def test_without_a_gradient_signal_only_decay_moves_a_matrix():
    model = Small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = make_optimizer([model], OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = model.state_dict()
    torch.testing.assert_close(after["linear.weight"], before["linear.weight"] * 0.95)
    assert torch.equal(after["linear.bias"], before["linear.bias"])
    assert torch.equal(after["frozen.weight"], before["frozen.weight"])
