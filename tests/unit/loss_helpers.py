"""Every loss written out in loops over float64 numbers, after its formula; and how to compare with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distill.losses.base import DistillLoss, LossBatch
from distill.losses.registry import get_loss

Reference = Callable[[tuple[Tensor, ...]], Tensor]


def draw(rows: int, width: int, seed: int) -> Tensor:
    """Return made-up vectors that are not short: those have large gradients, in which rounding shows."""
    vectors = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return vectors + 0.5 * torch.sign(vectors)


def draw_batch(views: int, rows: int, width: int, seed: int) -> LossBatch:
    """Return a step of one process, whose students take gradients."""
    students = tuple(draw(rows, width, seed + 1 + view).requires_grad_() for view in range(views))
    return LossBatch.alone(students, draw(rows, width, seed))


def made(name: str, width: int = 4, rows: int = 200_000, **given: object) -> DistillLoss:
    """Return a loss as a run makes it, with its defaults but for those ``given``."""
    loss = get_loss(name)
    return loss.make(loss.settings(given, rows), dimension=width, student_widths=(), teacher_widths=())


def rows_from(start: int, count: int) -> Tensor:
    return torch.arange(start, start + count)


def value(loss: DistillLoss, batch: LossBatch) -> float:
    return float(loss(batch).mean().detach())


def gradients(loss: Tensor, batch: LossBatch) -> list[Tensor]:
    found = torch.autograd.grad(loss, batch.students, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(student) if gradient is None else gradient
        for gradient, student in zip(found, batch.students, strict=True)
    ]


def assert_is(loss: DistillLoss, batch: LossBatch, reference: Reference) -> None:
    """Assert that the mean of ``loss`` and its gradients are those of ``reference``, which maps the student's
    vectors in float64 to a scalar."""
    found = loss(batch)
    assert found.shape == (len(batch.targets),)
    assert found.dtype == torch.float32
    exact = tuple(student.detach().double().requires_grad_() for student in batch.students)
    expected = reference(exact)
    torch.testing.assert_close(found.mean().double(), expected.detach(), rtol=1e-5, atol=2e-5)
    wanted = torch.autograd.grad(expected, exact, allow_unused=True)
    for got, want, student in zip(gradients(found.mean(), batch), wanted, exact, strict=True):
        want = torch.zeros_like(student) if want is None else want
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return sum((x * y for x, y in zip(a, b, strict=True)), torch.zeros((), dtype=torch.float64))


def length(a: Tensor) -> Tensor:
    return torch.sqrt(dot(a, a))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return dot(a, b) / (length(a) * length(b))


def mean(values: Sequence[Tensor]) -> Tensor:
    return sum(values, torch.zeros((), dtype=torch.float64)) / len(values)


def mse(student: Tensor, teacher: Tensor) -> Tensor:
    return mean(
        [
            (student[i, j] - teacher[i, j]) ** 2
            for i in range(student.shape[0])
            for j in range(student.shape[1])
        ]
    )


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    return mean([1 - cosine(s, t) for s, t in zip(student, teacher, strict=True)])


def l2(a: Tensor, b: Tensor) -> Tensor:
    found = []
    for x, y in zip(a, b, strict=True):
        unit_x, unit_y = [e / length(x) for e in x], [e / length(y) for e in y]
        found.append(
            sum(((u - v) ** 2 for u, v in zip(unit_x, unit_y, strict=True)), torch.zeros((), dtype=x.dtype))
        )
    return mean(found)


def ckd(student: Tensor, teacher: Tensor, queue: Sequence[Tensor], tau: float | Tensor) -> Tensor:
    found = []
    for i, s in enumerate(student):
        against = [torch.exp(cosine(s, t) / tau) for t in [*teacher, *queue]]
        found.append(-torch.log(against[i] / sum(against)))
    return mean(found)


def disco_ckd(student: Tensor, teacher: Tensor, queue: Sequence[Tensor], tau: float) -> Tensor:
    found = []
    for s, t in zip(student, teacher, strict=True):
        own = torch.exp(cosine(s, t) / tau)
        found.append(-torch.log(own / (own + sum(torch.exp(cosine(s, q) / tau) for q in queue))))
    return mean(found)


def distribution(vector: Tensor, keys: Sequence[Tensor], tau: float) -> list[Tensor]:
    weights = [torch.exp(cosine(vector, key) / tau) for key in keys]
    return [weight / sum(weights) for weight in weights]


def seed(student: Tensor, teacher: Tensor, keys: Sequence[Tensor], tau: float, teacher_tau: float) -> Tensor:
    found = []
    for s, t in zip(student, teacher, strict=True):
        wanted, has = distribution(t, keys, teacher_tau), distribution(s, keys, tau)
        found.append(-sum(w * torch.log(h) for w, h in zip(wanted, has, strict=True)))
    return mean(found)


def huber(wanted: Tensor, has: Tensor) -> Tensor:
    difference = torch.abs(wanted - has)
    return 0.5 * difference**2 if difference <= 1 else difference - 0.5


def rkd_distance(student: Tensor, teacher: Tensor) -> Tensor:
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if i != j]
    if not pairs:
        return torch.zeros((), dtype=torch.float64)

    def relative(vectors: Tensor) -> list[Tensor]:
        found = [length(vectors[i] - vectors[j]) for i, j in pairs]
        return [one / mean(found) for one in found]

    return mean([huber(w, h) for w, h in zip(relative(teacher), relative(student), strict=True)])


def rkd_angle(student: Tensor, teacher: Tensor) -> Tensor:
    rows = range(len(student))
    triples = [(i, j, k) for i in rows for j in rows for k in rows if len({i, j, k}) == 3]
    if not triples:
        return torch.zeros((), dtype=torch.float64)

    def angle(a: Tensor, b: Tensor) -> Tensor:
        # Between identical rows there is no direction, and so no angle.
        return cosine(a, b) if length(a) and length(b) else torch.zeros((), dtype=torch.float64)

    def angles(vectors: Tensor) -> list[Tensor]:
        return [angle(vectors[i] - vectors[j], vectors[k] - vectors[j]) for i, j, k in triples]

    return mean([huber(w, h) for w, h in zip(angles(teacher), angles(student), strict=True)])
