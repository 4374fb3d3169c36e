"""Students cut out of their teacher: some of its layers, everything else as it is."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from distill.errors import StudentError
from distill.students.spec import LAYER_FORMS
from distill.students.stack import find_layers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def parse_layers(spec: str, total: int, student: str | None = None) -> list[int]:
    """Return the layer numbers that ``spec`` picks out of ``total`` layers, in order.

    Args:
        spec: ``K`` or ``last:K`` (the last K), ``first:K``, ``every:K`` (every K-th, the last one among
            them), or numbers from 0 with commas or plus signs, as ``0,2,5`` or ``0+2+5``.
        total: how many layers there are.
        student: what messages call the student; default: ``layers:`` and the spec.

    Raises:
        StudentError: if the words are not of that form or name layers that are not there.
    """
    student = student or f"layers:{spec}"
    kind, _, count = spec.rpartition(":")
    words = re.split(r"[,+]", count)
    numbers = [int(word) for word in words if re.fullmatch(r"-?[0-9]+", word)]
    valid = len(numbers) == len(words) and kind in ("", "last", "first", "every")
    if not valid or (kind and len(numbers) != 1):
        raise StudentError(
            f"student '{student}' is not understood: write {LAYER_FORMS}, or layers=K, layers=first:K, "
            "layers=every:K, layers=0+2+5 among the keys of a compact student"
        )
    if len(numbers) == 1:
        (number,) = numbers
        if not 1 <= number <= total:
            raise StudentError(f"student '{student}': the teacher has {total} layers; choose 1 to {total}")
        if kind == "every":
            return list(range((total - 1) % number, total, number))
        return list(range(number)) if kind == "first" else list(range(total - number, total))
    if min(numbers) < 0 or max(numbers) >= total or len(set(numbers)) != len(numbers):
        raise StudentError(
            f"student '{student}': the teacher's layers are 0 to {total - 1}, each to be named once"
        )
    return numbers


def from_teacher_layers(teacher: SentenceTransformer, spec: str) -> SentenceTransformer:
    """Return a copy of ``teacher`` that keeps the layers ``spec`` names, with gradients on.

    Raises:
        StudentError: if the model has no plain stack of layers.
    """
    student = copy.deepcopy(teacher)
    try:
        stack = find_layers(student)
    except StudentError as error:
        raise StudentError(f"student 'layers:{spec}': {error}") from error
    config: Any = student[0].model.config
    chosen = parse_layers(spec, len(stack.layers))
    kept = nn.ModuleList(stack.layers[i] for i in chosen)
    setattr(stack.parent, stack.name, kept)
    config.num_hidden_layers = len(chosen)
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = [config.layer_types[i] for i in chosen]
    for number, layer in enumerate(kept):
        module: Any
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number
    student.requires_grad_(True)
    return student
