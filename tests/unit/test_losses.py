"""Each loss against a reference that follows its formula term by term in float64."""

from __future__ import annotations

import math

import pytest
import torch
from distill.losses.queue import TeacherQueue
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distill.config import LossConfig
from distill.losses.contrastive import CKDLoss
from distill.losses.pointwise import CosineLoss, MSELoss
from distill.losses.registry import LOSSES, make_loss

SHAPES = {"rows": st.integers(1, 5), "width": st.integers(1, 6), "seed": st.integers(0, 10_000)}


def draw(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(rows, width, generator=generator) for _ in range(2))
    # Short vectors make a cosine's gradient large and rounding visible; real ones are not short.
    student, teacher = (x + 0.5 * torch.sign(x) for x in (student, teacher))
    return student.requires_grad_(), teacher


def cosine(a: Tensor, b: Tensor) -> Tensor:
    dot, aa, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b)))
    return dot / torch.sqrt(aa * bb)


def reference_mse(student: Tensor, teacher: Tensor) -> Tensor:
    rows, width = student.shape
    total = sum((student[i, j] - teacher[i, j]) ** 2 for i in range(rows) for j in range(width))
    return total / (rows * width)


def reference_cosine(student: Tensor, teacher: Tensor) -> Tensor:
    return sum(1 - cosine(s, t) for s, t in zip(student, teacher, strict=True)) / len(student)


