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
    block_weights,
    electra_config,
    lost_layers,
    narrow_layers,
    read_block,
    read_layers,
)
from distill.students.embedding_block import narrow_block
from distill.students.layers import parse_layers
from distill.students.registry import StudentOptions
from distill.students.transformer import as_module, transformer_of
from distill.students.vocabulary import prune_to_texts
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def build_compact(
    student: str,
    teacher: SentenceTransformer,
    options: StudentOptions,
    *,
    e: int,
    layers: str | None = None,
    copy: bool = True,
    ff: int | None = None,
    vocab: int | None = None,
) -> SentenceTransformer:
    """Return a compact student of ``teacher``: its layers after narrow token embeddings.

    The same teacher and texts give the same bytes.

    Args:
        student: the spec, for messages.
        teacher: a BERT-, RoBERTa-, MPNet-, DistilBERT- or ELECTRA-like model; not changed.
        options: counted tokens decide where the narrow embeddings begin, and are needed for ``vocab``.
        e: width of the embeddings.
        layers: layers to keep, as of :func:`parse_layers`; default: all.
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

    first = transformer_of(teacher, student)
    source, tokenizer = first.model, first.tokenizer
    total = source.config.num_hidden_layers
    chosen = list(range(total)) if layers is None else parse_layers(layers, total, student)
    block = read_block(source)
    own = electra_config(source.config, e, len(chosen))
    full = own.intermediate_size
    own.intermediate_size = neurons = ff or full
    for key, value, most in (("e", e, block.width), ("ff", neurons, full)):
        if value > most:
            raise StudentError(
                f"student {student!r}: {key}={value}, the teacher has {most}; choose 1 to {most}"
            )
    counts = _count(first, options)
    if vocab is not None:
        found = None if counts is None else counts.numpy()
        tokenizer, numbers = prune_to_texts(tokenizer, found, vocab, student, options)
        kept = torch.from_numpy(numbers)
        block = replace(block, word=block.word[kept])
        counts = None if counts is None else counts[kept]
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
    weights = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("encoder.")}
    if copy:
        weights, share = narrow_layers(read_layers(source, chosen), neurons)
        if lost := lost_layers(source.config.model_type):
            options.on_note(f"layers are copied without {lost}: an ElectraModel has no place for it")
        if neurons < full:
            options.on_note(f"{neurons:,} of {full:,} neurons a layer, with {share:.1%} of their weight")
    else:
        options.on_note("the layers begin with random weights (copy=no)")
    model.load_state_dict({**block_weights(block), **weights})
    modules: list[nn.Module] = [as_module(model.eval(), tokenizer, first)]
    if first.modality_config["text"]["method_output_name"] == "pooler_output":
        modules += _pooler(source, student, options)
    modules += [deepcopy(module) for module in list(teacher)[1:]]
    built = SentenceTransformer(modules=modules, device="cpu")
    built.requires_grad_(True)
    return built


def _count(first: Any, options: StudentOptions) -> Tensor | None:
    """Return the occurrences of each row of the teacher's table, int64 (V,); None without texts."""
    if options.count_tokens is None:
        return None
    tokenizer = FastTokenizer(first.tokenizer, int(first.max_seq_length or 0))
    found = torch.from_numpy(options.count_tokens(tokenizer))
    counts = torch.zeros(first.model.get_input_embeddings().num_embeddings, dtype=torch.int64)
    # A table may have rows without a token.
    counts[: len(found)] = found
    return counts


def _pooler(source: Any, student: str, options: StudentOptions) -> list[nn.Module]:
    """Return modules that replace a BERT-like model's pooler, which an ElectraModel does not have."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    linear = getattr(getattr(source, "pooler", None), "dense", None)
    if linear is None:
        raise StudentError(
            f"student {student!r}: the teacher's pooler is not BERT's and cannot be copied; build the cache "
            "with another pooling"
        )
    dense = Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())
    dense.linear.load_state_dict(linear.state_dict())
    options.on_note("the teacher's pooler is copied as a Dense module after the pooling")
    return [Pooling(linear.in_features, "cls"), dense]
