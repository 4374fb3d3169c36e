"""A plain softmax attention for short sequences on a CPU.

PyTorch's blocked CPU kernel spends its time on bookkeeping when a sequence is a dozen tokens long, and its
backward pass in bfloat16 takes a third of a whole training step. Two batched products and a softmax are
faster in both directions; longer sequences go to the blocked kernel as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LONGEST = 64
_NAME = "embedcache_short"


def short_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Softmax attention as transformers calls it: (batch, heads, length, width) in, length first out."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    plain = (
        query.shape[2] <= _LONGEST
        and query.shape[1] == key.shape[1]
        and not dropout
        and not getattr(module, "is_causal", True)
        and (attention_mask is None or attention_mask.dtype == torch.bool)
    )
    if not plain:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return out
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Keys first: a softmax down the columns works on whole vectors, one along rows of a dozen does not.
    scores = torch.matmul(key * scale, query.transpose(2, 3))
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask.transpose(2, 3), torch.finfo(scores.dtype).min)
    weights = F.softmax(scores, dim=-2).to(value.dtype).transpose(2, 3)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def use_short_attention(model: SentenceTransformer) -> None:
    """Make ``model`` use :func:`short_attention` where its architecture lets attention be chosen.

    The choice lives in memory only: a saved model's config does not name it.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if _attention_of(model) == "sdpa":
        AttentionInterface.register(_NAME, short_attention)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        model[0].model.set_attn_implementation(_NAME)


def _attention_of(model: SentenceTransformer) -> str | None:
    inner: Any = getattr(model[0], "model", None)
    if not getattr(inner, "_supports_attention_backend", False):
        return None
    name: str | None = getattr(inner.config, "_attn_implementation", None)
    return name
