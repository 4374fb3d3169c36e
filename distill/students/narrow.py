"""Narrow students: a BERT of smaller width with random weights (LMX-KD's students, MiniLM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from distill.students.architectures import text_positions
from distill.students.transformer import as_module, transformer_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentOptions, StudentSpec
    from embedcache.teacher.load import Teacher

_HEAD = 64
"""Width of an attention head of BERT, in all its sizes."""

_POSITIONS = 512
"""Positions of BERT, for students of teachers without a limit."""

_UNLIMITED = 1_000_000


def build_narrow(
    spec: StudentSpec, teacher: Teacher, options: StudentOptions, *, h: int, layers: int | None = None
) -> SentenceTransformer:
    """Return a BERT of random weights with the teacher's tokenizer, length and pooling.

    It is an ``ElectraModel`` whose embeddings are as wide as its layers, which is BERT without the pooler: a
    saved ``BertModel`` would be opened with a pooler of random weights that no vector needs.

    Args:
        spec: the spec.
        teacher: a transformer of any architecture; not changed.
        options: the seed of the weights.
        h: width of embeddings and layers.
        layers: number of layers; default: as many as the teacher has.

    Returns:
        [Transformer with an ElectraModel, Pooling], on the CPU, gradients on.

    Raises:
        StudentError: as ``transformer_of`` and ``as_module``.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import ElectraConfig, ElectraModel

    first = transformer_of(teacher.model)
    config, tokenizer = first.model.config, first.tokenizer
    length = int(first.max_seq_length or _UNLIMITED)
    own = ElectraConfig(
        vocab_size=max(len(tokenizer), config.vocab_size),
        embedding_size=h,
        hidden_size=h,
        num_hidden_layers=layers or config.num_hidden_layers,
        num_attention_heads=h // max(size for size in range(1, min(_HEAD, h) + 1) if h % size == 0),
        intermediate_size=4 * h,
        max_position_embeddings=text_positions(config) or (length if length < _UNLIMITED else _POSITIONS),
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model: Any = ElectraModel(own)
    # A teacher without a pooling module returns its pooler's output, which comes from the first token.
    mode = next((module.pooling_mode for module in teacher.model if isinstance(module, Pooling)), "cls")
    modules = [as_module(model.eval(), tokenizer, first), Pooling(h, mode)]
    built = SentenceTransformer(modules=modules, device="cpu")
    built.requires_grad_(True)
    return built
