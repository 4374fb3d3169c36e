"""Contrastive training on texts alone: every anchor has to find its own positive among a batch's texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from distill.config.finetune import FEWEST_HELD_OUT
from distill.training.objective import gather_all
from embedcache.codecs import Vectors
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts

if TYPE_CHECKING:
    from collections.abc import Callable

    from distill.data.collate import Batch
    from distill.data.source import Share
    from distill.data.triples import Triples

_MOST_HELD_OUT = 2000


class InfoNCE(nn.Module):
    r"""Each anchor against all positives and all hard negatives of a batch.

    .. math:: -\log \frac{e^{\cos(a_i,p_i)/\tau}}
              {\sum_j \left(e^{\cos(a_i,p_j)/\tau} + e^{\cos(a_i,n_j)/\tau}\right)}

    Source: DistilCSE, Eq. 7; without hard negatives SimCSE's.

    Args:
        tau: the temperature.
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.tau = tau

    def forward(self, anchors: Tensor, candidates: Tensor, left_out: Tensor | None = None) -> Tensor:
        """Return the loss of each anchor, shape (B,).

        Args:
            anchors: float32, shape (B, d).
            candidates: float32, shape (C, d); the positives in the order of their anchors, then the others.
            left_out: bool, shape (B, C); the candidates that do not count for an anchor; None: all count.
        """
        cosines = F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T
        if left_out is not None:
            cosines = cosines.masked_fill(left_out, -torch.inf)
        own = torch.arange(len(anchors), device=anchors.device)
        return F.cross_entropy(cosines / self.tau, own, reduction="none")


class Contrast:
    """Draws anchors to their positives, and away from what else is in the batch.

    Args:
        loss: the loss.
        codes: int64, shape (rows, columns); a number for each text, the same for the same text. Where given,
            candidates that are the anchor's own text, or a positive of that anchor in the batch, are left out
            of its loss; None keeps them all, as the formula has it.
    """

    def __init__(self, loss: InfoNCE, codes: NDArray[np.int64] | None) -> None:
        self.module: nn.Module = nn.Module()
        self._loss = loss
        if codes is not None:
            # A buffer follows the student to its device; a checkpoint need not hold what the file does.
            self.module.register_buffer("codes", torch.from_numpy(codes), persistent=False)
        self._is_masked = codes is not None

    def begin_step(self, batch: Batch) -> None:
        """Do nothing: the batch is all there is to know."""

    def loss(self, vectors: Tensor, batch: Batch, share: Share) -> Tensor:
        """Return the mean loss of the step; see :class:`distill.training.objective.Objective`."""
        views = vectors.chunk(batch.texts)
        if share.processes > 1:
            views = tuple(gather_all(view, batch, share) for view in views)
        left_out = self._left_out(batch.rows, batch.texts) if self._is_masked else None
        losses: Tensor = self._loss(views[0], torch.cat(views[1:]), left_out)
        return losses.mean()

    def end_step(self, batch: Batch) -> None:
        """Do nothing: the batch leaves nothing behind."""

    def restored(self) -> None:
        """Do nothing: nothing is kept."""

    def metrics(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def _left_out(self, rows: Tensor, texts: int) -> Tensor:
        codes: Tensor = self.module.get_buffer("codes")[rows]
        positives = codes[:, min(1, codes.shape[1] - 1)]
        # Of one column, the positive is the same text again.
        others = [positives] if texts == 2 else [positives, codes[:, 2]]
        return no_negatives(codes[:, 0], positives, torch.cat(others))


def no_negatives(anchors: Tensor, positives: Tensor, candidates: Tensor) -> Tensor:
    """Return which candidates are no negatives of an anchor, its own positive excepted: bool, shape (B, C).

    Those are the texts equal to the anchor, and the texts equal to a positive of it.

    Args:
        anchors, positives: shape (B,); the number of each text, row by row.
        candidates: shape (C,); the first B of them are ``positives``.
    """
    # An anchor that stands in several rows has a positive in each of them.
    of_one_anchor = (anchors == anchors[:, None]).float()
    is_positive = (candidates == positives[:, None]).float()
    found = (candidates == anchors[:, None]) | (of_one_anchor @ is_positive > 0)
    # Rectangular: the diagonal is that of the positives.
    found.fill_diagonal_(False)
    return found


@dataclass(frozen=True)
class NearestSelector:
    """Share of anchors to which their positive is nearer than all else that is held out.

    Attributes:
        texts: the texts of all columns, one column after the other, n rows of each.
        left_out: bool, shape (n, candidates); see :func:`no_negatives`.
        name: what the score is called.
    """

    texts: TokenizedTexts
    left_out: NDArray[np.bool_]
    name: str = "held_out_accuracy"

    def score(self, encode: Callable[[TokenizedTexts], Vectors]) -> float:
        """Return the share, 0 to 1."""
        vectors = F.normalize(torch.from_numpy(encode(self.texts)), dim=-1)
        rows = len(self.left_out)
        cosines = vectors[:rows] @ vectors[rows:].T
        if not bool(torch.isfinite(cosines).all()):
            return float("nan")
        own = cosines.diagonal().clone()
        cosines[torch.from_numpy(self.left_out)] = -torch.inf
        cosines.fill_diagonal_(-torch.inf)
        # Not "as near as": to a student whose vectors are all alike, everything is.
        return float((own > cosines.max(dim=1).values).float().mean())

    def details(self) -> dict[str, float]:
        """Return nothing."""
        return {}


def nearest_selector(held_out: Triples, tokenizer: FastTokenizer) -> NearestSelector | None:
    """Return the selector for held-out triples or pairs; None where there are too few."""
    if len(held_out) < FEWEST_HELD_OUT:
        return None
    # All are compared with each other, so their number is bounded.
    chosen = held_out.take(np.arange(0, len(held_out), -(-len(held_out) // _MOST_HELD_OUT)))
    codes = torch.from_numpy(chosen.codes())
    left_out = no_negatives(codes[:, 0], codes[:, 1], codes[:, 1:].T.reshape(-1))
    return NearestSelector(
        tokenizer([text for column in chosen.columns for text in column]), left_out.numpy()
    )
