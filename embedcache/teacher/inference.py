"""Models made fast for inference without changing what they compute.

On x86 CPUs linear layers get weights laid out once for oneDNN (instead of at every call) with a following
GELU fused in. Short sequences get a plain softmax attention: PyTorch's blocked CPU kernel spends its time on
bookkeeping when a sequence is a dozen tokens long, and its backward pass in bfloat16 takes a third of a whole
training step. Longer sequences go to the blocked kernel.

On GPUs in half precision attention skips the padding where flash-attn is installed.
"""

from __future__ import annotations

import platform
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embedcache.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16")
_LONGEST_SHORT = 64
_SHORT_ATTENTION = "embedcache_short"


def resolve_compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolve the name of a dtype; ``auto`` is half precision where the hardware is faster in it.

    Raises:
        InputError: if the name is unknown or the device cannot compute in it.
    """
    if name not in COMPUTE_DTYPES:
        raise InputError(f"unknown compute dtype {name!r}: choose one of {', '.join(COMPUTE_DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise InputError("compute_dtype float16 needs a GPU; on a CPU choose bfloat16 or float32")
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if device.type == "cpu" and has_fast_bfloat16() else torch.float32


@cache
def has_fast_bfloat16() -> bool:
    """Check if this CPU multiplies bfloat16 matrices in hardware, and faster than float32.

    It is measured, in a fraction of a second: with AVX512-BF16 alone some CPUs are faster, and
    others, such as Intel's in virtual machines that hide AMX, take nearly twice as long as in float32.
    """
    from torch.utils.benchmark import Timer

    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, probe, bool)() for probe in probes):
        return False

    def seconds(dtype: torch.dtype) -> float:
        names = {"F": F, "x": torch.ones(384, 384, dtype=dtype)}
        return Timer("F.linear(x, x)", globals=names).blocked_autorange(min_run_time=0.02).median

    return seconds(torch.bfloat16) < seconds(torch.float32)


def prepare(
    model: SentenceTransformer, dtype: torch.dtype, *, faster: bool = True, copy: bool = True
) -> SentenceTransformer:
    """Make a model ready for inference in ``dtype`` on its device.

    Args:
        model: the model.
        dtype: dtype of the forward pass.
        faster: with faster layers where there are any.
        copy: leave ``model`` unchanged. False converts it in place, which needs memory for its weights once.
    """
    ready = (deepcopy(model) if copy else model).to(dtype).eval()
    if faster and can_pack(torch.device(model.device), dtype):
        _pack_linears(ready)
        use_short_attention(ready)
    elif faster:
        use_flash_attention(ready, dtype)
    return ready


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference, its weight laid out for oneDNN, with an exact GELU fused in on request."""

    def __init__(self, linear: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = "gelu" if gelu else "none"

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_in) to (..., d_out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self.activation, [], "none"
        )
        return out


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Check if oneDNN's packed linear layers work on ``device`` in ``dtype``."""
    return (
        device.type == "cpu"
        and platform.machine().lower() in ("x86_64", "amd64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        # Without AVX-512 oneDNN refuses to pack bfloat16; plain layers compute it all the same.
        and (dtype is not torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


def _pack_linears(module: nn.Module) -> None:
    for name, child in module.named_children():
        dense = getattr(child, "dense", None)
        if type(dense) is nn.Linear and _is_exact_gelu(getattr(child, "intermediate_act_fn", None)):
            child.dense = PackedLinear(dense, gelu=True)
            child.intermediate_act_fn = nn.Identity()
        elif type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            _pack_linears(child)


def _is_exact_gelu(activation: object) -> bool:
    if isinstance(activation, nn.GELU):
        return activation.approximate == "none"
    # transformers' own class is the exact form; its other GELUs have other names.
    return type(activation).__name__ == "GELUActivation"


def use_short_attention(model: SentenceTransformer) -> None:
    """Make a model use ``short_attention`` if its architecture takes other attention functions.

    This is a setting in memory only: a saved model's config does not name it.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    inner: Any = getattr(model[0], "model", None)
    if not getattr(inner, "_supports_attention_backend", False):
        return
    if getattr(inner.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(_SHORT_ATTENTION, short_attention)
        AttentionMaskInterface.register(_SHORT_ATTENTION, sdpa_mask)
        inner.set_attn_implementation(_SHORT_ATTENTION)


def use_flash_attention(model: SentenceTransformer, dtype: torch.dtype) -> None:
    """Make a model on a GPU attend over real tokens only, without padding, where flash-attn can."""
    from transformers.utils import is_flash_attn_2_available

    from embedcache.teacher.modules import quiet_transformers

    first: Any = model[0]
    inner: Any = getattr(first, "model", None)
    device = torch.device(model.device)
    if (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and getattr(inner, "_supports_flash_attn", False)
        and getattr(inner.config, "_attn_implementation", None) == "sdpa"
        and is_flash_attn_2_available()
        # Its kernels need Ampere or later.
        and torch.cuda.get_device_capability(device) >= (8, 0)
    ):
        with quiet_transformers():
            inner.set_attn_implementation("flash_attention_2")
        # Batches stay padded outside attention.
        first.unpad_inputs = False


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
    """Softmax attention in the form transformers calls.

    Args:
        module: the attention layer.
        query, key, value: shape (batch, heads, length, width).
        attention_mask: bool, True for tokens that are seen.
        scaling: factor of the products; default: width ** -0.5.
        dropout: probability of dropping a weight.
        kwargs: passed on to the library's own attention.

    Returns:
        Output of shape (batch, length, heads, width), and None for the weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_plain = (
        query.shape[2] <= _LONGEST_SHORT
        and query.shape[1] == key.shape[1]
        and not dropout
        and not getattr(module, "is_causal", True)
        and not kwargs.get("is_causal")
        and kwargs.get("position_bias") is None
        and (attention_mask is None or attention_mask.dtype == torch.bool)
    )
    if not is_plain:
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
