"""Device, precision, threads and seed of a computation."""

from __future__ import annotations

import pytest
import torch

from distill.config.models import TrainingConfig
from distill.device import cpu_threads, make_accelerator, resolve_device, seeded
from distill.errors import ConfigError


def test_auto_is_the_gpu_where_there_is_one():
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "", "cpu:1", "meta"])
def test_a_missing_device_is_refused(name):
    with pytest.raises(ConfigError, match=r"training\.device"):
        resolve_device(name)


def test_a_gpu_asked_for_is_never_a_cpu_instead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="0 cuda devices"):
        make_accelerator(TrainingConfig(device="cuda"))


def test_half_precision_on_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        make_accelerator(TrainingConfig(device="cpu", mixed_precision="fp16"))


def test_runs_of_different_precision_follow_each_other():
    for precision in ("no", "bf16", "no"):
        accelerator = make_accelerator(TrainingConfig(device="cpu", mixed_precision=precision))
        assert accelerator.mixed_precision == precision
        assert accelerator.device.type == "cpu"


@pytest.mark.parametrize(("faster", "expected"), [(True, "bf16"), (False, "no")])
def test_auto_takes_bfloat16_where_the_cpu_is_faster_in_it(monkeypatch, faster, expected):
    monkeypatch.setattr("distill.device.has_fast_bfloat16", lambda: faster)
    assert make_accelerator(TrainingConfig(device="cpu")).mixed_precision == expected


def test_threads_are_set_as_asked_and_restored():
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with cpu_threads(None):
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_seed_rules_inside_the_block_and_the_caller_goes_on_as_before():
    cpu = torch.device("cpu")
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    drawn = []
    for seed in (1, 1, 2):
        with seeded(seed, cpu):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.rand(4), expected)
