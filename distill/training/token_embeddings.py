"""Token embeddings of student and teacher, side by side (SimTDE, Eq. 1 to 3).

The teacher's come from a table that its cache holds, so that the teacher itself is not needed. Both are taken
through the projection of their model, where it has one. There are two readings of "token embedding layer":
``word``, the rows of the embedding matrices, and ``block``, what the encoder is fed of a token by the whole
embedding block, but for its position: the normalised sum of word and type. They differ in that the
projection stands behind the student's normalisation, so only ``block`` asks it for what the encoder gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from distill.errors import StudentError
from distill.losses.base import TokenPairs
from embedcache.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.data.collate import Batch
    from distill.data.source import Share
    from distill.losses.base import LossBatch
    from embedcache.teacher.token_table import TokenTable


class TokenEmbeddings:
    """Gives a loss the token embeddings of a step.

    Args:
        model: the student.
        table: the teacher's table.
        over: the real ``tokens`` of the batch's first texts, or the whole ``vocabulary``.
        embeddings: ``block`` or ``word``, as above.

    Raises:
        StudentError: if the student's tokens are not among the teacher's, or its width is another.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        table: TokenTable,
        over: Literal["tokens", "vocabulary"],
        embeddings: Literal["block", "word"],
    ) -> None:
        self._over, self._embeddings = over, embeddings
        inner: Any = getattr(model[0], "model", None)
        words = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
        if not isinstance(words, nn.Embedding):
            raise StudentError(
                "the simtde loss compares token embeddings, and the student has no matrix of them before its "
                "layers: take a transformer, such as --student compact:e=128,layers=3"
            )
        self._words = words
        block = getattr(inner, "embeddings", None)
        self._norm: nn.Module | None = getattr(block, "LayerNorm", None)
        self._types: nn.Embedding | None = getattr(block, "token_type_embeddings", None)
        self._projection: nn.Module | None = getattr(inner, "embeddings_project", None)
        names: list[str] = model.tokenizer.convert_ids_to_tokens(list(range(len(model.tokenizer))))
        try:
            rows = torch.from_numpy(table.rows_of(names))
        except InputError as error:
            raise StudentError(
                f"the simtde loss needs a student with tokens of its teacher: {error}; take one that is made "
                "from the teacher (compact:, layers:)"
            ) from error
        source = table.block() if embeddings == "block" else table.words()
        self._targets = torch.from_numpy(source)[rows]
        self._mean_square = float(self._targets.square().mean())
        width = int(self.of_tokens(torch.zeros(1, dtype=torch.int64)).shape[-1])
        if width != self._targets.shape[1]:
            raise StudentError(
                f"the student's token embeddings have {width} dimensions where its layers begin, the "
                f"teacher's {self._targets.shape[1]}: the simtde loss needs a student whose layers are as "
                "wide as the teacher's, such as compact:e=128,layers=3"
            )

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Return the student's embeddings of token ids (n,), projected, shape (n, h)."""
        vectors: Tensor = self._words(ids)
        if self._embeddings == "block":
            if self._types is not None:
                vectors = vectors + self._types.weight[0]
            if self._norm is not None:
                vectors = self._norm(vectors)
        return vectors if self._projection is None else self._projection(vectors)

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with token embeddings."""
        device = batch.input_ids.device
        self._targets = self._targets.to(device)
        if self._over == "vocabulary":
            ids, rows, total = torch.arange(len(self._targets), device=device), None, len(self._targets)
        else:
            mask = batch.attention_mask[: len(batch)].bool()
            ids, total = batch.input_ids[: len(batch)][mask], batch.tokens
            rows, _ = torch.nonzero(mask, as_tuple=True)
        pairs = TokenPairs(self.of_tokens(ids).float(), self._targets[ids], rows, total, self._mean_square)
        return replace(step, tokens=pairs)
