"""Compact students: narrow token embeddings, widened for layers of the teacher (SimTDE, section 3).

The result is a plain ``ElectraModel``, which AutoModel, sentence-transformers and the ONNX export open.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distill.errors import StudentError
from distill.students.architectures import (
    architecture_of,
    block_weights,
    electra_config,
    narrow_layers,
    read_block,
    read_layers,
)
from distill.students.embedding_block import narrow_block
from distill.students.layers import parse_layers
from distill.students.spec import StudentOptions
from distill.students.transformer import as_module, transformer_of
from distill.students.vocabulary import prune_vocabulary
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentSpec
    from embedcache.teacher.load import Teacher


def build_compact(
    spec: StudentSpec,
    teacher: Teacher,
    options: StudentOptions,
    *,
    e: int,
    layers: str | None = None,
    copy: bool = True,
    ff: int | None = None,
    vocab: int | None = None,
) -> SentenceTransformer:
    """Return a compact student: layers of its teacher after narrow token embeddings.

    The same teacher and texts give the same bytes.

    Args:
        spec: the spec.
        teacher: a BERT-, RoBERTa-, MPNet-, DistilBERT- or ELECTRA-like model; not changed.
        options: counted tokens decide where the narrow embeddings begin, and are needed for ``vocab``.
        e: width of the embeddings.
        layers: layers to keep, as of ``parse_layers``; default: all.
        copy: copy the teacher's layers; otherwise they begin with random weights.
        ff: neurons to keep of each feed-forward part; default: all.
        vocab: tokens to keep; default: all.

    Returns:
        [Transformer with an ElectraModel, what follows the teacher's transformer], on the CPU, gradients on.

    Raises:
        StudentError: if the teacher's architecture is unknown, or a value does not fit it.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import ElectraModel

    first = transformer_of(teacher.model)
    source, tokenizer = first.model, first.tokenizer
    total = source.config.num_hidden_layers
    chosen = list(range(total)) if layers is None else parse_layers(layers, total)
    own = electra_config(source.config, e, len(chosen))
    block = read_block(source)
    full = own.intermediate_size
    own.intermediate_size = neurons = ff or full
    for key, value, most in (("e", e, block.width), ("ff", neurons, full)):
        if value > most:
            raise StudentError(f"{key}={value}, the teacher has {most}; choose 1 to {most}")
    counts = None
    if options.count_tokens is not None:
        found = options.count_tokens(FastTokenizer(tokenizer, int(first.max_seq_length or 0)))
        # A table may have rows without a token.
        counts = torch.zeros(len(block.word), dtype=torch.int64)
        counts[: len(found)] = torch.from_numpy(found)
    if vocab is not None:
        tokenizer, numbers = prune_vocabulary(
            tokenizer, None if counts is None else counts.numpy(), vocab, options.on_note
        )
        kept = torch.from_numpy(numbers)
        block, counts = replace(block, word=block.word[kept]), None if counts is None else counts[kept]
        own.pad_token_id = tokenizer.pad_token_id
    if e < block.width:
        block, explained = narrow_block(block, e, counts)
        of = "a vocabulary whose tokens count alike" if counts is None else "the texts"
        options.on_note(
            f"token embeddings of width {e} begin with a map that explains {explained:.1%} of the input "
            f"of the teacher's first layer (R2 over {of})"
        )
    own.vocab_size = len(block.word)
    # The caller's random numbers are left as they are.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model: Any = ElectraModel(own)
    weights: dict[str, Tensor] = {}
    if copy:
        weights, share = narrow_layers(read_layers(source, chosen), neurons)
        if lost := architecture_of(source.config).lost:
            options.on_note(f"layers are copied without {lost}: an ElectraModel has no place for it")
        if neurons < full:
            options.on_note(f"{neurons:,} of {full:,} neurons a layer, with {share:.1%} of their weight")
    else:
        options.on_note("the layers begin with random weights (copy=no)")
    model.load_state_dict({**model.state_dict(), **block_weights(block), **weights})
    modules: list[nn.Module] = [as_module(model.eval(), tokenizer, first)]
    if first.modality_config["text"]["method_output_name"] == "pooler_output":
        modules += _pooler(source)
        options.on_note("the teacher's pooler is copied as a Dense module after the pooling")
    modules += [deepcopy(module) for module in list(teacher.model)[1:]]
    built = SentenceTransformer(modules=modules, device="cpu")
    built.requires_grad_(True)
    return built


def _pooler(source: Any) -> list[nn.Module]:
    """Return modules that replace a BERT-like model's pooler, which an ElectraModel does not have."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    linear = getattr(getattr(source, "pooler", None), "dense", None)
    if linear is None:
        raise StudentError(
            "the teacher's pooler is not BERT's and cannot be copied; build the cache with another pooling"
        )
    dense = Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())
    dense.linear.load_state_dict(linear.state_dict())
    return [Pooling(linear.in_features, "cls"), dense]
