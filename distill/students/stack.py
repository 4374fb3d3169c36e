"""The stack of layers inside a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from distill.errors import StudentError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class LayerStack:
    """A model's layers, and where they hang.

    Attributes:
        parent: the module they are a part of.
        name: what they are called there.
        layers: the layers, first to last.
    """

    parent: nn.Module
    name: str
    layers: nn.ModuleList


def find_layers(model: SentenceTransformer) -> LayerStack:
    """Return the one plain stack of layers of ``model``'s transformer.

    Raises:
        StudentError: if there is none, or there are several.
    """
    inner: Any = getattr(model[0], "model", None)
    total = getattr(getattr(inner, "config", None), "num_hidden_layers", None)
    stacks = [
        LayerStack(parent, name, child)
        for parent in (inner.modules() if inner is not None else ())
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if total is None or len(stacks) != 1:
        raise StudentError(
            f"a {type(inner or model[0]).__name__} has no plain stack of layers; take a BERT-like model"
        )
    return stacks[0]
