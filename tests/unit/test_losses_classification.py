"""Losses of classifiers against their formulas in loops over float64, in value and gradient."""

from __future__ import annotations

from dataclasses import replace

import loss_helpers as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import draw, draw_batch, made
from torch import Tensor

from distill.errors import ConfigError
from distill.losses.base import ClassPairs, DistillLoss, LossBatch
from distill.losses.classification import KDLoss, ReAugKDLoss, RKDKDLoss
from distill.losses.contrastive import supervised_contrastive
from distill.losses.registry import get_loss, loss_names

LOSSES = {name: get_loss(name) for name in loss_names()}
NAMES = [name for name, facts in LOSSES.items() if facts.inside == "classes"]
SHAPES = {
    "rows": st.integers(1, 4),
    "width": st.integers(2, 4),
    "count": st.integers(2, 3),
    "seed": st.integers(0, 10_000),
}
TAU, SOFT = st.floats(0.05, 5.0), st.sampled_from([0.0, 0.3, 0.9, 1.0])
examples = settings(max_examples=10, deadline=None)


def draw_classes(rows: int, width: int, count: int, seed: int) -> LossBatch:
    """Return a step of one process with logits of ``count`` labels."""
    logits = draw(rows, count, seed + 50).requires_grad_()
    labels = torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))
    pairs = ClassPairs(logits, draw(rows, count, seed + 60), labels)
    return replace(draw_batch(1, rows, width, seed), classes=pairs)


def classes(batch: LossBatch) -> ClassPairs:
    assert batch.classes is not None
    return batch.classes


def softmax(logits: Tensor, tau: float) -> list[Tensor]:
    weights = [torch.exp(logit / tau) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def label_loss(batch: LossBatch, logits: Tensor, tau: float, soft: float) -> Tensor:
    pairs = classes(batch)
    assert pairs.labels is not None
    found = []
    for u, v, y in zip(logits, pairs.targets.double(), pairs.labels, strict=True):
        wanted, has = softmax(v, tau), softmax(u, tau)
        from_teacher = -sum(w * torch.log(h) for w, h in zip(wanted, has, strict=True))
        found.append(soft * tau**2 * from_teacher - (1 - soft) * torch.log(softmax(u, 1.0)[int(y)]))
    return reference.mean(found)


def relations(batch: LossBatch, student: Tensor, tau: float) -> Tensor:
    others = list(batch.others.double())
    found = []
    for s, z in zip(student, batch.targets.double(), strict=True):
        q, own = reference.distribution(z, others, tau), reference.distribution(s, others, tau)
        found.append(sum(a * (torch.log(a) - torch.log(b)) for a, b in zip(q, own, strict=True)))
    return reference.mean(found)


def assert_is(loss: DistillLoss, batch: LossBatch, of: object) -> None:
    """Assert that a loss and its gradients are those of a function of (vectors, logits) in float64."""
    students = (batch.students[0], classes(batch).students)
    exact = [student.detach().double().requires_grad_() for student in students]
    found, expected = loss(batch), of(*exact)
    assert found.shape == (len(batch.targets),)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.mean().double(), expected.detach(), rtol=1e-5, atol=2e-5)
    wanted = torch.autograd.grad(expected, exact, allow_unused=True)
    got = torch.autograd.grad(found.mean(), students, allow_unused=True)
    for have, want, student in zip(got, wanted, exact, strict=True):
        zero = torch.zeros_like(student)
        have, want = (zero if one is None else one.double() for one in (have, want))
        torch.testing.assert_close(have, want, rtol=1e-4, atol=2e-5)


@given(**SHAPES, tau=TAU, soft=SOFT)
@examples
def test_kd_is_its_formula(rows, width, count, seed, tau, soft):
    batch = draw_classes(rows, width, count, seed)
    assert_is(KDLoss(tau=tau, soft=soft), batch, lambda _, u: label_loss(batch, u, tau, soft))


@given(**SHAPES, tau=TAU, soft=SOFT, alpha=st.floats(0, 2))
@examples
def test_reaugkd_is_its_formula(rows, width, count, seed, tau, soft, alpha):
    batch = draw_classes(rows, width, count, seed)
    assert_is(
        ReAugKDLoss(tau=tau, alpha=alpha, soft=soft),
        batch,
        lambda s, u: label_loss(batch, u, 1.0, soft) + alpha * relations(batch, s, tau),
    )


@given(**SHAPES)
@settings(max_examples=6, deadline=None)
def test_rkd_kd_is_its_formula(rows, width, count, seed):
    batch = draw_classes(rows, width, count, seed)
    targets = batch.targets.double()
    assert_is(
        RKDKDLoss(tau=2.0, soft=0.9, distance=1.5, angle=0.5),
        batch,
        lambda s, u: (
            label_loss(batch, u, 2.0, 0.9)
            + 1.5 * reference.rkd_distance(s, targets)
            + 0.5 * reference.rkd_angle(s, targets)
        ),
    )


