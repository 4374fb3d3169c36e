"""Losses on token embeddings and layers of student and teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from distill.config.base import Fraction, NotNegative
from distill.losses.base import (
    DistillLoss,
    HiddenPairs,
    LossBatch,
    Need,
    TokenPairs,
    mean_over_tokens,
    required,
)
from distill.losses.registry import register_loss

Scale = Annotated[
    Literal["paper", "relative"], "errors as they are, or relative to their targets' mean square"
]
Hidden = Annotated[NotNegative, "weight of the layers (--teacher online)"]


@register_loss(
    "simtde",
    summary="squared error to the teacher's vector, and to its token embeddings (SimTDE)",
    targets="as they are",
    inside="tokens",
)
class SimTDELoss(DistillLoss):
    r"""Token and sentence embeddings: :math:`\alpha L_{TE}+(1-\alpha)L_{SE}`, both mean squared errors.

    Source: SimTDE, Eq. 1 to 5. The mean goes over dimensions, and over the real tokens of the batch or over
    the vocabulary. The teacher's vectors are taken as they are. With ``hidden`` the ablation "+ hidden states
    distillation" of Table 2: that many times the error of the last layers is added.

    Args:
        alpha: weight of the token embeddings.
        over: ``tokens`` of the batch, or the whole ``vocabulary`` at every step.
        embeddings: ``block``: the embedding block's output but for the position; ``word``: matrix rows.
        scale: ``paper`` takes the errors as they are; ``relative`` divides each, that of every layer too, by
            the mean square of its targets, those of the teacher's whole vocabulary for token embeddings.
            Components of vectors of length one are so small that beside them the token embeddings would
            decide nearly alone.
        hidden: weight of the layers.
    """

    def __init__(
        self,
        *,
        alpha: Annotated[Fraction, "weight of the token embeddings"] = 0.5,
        over: Annotated[Literal["tokens", "vocabulary"], "tokens compared: the batch's, or all"] = "tokens",
        embeddings: Annotated[
            Literal["block", "word"], "the embedding block's output but for the position, or matrix rows"
        ] = "block",
        scale: Scale = "paper",
        hidden: Hidden = 0.0,
    ) -> None:
        super().__init__()
        self.alpha, self.over, self.embeddings, self.hidden = alpha, over, embeddings, hidden
        self.scale = scale

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """The token table and the live teacher, where they have a weight."""
        weights: dict[Need, float] = {"token table": settings["alpha"], "live teacher": settings["hidden"]}
        return {need for need, weight in weights.items() if weight}

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        loss = (1 - self.alpha) * _sentence_error(batch, self.scale)
        if self.alpha:
            pairs = required(batch.tokens)
            tokens = _token_error(batch, pairs)
            loss = loss + self.alpha * (tokens / pairs.mean_square if self.scale == "relative" else tokens)
        if self.hidden:
            layers = required(batch.hidden)
            loss = loss + self.hidden * _hidden_error(batch, layers, layers.students, self.scale)
        return loss


@register_loss(
    "lmx-kd",
    summary="squared error to the teacher's vector, and to its layers through learned matrices: needs the "
    "live teacher (--teacher=online)",
    targets="as they are",
    inside="layers",
)
class LMXKDLoss(DistillLoss):
    r"""Learnable matrices: the sentence error, and that of every layer through its own matrix.

    :math:`L_{SE}+\lambda\frac{1}{L+1}\sum_{l=0}^{L}\mathrm{MSE}(H_S^lW_l,H_T^{g(l)})`, where layer 0 is the
    embedding block. Source: SimTDE, section 4.3, baseline LMX-KD, after TinyBERT without its attention maps.
    The paper names no weights.

    Args:
        student_widths, teacher_widths: h of each layer that is compared.
        hidden: :math:`\lambda`, weight of the layers.
        scale: as for ``SimTDELoss``; beside what layers give, vectors of length one count for next to
            nothing as they are.
        seed: of the matrices' first values.
    """

    def __init__(
        self,
        student_widths: Sequence[int],
        teacher_widths: Sequence[int],
        seed: int = 0,
        *,
        hidden: Hidden = 1.0,
        scale: Scale = "paper",
    ) -> None:
        super().__init__()
        self.hidden, self.scale = hidden, scale
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.matrices = nn.ModuleList(
                nn.Linear(own, others, bias=False)
                for own, others in zip(student_widths, teacher_widths, strict=True)
            )

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> set[Need]:
        """The live teacher, where its layers have a weight."""
        return {"live teacher"} if settings["hidden"] else set()

    def forward(self, batch: LossBatch) -> Tensor:
        """Return the loss of each row, shape (B,)."""
        loss = self.vector_loss(batch)
        if self.hidden:
            pairs = required(batch.hidden)
            mapped = tuple(
                matrix(states) for matrix, states in zip(self.matrices, pairs.students, strict=True)
            )
            loss = loss + self.hidden * _hidden_error(batch, pairs, mapped, self.scale)
        return loss

    def vector_loss(self, batch: LossBatch) -> Tensor:
        """Return the part of the loss beside the layers, shape (B,): the sentence error."""
        return _sentence_error(batch, self.scale)


def _sentence_error(batch: LossBatch, scale: Scale) -> Tensor:
    errors = (batch.students[0] - batch.targets).square().mean(dim=-1)
    return errors / batch.others.square().mean() if scale == "relative" else errors


def _token_error(batch: LossBatch, pairs: TokenPairs) -> Tensor:
    errors = (pairs.students - pairs.targets).square().mean(dim=-1)
    if pairs.rows is None:
        return errors.mean().expand(len(batch.targets))
    return mean_over_tokens(errors, pairs.rows, batch, pairs.total)


def _hidden_error(batch: LossBatch, pairs: HiddenPairs, students: Sequence[Tensor], scale: Scale) -> Tensor:
    """Return each row's share of the error, the mean over layers, real tokens and dimensions, shape (B,).

    Args:
        batch: the step.
        pairs: outputs of the layers.
        students: the student's states, as wide as the teacher's.
        scale: divide each layer's error by the mean square of its targets.
    """
    errors = torch.stack(
        [(own - target).square().mean(dim=-1) for own, target in zip(students, pairs.targets, strict=True)]
    )
    if scale == "relative":
        errors = errors / required(pairs.mean_squares)[:, None, None]
    rows, _ = torch.nonzero(pairs.mask, as_tuple=True)
    return mean_over_tokens(errors.mean(dim=0)[pairs.mask], rows, batch, pairs.total)
