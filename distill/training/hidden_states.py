"""What the layers of a student and of its live teacher give for the same tokens.

A cache holds sentence vectors; what layers give would take a thousand times the room. So a loss that looks at
layers runs the teacher at every step, which is what everything else here is there to avoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from distill.errors import ConfigError, StudentError
from distill.losses.base import HiddenPairs
from distill.students.build import forward
from distill.students.layers import find_layers
from distill.training.processes import mean_of
from embedcache.teacher.inference import use_short_attention

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.data.collate import Batch
    from distill.data.source import Share
    from distill.losses.base import LossBatch
    from embedcache.teacher.load import Teacher


class HiddenStates:
    """Gives a loss the hidden states of a step.

    Args:
        model: the student.
        teacher: the live teacher; it is moved to ``device`` and is not to be used for anything else.
        which: which of the teacher's layers the student's are held against: as many of the ``last``, or
            ``spread`` evenly over all of them, with the embedding blocks beside.
        device: where the student is trained.
        scaled: whether the loss divides a layer's error by the mean square of its targets.

    Raises:
        ConfigError: if the two have other tokens.
        StudentError: if a model has no plain stack of layers, the teacher fewer than the student, or with
            ``last`` others in width.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher: Teacher,
        which: Literal["last", "spread"],
        device: torch.device,
        *,
        scaled: bool,
    ) -> None:
        if model.tokenizer.get_vocab() != teacher.model.tokenizer.get_vocab() or teacher.contract.prompt:
            raise ConfigError(
                "a loss that compares layers feeds student and teacher the same tokens: take a student with "
                "the teacher's tokenizer, whole, and a teacher without a prompt"
            )
        # Weights that are stored in half precision do not mix with what autocast leaves in float32.
        self._teacher = teacher.model.to(device).float().eval()
        if device.type == "cpu":
            use_short_attention(self._teacher)
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
        self._scaled = scaled
        self._precision = _Precision(own[-1], device.type)
        self.widths = (_widths(model, len(modules)), _widths(teacher.model, len(targets)))
        """Widths of the layers that are compared, the student's and the teacher's."""
        if which == "last" and self.widths[0] != self.widths[1]:
            raise StudentError(
                f"the student's layers are {self.widths[0][-1]} wide and the teacher's {self.widths[1][-1]}: "
                "a loss that compares them as they are needs a student as wide, such as "
                "compact:e=128,layers=3; lmx-kd compares others through matrices"
            )

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with the layers' states; the student has just encoded ``batch``."""
        first = len(batch)
        ids, mask = batch.input_ids[:first], batch.attention_mask[:first]
        types = None if batch.token_types is None else batch.token_types[:first]
        with torch.no_grad(), self._precision.context():
            forward(self._teacher, ids, mask, types)
        targets = tuple(states.float() for states in self._others.take())
        pairs = HiddenPairs(
            tuple(states[:first].float() for states in self._own.take()),
            targets,
            mask.bool(),
            batch.tokens,
            _mean_squares(targets, mask[: batch.counted].bool(), batch.tokens, share.processes)
            if self._scaled
            else None,
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

    def take(self) -> tuple[Tensor, ...]:
        found, self._found = self._found, [None] * len(self._found)
        assert all(states is not None for states in found)  # noqa: S101  # every layer runs in every pass
        return tuple(states for states in found if states is not None)


class _Precision:
    """Remembers what precision a module last ran in: losses are computed outside of autocast.

    States do not tell: autocast leaves the output of a LayerNorm in float32.
    """

    def __init__(self, module: nn.Module, kind: str) -> None:
        self._kind, self._enabled, self._dtype = kind, False, torch.float32
        module.register_forward_hook(self._look)

    def _look(self, module: nn.Module, *_: object) -> None:
        if module.training:
            self._enabled = torch.is_autocast_enabled(self._kind)
            self._dtype = torch.get_autocast_dtype(self._kind)

    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which another model computes in that precision."""
        return torch.autocast(self._kind, self._dtype, enabled=self._enabled)


def _mean_squares(targets: Sequence[Tensor], mask: Tensor, total: int, processes: int) -> Tensor:
    """Return the mean square of the components of each layer's states, over all real tokens of the step.

    Args:
        targets: one tensor (B, T, h) a layer.
        mask: bool, shape (C, T); real tokens of the C rows that count, which come first.
        total: real tokens of the whole step.
        processes: how many share it.

    Returns:
        float32, shape (layers,); the same in every process.
    """
    sums = [states[: len(mask)].square().mean(dim=-1)[mask].sum() / total for states in targets]
    return mean_of(torch.stack(sums), processes) * processes


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
