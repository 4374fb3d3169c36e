"""Students that keep some layers of their teacher."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from distill.errors import StudentError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class LayerStack:
    """The stack of layers inside a model.

    Attributes:
        parent: the module that holds the stack.
        name: the stack's attribute there.
        layers: the layers, first to last.
    """

    parent: nn.Module
    name: str
    layers: nn.ModuleList


def find_layers(model: SentenceTransformer) -> LayerStack:
    """Return the one plain stack of layers of a model's transformer.

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
            f"a {type(inner or model[0]).__name__} has no plain stack of layers; use a BERT-like model"
        )
    return stacks[0]


def parse_layers(text: str, total: int, student: str | None = None) -> list[int]:
    """Return the layer numbers that ``text`` selects from ``total`` layers.

    Args:
        text: ``K`` or ``last:K`` (the last K), ``first:K``, ``every:K`` (every K-th, counted back from the
            last), or numbers from 0 joined by commas or plus signs.
        total: number of layers.
        student: the student's spec, for messages; default: ``layers:`` and the text.

    Raises:
        StudentError: if the text has another form, or selects layers that do not exist.
    """
    student = student or f"layers:{text}"
    kind, _, count = text.rpartition(":")
    words = re.split(r"[,+]", count)
    numbers = [int(word) for word in words if re.fullmatch(r"-?[0-9]+", word)]
    known = kind in ("last", "first", "every") and len(words) == 1
    if len(numbers) != len(words) or (kind and not known):
        raise StudentError(
            f"student {student!r}: layers {text!r}, expected K, first:K, every:K, 0+2+5 or (after "
            "'layers:' only) 0,2,5"
        )
    if len(numbers) == 1:
        (number,) = numbers
        if not 1 <= number <= total:
            raise StudentError(f"student {student!r}: the teacher has {total} layers; choose 1 to {total}")
        if kind == "every":
            return list(range((total - 1) % number, total, number))
        return list(range(number)) if kind == "first" else list(range(total - number, total))
    if min(numbers) < 0 or max(numbers) >= total or len(set(numbers)) != len(numbers):
        raise StudentError(
            f"student {student!r}: layers are numbered 0 to {total - 1}; name each at most once"
        )
    return numbers


def keep_layers(teacher: SentenceTransformer, text: str) -> SentenceTransformer:
    """Return a copy of ``teacher`` that keeps the layers ``text`` selects, gradients on.

    Raises:
        StudentError: as :func:`find_layers` and :func:`parse_layers`.
    """
    student = copy.deepcopy(teacher)
    stack = find_layers(student)
    config: Any = student[0].model.config
    chosen = parse_layers(text, len(stack.layers))
    kept = nn.ModuleList(stack.layers[number] for number in chosen)
    setattr(stack.parent, stack.name, kept)
    config.num_hidden_layers = len(chosen)
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = [config.layer_types[number] for number in chosen]
    module: Any
    for number, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number
    student.requires_grad_(True)
    return student
