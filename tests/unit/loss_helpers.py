"""Every loss written out in loops over float64 numbers, after its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from distill.losses.base import ClassPairs, DistillLoss, HiddenPairs, LossBatch, TokenPairs
from distill.losses.registry import get_loss

INNER, LAYERS, CLASSES = 2, 3, 3
ZERO = torch.zeros((), dtype=torch.float64)


def draw(*shape: int, seed: int) -> Tensor:
    """Return made-up vectors that are not short: those have large gradients, in which rounding shows."""
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return vectors + 0.5 * torch.sign(vectors)


def draw_step(views: int, lengths: Sequence[int], width: int, seed: int) -> LossBatch:
    """Return a step of one process, with all that a loss may look at; what the student made takes gradients.

    Args:
        views: views of each row.
        lengths: real tokens of each row.
        width: width of the vectors.
        seed: seed of all numbers.
    """

    def drawn(*shape: int) -> Tensor:
        nonlocal seed
        seed += 1
        return draw(*shape, seed=seed)

    rows, count = len(lengths), sum(lengths)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    states = (rows, max(lengths), INNER)
    # Layers differ in how large their states are.
    hidden = tuple((layer + 1) * drawn(*states) for layer in range(LAYERS))
    places = torch.repeat_interleave(torch.arange(rows), torch.tensor(lengths))
    labels = torch.randint(CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))
    return replace(
        LossBatch.alone(tuple(drawn(rows, width).requires_grad_() for _ in range(views)), drawn(rows, width)),
        tokens=TokenPairs(drawn(count, INNER).requires_grad_(), drawn(count, INNER), places, count, 1.7),
        hidden=HiddenPairs(
            tuple(drawn(*states).requires_grad_() for _ in range(LAYERS)),
            hidden,
            mask,
            count,
            torch.stack([layer[mask].square().mean() for layer in hidden]),
        ),
        classes=ClassPairs(drawn(rows, CLASSES).requires_grad_(), drawn(rows, CLASSES), labels),
    )


def share_of(step: LossBatch, rows: slice) -> LossBatch:
    """Return the part of a step that one of several processes has."""
    tokens, hidden, classes = step.tokens, step.hidden, step.classes
    if tokens.rows is not None:
        inside = (tokens.rows >= rows.start) & (tokens.rows < rows.stop)
        own = {"students": tokens.students[inside], "targets": tokens.targets[inside]}
        tokens = replace(tokens, **own, rows=tokens.rows[inside] - rows.start)
    return LossBatch(
        tuple(view[rows] for view in step.students),
        step.targets[rows],
        step.others,
        tokens,
        replace(
            hidden,
            students=tuple(states[rows] for states in hidden.students),
            targets=tuple(states[rows] for states in hidden.targets),
            mask=hidden.mask[rows],
        ),
        ClassPairs(classes.students[rows], classes.targets[rows], classes.labels[rows]),
    )


def in_float64(part: Any) -> Any:
    """Return a copy of a step in float64, which takes gradients where the step does."""
    if isinstance(part, Tensor):
        wide = part.detach().double() if part.is_floating_point() else part
        return wide.requires_grad_(part.requires_grad)
    if isinstance(part, tuple):
        return tuple(map(in_float64, part))
    if is_dataclass(part):
        return replace(part, **{one.name: in_float64(getattr(part, one.name)) for one in fields(part)})
    return part


def made_by_student(step: LossBatch) -> list[Tensor]:
    """Return the tensors of a step that take gradients."""
    return [*step.students, step.tokens.students, *step.hidden.students, step.classes.students]


def gradients(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients, zeros where there is none."""
    found = torch.autograd.grad(loss, tensors, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for gradient, tensor in zip(found, tensors, strict=True)
    ]


def made(name: str, width: int = 4, rows: int = 200_000, **given: object) -> DistillLoss:
    """Return a loss as a run makes it, with its defaults but for those ``given``."""
    loss, widths = get_loss(name), (INNER,) * LAYERS
    return loss.make(
        loss.settings(given, rows), dimension=width, student_widths=widths, teacher_widths=widths
    )


def rows_from(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count)


def value(loss: DistillLoss, batch: LossBatch) -> float:
    return float(loss(batch).mean().detach())


# --- formulas ---


def length(a: Tensor) -> Tensor:
    return torch.sqrt(sum((x * x for x in a), ZERO))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return sum((x * y for x, y in zip(a, b, strict=True)), ZERO) / (length(a) * length(b))


def mean(values: Sequence[Tensor]) -> Tensor:
    return sum(values, ZERO) / len(values)


