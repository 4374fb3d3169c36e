"""A checkpoint gives back what was put in, bit for bit, or is refused."""

from __future__ import annotations

import errno

import pytest
import torch
from torch import nn

from distill.errors import CheckpointError
from distill.layout import CHECKPOINT
from distill.training.checkpoint import (
    Checkpoint,
    optimizer_tensors,
    owned,
    random_state,
    restore_module,
    restore_optimizer,
    restore_random,
)
from embedcache import fsio
from embedcache.errors import StorageError

CPU = torch.device("cpu")


def test_what_is_saved_comes_back_with_dtype_and_shape(tmp_path):
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
    with pytest.raises(CheckpointError, match="format version 99, expected 1"):
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


def test_what_is_of_other_parameters_is_refused():
    _, optimizer = trained(1)
    checkpoint = Checkpoint(optimizer_tensors(optimizer), {})
    model = nn.Linear(5, 5)
    with pytest.raises(CheckpointError, match="a parameter 0 of another shape"):
        restore_optimizer(torch.optim.AdamW(model.parameters()), checkpoint)
    with pytest.raises(CheckpointError, match=r"another student .*--overwrite"):
        restore_module(model, {"weight": torch.ones(2, 2)}, "student")