def reference_ckd(student: Tensor, teacher: Tensor, bank: list[Tensor], tau: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, s in enumerate(student):
        against = [torch.exp(cosine(s, t) / tau) for t in [*teacher, *bank]]
        total = total - torch.log(against[i] / sum(against))
    return total / len(student)


def assert_equal_with_gradient(student: Tensor, fast: Tensor, reference) -> None:
    """``reference`` maps the student's vectors in float64 to the loss."""
    (gradient,) = torch.autograd.grad(fast, student, retain_graph=True)
    exact = student.detach().double().requires_grad_()
    expected = reference(exact)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    assert fast.dtype == torch.float32
    torch.testing.assert_close(fast.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-5)


@given(**SHAPES)
@settings(max_examples=25, deadline=None)
def test_mse_is_its_formula(rows, width, seed):
    student, teacher = draw(rows, width, seed)
    assert_equal_with_gradient(
        student, MSELoss()(student, teacher), lambda s: reference_mse(s, teacher.double())
    )


@given(**SHAPES)
@settings(max_examples=25, deadline=None)
def test_cosine_is_its_formula(rows, width, seed):
    student, teacher = draw(rows, width, seed)
    assert_equal_with_gradient(
        student, CosineLoss()(student, teacher), lambda s: reference_cosine(s, teacher.double())
    )


@given(
    **SHAPES,
    tau=st.floats(0.1, 2.0),
    size=st.integers(0, 7),
    pushed=st.lists(st.integers(1, 4), max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_ckd_is_its_formula_in_any_state_of_the_bank(rows, width, seed, tau, size, pushed):
    student, teacher = draw(rows, width, seed)
    loss = CKDLoss(width, bank=size, tau=tau)
    past: list[Tensor] = []
    for step, count in enumerate(pushed):
        batch = draw(count, width, seed + 1 + step)[1]
        loss.after_step(batch)
        past.extend(batch.double())
    bank = past[len(past) - min(size, len(past)) :]
    temperature = torch.tensor(tau, dtype=torch.float64)
    assert_equal_with_gradient(
        student,
        loss(student, teacher),
        lambda s: reference_ckd(s, teacher.double(), bank, temperature),
    )


def test_the_learned_temperature_starts_at_one_over_e_and_has_the_right_gradient():
    student, teacher = draw(4, 5, 0)
    loss = CKDLoss(5)
    assert loss.metrics()["tau"] == pytest.approx(math.exp(-1))
    loss(student, teacher).backward()
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    reference_ckd(student.detach().double(), teacher.double(), [], torch.exp(-scale)).backward()
    assert loss.logit_scale.grad is not None
    torch.testing.assert_close(loss.logit_scale.grad.double(), scale.grad, rtol=1e-4, atol=1e-6)
    assert abs(float(scale.grad)) > 1e-3


def test_a_given_temperature_stays_and_is_no_parameter_to_train():
    student, teacher = draw(4, 5, 0)
    loss = CKDLoss(5, tau=0.05)
    assert loss.metrics()["tau"] == pytest.approx(0.05)
    loss(student, teacher).backward()
    assert loss.logit_scale.grad is None
    assert [p for p in loss.parameters() if p.requires_grad] == []


def test_temperatures_make_different_losses():
    student, teacher = draw(4, 5, 0)
    values = [float(CKDLoss(5, tau=tau)(student, teacher).detach()) for tau in (0.05, 0.5)]
    assert abs(values[0] - values[1]) > 0.01


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_the_bank_is_a_ring():
    bank = TeacherBank(4, 1)
    states = []
    for batch in (column(1, 2), column(3), column(4, 5), column(6, 7, 8)):
        bank.push(batch)
        states.append(bank.content().flatten().tolist())
    assert states == [[1, 2], [1, 2, 3], [5, 2, 3, 4], [5, 6, 7, 8]]
    bank.push(column(9))
    assert bank.content().flatten().tolist() == [9, 6, 7, 8]


def test_a_batch_larger_than_the_bank_leaves_its_last_vectors():
    bank = TeacherBank(4, 1)
    bank.push(column(1))
    bank.push(column(2, 3, 4, 5, 6, 7))
    assert sorted(bank.content().flatten().tolist()) == [4, 5, 6, 7]
    bank.push(column(8))
    assert sorted(bank.content().flatten().tolist()) == [5, 6, 7, 8]


@given(size=st.integers(0, 6), batches=st.lists(st.integers(0, 9), max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_bank_holds_the_last_vectors(size, batches):
    bank = TeacherBank(size, 1)
    history: list[float] = []
    for count in batches:
        values = [float(len(history) + i) for i in range(count)]
        bank.push(torch.tensor(values).reshape(count, 1))
        history += values
        expected = history[len(history) - min(size, len(history)) :]
        assert sorted(bank.content().flatten().tolist()) == expected


def test_the_bank_is_saved_and_restored_with_the_loss():
    student, teacher = draw(3, 4, 0)
    loss = CKDLoss(4, bank=5)
    for seed in range(3):
        loss.after_step(draw(2, 4, seed)[1])
    state = loss.state_dict()
    assert {"bank.vectors", "bank.pointer", "bank.filled", "logit_scale"} <= set(state)
    other = CKDLoss(4, bank=5)
    assert float(other(student, teacher).detach()) != pytest.approx(float(loss(student, teacher).detach()))
    other.load_state_dict(state)
    for restored in (other, loss):
        restored.after_step(draw(2, 4, 9)[1])
    assert torch.equal(other(student, teacher), loss(student, teacher))
    assert int(other.bank.pointer) == 8 % 5


def test_the_batch_enters_the_bank_only_after_it_was_used():
    student, teacher = draw(3, 4, 0)
    loss = CKDLoss(4, bank=8)
    alone = float(CKDLoss(4, bank=0)(student, teacher).detach())
    assert float(loss(student, teacher).detach()) == pytest.approx(alone)
    assert float(loss(student, teacher).detach()) == pytest.approx(alone), "a forward pass filled the bank"
    loss.after_step(teacher)
    assert float(loss(student, teacher).detach()) > alone + 0.1


def test_bank_vectors_are_negatives_of_length_one_and_carry_no_gradient():
    loss = CKDLoss(4, bank=8)
    teacher = draw(3, 4, 0)[1].requires_grad_()
    loss.after_step(10 * teacher)
    assert not loss.bank.content().requires_grad
    torch.testing.assert_close(loss.bank.content().norm(dim=1), torch.ones(3))


def test_the_length_of_vectors_matters_to_mse_alone():
    student, teacher = draw(3, 4, 0)
    for loss in (CosineLoss(), CKDLoss(4)):
        torch.testing.assert_close(loss(3 * student, teacher), loss(student, teacher))
    assert float(MSELoss()(3 * student, teacher).detach()) != pytest.approx(
        float(MSELoss()(student, teacher).detach())
    )


def test_for_unit_vectors_cosine_is_half_the_width_times_mse():
    student, teacher = (torch.nn.functional.normalize(x.detach(), dim=1) for x in draw(6, 8, 1))
    torch.testing.assert_close(CosineLoss()(student, teacher), 4 * MSELoss()(student, teacher))


@pytest.mark.parametrize(("name", "kind"), [("mse", MSELoss), ("cosine", CosineLoss), ("ckd", CKDLoss)])
def test_losses_by_name(name, kind):
    assert type(make_loss(LossConfig(name=name), 8)) is kind
    assert LOSS_DEFAULTS[name].lr > 0


def test_the_settings_of_ckd_reach_it():
    loss = make_loss(LossConfig(name="ckd", tau=0.1, bank=3), 8)
    assert isinstance(loss, CKDLoss)
    assert loss.bank.vectors.shape == (3, 8)
    assert loss.metrics()["tau"] == pytest.approx(0.1)


def test_a_bank_goes_on_where_its_saved_state_stood():
    first, second = TeacherBank(4, 2), TeacherBank(4, 2)
    first.push(torch.arange(6.0).reshape(3, 2))
    second.load_state_dict(first.state_dict())
    assert second.content().tolist() == first.content().tolist()
    for bank in (first, second):
        bank.push(torch.full((2, 2), 9.0))
    assert second.vectors.tolist() == first.vectors.tolist()
    assert len(second.content()) == 4