def mse(own: Tensor, target: Tensor) -> Tensor:
    return mean([(a - b) ** 2 for a, b in zip(own.reshape(-1), target.reshape(-1), strict=True)])


def l2(a: Tensor, b: Tensor) -> Tensor:
    rows = [
        [(u / length(x) - v / length(y)) ** 2 for u, v in zip(x, y, strict=True)]
        for x, y in zip(a, b, strict=True)
    ]
    return mean([sum(row, ZERO) for row in rows])


def softmax(logits: Sequence[Tensor], tau: float) -> list[Tensor]:
    weights = [torch.exp(logit / tau) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def distribution(vector: Tensor, keys: Sequence[Tensor], tau: float) -> list[Tensor]:
    return softmax([cosine(vector, key) for key in keys], tau)


def cross_entropy(wanted: Sequence[Tensor], has: Sequence[Tensor]) -> Tensor:
    return -sum(w * torch.log(h) for w, h in zip(wanted, has, strict=True))


def ckd(step: LossBatch, queue: Sequence[Tensor], tau: float | Tensor) -> Tensor:
    keys = [*step.targets, *queue]
    return mean([-torch.log(distribution(s, keys, tau)[i]) for i, s in enumerate(step.students[0])])


def disco_ckd(step: LossBatch, queue: Sequence[Tensor], tau: float) -> Tensor:
    rows = zip(step.students[0], step.targets, strict=True)
    return mean([-torch.log(distribution(s, [t, *queue], tau)[0]) for s, t in rows])


def seed(loss: DistillLoss, step: LossBatch, view: int, keys: Sequence[Tensor]) -> Tensor:
    rows = zip(step.students[view], step.targets, strict=True)
    taus = loss.teacher_tau, loss.tau
    return mean(
        [
            cross_entropy(*(distribution(x, keys, tau) for x, tau in zip((t, s), taus, strict=True)))
            for s, t in rows
        ]
    )


def huber(wanted: Tensor, has: Tensor) -> Tensor:
    difference = torch.abs(wanted - has)
    return 0.5 * difference**2 if difference <= 1 else difference - 0.5


def rkd_distance(student: Tensor, teacher: Tensor) -> Tensor:
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if i != j]

    def relative(vectors: Tensor) -> list[Tensor]:
        found = [length(vectors[i] - vectors[j]) for i, j in pairs]
        return [one / mean(found) for one in found]

    both = zip(relative(teacher), relative(student), strict=True)
    return mean([huber(w, h) for w, h in both]) if pairs else ZERO


def rkd_angle(student: Tensor, teacher: Tensor) -> Tensor:
    rows = range(len(student))
    triples = [(i, j, k) for i in rows for j in rows for k in rows if len({i, j, k}) == 3]

    def angles(vectors: Tensor) -> list[Tensor]:
        sides = [(vectors[i] - vectors[j], vectors[k] - vectors[j]) for i, j, k in triples]
        # Between identical rows there is no direction, and so no angle.
        return [cosine(a, b) if length(a) and length(b) else ZERO for a, b in sides]

    both = zip(angles(teacher), angles(student), strict=True)
    return mean([huber(w, h) for w, h in both]) if triples else ZERO


def rkd(loss: DistillLoss, step: LossBatch) -> Tensor:
    vectors = step.students[0], step.targets
    return loss.distance * rkd_distance(*vectors) + loss.angle * rkd_angle(*vectors)


def kl(own: Tensor, target: Tensor) -> Tensor:
    wanted, has = softmax(list(target), 1.0), softmax(list(own), 1.0)
    return cross_entropy(wanted, has) - cross_entropy(wanted, wanted)


def pair_cosines(step: LossBatch, error: Callable[[Tensor], Tensor]) -> Tensor:
    rows = range(len(step.targets))
    pairs = [(i, j) for i in rows for j in rows if i != j]
    own, target = step.students[0], step.targets
    found = [error(cosine(own[i], own[j]) - cosine(target[i], target[j])) for i, j in pairs]
    return mean(found) if pairs else 0 * own.sum()


def labels(step: LossBatch, tau: float, soft: float) -> Tensor:
    pairs, found = step.classes, []
    for u, v, y in zip(pairs.students, pairs.targets, pairs.labels, strict=True):
        of_teacher = tau**2 * cross_entropy(softmax(v, tau), softmax(u, tau))
        found.append(soft * of_teacher - (1 - soft) * torch.log(softmax(u, 1.0)[int(y)]))
    return mean(found)


