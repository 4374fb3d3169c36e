"""The losses that look inside the models, against loops over float64 numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from distill.losses.base import HiddenPairs, LossBatch, TokenPairs
from distill.losses.inside import LMXKDLoss, LRNKDLoss, SimTDELoss

LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4)
WIDTH, INNER = 3, 2


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_step(lengths: list[int], seed: int, layers: int = 2) -> LossBatch:
    """Return a step of rows with so many real tokens each, everything the student made with gradients on."""
    rows, count = len(lengths), sum(lengths)
    own = torch.repeat_interleave(torch.arange(rows), torch.tensor(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    shape = (rows, max(lengths), INNER)
    # Layers differ in how large their states are.
    targets = tuple((n + 1) * drawn(*shape, seed=seed + 50 + n) for n in range(layers))
    return replace(
        LossBatch.alone((drawn(rows, WIDTH, seed=seed).requires_grad_(),), drawn(rows, WIDTH, seed=seed + 1)),
        tokens=TokenPairs(
            drawn(count, INNER, seed=seed + 2).requires_grad_(),
            drawn(count, INNER, seed=seed + 3),
            own,
            count,
            1.7,
        ),
        hidden=HiddenPairs(
            tuple(drawn(*shape, seed=seed + 4 + n).requires_grad_() for n in range(layers)),
            targets,
            mask,
            count,
            torch.stack([target[mask].square().mean() for target in targets]),
        ),
    )


def square(own: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of two equal shapes, in a loop."""
    pairs = list(zip(own.reshape(-1), target.reshape(-1), strict=True))
    return sum(((a - b) ** 2 for a, b in pairs), torch.zeros((), dtype=torch.float64)) / len(pairs)


def exact_step(step: LossBatch) -> tuple[LossBatch, list[Tensor], list[Tensor]]:
    """Return the step in float64, and the tensors with gradients in both."""
    assert step.tokens is not None
    assert step.hidden is not None
    own = [step.students[0], step.tokens.students, *step.hidden.students]
    exact = [tensor.detach().double().requires_grad_() for tensor in own]
    wide = replace(
        step,
        students=(exact[0],),
        targets=step.targets.double(),
        others=step.others.double(),
        tokens=replace(step.tokens, students=exact[1], targets=step.tokens.targets.double()),
        hidden=replace(
            step.hidden,
            students=tuple(exact[2:]),
            targets=tuple(target.double() for target in step.hidden.targets),
        ),
    )
    return wide, own, exact


def assert_same(found: Tensor, wanted: Tensor, own: list[Tensor], exact: list[Tensor]) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.mean().double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    got = torch.autograd.grad(found.mean(), own, allow_unused=True)
    want = torch.autograd.grad(wanted, exact, allow_unused=True)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


def hidden_error(step: LossBatch, students: tuple[Tensor, ...], scale: str = "paper") -> Tensor:
    assert step.hidden is not None
    mask = step.hidden.mask
    layers = [
        square(own[mask], target[mask]) / size(target[mask], scale)
        for own, target in zip(students, step.hidden.targets, strict=True)
    ]
    return sum(layers, torch.zeros((), dtype=torch.float64)) / len(layers)


def size(target: Tensor, scale: str) -> Tensor:
    """Return what an error is divided by: one, or the mean square of its targets."""
    return square(target, torch.zeros_like(target)) if scale == "relative" else torch.ones(())


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 99),
    alpha=st.floats(0.01, 1),
    hidden=st.sampled_from([0.0, 0.7]),
    scale=st.sampled_from(["paper", "relative"]),
    over=st.sampled_from(["tokens", "vocabulary"]),
)
def test_simtde_is_its_formula(lengths, seed, alpha, hidden, scale, over):
    step = make_step(lengths, seed)
    if over == "vocabulary":
        step = replace(step, tokens=replace(step.tokens, rows=None))
    wide, own, exact = exact_step(step)
    sentences = square(exact[0], wide.targets) / size(wide.targets, scale)
    # The table's mean square is that of all its tokens, not of those of the step.
    tokens = square(exact[1], wide.tokens.targets) / (wide.tokens.mean_square if scale == "relative" else 1)
    wanted = alpha * tokens + (1 - alpha) * sentences
    if hidden:
        wanted = wanted + hidden * hidden_error(wide, wide.hidden.students, scale)
    loss = SimTDELoss(alpha=alpha, over=over, scale=scale, hidden=hidden)
    assert_same(loss(step), wanted, own, exact)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_lrn_kd_is_its_formula(lengths, seed):
    step = make_step(lengths, seed)
    wide, own, exact = exact_step(step)
    assert_same(LRNKDLoss()(step), square(exact[0], wide.targets), own, exact)


def test_simtde_without_tokens_is_the_plain_squared_error_and_needs_none():
    step = make_step([2, 1], 3)
    bare = replace(step, tokens=None, hidden=None)
    assert torch.equal(SimTDELoss(alpha=0)(bare), LRNKDLoss()(step))
    with pytest.raises(ValueError, match="looks inside"):
        SimTDELoss(alpha=0.5)(bare)


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 99),
    hidden=st.floats(0.1, 2),
    scale=st.sampled_from(["paper", "relative"]),
)
def test_lmx_kd_is_its_formula(lengths, seed, hidden, scale):
    step = make_step(lengths, seed)
    loss = LMXKDLoss([INNER, INNER], [INNER, INNER], hidden=hidden, scale=scale, seed=seed)
    wide, own, exact = exact_step(step)
    matrices = [matrix.weight.detach().double() for matrix in loss.matrices]
    mapped = tuple(states @ matrix.T for states, matrix in zip(wide.hidden.students, matrices, strict=True))
    sentences = square(exact[0], wide.targets) / size(wide.targets, scale)
    wanted = sentences + hidden * hidden_error(wide, mapped, scale)
    assert_same(loss(step), wanted, own, exact)


def test_lmx_kd_learns_its_matrices_and_draws_them_by_seed():
    step = make_step([2, 1], 6)
    loss = LMXKDLoss([INNER, INNER], [INNER, INNER], seed=1)
    loss(step).mean().backward()
    assert all(matrix.weight.grad.abs().sum() > 0 for matrix in loss.matrices)
    same, other = (LMXKDLoss([INNER, INNER], [INNER, INNER], seed=seed) for seed in (1, 2))
    assert torch.equal(same.matrices[0].weight, loss.matrices[0].weight)
    assert not torch.equal(other.matrices[0].weight, loss.matrices[0].weight)


@pytest.mark.parametrize("scale", ["paper", "relative"])
def test_processes_that_share_a_step_make_the_loss_of_the_whole(scale):
    loss = SimTDELoss(alpha=0.4, hidden=0.5, scale=scale)
    step = make_step([2, 1, 3], 7)
    whole = loss(step).mean()
    parts = []
    for rows in (slice(0, 1), slice(1, 3)):
        inside = (step.tokens.rows >= rows.start) & (step.tokens.rows < rows.stop)
        hidden = step.hidden
        parts.append(
            loss(
                LossBatch(
                    (step.students[0][rows],),
                    step.targets[rows],
                    step.others,
                    replace(
                        step.tokens,
                        students=step.tokens.students[inside],
                        targets=step.tokens.targets[inside],
                        rows=step.tokens.rows[inside] - rows.start,
                    ),
                    replace(
                        hidden,
                        students=tuple(states[rows] for states in hidden.students),
                        targets=tuple(states[rows] for states in hidden.targets),
                        mask=hidden.mask[rows],
                    ),
                )
            ).sum()
        )
    torch.testing.assert_close(sum(parts) / 3, whole)
