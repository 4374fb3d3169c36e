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
from distill.losses.registry import get_loss, loss_names
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


def test_rkd_of_two_rows_knows_distances_only():
    batch = draw_batch(1, 2, 4, 0)
    # One distance is its own mean.
    assert value(RKDLoss(), batch) == pytest.approx(0, abs=1e-6)
    assert value(RKDLoss(), draw_batch(1, 3, 4, 0)) > 0.01


def test_rkd_cares_neither_for_place_nor_for_size_nor_for_turning():
    batch = draw_batch(1, 6, 4, 0)
    turn = torch.linalg.qr(draw(4, 4, 9))[0]
    moved = LossBatch.alone((3 * batch.targets @ turn + 5,), batch.targets)
    assert value(RKDLoss(), moved) == pytest.approx(0, abs=1e-5)
    assert value(RKDLoss(), batch) > 0.05


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


def test_other_rows_of_a_step_count_in_the_losses_that_say_so():
    whole = draw_batch(2, 4, 3, 0)
    own = LossBatch.alone(tuple(view[:2] for view in whole.students), whole.targets[:2])
    part = LossBatch(own.students, own.targets, whole.targets)
    for name, setting, differs in (
        ("ckd", {}, True),
        ("seed", {"variant": "code"}, True),
        ("seed", {"variant": "paper"}, False),
        ("disco-ckd", {}, False),
        ("l2", {}, False),
    ):
        loss = made(name, 3, **setting)
        push_some(loss, 3, [3], 1)
        assert torch.allclose(loss(own), loss(part)) is not differs, (name, setting)


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


@pytest.mark.parametrize("name", ["ckd", "disco-ckd", "seed", "congen"])
def test_a_given_temperature_stays_and_is_no_parameter_to_train(name):
    loss, batch = made(name, 5, queue=8, tau=0.1), draw_batch(LOSSES[name].views, 4, 5, 0)
    push_some(loss, 5, [3], 1)
    loss(batch).mean().backward()
    assert [p for p in loss.parameters() if p.requires_grad] == []
    assert all(p.grad is None for p in loss.parameters())
    if name == "ckd":
        assert loss.metrics()["tau"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "setting", "values"),
    [
        ("ckd", "tau", (0.05, 0.5)),
        ("disco-ckd", "tau", (0.05, 0.5)),
        ("seed", "tau", (0.05, 0.07)),
        ("seed", "teacher_tau", (0.05, 0.2)),
        ("seed", "variant", VARIANTS),
        ("congen", "variant", VARIANTS),
        ("congen", "alpha", (0.5, 0.6)),
        ("rkd", "angle", (1.0, 2.0)),
        ("rkd", "distance", (1.0, 2.0)),
    ],
)
def test_a_setting_makes_another_loss(name, setting, values):
    found = []
    for one in values:
        queue = {"queue": 6} if "queue" in LOSSES[name].defaults else {}
        loss, batch = made(name, 4, **queue, **{setting: one}), draw_batch(LOSSES[name].views, 4, 4, 0)
        push_some(loss, 4, [4, 4], 1)
        loss.begin_step(batch.targets, rows_from(0, 4))
        found.append(value(loss, batch))
    assert abs(found[0] - found[1]) > 0.01


def of_same_queue(*losses: DistillLoss) -> None:
    for loss in losses:
        push_some(loss, 4, [4, 2], 1)


def test_congen_is_seed_of_the_first_view_at_alpha_one_and_of_the_second_at_zero():
    batch = draw_batch(2, 4, 4, 0)
    first, second = (LossBatch.alone((view,), batch.targets) for view in batch.students)
    seed = made("seed", 4, tau=0.07, teacher_tau=0.1)
    one, zero, half = (made("congen", 4, tau=0.07, teacher_tau=0.1, alpha=a) for a in (1.0, 0.0, 0.5))
    of_same_queue(seed, one, zero, half)
    torch.testing.assert_close(one(batch), seed(first))
    torch.testing.assert_close(zero(batch), seed(second))
    torch.testing.assert_close(half(batch), (seed(first) + seed(second)) / 2)
    assert not torch.allclose(one(batch), zero(batch))
    assert float(gradients(one(batch).mean(), batch)[1].abs().max()) == 0
    assert float(gradients(zero(batch).mean(), batch)[0].abs().max()) == 0
    assert float(gradients(zero(batch).mean(), batch)[1].abs().max()) > 1e-3


def test_the_order_of_views_matters_where_they_do_not_count_the_same():
    batch = draw_batch(2, 4, 4, 0)
    turned = LossBatch.alone(batch.students[::-1], batch.targets)
    for name, setting, differs in (
        ("congen", {"alpha": 0.8}, True),
        ("congen", {"alpha": 0.5}, False),
        ("dual-l2", {}, False),
        ("skd", {}, False),
    ):
        loss = made(name, 4, **setting)
        of_same_queue(loss)
        assert torch.allclose(loss(batch), loss(turned)) is not differs, (name, setting)


def test_losses_of_two_views_are_not_each_other():
    batch = draw_batch(2, 4, 4, 0)
    dual, skd, congen = (made(name, 4) for name in ("dual-l2", "skd", "congen"))
    of_same_queue(dual, skd, congen)
    values = [value(loss, batch) for loss in (dual, skd, congen)]
    assert min(abs(a - b) for i, a in enumerate(values) for b in values[:i]) > 0.01
    same = LossBatch.alone((batch.students[0],) * 2, batch.targets)
    torch.testing.assert_close(dual(same), skd(same))


def test_disco_ckd_is_not_ckd_but_for_a_single_row():
    loss, disco = made("ckd", 4, tau=0.2), made("disco-ckd", 4, tau=0.2)
    of_same_queue(loss, disco)
    several, alone = draw_batch(1, 4, 4, 0), draw_batch(1, 1, 4, 0)
    # The rest of the batch are negatives of every row of the one.
    more = (loss(several) - disco(several)).detach()
    assert float(more.min()) > 0.001
    assert float(more.max()) > 1
    torch.testing.assert_close(loss(alone), disco(alone))


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


def test_the_length_of_vectors_matters_to_mse_alone():
    batch = draw_batch(2, 4, 4, 0)
    longer = LossBatch.alone(tuple(3 * view for view in batch.students), 2 * batch.targets)
    for name in OF_VECTORS:
        loss = made(name, 4)
        of_same_queue(loss)
        few, many = (
            LossBatch.alone(one.students[: LOSSES[name].views], one.targets) for one in (batch, longer)
        )
        same = torch.allclose(loss(few), loss(many), rtol=1e-4, atol=1e-5)
        assert same is (name not in ("mse", "lrn-kd")), name


def test_for_unit_vectors_cosine_is_half_the_width_times_mse_and_half_of_l2():
    student, teacher = (torch.nn.functional.normalize(draw(6, 8, seed), dim=1) for seed in (0, 1))
    batch = LossBatch.alone((student,), teacher)
    torch.testing.assert_close(CosineLoss()(batch), 4 * MSELoss()(batch))
    torch.testing.assert_close(CosineLoss()(batch), made("l2", 8)(batch) / 2)


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


def test_the_settings_reach_the_loss():
    loss = made("ckd", 8, tau=0.1, queue=3)
    assert isinstance(loss, CKDLoss)
    assert loss.queue.vectors.shape == (3, 8)
    congen = made("congen", 8, tau=0.1, teacher_tau=0.2, alpha=0.3, queue=7, variant="code")
    assert (congen.tau, congen.teacher_tau, congen.alpha, congen.variant) == (0.1, 0.2, 0.3, "code")
    assert congen.queue.size == 7
