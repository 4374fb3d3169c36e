"""Students that keep some layers of their teacher."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from distill.errors import StudentError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentOptions, StudentSpec
    from embedcache.teacher.load import Teacher


def build_layers(spec: StudentSpec, teacher: Teacher, options: StudentOptions) -> SentenceTransformer:
    """Return a copy of the teacher with the layers that the spec's argument selects."""
    return keep_layers(teacher.model, spec.argument)


def find_layers(model: SentenceTransformer) -> nn.ModuleList:
    """Return the one plain stack of layers of a model's transformer.

    Raises:
        StudentError: if there is none, or there are several.
    """
    inner: Any = getattr(model[0], "model", None)
    total = getattr(getattr(inner, "config", None), "num_hidden_layers", None)
    modules = inner.modules() if total is not None else ()
    stacks = [one for one in modules if isinstance(one, nn.ModuleList) and len(one) == total]
    if len(stacks) != 1:
        raise StudentError(
            f"a {type(inner or model[0]).__name__} has no plain stack of layers; use a BERT-like model"
        )
    return stacks[0]


def parse_layers(text: str, total: int) -> list[int]:
    """Return the layer numbers that ``text`` selects from ``total`` layers.

    Args:
        text: ``K`` or ``last:K`` (the last K), ``first:K``, ``every:K`` (every K-th, counted back from the
            last), or numbers from 0 joined by commas or plus signs.
        total: number of layers.

    Raises:
        StudentError: if the text has another form, or selects layers that do not exist.
    """
    kind, _, count = text.rpartition(":")
    words = re.split(r"[,+]", count)
    numbers = [int(word) for word in words if re.fullmatch(r"[0-9]+", word)]
    if len(numbers) == len(words) == 1 and 1 <= numbers[0] <= total:
        (number,) = numbers
        match kind:
            case "" | "last":
                return list(range(total - number, total))
            case "first":
                return list(range(number))
            case "every":
                return list(range((total - 1) % number, total, number))
    if not kind and len(set(numbers)) == len(words) > 1 and max(numbers) < total:
        return numbers
    raise StudentError(
        f"layers {text!r}: the teacher has {total}; expected K, first:K or every:K (1 to {total}), or "
        f"numbers from 0 to {total - 1}, each once, as in 0+2"
    )


def keep_layers(teacher: SentenceTransformer, text: str) -> SentenceTransformer:
    """Return a copy of ``teacher`` that keeps the layers ``text`` selects, gradients on.

    Raises:
        StudentError: as ``find_layers`` and ``parse_layers``.
    """
    student = copy.deepcopy(teacher)
    stack = find_layers(student)
    config: Any = student[0].model.config
    chosen = parse_layers(text, len(stack))
    kept = [stack[number] for number in chosen]
    del stack[:]
    stack.extend(kept)
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
