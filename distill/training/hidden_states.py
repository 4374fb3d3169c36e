"""What the layers of a student and of its live teacher give for the same tokens.

A cache holds sentence vectors; what layers give would take a thousand times the room. So a loss that looks at
layers runs the teacher at every step, which is what everything else here is there to avoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from distill.errors import ConfigError, StudentError
from distill.losses.base import HiddenPairs
from distill.students.stack import find_layers
from distill.students.student import forward

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.data.collate import Batch
    from distill.losses.base import LossBatch
    from embedcache.teacher.load import Teacher


class HiddenStates:
    """Gives a loss the hidden states of a step.

    Args:
        model: the student.
        teacher: the live teacher.
        which: which of the teacher's layers the student's are held against: as many of the ``last``, or
            ``spread`` evenly over all of them, with the embedding blocks beside.

    Raises:
        ConfigError: if the two have other tokens.
        StudentError: if a model has no plain stack of layers, or the teacher fewer than the student.
    """

    def __init__(
        self, model: SentenceTransformer, teacher: Teacher, which: Literal["last", "spread"]
    ) -> None:
        if model.tokenizer.get_vocab() != teacher.model.tokenizer.get_vocab() or teacher.contract.prompt:
            raise ConfigError(
                "a loss that compares layers feeds student and teacher the same tokens: take a student with "
                "the teacher's tokenizer, whole, and a teacher without a prompt"
            )
        self._teacher = teacher.model
        self._teacher.eval()
        own, others = list(find_layers(model).layers), list(find_layers(teacher.model).layers)
        if len(own) > len(others):
            raise StudentError(
                f"the student has {len(own)} layers and the teacher {len(others)}: a loss that compares "
                "layers needs a student of at most as many"
            )
        chosen = choose_layers(len(own), len(others), which)
        modules, targets = list(own), [others[number] for number in chosen]
        if which == "spread":
            modules, targets = [_block(model), *modules], [_block(teacher.model), *targets]
        self._own = _Outputs(modules, while_training=True)
        self._others = _Outputs(targets, while_training=False)
        self.widths = (_widths(model, len(modules)), _widths(teacher.model, len(targets)))
        """Widths of the layers that are compared, the student's and the teacher's."""

    def add(self, step: LossBatch, batch: Batch) -> LossBatch:
        """Return ``step`` with the layers' states; the student has just encoded ``batch``."""
        device = batch.input_ids.device
        self._teacher.to(device)
        first = len(batch)
        ids, mask = batch.input_ids[:first], batch.attention_mask[:first]
        types = None if batch.token_types is None else batch.token_types[:first]
        # Losses are computed outside autocast; what is only looked at may run in what the student runs in.
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self._own.is_half()):
            forward(self._teacher, ids, mask, types)
        pairs = HiddenPairs(
            tuple(states[:first].float() for states in self._own.take()),
            tuple(states.float() for states in self._others.take()),
            mask.bool(),
            batch.tokens,
        )
        return replace(step, hidden=pairs)


def choose_layers(students: int, teachers: int, which: Literal["last", "spread"]) -> list[int]:
    """Return the teacher's layer, from 0, that each of the student's is held against.

    ``spread``: layer l of L is held against layer l N / L of the teacher's N, counted from 1 and rounded, so
    the last meets the last (TinyBERT's map).
    """
    if which == "last":
        return list(range(teachers - students, teachers))
    return [round((number + 1) * teachers / students) - 1 for number in range(students)]


class _Outputs:
    """Keeps what modules give in a forward pass, until it is taken."""

    def __init__(self, modules: Sequence[nn.Module], *, while_training: bool) -> None:
        self._found: list[Tensor | None] = [None] * len(modules)
        for place, module in enumerate(modules):
            module.register_forward_hook(self._keeper(place, while_training))

    def _keeper(self, place: int, while_training: bool) -> Any:
        def keep(module: nn.Module, _: object, output: Any) -> None:
            if module.training or not while_training:
                self._found[place] = output[0] if isinstance(output, tuple) else output

        return keep

    def is_half(self) -> bool:
        """Return whether the last states are in half precision."""
        return any(states is not None and states.dtype != torch.float32 for states in self._found)

    def take(self) -> tuple[Tensor, ...]:
        found, self._found = self._found, [None] * len(self._found)
        assert all(states is not None for states in found)  # noqa: S101  # every layer runs in every pass
        return tuple(states for states in found if states is not None)


def _block(model: SentenceTransformer) -> nn.Module:
    """Return what gives the first layer its input."""
    inner: Any = model[0].model
    block: nn.Module | None = getattr(inner, "embeddings_project", None) or getattr(inner, "embeddings", None)
    if block is None:
        raise StudentError(
            f"a {type(inner).__name__} has no embedding block to look at; take a BERT-like model"
        )
    return block


def _widths(model: SentenceTransformer, count: int) -> list[int]:
    return [int(model[0].model.config.hidden_size)] * count
