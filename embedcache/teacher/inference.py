"""Make a model ready for fast inference without changing what it computes.

On x86 CPUs two things are worth doing: linear layers whose weights are laid out once for oneDNN (instead of
at every call) with a following GELU fused in, and a plain attention for short sequences.
"""

from __future__ import annotations

import copy
import platform
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from embedcache.errors import InputError
from embedcache.teacher.attention import use_short_attention

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

COMPUTE_DTYPES = ("auto", "float32", "bfloat16", "float16")


def resolve_compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for ``name``; ``auto`` takes half precision where the hardware computes in it.

    Raises:
        InputError: if the name is unknown or the device cannot compute in it.
    """
    if name not in COMPUTE_DTYPES:
        raise InputError(f"unknown compute dtype {name!r}: choose one of {', '.join(COMPUTE_DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise InputError("--compute-dtype float16 needs a GPU; on a CPU choose bfloat16 or float32")
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if device.type == "cpu" and has_native_bfloat16() else torch.float32


def has_native_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices in hardware."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference, its weight laid out once for oneDNN, an exact GELU fused in or not."""

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
    """Return whether oneDNN's packed linear layers can be used on ``device`` in ``dtype``."""
    return (
        device.type == "cpu"
        and platform.machine().lower() in ("x86_64", "amd64")
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        # Without AVX-512 oneDNN refuses to pack bfloat16, which plain layers compute all the same.
        and (dtype is not torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


def _pack_linears(module: nn.Module) -> None:
    for name, child in module.named_children():
        activation = getattr(child, "intermediate_act_fn", None)
        dense = getattr(child, "dense", None)
        if type(dense) is nn.Linear and _is_exact_gelu(activation):
            child.dense = PackedLinear(dense, gelu=True)
            child.intermediate_act_fn = nn.Identity()
        elif type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            _pack_linears(child)


def _is_exact_gelu(activation: object) -> bool:
    if isinstance(activation, nn.GELU):
        return activation.approximate == "none"
    # transformers' own class wraps the exact form; its other GELUs have other names.
    return type(activation).__name__ == "GELUActivation"


def prepare(model: SentenceTransformer, dtype: torch.dtype, *, optimise: bool = True) -> SentenceTransformer:
    """Return a copy of ``model`` for inference in ``dtype`` on the device the model is on.

    Args:
        model: the model; it is left as it is.
        dtype: what the forward pass computes in.
        optimise: whether to use the faster layers described at the top of this file.
    """
    copied = copy.deepcopy(model).to(dtype)
    copied.eval()
    if optimise and can_pack(torch.device(model.device), dtype):
        _pack_linears(copied)
        use_short_attention(copied)
    return copied
