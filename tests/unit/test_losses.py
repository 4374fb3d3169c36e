"""Each loss against its formula in loops over float64, in value and gradient; and where losses differ."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import loss_helpers as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import (
    REFERENCES,
    draw,
    draw_step,
    gradients,
    in_float64,
    made,
    made_by_student,
    rows_from,
    share_of,
    value,
)
from torch import Tensor

from distill.errors import ConfigError, DataError
from distill.losses import log_sum_exp as log_sum_exp_module
from distill.losses.base import DistillLoss, LossBatch
from distill.losses.contrastive import CKDLoss, supervised_contrastive
from distill.losses.log_sum_exp import log_sum_exp
from distill.losses.pointwise import CosineLoss, MSELoss
from distill.losses.registry import Loss, get_loss, loss_names, register_loss
from distill.losses.relational import RKDLoss

LOSSES = {name: get_loss(name) for name in loss_names()}
WHOLE = ("rkd", "rkd-kd", "pair-mse", "pair-mae")
QUEUED = [name for name, facts in LOSSES.items() if "queue" in facts.defaults]
CASES = [
    *((name, {}) for name in ("mse", "cosine", "kl", "l2", "dual-l2", "skd", "kd", "reaugkd", "simtde")),
    *((name, {}) for name in ("pair-mse", "pair-mae")),
    ("ckd", {"queue": 0, "tau": 0.05}),
    ("ckd", {"queue": 5}),
    ("disco-ckd", {"queue": 1, "tau": 0.3}),
    ("disco-ckd", {"queue": 5, "tau": 0.05}),
    ("seed", {"queue": 5, "tau": 0.05, "teacher_tau": 0.4}),
    ("seed", {"queue": 2, "tau": 1.5, "teacher_tau": 0.1, "variant": "code"}),
    ("congen", {"queue": 2, "tau": 0.07, "teacher_tau": 0.05, "alpha": 0.3}),
    ("congen", {"queue": 5, "tau": 0.2, "teacher_tau": 0.4, "alpha": 1.0, "variant": "code"}),
    ("rkd", {}),
    ("rkd", {"distance": 0.0, "angle": 1.5}),
    ("rkd-kd", {"tau": 2.0, "soft": 0.7, "distance": 1.5, "angle": 0.5}),
    ("kd", {"tau": 0.5, "soft": 1.0}),
    ("kd", {"tau": 3.0, "soft": 0.0}),
    ("reaugkd", {"tau": 1.5, "soft": 0.3, "alpha": 0.4}),
    ("simtde", {"alpha": 0.2, "scale": "relative", "hidden": 0.7}),
    ("simtde", {"alpha": 0.0, "hidden": 0.7}),
    ("simtde", {"over": "vocabulary"}),
    ("lmx-kd", {"hidden": 0.3}),
    ("lmx-kd", {"scale": "relative"}),
    ("pkd", {"hidden": 3.0, "tau": 2.0, "soft": 0.7}),
    ("tinybert", {"hidden": 0.3}),
    ("tinybert", {"soft": 0.4, "tau": 2.0, "scale": "relative"}),
]


def cases_of(names: Iterable[str]) -> pytest.MarkDecorator:
    names = set(names)
    cases = [pytest.param(*case, id=f"{case[0]}-{n}") for n, case in enumerate(CASES) if case[0] in names]
    return pytest.mark.parametrize(("name", "changes"), cases)


def drawn(name: str, changes: dict, lengths: list[int], width: int, seed: int) -> LossBatch:
    step = draw_step(LOSSES[name].views, lengths, width, seed)
    of_all = changes.get("over") == "vocabulary"
    return replace(step, tokens=replace(step.tokens, rows=None)) if of_all else step


def push_some(loss: DistillLoss, width: int, pushed: list[int], seed: int) -> list[Tensor]:
    """Train a loss on batches of the sizes ``pushed``, and return their teacher vectors in float64."""
    past: list[Tensor] = []
    for step, count in enumerate(pushed):
        targets = draw(count, width, seed=seed + 100 + step)
        rows = rows_from(len(past), count)
        loss.begin_step(targets, rows)
        loss.end_step(targets, rows)
        past.extend(targets.double())
    return past


def last(vectors: list[Tensor], count: int) -> list[Tensor]:
    return vectors[len(vectors) - min(count, len(vectors)) :]


def test_every_loss_has_a_formula_and_a_case():
    assert set(LOSSES) == set(REFERENCES) == {name for name, _ in CASES}


@cases_of(LOSSES)
@given(
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    width=st.integers(2, 5),
    seed=st.integers(0, 10_000),
    pushed=st.lists(st.integers(1, 4), max_size=4),
)
@settings(max_examples=15, deadline=None)
def test_a_loss_is_its_formula_in_value_and_gradient(name, changes, lengths, width, seed, pushed):
    loss, step = made(name, width, **changes), drawn(name, changes, lengths, width, seed)
    exact, queue = in_float64(step), []
    if loss.queue is not None:
        size, past = loss.queue.size, push_some(loss, width, pushed, seed)
        loss.begin_step(step.targets, rows_from(len(past), len(lengths)))
        queue = last(past, size)
        if "variant" in changes:
            queue = [*queue, *exact.targets]
        elif name in ("seed", "congen"):
            queue = last([*past, *exact.targets], size)
    found, expected = loss(step), REFERENCES[name](loss, exact, queue)
    assert found.shape == (len(lengths),)
    assert found.dtype == torch.float32
    close = 1e-6 if name in ("simtde", "lmx-kd") else 2e-5
    torch.testing.assert_close(found.mean().double(), expected.detach(), rtol=1e-5, atol=close)
    wanted = gradients(expected, made_by_student(exact))
    for got, want in zip(gradients(found.mean(), made_by_student(step)), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=close)


@pytest.mark.parametrize("parts", [[5], [1, 3, 1], [0, 5]])
@cases_of(name for name in LOSSES if name not in WHOLE)
def test_processes_that_share_a_step_make_the_loss_of_the_whole(name, changes, parts):
    loss, step = made(name, 3, **changes), drawn(name, changes, [2, 1, 3, 1, 2], 3, 0)
    push_some(loss, 3, [3], 1)
    loss.begin_step(step.targets, rows_from(0, 5))
    starts = [sum(parts[:n]) for n in range(len(parts))]
    shares = [
        loss(share_of(step, slice(start, start + count))) for start, count in zip(starts, parts, strict=True)
    ]
    whole, tensors = loss(step), made_by_student(step)
    torch.testing.assert_close(torch.cat(shares).mean(), whole.mean())
    found = gradients(torch.cat(shares).mean(), tensors)
    for got, want in zip(found, gradients(whole.mean(), tensors), strict=True):
        torch.testing.assert_close(got, want)


# --- relations ---


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("alike", ["students", "targets", "both", "two students"])
def test_rkd_of_identical_rows_has_finite_gradients(rows, alike):
    student, targets = draw(rows, 4, seed=0), draw(rows, 4, seed=1)
    if alike in ("students", "both"):
        student = student[:1].repeat(rows, 1)
    if alike in ("targets", "both"):
        targets = targets[:1].repeat(rows, 1)
    if alike == "two students":
        student[-1] = student[0]
    angles = RKDLoss(distance=0, angle=1)(LossBatch.alone((student,), targets))
    wanted = reference.rkd_angle(student.double(), targets.double())
    torch.testing.assert_close(angles.mean().double(), wanted, rtol=0, atol=1e-5)
    loss = RKDLoss()(LossBatch.alone((student.requires_grad_(),), targets))
    (gradient,) = gradients(loss.mean(), [student])
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    if rows == 1 or alike == "both":
        assert float(loss.detach().abs().max()) == float(gradient.abs().max()) == 0


def test_rkd_of_more_rows_than_it_holds_at_once_is_its_formula(monkeypatch):
    monkeypatch.setattr("distill.losses.relational._ROWS_AT_ONCE", 2)
    student, targets = draw(5, 3, seed=0), draw(5, 3, seed=1)
    found = RKDLoss(distance=0)(LossBatch.alone((student,), targets)).mean()
    wanted = 2 * reference.rkd_angle(student.double(), targets.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=2e-5)


@given(rows=st.integers(1, 6), count=st.integers(1, 4), seed=st.integers(0, 10_000), tau=st.floats(0.05, 2.0))
@settings(max_examples=15, deadline=None)
def test_the_supervised_contrastive_loss_is_its_formula(rows, count, seed, tau):
    vectors = draw(rows, 3, seed=seed).requires_grad_()
    labels = torch.randint(count, (rows,), generator=torch.Generator().manual_seed(seed))
    exact, expected = in_float64(vectors), []
    for i in range(rows):
        others = [a for a in range(rows) if a != i]
        shares = reference.distribution(exact[i], [exact[a] for a in others], tau)
        of_partners = [torch.log(p) for a, p in zip(others, shares, strict=True) if labels[a] == labels[i]]
        if of_partners:
            expected.append(-reference.mean(of_partners))
    found = supervised_contrastive(vectors, labels, tau)
    assert found.shape == (len(expected),)
    if expected:
        torch.testing.assert_close(found.double(), torch.stack(expected), rtol=1e-5, atol=2e-5)
        (wanted,) = torch.autograd.grad(reference.mean(expected), exact)
        (got,) = torch.autograd.grad(found.mean(), vectors)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5)


# --- sums over a queue ---


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_log_sum_exp_in_pieces_is_that_of_the_whole(monkeypatch, at_once, scale):
    monkeypatch.setitem(log_sum_exp_module._KEYS_AT_ONCE, "cpu", at_once)
    queries = (scale * draw(4, 5, seed=0)).requires_grad_()
    keys = [draw(7, 5, seed=1), torch.empty(0, 5), draw(2, 5, seed=2)]
    logs, means = log_sum_exp(queries, keys)
    exact = in_float64(queries)
    similarities = exact @ torch.cat(keys).double().T
    expected = torch.logsumexp(similarities, dim=1)
    torch.testing.assert_close(logs.double(), expected, rtol=1e-6, atol=1e-6)
    weights = torch.tensor([1.0, -2.0, 0.0, 3.0])
    (gradient,) = torch.autograd.grad((weights * logs).sum(), queries)
    (wanted,) = torch.autograd.grad((weights.double() * expected).sum(), exact)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-4)
    assert not means.requires_grad
    softmax = similarities.detach().softmax(dim=1) @ torch.cat(keys).double()
    torch.testing.assert_close(means.double(), softmax, rtol=1e-3, atol=1e-4)


def test_log_sum_exp_of_no_keys_is_minus_infinity_without_nan():
    queries = draw(2, 3, seed=0).requires_grad_()
    logs, means = log_sum_exp(queries, [torch.empty(0, 3)])
    assert logs.tolist() == [-math.inf, -math.inf]
    assert means.tolist() == [[0.0] * 3] * 2
    (gradient,) = torch.autograd.grad(torch.sigmoid(logs).sum(), queries)
    assert gradient.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", [name for name, facts in LOSSES.items() if "tau" in facts.defaults])
def test_low_temperatures_and_large_logits_overflow_nowhere(name):
    facts, tau = LOSSES[name], 0.001
    loss = made(name, 6, **{key: tau for key in ("tau", "teacher_tau") if key in facts.defaults})
    step = draw_step(facts.views, [1, 1, 1], 6, 0)
    large = replace(step.classes, students=1e4 * step.classes.students, targets=1e4 * step.classes.targets)
    push_some(loss, 6, [4, 4], 1)
    found = loss(replace(step, classes=large))
    assert found.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(found.mean(), made_by_student(step)))
    if loss.queue is not None:
        # A student that is the teacher finds its vector; one that points away does not, and the loss says so.
        away = LossBatch.alone(tuple(-step.targets for _ in step.students), step.targets)
        assert value(loss, away) > 0.5 / tau


def test_the_learned_temperature_starts_at_one_over_e_and_has_the_right_gradient():
    loss, step = CKDLoss(5, queue=8), draw_step(1, [1, 1, 1, 1], 5, 0)
    past = push_some(loss, 5, [3], 1)
    assert loss.metrics()["tau"] == pytest.approx(math.exp(-1))
    loss(step).mean().backward()
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    reference.ckd(in_float64(step), past, torch.exp(-scale)).backward()
    torch.testing.assert_close(loss.logit_scale.grad.double(), scale.grad, rtol=1e-4, atol=1e-6)
    assert abs(float(scale.grad)) > 1e-3
    fixed = made("ckd", 5, queue=8, tau=0.1)
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("name", ["ckd", "disco-ckd"])
def test_a_rows_own_vector_in_the_queue_is_no_negative_unless_it_is_kept(monkeypatch, name, at_once):
    monkeypatch.setitem(log_sum_exp_module._KEYS_AT_ONCE, "cpu", at_once)
    step = replace(draw_step(1, [1, 1, 1, 1], 5, 0), rows=torch.tensor([7, 0, 9, 3]))
    formula = reference.ckd if name == "ckd" else reference.disco_ckd
    for duplicates in ("leave-out", "keep"):
        loss = made(name, 5, queue=6, tau=0.3, duplicates=duplicates)
        past = draw(6, 5, seed=2)
        loss.queue.push(past, torch.tensor([3, 1, 9, 9, 4, 7]))
        wide, losses = in_float64(step), []
        for number, row in enumerate(step.rows.tolist()):
            kept = [
                vector.double()
                for vector, of in zip(past, loss.queue.rows.tolist(), strict=True)
                if duplicates == "keep" or of != row
            ]
            # The reference gives the mean of the rows; of one row alone its denominator is by itself.
            one = replace(wide, students=(wide.students[0][number : number + 1],))
            if name == "ckd":
                order = [number, *(other for other in range(4) if other != number)]
                losses.append(formula(replace(one, targets=wide.targets[order]), kept, 0.3))
            else:
                losses.append(formula(replace(one, targets=wide.targets[number : number + 1]), kept, 0.3))
        expected = torch.stack([torch.as_tensor(each) for each in losses])
        found = loss(step)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
        (got,) = torch.autograd.grad(found.mean(), step.students[0])
        (wanted,) = torch.autograd.grad(expected.mean(), wide.students[0])
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-6)
    # Where the queue holds nothing but the own vector, there is nothing to be told from.
    loss = made(name, 5, queue=2, tau=0.3)
    loss.queue.push(step.targets[:1].expand(2, 5), torch.tensor([7, 7]))
    alone = replace(step, students=(step.students[0][:1],), targets=step.targets[:1], rows=step.rows[:1])
    alone = replace(alone, others=alone.targets)
    assert loss(alone).tolist() == pytest.approx([0.0], abs=1e-6)


def test_lmx_kd_learns_its_matrices_and_draws_them_by_seed():
    facts = LOSSES["lmx-kd"]
    widths = {"dimension": 3, "student_widths": [2] * 3, "teacher_widths": [2] * 3}
    loss, same, other = (facts.make(facts.settings({}, 9), seed=seed, **widths) for seed in (1, 1, 2))
    loss(draw_step(1, [2, 1], 3, 6)).mean().backward()
    assert all(matrix.weight.grad.abs().sum() > 0 for matrix in loss.matrices)
    assert torch.equal(same.matrices[0].weight, loss.matrices[0].weight)
    assert not torch.equal(other.matrices[0].weight, loss.matrices[0].weight)


# --- the queue of a loss ---


@pytest.mark.parametrize(
    ("name", "variant"),
    [("ckd", None), ("disco-ckd", None), *((n, v) for n in ("seed", "congen") for v in ("paper", "code"))],
)
def test_a_batch_enters_the_queue_before_or_after_it_was_used(name, variant):
    step = draw_step(LOSSES[name].views, [1, 1, 1], 4, 0)
    loss = made(name, 4, queue=5, **({"variant": variant} if variant else {}))
    push_some(loss, 4, [5], 1)
    states = [loss.queue.rows.tolist()]
    for act in (loss.begin_step, lambda *_: loss(step).mean().backward(), loss.end_step):
        act(step.targets.requires_grad_(), rows_from(100, 3))
        states.append(loss.queue.rows.tolist())
    old, new = [0, 1, 2, 3, 4], [100, 101, 102, 3, 4]
    assert states == ([old, new, new, new] if variant == "paper" else [old, old, old, new])
    assert not loss.queue.content().requires_grad
    assert all(view.grad is not None for view in step.students)


@pytest.mark.parametrize("name", QUEUED)
def test_the_queue_is_saved_and_restored_with_the_loss(name):
    step = draw_step(LOSSES[name].views, [1, 1, 1], 4, 0)
    loss, other = made(name, 4, queue=5), made(name, 4, queue=5)
    vectors = torch.stack(push_some(loss, 4, [2, 2, 2, 2], 1)).float()
    state = loss.state_dict()
    assert "queue.vectors" not in state
    push_some(other, 4, [2], 7)
    assert value(other, step) != pytest.approx(value(loss, step))
    other.load_state_dict(state)
    other.queue.refill(0, vectors[other.queue.rows])
    for one in (loss, other):
        push_some(one, 4, [2], 9)
    assert torch.equal(other(step), loss(step))


@pytest.mark.parametrize("name", QUEUED)
def test_a_queue_longer_than_the_training_rows_or_missing_is_refused(name):
    loss = LOSSES[name]
    loss.refuse_long_queue({"queue": 392}, 392)
    with pytest.raises(DataError, match=r"^loss\.queue: 393 .*at most 392"):
        loss.refuse_long_queue({"queue": 393}, 392)
    if name != "ckd":
        with pytest.raises(ConfigError, match=r"loss\.queue"):
            made(name, 4, queue=0)
    if name == "congen":
        # Rows that a queue takes out of the training must leave one.
        loss.refuse_long_queue({"variant": "code", "queue": 391}, 392)
        with pytest.raises(DataError, match="at most 391"):
            loss.refuse_long_queue({"variant": "code", "queue": 392}, 392)


# --- the registry ---


def test_a_setting_of_another_loss_takes_no_rows_out_of_training():
    class Own(DistillLoss):
        def __init__(self, *, queue: int = 4, variant: str = "code") -> None: ...

    assert Loss("own", Own, "own", full_queue=True).rows_apart({"queue": 4, "variant": "code"}) == 0


@pytest.mark.parametrize("name", LOSSES)
def test_the_registry_agrees_with_the_class_of_each_loss(name):
    facts, loss = LOSSES[name], made(name, 8)
    assert loss.needs_whole_batch is (name in WHOLE)
    assert (loss.queue is None) is (facts.full_queue is None) is (name not in QUEUED)
    for setting, default in facts.defaults.items():
        if setting == "queue":
            assert loss.queue.size == default
        elif setting != "tau" or default is not None:
            assert getattr(loss, setting) == default
    needs = {"kd": {"labels"}, "rkd-kd": {"labels"}, "simtde": {"token table"}, "lmx-kd": {"live teacher"}}
    needs |= {"pkd": {"labels", "live teacher"}, "tinybert": {"live teacher"}}
    assert loss.needs(facts.settings({}, 1000)) == needs.get(name, set())
    step = draw_step(facts.views, [1] * 5, 8, 0)
    if facts.inside is not None:
        with pytest.raises(ValueError, match="looks inside"):
            loss(replace(step, tokens=None, hidden=None, classes=None))
    if "soft" in facts.defaults:
        # Labels are looked at only where soft labels are not all.
        unhidden = {"hidden": 0.0}
        assert loss.needs({"soft": 1.0, **unhidden}) == set()
        assert loss.needs({"soft": 0.99, **unhidden}) == {"labels"}
        without = replace(step, classes=replace(step.classes, labels=None))
        soft = made(name, 8, soft=1.0)
        assert torch.equal(soft(step), soft(without))
        with pytest.raises(ValueError, match="looks inside"):
            made(name, 8, soft=0.9)(without)


@pytest.mark.parametrize(("own", "others"), [((16, 16, 16), (32, 32, 32)), ((16, 16), (16, 16))])
def test_pkd_compares_layers_between_of_the_teachers_width(own, others):
    loss = LOSSES["pkd"]
    with pytest.raises(ConfigError, match=r"pkd: .*tinybert"):
        loss.make(loss.settings({}, 1000), student_widths=own, teacher_widths=others)
    loss.make(loss.settings({"hidden": 0.0}, 1000), student_widths=(), teacher_widths=())


@pytest.mark.parametrize(
    ("name", "setting", "given"),
    [
        ("congen", "alpha", 1.5),
        ("kd", "soft", 1.1),
        ("kd", "tau", 0.0),
        ("rkd", "angle", -1.0),
        ("seed", "variant", "other"),
        ("ckd", "queue", 1.5),
        ("reaugkd", "alpha", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused(name, setting, given):
    with pytest.raises(ConfigError, match=rf"^loss\.{setting}: "):
        made(name, **{setting: given})


OUTSIDE = """
from typing import Annotated

