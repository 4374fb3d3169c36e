"""Narrow students: all of the teacher's depth in a smaller width, from random weights (LMX-KD's, MiniLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from distill.errors import StudentError
from distill.students.architectures import first_position
from distill.students.transformer_module import as_module

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentSpec

_HEAD = 64
"""Width of an attention head of BERT, in every size of it."""


def from_teacher(teacher: SentenceTransformer, spec: StudentSpec, *, seed: int) -> SentenceTransformer:
    """Return a BERT of random weights with the teacher's tokenizer, length and pooling.

    Args:
        teacher: the teacher; left as it is.
        spec: ``narrow:h=H[,layers=L]``: the width of embeddings and layers, and how many layers there are;
            default: as many as the teacher has.
        seed: of the weights.

    Returns:
        [Transformer with a BertModel, Pooling], on the CPU, gradients on.

    Raises:
        StudentError: if the teacher is no transformer.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel

    first: Any = teacher[0]
    config = getattr(getattr(first, "model", None), "config", None)
    if config is None:
        raise StudentError(
            f"student {spec.text!r}: the teacher starts with a {type(first).__name__}, whose tokenizer and "
            "pooling a transformer cannot take over; choose a teacher that is a transformer"
        )
    width, tokenizer = spec.integer("h"), first.tokenizer
    own = BertConfig(
        vocab_size=max(len(tokenizer), config.vocab_size),
        hidden_size=width,
        num_hidden_layers=spec.optional_integer("layers") or config.num_hidden_layers,
        num_attention_heads=width // _head_width(width),
        intermediate_size=4 * width,
        max_position_embeddings=config.max_position_embeddings - first_position(config),
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(own)
    poolings = [module for module in teacher if isinstance(module, Pooling)]
    # A teacher without one gives its pooler's output, which is made of the first token's state.
    modes = poolings[0].pooling_mode if poolings else "cls"
    student = SentenceTransformer(
        modules=[as_module(model.eval(), tokenizer, first), Pooling(width, modes)], device="cpu"
    )
    student.requires_grad_(True)
    return student


def _head_width(width: int) -> int:
    return max(size for size in range(1, min(_HEAD, width) + 1) if width % size == 0)
