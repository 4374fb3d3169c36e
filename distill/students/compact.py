"""Compact students: narrow token embeddings, widened for layers that are the teacher's (SimTDE, section 3).

One is a plain ``ElectraModel``, which AutoModel, sentence-transformers and the ONNX export open as any other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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
from distill.students.initialise import parse_layers
from distill.students.transformer_module import as_module, transformer_of
from distill.students.vocabulary import CountTokens, SampleTexts, prune_to_texts
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentSpec

OnNote = Callable[[str], None]
"""Told in a sentence what is worth knowing about a student."""


def from_teacher(
    teacher: SentenceTransformer,
    spec: StudentSpec,
    *,
    count_tokens: CountTokens | None,
    on_note: OnNote,
    sample_texts: SampleTexts | None = None,
    seed: int = 0,
) -> SentenceTransformer:
    """Return a compact student of ``teacher``: its own layers behind narrow token embeddings.

    The same teacher gives the same bytes each time.

    Args:
        teacher: a BERT-, RoBERTa-, MPNet-, DistilBERT- or ELECTRA-like model; left as it is.
        spec: ``compact:e=E[,layers=...][,copy=no][,ff=N][,vocab=N]``.
        count_tokens: counts tokens of the training texts: the narrow embeddings begin where they serve these
            best. Needed for ``vocab``.
        on_note: told what could not be carried over, how good the new embeddings are, and the like.
        sample_texts: gives texts to tell by what ``vocab`` does to them.
        seed: of the layers' first weights, with ``copy=no``.

    Returns:
        [Transformer with an ElectraModel, what follows the teacher's transformer], on the CPU, gradients on.

    Raises:
        StudentError: if the teacher's architecture is not known, or a value does not fit it.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import ElectraModel

    first = transformer_of(teacher, spec.text)
    source = first.model
    config = source.config
    chosen = _choose(spec, config.num_hidden_layers)
    block, width = read_block(source), spec.integer("e")
    if width > block.width:
        raise StudentError(
            f"student {spec.text!r}: e={width}, and the teacher's token embeddings have {block.width} "
            f"numbers; choose 1 to {block.width}"
        )
    tokenizer, size = first.tokenizer, spec.optional_integer("vocab")
    counts = _count(first, count_tokens)
    if size is not None:
        found = None if counts is None else counts.numpy()
        pruned = prune_to_texts(tokenizer, found, size, spec.text, on_note, sample_texts)
        tokenizer, kept = pruned.tokenizer, torch.from_numpy(pruned.kept)
        block = replace(block, word=block.word[kept])
        counts = None if counts is None else counts[kept]
    if width < block.width:
        block, explained = narrow_block(block, width, counts)
        of = "a vocabulary whose tokens count alike" if counts is None else "the texts"
        on_note(
            f"token embeddings of width {width} begin with a map that explains {explained:.1%} of what the "
            f"teacher's first layer is fed (R2 over {of})"
        )
    copied = spec.yes("copy")
    if not copied:
        on_note("the layers begin with random weights (copy=no)")
    elif lost := lost_layers(config.model_type):
        on_note(f"layers are copied but for {lost}: an ElectraModel has no place for it")
    own = electra_config(config, width, len(chosen))
    neurons = spec.optional_integer("ff") or own.intermediate_size
    if neurons > own.intermediate_size:
        raise StudentError(
            f"student {spec.text!r}: ff={neurons}, and the teacher's layers have {own.intermediate_size} "
            f"neurons in their feed-forward part; choose 1 to {own.intermediate_size}"
        )
    full, own.intermediate_size = own.intermediate_size, neurons
    own.vocab_size = len(block.word)
    if size is not None:
        own.pad_token_id = tokenizer.pad_token_id
    # Random beginnings are not to use up the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = ElectraModel(own)
    if copied:
        layers, said = narrow_layers(read_layers(source, chosen), neurons)
        if neurons < full:
            on_note(f"{neurons:,} of {full:,} neurons a layer, which are {said:.1%} of what they say")
    else:
        layers = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("encoder.")}
    model.load_state_dict({**block_weights(block), **layers})
    modules: list[nn.Module] = [as_module(model.eval(), tokenizer, first)]
    if _gives_pooled(first):
        modules += _pooler(source, spec, on_note)
    modules += [copy.deepcopy(module) for module in list(teacher)[1:]]
    student = SentenceTransformer(modules=modules, device="cpu")
    student.requires_grad_(True)
    return student


def _count(first: Any, count_tokens: CountTokens | None) -> Tensor | None:
    """Return how often each row of the teacher's table comes in the texts, int64 (V,); None where unknown."""
    if count_tokens is None:
        return None
    found = torch.from_numpy(count_tokens(FastTokenizer(first.tokenizer, int(first.max_seq_length or 0))))
    counts = torch.zeros(first.model.get_input_embeddings().num_embeddings, dtype=torch.int64)
    # A table may have rows that no token has.
    counts[: len(found)] = found
    return counts


def _choose(spec: StudentSpec, total: int) -> list[int]:
    words = spec.values.get("layers")
    return list(range(total)) if words is None else parse_layers(words, total, spec.text)


def _gives_pooled(first: Any) -> bool:
    """Return whether a transformer module gives its pooler's output, not a vector for each token."""
    return bool(first.modality_config["text"]["method_output_name"] == "pooler_output")


def _pooler(source: Any, spec: StudentSpec, on_note: OnNote) -> list[nn.Module]:
    """Return modules that do what the pooler does inside a BERT-like model: an ElectraModel has none."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    linear = getattr(getattr(source, "pooler", None), "dense", None)
    if linear is None:
        raise StudentError(
            f"student {spec.text!r}: the teacher gives the output of a pooler that is not BERT's, which "
            "cannot be carried over; build the cache with another pooling"
        )
    dense = Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())
    dense.linear.load_state_dict(linear.state_dict())
    on_note("the teacher's pooler is carried over as a Dense module behind the pooling")
    return [Pooling(linear.in_features, "cls"), dense]
