from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from distill.config.models import OptimizerConfig
from distill.errors import ConfigError
from distill.losses.contrastive import CKDLoss
from distill.training.optimizer import learning_rate_factor, make_optimizer, warmup_steps


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


def test_the_settings_reach_the_optimizer():
    optimizer = make_optimizer([Small()], OptimizerConfig(lr=0.25, betas=(0.1, 0.2), eps=1e-3))
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.25, (0.1, 0.2), 1e-3)


def test_a_configuration_without_a_rate_is_not_ready():
    with pytest.raises(ValueError, match=r"optimizer\.lr"):
        make_optimizer([Small()], OptimizerConfig())
