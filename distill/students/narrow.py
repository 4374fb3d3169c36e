"""Narrow students: all of the teacher's depth in a smaller width, from random weights (LMX-KD's, MiniLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from distill.errors import StudentError
from distill.students.architectures import text_positions
from distill.students.transformer_module import as_module, transformer_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentSpec

_HEAD = 64
"""Width of an attention head of BERT, in every size of it."""

_POSITIONS = 512
"""Positions of BERT, for students of teachers that know no end of a text."""

_WIDEST = 8192
_UNLIMITED = 1_000_000


def from_teacher(teacher: SentenceTransformer, spec: StudentSpec, *, seed: int) -> SentenceTransformer:
    """Return a BERT of random weights with the teacher's tokenizer, length and pooling.

    It is an ``ElectraModel`` whose embeddings are as wide as its layers, which is BERT but for the pooler: a
    ``BertModel`` would be opened with one of random weights that no vector needs.

    Args:
        teacher: a transformer of any architecture; left as it is.
        spec: ``narrow:h=H[,layers=L]``: the width of embeddings and layers, and how many layers there are;
            default: as many as the teacher has.
        seed: of the weights.

    Returns:
        [Transformer with an ElectraModel, Pooling], on the CPU, gradients on.

    Raises:
        StudentError: if the teacher is no transformer, its tokenizer cannot be taken over, or the width is
            that of no encoder.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import ElectraConfig, ElectraModel

    first = transformer_of(teacher, spec.text)
    config, width, tokenizer = first.model.config, spec.integer("h"), first.tokenizer
    if width > _WIDEST:
        raise StudentError(
            f"student {spec.text!r}: h={width}, expected at most {_WIDEST}; the teacher's layers are "
            f"{config.hidden_size} wide"
        )
    own = ElectraConfig(
        vocab_size=max(len(tokenizer), config.vocab_size),
        embedding_size=width,
        hidden_size=width,
        num_hidden_layers=spec.optional_integer("layers") or config.num_hidden_layers,
        num_attention_heads=width // _head_width(width),
        intermediate_size=4 * width,
        max_position_embeddings=text_positions(config) or _length(first),
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = ElectraModel(own)
    poolings = [module for module in teacher if isinstance(module, Pooling)]
    # A teacher without one gives its pooler's output, which is made of the first token's state.
    modes = poolings[0].pooling_mode if poolings else "cls"
    student = SentenceTransformer(
        modules=[as_module(model.eval(), tokenizer, first), Pooling(width, modes)], device="cpu"
    )
    student.requires_grad_(True)
    return student


def _length(first: Any) -> int:
    """Return after how many tokens a teacher cuts a text."""
    length = int(first.max_seq_length or _UNLIMITED)
    return length if length < _UNLIMITED else _POSITIONS


def _head_width(width: int) -> int:
    return max(size for size in range(1, min(_HEAD, width) + 1) if width % size == 0)
