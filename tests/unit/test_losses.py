"""Each loss against its formula in loops over float64, in value and gradient; and where losses differ."""

from __future__ import annotations

import math

import loss_helpers as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import assert_is, draw, draw_batch, gradients, made, rows_from, value
from torch import Tensor

from distill.errors import ConfigError, DataError
from distill.losses import log_sum_exp as log_sum_exp_module
from distill.losses.base import DistillLoss, LossBatch
from distill.losses.contrastive import CKDLoss, DisCoCKDLoss
from distill.losses.log_sum_exp import log_sum_exp
from distill.losses.pointwise import CosineLoss, MSELoss
from distill.losses.queue_distribution import ConGenLoss, SEEDLoss
from distill.losses.registry import get_loss, loss_names, register_loss
from distill.losses.relational import RKDLoss

LOSSES = {name: get_loss(name) for name in loss_names()}
SHAPES = {"rows": st.integers(1, 5), "width": st.integers(1, 6), "seed": st.integers(0, 10_000)}
TAU = st.floats(0.05, 2.0)
PUSHED = st.lists(st.integers(1, 4), max_size=4)
OF_VECTORS = [name for name, facts in LOSSES.items() if facts.inside is None]
"""Losses that look at nothing but vectors."""

VARIANTS = ("paper", "code")
examples = settings(max_examples=40, deadline=None)


def push_some(loss: DistillLoss, width: int, pushed: list[int], seed: int) -> list[Tensor]:
    """Train a loss on batches of so many rows, and return their teacher vectors in float64."""
    past: list[Tensor] = []
    for step, count in enumerate(pushed):
        targets = draw(count, width, seed + 100 + step)
        rows = rows_from(len(past), count)
        loss.begin_step(targets, rows)
        loss.end_step(targets, rows)
        past.extend(targets.double())
    return past


def last(vectors: list[Tensor], count: int) -> list[Tensor]:
    return vectors[len(vectors) - min(count, len(vectors)) :]


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("mse", lambda t, s: reference.mse(s, t)),
        ("cosine", lambda t, s: reference.cosine_loss(s, t)),
        ("l2", reference.l2),
        ("dual-l2", lambda t, s, u: reference.l2(t, s) + reference.l2(t, u)),
        ("skd", lambda t, s, u: reference.l2(t, s) + reference.l2(t, u) + reference.l2(s, u)),
    ],
)
@given(**SHAPES)
@examples
def test_pointwise_losses_are_their_formulas(name, formula, rows, width, seed):
    batch = draw_batch(LOSSES[name].views, rows, width, seed)
    assert_is(made(name, width), batch, lambda students: formula(batch.targets.double(), *students))


@given(**SHAPES, tau=TAU, size=st.integers(0, 7), pushed=PUSHED)
@examples
def test_ckd_is_its_formula_in_any_state_of_the_queue(rows, width, seed, tau, size, pushed):
    loss, batch = CKDLoss(width, queue=size, tau=tau), draw_batch(1, rows, width, seed)
    queue = last(push_some(loss, width, pushed, seed), size)
    targets = batch.targets.double()
    assert_is(loss, batch, lambda students: reference.ckd(*students, targets, queue, tau))


@given(**SHAPES, tau=TAU, size=st.integers(1, 7), pushed=PUSHED)
@examples
def test_disco_ckd_is_its_formula_in_any_state_of_the_queue(rows, width, seed, tau, size, pushed):
    loss, batch = DisCoCKDLoss(width, queue=size, tau=tau), draw_batch(1, rows, width, seed)
    queue = last(push_some(loss, width, pushed, seed), size)
    targets = batch.targets.double()
    assert_is(loss, batch, lambda students: reference.disco_ckd(*students, targets, queue, tau))


