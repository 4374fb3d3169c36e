"""Outputs from inside student and teacher that losses read: token embeddings, layers, class logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from distill.data.collate import Batch
from distill.data.source import Share
from distill.errors import ConfigError, StudentError
from distill.losses.base import ClassPairs, HiddenPairs, LossBatch, TokenPairs
from distill.reaugkd.head import LabelHead
from distill.reaugkd.soft_labels import SoftLabels
from distill.students.build import forward
from distill.students.layers import find_layers
from distill.training.distributed import mean_of
from embedcache.errors import InputError
from embedcache.teacher.inference import use_short_attention
from embedcache.teacher.load import Teacher
from embedcache.teacher.token_table import TokenTable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Inside(Protocol):
    """Source of outputs from inside the models."""

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with those outputs for ``batch``, which the student has just encoded."""
        ...


class TokenEmbeddings:
    """Token embeddings of student and teacher (SimTDE, Eq. 1 to 3).

    The teacher's come from a table in the cache, so the teacher is not needed. Both go through the projection
    of their model, where it has one. ``word`` compares the rows of the embedding matrices; ``block`` compares
    the output of the embedding block without position: the normalised sum of word and type.

    Args:
        model: the student.
        table: the teacher's table.
        over: the real ``tokens`` of the batch's first texts, or the whole ``vocabulary``.
        embeddings: ``block`` or ``word``, as above.

    Raises:
        StudentError: if the student's tokens are not among the teacher's, or its width is another.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        table: TokenTable,
        over: Literal["tokens", "vocabulary"],
        embeddings: Literal["block", "word"],
    ) -> None:
        self._over, self._embeddings = over, embeddings
        inner: Any = getattr(model[0], "model", None)
        words = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
        if not isinstance(words, nn.Embedding):
            raise StudentError(
                "the simtde loss compares token embeddings, and the student has no matrix of them before its "
                "layers: take a transformer, such as --student compact:e=128,layers=3"
            )
        self._words = words
        block = getattr(inner, "embeddings", None)
        self._norm: nn.Module | None = getattr(block, "LayerNorm", None)
        self._types: nn.Embedding | None = getattr(block, "token_type_embeddings", None)
        self._projection: nn.Module | None = getattr(inner, "embeddings_project", None)
        names: list[str] = model.tokenizer.convert_ids_to_tokens(list(range(len(model.tokenizer))))
        try:
            rows = torch.from_numpy(table.rows_of(names))
        except InputError as error:
            raise StudentError(
                f"the simtde loss needs a student with tokens of its teacher: {error}; take one that is made "
                "from the teacher (compact:, layers:)"
            ) from error
        source = table.block() if embeddings == "block" else table.words()
        self._targets = torch.from_numpy(source)[rows]
        self._mean_square = float(self._targets.square().mean())
        width = int(self.of_tokens(torch.zeros(1, dtype=torch.int64)).shape[-1])
        if width != self._targets.shape[1]:
            raise StudentError(
                f"the student's token embeddings have {width} dimensions where its layers begin, the "
                f"teacher's {self._targets.shape[1]}: the simtde loss needs a student whose layers are as "
                "wide as the teacher's, such as compact:e=128,layers=3"
            )

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Return the student's embeddings of token ids (n,), projected, shape (n, h)."""
        vectors: Tensor = self._words(ids)
        if self._embeddings == "block":
            if self._types is not None:
                vectors = vectors + self._types.weight[0]
            if self._norm is not None:
                vectors = self._norm(vectors)
        return vectors if self._projection is None else self._projection(vectors)

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with token embeddings."""
        device = batch.input_ids.device
        self._targets = self._targets.to(device)
        if self._over == "vocabulary":
            ids, rows, total = torch.arange(len(self._targets), device=device), None, len(self._targets)
        else:
            mask = batch.attention_mask[: len(batch)].bool()
            ids, total = batch.input_ids[: len(batch)][mask], batch.tokens
            rows, _ = torch.nonzero(mask, as_tuple=True)
        pairs = TokenPairs(self.of_tokens(ids).float(), self._targets[ids], rows, total, self._mean_square)
        return replace(step, tokens=pairs)


class HiddenStates:
    """Hidden states of the layers of student and live teacher for the same tokens.

    A cache holds sentence vectors; hidden states would take a thousand times the room, so the teacher runs at
    every step.

    Args:
        model: the student.
        teacher: the live teacher; it is moved to ``device``, and belongs to this object.
        which: teacher layers that the student's are compared with: as many of the ``last``, or ``spread``
            evenly over all, with the embedding blocks beside.
        device: device of the training.
        scaled: give the loss the mean square of each layer's targets.
        autocast: makes the context in which the student computes; losses are computed outside of it.

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
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
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
        own, others = list(find_layers(model)), list(find_layers(teacher.model))
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
        self._scaled, self._autocast = scaled, autocast
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
        with torch.no_grad(), self._autocast():
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
    """Return the teacher's layer, from 0, that each of the student's is compared with.

    ``spread``: layer l of L is compared with layer l N / L of the teacher's N, counted from 1 and rounded, so
    the last meets the last (TinyBERT's map).
    """
    if which == "last":
        return list(range(teachers - students, teachers))
    return [round((number + 1) * teachers / students) - 1 for number in range(students)]


