"""Students cut out of their teacher: some of its layers, everything else as it is."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from distill.errors import StudentError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def parse_layers(spec: str, total: int) -> list[int]:
    """Return the layer numbers that ``spec`` picks out of ``total`` layers, in order.

    Args:
        spec: ``K`` or ``last:K`` (the last K), ``first:K``, or numbers from 0 with commas, as ``0,2,5``.
        total: how many layers there are.

    Raises:
        StudentError: if the words are not of that form or name layers that are not there.
    """
    kind, _, count = spec.rpartition(":")
    try:
        numbers = [int(part) for part in count.split(",")]
    except ValueError:
        numbers = []
    valid = numbers and kind in ("", "last", "first") and (not kind or len(numbers) == 1)
    if not valid:
        raise StudentError(
            f"student 'layers:{spec}' is not understood: write layers:K, layers:first:K or layers:0,2,5"
        )
    if kind or "," not in count:
        if not 1 <= numbers[0] <= total:
            raise StudentError(
                f"student 'layers:{spec}': the teacher has {total} layers; choose 1 to {total}"
            )
        return list(range(numbers[0])) if kind == "first" else list(range(total - numbers[0], total))
    if min(numbers) < 0 or max(numbers) >= total or len(set(numbers)) != len(numbers):
        raise StudentError(
            f"student 'layers:{spec}': the teacher's layers are 0 to {total - 1}, each to be named once"
        )
    return numbers


def from_teacher_layers(teacher: SentenceTransformer, spec: str) -> SentenceTransformer:
    """Return a copy of ``teacher`` that keeps the layers ``spec`` names, with gradients on.

    Raises:
        StudentError: if the model has no plain stack of layers.
    """
    student = copy.deepcopy(teacher)
    inner: Any = getattr(student[0], "model", None)
    total = getattr(getattr(inner, "config", None), "num_hidden_layers", None)
    stacks = [
        (parent, name, child)
        for parent in (inner.modules() if inner is not None else ())
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if total is None or len(stacks) != 1:
        raise StudentError(
            f"student 'layers:{spec}': a {type(inner or student[0]).__name__} has no plain stack of layers "
            "to choose from; give a model folder or a hub id as the student"
        )
    parent, name, stack = stacks[0]
    chosen = parse_layers(spec, total)
    setattr(parent, name, nn.ModuleList(stack[i] for i in chosen))
    inner.config.num_hidden_layers = len(chosen)
    if isinstance(getattr(inner.config, "layer_types", None), list):
        inner.config.layer_types = [inner.config.layer_types[i] for i in chosen]
    for number, layer in enumerate(getattr(parent, name)):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number
    student.requires_grad_(True)
    return student