from torch import Tensor

from distill.losses.base import DistillLoss, LossBatch


class Scaled(DistillLoss):
    '''Squared distance, scaled.'''

    def __init__(self, dimension: int, *, factor: Annotated[float, "scale"] = 2.0) -> None:
        super().__init__()
        self.factor = factor / dimension

    def forward(self, batch: LossBatch) -> Tensor:
        return self.factor * (batch.students[0] - batch.targets).square().sum(dim=1)


text = "no loss"
"""


@pytest.mark.parametrize("form", ["file", "module"])
def test_a_loss_outside_the_package_is_named_by_its_place(tmp_path, monkeypatch, form):
    (tmp_path / "outside_loss.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    place = str(tmp_path / "outside_loss.py") if form == "file" else "outside_loss"
    loss, step = get_loss(f"{place}:Scaled"), draw_step(1, [1, 1, 1], 4, 0)
    assert loss.summary == "Squared distance, scaled."
    assert loss.settings({"factor": 1}, 100) == {"factor": 1.0}
    torch.testing.assert_close(made(f"{place}:Scaled", 4)(step), 2 * MSELoss()(step))
    assert get_loss(f"{place}:Scaled").make_from is loss.make_from
    with pytest.raises(ConfigError, match=r"loss\.speed"):
        loss.settings({"speed": 1}, 100)
    for wrong in ("text", "Missing"):
        with pytest.raises(ConfigError, match=wrong):
            get_loss(f"{place}:{wrong}")


@pytest.mark.parametrize("name", ["mes", "nowhere_at_all:Loss", "./nowhere.py:Loss"])
def test_an_unknown_loss_is_refused(name):
    with pytest.raises(ConfigError, match="mse" if name == "mes" else "nowhere"):
        get_loss(name)


def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="mse"):
        register_loss("mse", summary="another")(CosineLoss)