@pytest.mark.parametrize("variant", VARIANTS)
@given(**SHAPES, tau=TAU, teacher_tau=TAU, alpha=st.floats(0, 1), size=st.integers(1, 7), pushed=PUSHED)
@examples
def test_seed_and_congen_are_their_formulas_in_any_state_of_the_queue(
    variant, rows, width, seed, tau, teacher_tau, alpha, size, pushed
):
    batch = draw_batch(2, rows, width, seed)
    targets = batch.targets.double()
    common = {"queue": size, "tau": tau, "teacher_tau": teacher_tau, "variant": variant}
    for loss in (SEEDLoss(width, **common), ConGenLoss(width, **common, alpha=alpha)):
        past = push_some(loss, width, pushed, seed)
        loss.begin_step(batch.targets, rows_from(len(past), rows))
        keys = last([*past, *targets], size) if variant == "paper" else [*last(past, size), *targets]

        def of(view: Tensor, keys: list[Tensor] = keys) -> Tensor:
            return reference.seed(view, targets, keys, tau, teacher_tau)

        if isinstance(loss, ConGenLoss):
            assert_is(loss, batch, lambda views: alpha * of(views[0]) + (1 - alpha) * of(views[1]))
        else:
            assert_is(loss, LossBatch.alone(batch.students[:1], batch.targets), lambda views: of(views[0]))


@given(
    rows=st.integers(1, 5),
    width=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    distance=st.floats(0, 3),
    angle=st.floats(0, 3),
)
@examples
def test_rkd_is_its_formula(rows, width, seed, distance, angle):
    batch = draw_batch(1, rows, width, seed)
    targets = batch.targets.double()
    assert_is(
        RKDLoss(distance=distance, angle=angle),
        batch,
        lambda students: (
            distance * reference.rkd_distance(*students, targets)
            + angle * reference.rkd_angle(*students, targets)
            + 0 * students[0].sum()
        ),
    )


def test_rkd_of_more_rows_than_it_holds_at_once_is_its_formula():
    batch = draw_batch(1, 17, 3, 0)
    targets = batch.targets.double()
    assert_is(RKDLoss(distance=0), batch, lambda s: 2 * reference.rkd_angle(*s, targets))


def test_rkd_counts_no_angles_between_a_row_and_itself_where_rows_are_identical():
    student, targets = draw(4, 3, 0), draw(4, 3, 1)
    student[3] = student[0]
    expected = reference.rkd_angle(student.double(), targets.double())
    found = value(RKDLoss(distance=0, angle=1), LossBatch.alone((student,), targets))
    assert found == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("alike", ["students", "targets", "both", "two students"])
def test_rkd_of_identical_rows_has_finite_gradients(rows, alike):
    student, targets = draw(rows, 4, 0), draw(rows, 4, 1)
    if alike in ("students", "both"):
        student = student[:1].repeat(rows, 1)
    if alike in ("targets", "both"):
        targets = targets[:1].repeat(rows, 1)
    if alike == "two students":
        student[-1] = student[0]
    batch = LossBatch.alone((student.requires_grad_(),), targets)
    loss = RKDLoss()(batch)
    assert loss.isfinite().all()
    (gradient,) = gradients(loss.mean(), batch)
    assert gradient.isfinite().all()
    if rows == 1 or alike == "both":
        assert float(loss.detach().abs().max()) == 0
        assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_log_sum_exp_in_pieces_is_that_of_the_whole(monkeypatch, at_once, scale):
    monkeypatch.setitem(log_sum_exp_module._KEYS_AT_ONCE, "cpu", at_once)
    queries = (scale * draw(4, 5, 0)).requires_grad_()
    keys = [draw(7, 5, 1), torch.empty(0, 5), draw(2, 5, 2)]
    logs, means = log_sum_exp(queries, keys)
    exact = queries.detach().double().requires_grad_()
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
    queries = draw(2, 3, 0).requires_grad_()
    logs, means = log_sum_exp(queries, [torch.empty(0, 3)])
    assert logs.tolist() == [-math.inf, -math.inf]
    assert means.tolist() == [[0.0] * 3] * 2
    (gradient,) = torch.autograd.grad(torch.sigmoid(logs).sum(), queries)
    assert gradient.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("tau", [0.001, 0.01])