def test_labels_are_looked_at_only_where_soft_labels_are_not_all():
    batch = draw_classes(5, 3, 3, 1)
    pairs = classes(batch)
    other = replace(batch, classes=replace(pairs, labels=(pairs.labels + 1) % 3))
    without = replace(batch, classes=replace(pairs, labels=None))
    for name in NAMES:
        soft, hard = made(name, soft=1.0), made(name, soft=0.9)
        assert torch.equal(soft(batch), soft(other))
        assert torch.equal(soft(batch), soft(without))
        assert not torch.allclose(hard(batch), hard(other))
        with pytest.raises(ValueError, match="looks inside"):
            hard(without)


def test_low_temperatures_and_large_logits_overflow_nowhere():
    batch = draw_classes(4, 3, 2, 0)
    logits = (1e4 * classes(batch).students.detach()).requires_grad_()
    pairs = replace(classes(batch), students=logits, targets=1e4 * classes(batch).targets)
    large, students = replace(batch, classes=pairs), (batch.students[0], logits)
    for name in NAMES:
        loss = made(name, tau=0.001)(large)
        assert loss.isfinite().all(), name
        found = torch.autograd.grad(loss.mean(), students, allow_unused=True)
        assert all(gradient.isfinite().all() for gradient in found if gradient is not None), name


@pytest.mark.parametrize("parts", [[5], [2, 3], [1, 3, 1], [0, 5]])
@pytest.mark.parametrize("name", ["kd", "reaugkd"])
def test_processes_that_share_a_step_make_the_loss_of_the_whole(name, parts):
    loss, whole = made(name, soft=0.9), draw_classes(5, 3, 3, 0)
    pairs = classes(whole)
    assert not loss.needs_whole_batch
    start, shares = 0, []
    for count in parts:
        own = slice(start, start + count)
        labels = None if pairs.labels is None else pairs.labels[own]
        of_these = ClassPairs(pairs.students[own], pairs.targets[own], labels)
        batch = LossBatch((whole.students[0][own],), whole.targets[own], whole.targets, classes=of_these)
        shares.append(loss(batch))
        start += count
    expected = loss(whole)
    torch.testing.assert_close(torch.cat(shares), expected)
    students = (whole.students[0], pairs.students)
    wanted = torch.autograd.grad(expected.mean(), students, allow_unused=True)
    found = torch.autograd.grad(torch.cat(shares).mean(), students, allow_unused=True)
    for got, want in zip(found, wanted, strict=True):
        assert (got is None) is (want is None)
        if want is not None:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", LOSSES)
def test_the_registry_says_what_a_loss_needs(name):
    loss = LOSSES[name]
    default = loss.settings({}, 1000)
    assert loss.needs_labels(default) is (name in ("kd", "rkd-kd"))
    assert loss.needs_token_table(default) is (name == "simtde")
    assert loss.needs_live_teacher(default) is (name == "lmx-kd")
    if "soft" in loss.defaults:
        assert not loss.needs_labels({"soft": 1.0})
        assert loss.needs_labels({"soft": 0.99})
    if "hidden" in loss.defaults:
        assert loss.needs_live_teacher({"hidden": 1.0})
        assert not loss.needs_live_teacher({"hidden": 0.0})


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("congen", "alpha", 1.5),
        ("simtde", "alpha", 1.5),
        ("kd", "soft", 1.1),
        ("kd", "tau", 0.0),
        ("rkd", "angle", -1.0),
        ("seed", "variant", "other"),
        ("ckd", "queue", 1.5),
        ("reaugkd", "alpha", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused(name, setting, value):
    with pytest.raises(ConfigError, match=rf"^loss\.{setting}: "):
        made(name, **{setting: value})


def drawn_labels(rows: int, count: int, seed: int) -> Tensor:
    return torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))


@given(
    rows=st.integers(1, 6),
    width=st.integers(2, 4),
    count=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    tau=st.floats(0.05, 2.0),
)
@examples
def test_the_supervised_contrastive_loss_is_its_formula(rows, width, count, seed, tau):
    vectors, labels = draw(rows, width, seed).requires_grad_(), drawn_labels(rows, count, seed)
    exact = vectors.detach().double().requires_grad_()
    expected = []
    for i in range(rows):
        partners = [p for p in range(rows) if p != i and labels[p] == labels[i]]
        total = sum(torch.exp(reference.cosine(exact[i], exact[a]) / tau) for a in range(rows) if a != i)
        of_partners = [
            torch.log(torch.exp(reference.cosine(exact[i], exact[p]) / tau) / total) for p in partners
        ]
        if partners:
            expected.append(-reference.mean(of_partners))
    found = supervised_contrastive(vectors, labels, tau)
    assert found.shape == (len(expected),)
    assert found.dtype == torch.float32
    if expected:
        torch.testing.assert_close(found.double(), torch.stack(expected), rtol=1e-5, atol=2e-5)
        (wanted,) = torch.autograd.grad(reference.mean(expected), exact)
        (got,) = torch.autograd.grad(found.mean(), vectors)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5)


def test_a_row_without_a_partner_has_no_loss_and_others_are_pushed_from_it():
    vectors = draw(4, 3, 0)
    labels = torch.tensor([0, 0, 0, 1])
    found = supervised_contrastive(vectors, labels, 0.5)
    assert len(found) == 3
    assert float((found - supervised_contrastive(vectors[:3], labels[:3], 0.5)).min()) > 0
    assert len(supervised_contrastive(vectors, torch.arange(4), 0.5)) == 0
