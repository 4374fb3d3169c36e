"""An encoder's embedding block, and its reduction to a smaller width.

The block maps token ids to the input of the first layer: word, position and type embeddings are added and
normalised, and where the block is narrower than the layers, a linear map widens the result. SimTDE (section
3) trains a narrow block without saying how it begins. Here it begins with the principal components of the
teacher's word embeddings, each token weighted by its frequency in the texts, and with the linear map that
fits the narrow block's output to the teacher's by least squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distill.students.transformer import one_thread

# Most texts are short: a student's first steps do not depend on positions further back.
_POSITIONS = 32
_DRAWN = 2**17
_CHUNK = 8192
_SEED = 0
# The narrow block's output adds up to zero, so one of its directions says nothing.
_SMALLEST = 1e-10


@dataclass(frozen=True)
class EmbeddingBlock:
    """The weights of an embedding block of width w, for layers of width h.

    Attributes:
        word: (V, w); row i is that of token id i.
        position: (P, w); row 0 is that of a text's first token.
        type: (K, w); row 0 is that of all tokens of a single text.
        norm_weight: (w,), of the LayerNorm over the sum of the three.
        norm_bias: (w,).
        eps: of the LayerNorm.
        project: weight (h, w) and bias (h,) of the linear map behind it; None where w = h and there is none.
    """

    word: Tensor
    position: Tensor
    type: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    eps: float
    project: tuple[Tensor, Tensor] | None = None

    @property
    def width(self) -> int:
        """w, the width of the embeddings."""
        return self.word.shape[1]

    def normalised(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the block's output for tokens before the linear map, (n, w) in float64.

        Args:
            ids: int64 (n,), token ids.
            positions: int64 (n,), where in a text they stand, counted from 0.
        """
        total = self.word[ids].double() + self.position[positions].double() + self.type[0].double()
        weight, bias = self.norm_weight.double(), self.norm_bias.double()
        return torch.nn.functional.layer_norm(total, (self.width,), weight, bias, self.eps)

    def output(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the first layer's input for tokens, (n, h) in float64; see ``normalised``."""
        normalised = self.normalised(ids, positions)
        if self.project is None:
            return normalised
        weight, bias = self.project
        return torch.nn.functional.linear(normalised, weight.double(), bias.double())


@one_thread()
def narrow_block(
    block: EmbeddingBlock, width: int, counts: Tensor | None = None
) -> tuple[EmbeddingBlock, float]:
    """Return ``block`` in a smaller width, its output as near to that of ``block`` as a linear map brings it.

    The same block and counts give the same bytes each time, on however many threads.

    Args:
        block: the teacher's.
        width: e, below the width of ``block``.
        counts: int64 (V,), how often each token comes in the texts; default: all alike.

    Returns:
        The narrow block, float32, with a linear map; and R2, the share of the variance of ``block``'s output
        that the narrow block's output explains, over tokens drawn as often as they come, at positions that
        short texts have.
    """
    # A token that never came may come later.
    shares = torch.ones(len(block.word), dtype=torch.float64) if counts is None else counts.double() + 1
    shares = shares / shares.sum()
    mean, basis = _principal_directions(block.word, shares, width)
    small = EmbeddingBlock(
        word=torch.cat(
            [((chunk.double() - mean) @ basis).float() for chunk in torch.split(block.word, _CHUNK)]
        ),
        position=(block.position.double() @ basis).float(),
        type=(block.type.double() @ basis).float(),
        norm_weight=torch.ones(width),
        norm_bias=torch.zeros(width),
        eps=block.eps,
    )
    project, explained = _fit(small, block, shares)
    return replace(small, project=project), explained


def _principal_directions(table: Tensor, shares: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return mean (w,) and the ``count`` orthonormal directions (w, count) of most variance, both float64.

    They are of the rows of (V, w), each counting as its share (V,) says. The directions are eigenvectors of
    the covariance, which is small however many rows there are. Each has the sign that makes its largest
    component positive: an eigenvector's own is a matter of chance.
    """
    mean = torch.zeros(table.shape[1], dtype=torch.float64)
    for chunk, share in zip(torch.split(table, _CHUNK), torch.split(shares, _CHUNK), strict=True):
        mean += share @ chunk.double()
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for chunk, share in zip(torch.split(table, _CHUNK), torch.split(shares, _CHUNK), strict=True):
        centred = (chunk.double() - mean) * share.sqrt()[:, None]
        covariance += centred.T @ centred
    vectors: Tensor = torch.linalg.eigh(covariance)[1].flip(1)[:, :count]
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return mean, vectors * largest.sign()


def _fit(small: EmbeddingBlock, block: EmbeddingBlock, shares: Tensor) -> tuple[tuple[Tensor, Tensor], float]:
    """Return weight and bias of the best linear map from ``small`` to the output of ``block``, and its R2."""
    width, target = small.width, len(block.project[1]) if block.project else block.width
    inputs = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    products = torch.zeros(width + 1, target, dtype=torch.float64)
    total, squares, count = torch.zeros(target, dtype=torch.float64), 0.0, 0
    for ids, positions in _samples(shares, len(block.position)):
        x = small.normalised(ids, positions)
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
        y = block.output(ids, positions)
        inputs += x.T @ x
        products += x.T @ y
        total += y.sum(dim=0)
        squares += float(y.square().sum())
        count += len(y)
    solution = torch.linalg.pinv(inputs, rtol=_SMALLEST, hermitian=True) @ products
    error = squares - 2 * float((solution * products).sum()) + float((solution * (inputs @ solution)).sum())
    variance = squares - float(total.square().sum()) / count
    weight, bias = solution[:-1].T.contiguous().float(), solution[-1].float()
    return (weight, bias), 1 - error / variance


def _samples(shares: Tensor, positions: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield token ids, as often as their shares say, and positions near the front, both int64."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.multinomial(shares, _DRAWN, replacement=True, generator=generator)
    for ids in torch.split(drawn, _CHUNK):
        yield ids, torch.randint(min(positions, _POSITIONS), (len(ids),), generator=generator)