@pytest.mark.parametrize("name", ["ckd", "disco-ckd", "seed", "congen"])
def test_low_temperatures_overflow_nowhere(name, tau):
    temperatures = {"tau": tau} | ({"teacher_tau": tau} if "teacher_tau" in LOSSES[name].defaults else {})
    loss, batch = made(name, 6, queue=8, **temperatures), draw_batch(LOSSES[name].views, 3, 6, 0)
    push_some(loss, 6, [4, 4], 1)
    found = loss(batch)
    assert found.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(found.mean(), batch))
    # A student that is the teacher finds its vector; one that points away does not, and the loss says so.
    away = LossBatch.alone(tuple(-batch.targets for _ in batch.students), batch.targets)
    assert value(loss, away) > 0.5 / tau


@pytest.mark.parametrize("parts", [[5], [2, 3], [1, 3, 1], [0, 5]])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in OF_VECTORS if name != "rkd"])
def test_processes_that_share_a_step_make_the_loss_of_the_whole(name, variant, parts):
    given = {"queue": 4} if "queue" in LOSSES[name].defaults else {}
    if "variant" in LOSSES[name].defaults:
        given["variant"] = variant
    loss, whole = made(name, 3, **given), draw_batch(LOSSES[name].views, 5, 3, 0)
    push_some(loss, 3, [3], 1)
    loss.begin_step(whole.targets, rows_from(0, 5))
    start, shares, students = 0, [], []
    for count in parts:
        own = slice(start, start + count)
        views = tuple(view.detach()[own].requires_grad_() for view in whole.students)
        shares.append(loss(LossBatch(views, whole.targets[own], whole.targets)))
        students.append(views)
        start += count
    expected = loss(whole)
    torch.testing.assert_close(torch.cat(shares), expected)
    wanted = gradients(expected.mean(), whole)
    found = torch.autograd.grad(torch.cat(shares).mean(), [view for views in students for view in views])
    for view, want in enumerate(wanted):
        torch.testing.assert_close(torch.cat(found[view :: len(wanted)]), want)


def test_the_learned_temperature_starts_at_one_over_e_and_has_the_right_gradient():
    loss, batch = CKDLoss(5, queue=8), draw_batch(1, 4, 5, 0)
    past = push_some(loss, 5, [3], 1)
    assert loss.metrics()["tau"] == pytest.approx(math.exp(-1))
    loss(batch).mean().backward()
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    student = batch.students[0].detach().double()
    reference.ckd(student, batch.targets.double(), past, torch.exp(-scale)).backward()
    assert loss.logit_scale.grad is not None
    torch.testing.assert_close(loss.logit_scale.grad.double(), scale.grad, rtol=1e-4, atol=1e-6)
    assert abs(float(scale.grad)) > 1e-3


@pytest.mark.parametrize("name", ["ckd", "disco-ckd"])
def test_the_batch_enters_the_queue_only_after_it_was_used(name):
    loss, batch = made(name, 4, queue=8, tau=0.2), draw_batch(1, 3, 4, 0)
    before = value(loss, batch)
    loss.begin_step(batch.targets, rows_from(0, 3))
    assert value(loss, batch) == pytest.approx(before)
    assert value(loss, batch) == pytest.approx(before), "a forward pass filled the queue"
    loss.end_step(batch.targets, rows_from(0, 3))
    assert value(loss, batch) > before + 0.1
    assert loss.queue.rows.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    assert len(loss.queue) == 3


@pytest.mark.parametrize("name", ["seed", "congen"])
def test_a_variant_says_when_the_batch_enters_the_queue_and_how_many_it_is_compared_with(name):
    batch = draw_batch(LOSSES[name].views, 3, 4, 0)
    compared = {}
    for variant in VARIANTS:
        loss = made(name, 4, queue=5, variant=variant)
        push_some(loss, 4, [5], 1)
        states = [loss.queue.rows.tolist()]
        loss.begin_step(batch.targets, rows_from(100, 3))
        states.append(loss.queue.rows.tolist())
        compared[variant] = sum(len(keys) for keys in loss._keys(batch))
        loss(batch)
        states.append(loss.queue.rows.tolist())
        loss.end_step(batch.targets, rows_from(100, 3))
        states.append(loss.queue.rows.tolist())
        old, new = [0, 1, 2, 3, 4], [100, 101, 102, 3, 4]
        assert states == ([old, new, new, new] if variant == "paper" else [old, old, old, new])
    assert compared == {"paper": 5, "code": 8}