def relations(step: LossBatch, tau: float) -> Tensor:
    found = []
    for s, z in zip(step.students[0], step.targets, strict=True):
        q, own = (distribution(one, list(step.others), tau) for one in (z, s))
        found.append(cross_entropy(q, own) - cross_entropy(q, q))
    return mean(found)


def size(target: Tensor, loss: DistillLoss) -> Tensor:
    """Return what an error is divided by: one, or the mean square of its targets."""
    return mse(target, torch.zeros_like(target)) if loss.scale == "relative" else torch.ones(())


def hidden_error(loss: DistillLoss, step: LossBatch, students: Sequence[Tensor]) -> Tensor:
    mask = step.hidden.mask
    pairs = zip(students, step.hidden.targets, strict=True)
    return mean([mse(own[mask], target[mask]) / size(target[mask], loss) for own, target in pairs])


def simtde(loss: DistillLoss, step: LossBatch) -> Tensor:
    sentences = mse(step.students[0], step.targets) / size(step.targets, loss)
    # The table's mean square is that of all its tokens, not of those of the step.
    tokens = mse(step.tokens.students, step.tokens.targets)
    tokens = tokens / (step.tokens.mean_square if loss.scale == "relative" else 1)
    layers = hidden_error(loss, step, step.hidden.students)
    return loss.alpha * tokens + (1 - loss.alpha) * sentences + loss.hidden * layers


def matrix_error(loss: DistillLoss, step: LossBatch) -> Tensor:
    matrices = [matrix.weight.detach().double() for matrix in loss.matrices]
    mapped = [states @ matrix.T for states, matrix in zip(step.hidden.students, matrices, strict=True)]
    return loss.hidden * hidden_error(loss, step, mapped)


def lmx_kd(loss: DistillLoss, step: LossBatch) -> Tensor:
    sentences = mse(step.students[0], step.targets) / size(step.targets, loss)
    return sentences + matrix_error(loss, step)


def pkd(loss: DistillLoss, step: LossBatch) -> Tensor:
    between = range(1, LAYERS - 1)
    states = [
        (step.hidden.students[layer][row][0], step.hidden.targets[layer][row][0])
        for layer in between
        for row in range(len(step.targets))
    ]
    found = mean([mse(own / length(own), target / length(target)) for own, target in states])
    return labels(step, loss.tau, loss.soft) + loss.hidden * found


Reference = Callable[[DistillLoss, LossBatch, list[Tensor]], Tensor]
"""A loss, a step in float64 and the vectors on the queue -> the mean of the loss."""

REFERENCES: dict[str, Reference] = {
    "mse": lambda loss, step, queue: mse(step.students[0], step.targets),
    "cosine": lambda loss, step, queue: 1 - mean(list(map(cosine, step.students[0], step.targets))),
    "kl": lambda loss, step, queue: mean(list(map(kl, step.students[0], step.targets))),
    "pair-mse": lambda loss, step, queue: pair_cosines(step, lambda difference: difference**2),
    "pair-mae": lambda loss, step, queue: pair_cosines(step, torch.abs),
    "l2": lambda loss, step, queue: l2(step.targets, step.students[0]),
    "dual-l2": lambda loss, step, queue: sum(l2(step.targets, view) for view in step.students),
    "skd": lambda loss, step, queue: (
        sum(l2(step.targets, view) for view in step.students) + l2(*step.students)
    ),
    "ckd": lambda loss, step, queue: ckd(step, queue, loss.metrics()["tau"]),
    "disco-ckd": lambda loss, step, queue: disco_ckd(step, queue, loss.tau),
    "seed": lambda loss, step, queue: seed(loss, step, 0, queue),
    "congen": lambda loss, step, queue: (
        loss.alpha * seed(loss, step, 0, queue) + (1 - loss.alpha) * seed(loss, step, 1, queue)
    ),
    "rkd": lambda loss, step, queue: rkd(loss, step) + 0 * step.students[0].sum(),
    "kd": lambda loss, step, queue: labels(step, loss.tau, loss.soft),
    "rkd-kd": lambda loss, step, queue: labels(step, loss.tau, loss.soft) + rkd(loss, step),
    "reaugkd": lambda loss, step, queue: (
        labels(step, 1.0, loss.soft) + loss.alpha * relations(step, loss.tau)
    ),
    "simtde": lambda loss, step, queue: simtde(loss, step),
    "lmx-kd": lambda loss, step, queue: lmx_kd(loss, step),
    "pkd": lambda loss, step, queue: pkd(loss, step),
    "tinybert": lambda loss, step, queue: labels(step, loss.tau, loss.soft) + matrix_error(loss, step),
}