class _Outputs:
    """Outputs of modules in a forward pass, kept until they are taken."""

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


def _mean_squares(targets: Sequence[Tensor], mask: Tensor, total: int, processes: int) -> Tensor:
    """Return the mean square of the components of each layer's states, over all real tokens of the step.

    Args:
        targets: one tensor (B, T, h) a layer.
        mask: bool, shape (C, T); real tokens of the C rows that count, which come first.
        total: real tokens of the whole step.
        processes: number of processes that share it.

    Returns:
        float32, shape (layers,); the same in every process.
    """
    sums = [states[: len(mask)].square().mean(dim=-1)[mask].sum() / total for states in targets]
    return mean_of(torch.stack(sums), processes) * processes


def _block(model: SentenceTransformer) -> nn.Module:
    """Return the module whose output the first layer reads."""
    inner: Any = model[0].model
    block: nn.Module | None = getattr(inner, "embeddings_project", None) or getattr(inner, "embeddings", None)
    if block is None:
        raise StudentError(
            f"a {type(inner).__name__} has no embedding block to look at; take a BERT-like model"
        )
    return block


def _widths(model: SentenceTransformer, count: int) -> list[int]:
    return [int(model[0].model.config.hidden_size)] * count


class ClassOutputs(nn.Module):
    """Logits of the student's classifier, and the teacher's logits and labels of the same rows.

    It is a part of the loss's module, so that the classifier is optimised and saved with the student.

    Args:
        head: the student's classifier.
        soft: logits and labels of the rows.
    """

    def __init__(self, head: LabelHead, soft: SoftLabels) -> None:
        super().__init__()
        self.head = head
        # Buffers follow the model to its device; a checkpoint need not hold what the cache does.
        self.register_buffer("rows", torch.from_numpy(soft.rows), persistent=False)
        self.register_buffer("logits", torch.from_numpy(soft.logits), persistent=False)
        labels = None if soft.labels is None else torch.from_numpy(soft.labels)
        self.register_buffer("labels", labels, persistent=False)

    def add(self, step: LossBatch, batch: Batch, share: Share) -> LossBatch:
        """Return ``step`` with logits and labels."""
        vectors = step.students[0]
        # A loss that compares rows with each other is given those of all processes.
        first = 0 if len(vectors) == len(batch.rows) else batch.offset
        places = torch.searchsorted(self.get_buffer("rows"), batch.rows[first : first + len(vectors)])
        labels = None if self.labels is None else self.get_buffer("labels")[places]
        return replace(
            step, classes=ClassPairs(self.head(vectors), self.get_buffer("logits")[places], labels)
        )