@pytest.mark.parametrize("name", ["ckd", "disco-ckd", "seed", "congen"])
def test_the_queue_is_saved_and_restored_with_the_loss(name):
    batch = draw_batch(LOSSES[name].views, 3, 4, 0)
    loss, other = made(name, 4, queue=5), made(name, 4, queue=5)
    vectors = torch.stack(push_some(loss, 4, [2, 2, 2, 2], 1)).float()
    state = loss.state_dict()
    assert {"queue.rows", "queue.pointer", "queue.filled"} <= set(state)
    assert "queue.vectors" not in state
    push_some(other, 4, [2], 7)
    assert value(other, batch) != pytest.approx(value(loss, batch))
    other.load_state_dict(state)
    other.queue.refill(0, vectors[other.queue.rows])
    for one in (loss, other):
        push_some(one, 4, [2], 9)
    assert torch.equal(other(batch), loss(batch))
    assert int(other.queue.pointer) == 10 % 5


@pytest.mark.parametrize("name", ["ckd", "disco-ckd", "seed", "congen"])
def test_nothing_on_the_queue_carries_gradients(name):
    loss, batch = made(name, 4, queue=8), draw_batch(LOSSES[name].views, 3, 4, 0)
    targets = batch.targets.requires_grad_()
    loss.begin_step(targets, rows_from(0, 3))
    loss(batch).mean().backward()
    loss.end_step(targets, rows_from(0, 3))
    assert not loss.queue.content().requires_grad
    assert all(view.grad is not None for view in batch.students)


@pytest.mark.parametrize("name", ["disco-ckd", "seed", "congen"])
def test_losses_that_compare_with_a_queue_refuse_to_be_without(name):
    with pytest.raises(ConfigError, match=r"loss\.queue"):
        made(name, 4, queue=0)


@pytest.mark.parametrize("name", LOSSES)
def test_a_queue_longer_than_the_training_rows_is_refused(name):
    loss = LOSSES[name]
    loss.refuse_long_queue({} if loss.full_queue is None else {"queue": 392}, 392)
    if loss.full_queue is not None:
        with pytest.raises(DataError, match=r"^loss\.queue: 393 .*at most 392"):
            loss.refuse_long_queue({"queue": 393}, 392)


def test_rows_that_a_queue_takes_out_of_the_training_must_leave_one():
    LOSSES["congen"].refuse_long_queue({"variant": "code", "queue": 391}, 392)
    with pytest.raises(DataError, match="at most 391"):
        LOSSES["congen"].refuse_long_queue({"variant": "code", "queue": 392}, 392)


@pytest.mark.parametrize("name", LOSSES)
def test_the_registry_says_of_each_loss_what_its_class_says(name):
    facts, loss = LOSSES[name], made(name, 8)
    assert loss.needs_whole_batch is (name in ("rkd", "rkd-kd"))
    assert (loss.queue is None) is (facts.full_queue is None) is ("queue" not in facts.defaults)
    assert facts.lr > 0
    assert facts.batch_size > 0
    for setting, default in facts.defaults.items():
        if setting == "queue":
            assert loss.queue.size == default
        elif setting != "tau" or default is not None:
            assert getattr(loss, setting) == default
    batch = draw_batch(facts.views, 5, 8, 0)
    loss.begin_step(batch.targets, rows_from(0, 5))
    if facts.inside is None:
        assert loss(batch).shape == (5,)
    else:
        with pytest.raises(ValueError, match="looks inside"):
            loss(batch)


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
    loss, batch = get_loss(f"{place}:Scaled"), draw_batch(1, 3, 4, 0)
    assert loss.summary == "Squared distance, scaled."
    assert loss.settings({"factor": 1}, 100) == {"factor": 1.0}
    torch.testing.assert_close(made(f"{place}:Scaled", 4)(batch), 2 * MSELoss()(batch))
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


def test_a_given_temperature_is_not_trained():
    loss = made("ckd", 5, queue=8, tau=0.1)
    assert not any(parameter.requires_grad for parameter in loss.parameters())
    assert loss.metrics()["tau"] == pytest.approx(0.1)
