"""Losses for classifiers: on the teacher's soft labels, the corpus's labels and relations of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor
from torch.nn import functional as F

from distill.config.base import Fraction, NotNegative, Positive
from distill.losses.base import DistillLoss, LossBatch, Need, required
from distill.losses.registry import register_loss
from distill.losses.relational import Angle, Distance, RKDLoss

Tau = Annotated[Positive, "temperature of soft labels"]
Soft = Annotated[Fraction, "weight of soft labels; the rest is the corpus's labels'"]


@register_loss(
    "kd",
    summary="the teacher's soft labels at a temperature, and the corpus's labels: for classifiers (Hinton)",
    targets="soft labels alone",
    inside="classes",
    lr=2e-5,
    batch_size=64,
)
class KDLoss(DistillLoss):
    r"""Soft labels at a temperature, and the corpus's labels.

    .. math:: \lambda\,\tau^2\,CE(\mathrm{softmax}(v/\tau), \mathrm{softmax}(u/\tau))
              + (1-\lambda)\,CE(y, \mathrm{softmax}(u))

    with the logits :math:`u` of the student and :math:`v` of the teacher. Gradients of the first term shrink
    as :math:`1/\tau^2`; the factor keeps its weight when the temperature changes.

    Source: Hinton et al., 2015, section 2. They found 2.5 to 4 best for small students (section 3), and
    ReAugKD searches :math:`\lambda` among 0.9 and 0.99.

    Args:
        tau: the temperature of soft labels.
        soft: :math:`\lambda`, weight of soft labels; at 1 labels are not read.
    """

    def __init__(self, *, tau: Tau = 4.0, soft: Soft = 0.9) -> None:
        super().__init__()
        self.tau, self.soft = tau, soft

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """Labels, unless soft labels are all."""
        return {"labels"} if settings["soft"] < 1 else set()

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return label_loss(batch, self.tau, self.soft)


@register_loss(
    "rkd-kd",
    summary="kd, and the teacher's distances and angles among the rows of a batch: for classifiers",
    targets="as they are",
    inside="classes",
    lr=2e-5,
    batch_size=64,
)
class RKDKDLoss(KDLoss):
    r"""``KDLoss`` plus ``distill.losses.relational.RKDLoss`` of the embeddings.

    Source: Park et al., 2019, section 4.2, where the relations are added to the loss of a classifier.

    Args:
        tau, soft: see ``KDLoss``.
        distance, angle: see ``distill.losses.relational.RKDLoss``.
    """

    needs_whole_batch = True

    def __init__(
        self, *, tau: Tau = 4.0, soft: Soft = 0.9, distance: Distance = 1.0, angle: Angle = 2.0
    ) -> None:
        super().__init__(tau=tau, soft=soft)
        self.distance, self.angle = distance, angle
        self._relations = RKDLoss(distance=distance, angle=angle)

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        relations: Tensor = self._relations(batch)
        return super().forward(batch) + relations


@register_loss(
    "reaugkd",
    summary="the teacher's soft labels, and its distribution of similarity over a batch: for classifiers "
    "that look their neighbours up (ReAugKD)",
    inside="classes",
    lr=2e-5,
    batch_size=64,
)
class ReAugKDLoss(DistillLoss):
    r"""Soft labels, and the teacher's distribution of similarity over the step.

    .. math:: q_{ij} = \mathrm{softmax}_j(z_i z_j/\tau), \qquad \bar q_{ij} = \mathrm{softmax}_j(s_i z_j/\tau)

    .. math:: \lambda\,CE(\mathrm{softmax}(v), \mathrm{softmax}(u))
              + (1-\lambda)\,CE(y, \mathrm{softmax}(u)) + \alpha\,KL(q_i \| \bar q_i)

    with the logits :math:`u` of the student and :math:`v` of the teacher, and unit vectors :math:`s` of the
    student and :math:`z` of the teacher. The student is compared with teacher vectors, which it is to find in
    a knowledge base later. j goes over all rows of the step, i itself among them, as the paper's sums do.

    Source: ReAugKD, Eq. 1 to 3, which is :math:`\lambda = 1`. The weight that its section 4 searches among
    0.9 and 0.99 is taken to be this :math:`\lambda`. The paper names neither :math:`\tau` nor :math:`\alpha`.

    Args:
        tau: the temperature of similarities.
        alpha: weight of the relations.
        soft: :math:`\lambda`, weight of soft labels; at 1 labels are not read.
    """

    def __init__(
        self,
        *,
        tau: Annotated[Positive, "temperature of similarities"] = 0.07,
        alpha: Annotated[NotNegative, "weight of the relations"] = 1.0,
        soft: Soft = 1.0,
    ) -> None:
        super().__init__()
        self.tau, self.alpha, self.soft = tau, alpha, soft

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """Labels, unless soft labels are all."""
        return {"labels"} if settings["soft"] < 1 else set()

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        return label_loss(batch, 1.0, self.soft) + self.alpha * self._divergence(batch)

    def _divergence(self, batch: LossBatch) -> Tensor:
        others = F.normalize(batch.others, dim=-1)
        wanted = _log_similarities(batch.targets, others, self.tau)
        has = _log_similarities(batch.students[0], others, self.tau)
        return F.kl_div(has, wanted, reduction="none", log_target=True).sum(dim=1)


def _log_similarities(vectors: Tensor, others: Tensor, tau: float) -> Tensor:
    """Return the logarithms (B, G) of how each row's similarity to G unit vectors is distributed."""
    return F.log_softmax(F.normalize(vectors, dim=-1) @ others.T / tau, dim=1)


def label_loss(batch: LossBatch, tau: float, soft: float) -> Tensor:
    """Return the loss of each row on soft labels at a temperature and the corpus's labels, shape (B,)."""
    pairs = required(batch.classes)
    wanted = F.softmax(pairs.targets / tau, dim=1)
    loss = soft * tau**2 * F.cross_entropy(pairs.students / tau, wanted, reduction="none")
    if soft < 1:
        hard = F.cross_entropy(pairs.students, required(pairs.labels), reduction="none")
        loss = loss + (1 - soft) * hard
    return loss
