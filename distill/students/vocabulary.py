"""Tokenizers with fewer tokens: the most frequent ones of a corpus, and those that spell any other text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import StudentError
from distill.students.registry import StudentOptions
from distill.students.subwords import Subwords, is_unused, subwords_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_CHARACTER_SHARE = 8
"""All characters stay, used or not, if they are at most one in this many tokens."""


@dataclass(frozen=True)
class PrunedVocabulary:
    """A tokenizer with fewer tokens.

    Attributes:
        tokenizer: the new tokenizer; a text of kept tokens has the same tokens, and ids are below N.
        kept: int64, shape (N,), ascending; the old id of each new one.
        share: share of the corpus' tokens that are kept, special ones not counted, 0 to 1.
    """

    tokenizer: PreTrainedTokenizerFast
    kept: NDArray[np.int64]
    share: float


def prune_to_texts(
    tokenizer: PreTrainedTokenizerFast,
    counts: NDArray[np.int64] | None,
    size: int,
    student: str,
    options: StudentOptions,
) -> tuple[PreTrainedTokenizerFast, NDArray[np.int64]]:
    """Prune a teacher's tokenizer to the training texts of its student, and note the effect on them.

    Args:
        tokenizer: the teacher's tokenizer; not changed.
        counts: int64, shape (V,); occurrences of each id in the training texts; None without texts.
        size: tokens to keep.
        student: the student's spec, for messages.
        options: the note goes to ``on_note``; ``sample_texts`` give its tokens a text.

    Returns:
        The new tokenizer, and the old id of each new one, int64 (size,).

    Raises:
        StudentError: without counts, or as :func:`prune_vocabulary`.
    """
    if counts is None:
        raise StudentError(
            f"student {student!r}: vocab={size} keeps the most frequent tokens of a corpus, and there is no "
            "corpus; leave vocab out"
        )
    pruned = prune_vocabulary(tokenizer, counts, size)
    note = f"vocabulary: {size:,} of {len(tokenizer):,} tokens, which are {pruned.share:.2%} of the corpus"
    if options.sample_texts is not None and (texts := options.sample_texts()):
        (before, lost), (after, unknown) = (sample_usage(one, texts) for one in (tokenizer, pruned.tokenizer))
        note += (
            f"; {after:.1f} tokens a text (before: {before:.1f}), {unknown:.2%} of them unknown "
            f"(before: {lost:.2%})"
        )
    options.on_note(note)
    return pruned.tokenizer, pruned.kept


def prune_vocabulary(
    tokenizer: PreTrainedTokenizerFast, counts: NDArray[np.int64], size: int
) -> PrunedVocabulary:
    """Return a tokenizer with the ``size`` tokens that a corpus needs most.

    Added and special tokens stay, as do the characters (or bytes) that spell the tokens of the corpus. The
    most frequent tokens fill the remaining room; among equal counts the lower id wins, so the same counts
    give the same tokenizer.

    Args:
        tokenizer: the tokenizer; not changed.
        counts: int64, shape (V,); occurrences of each of its ids in the corpus.
        size: tokens to keep.

    Raises:
        StudentError: if the tokenizer's kind is unknown, or ``size`` is too small to spell the corpus or not
            below the size of the vocabulary.
    """
    backend = tokenizer.backend_tokenizer
    state: dict[str, Any] = json.loads(backend.to_str())
    subwords = subwords_of(state, json.dumps([state.get("normalizer"), state.get("pre_tokenizer")]))
    tokens = {number: token for token, number in backend.get_vocab(with_added_tokens=True).items()}
    added = {int(token["id"]) for token in state["added_tokens"]}
    if size >= len(tokens):
        raise StudentError(f"vocab={size}, expected less than the teacher's {len(tokens)} tokens")
    # A table may have fewer or more rows than the vocabulary has ids.
    full = np.zeros(max(max(tokens) + 1, len(counts)), dtype=np.int64)
    full[: len(counts)] = counts
    kept = np.array(sorted(_choose(subwords, full, tokens, added, size)), dtype=np.int64)
    new_id = {old: new for new, old in enumerate(kept.tolist())}
    pruned = _rewrite(state, subwords, new_id)
    count = pruned.get_vocab_size(with_added_tokens=True)
    if count != size or any(pruned.id_to_token(new) != tokens[old] for old, new in new_id.items()):
        raise StudentError(f"the teacher's tokenizer cannot be pruned to {size} tokens; leave vocab out")
    full[sorted(added)] = 0
    share = float(full[kept].sum() / full.sum()) if full.any() else 1.0
    return PrunedVocabulary(_wrap(tokenizer, pruned), kept, share)


def sample_usage(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> tuple[float, float]:
    """Return the tokens a text, special ones not counted, and the share of them that is unknown, 0 to 1."""
    backend = tokenizer.backend_tokenizer
    plain = type(backend).from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    unknown = plain.token_to_id(tokenizer.unk_token) if tokenizer.unk_token else None
    rows = [row.ids for row in plain.encode_batch(list(texts), add_special_tokens=False)]
    total = sum(map(len, rows))
    return total / len(rows), sum(row.count(unknown) for row in rows) / max(total, 1)


def _choose(
    subwords: Subwords, counts: NDArray[np.int64], tokens: Mapping[int, str], added: set[int], size: int
) -> set[int]:
    kept = added | subwords.always
    # Added tokens are found before the model sees a text.
    for number in set(np.flatnonzero(counts).tolist()) - added:
        kept |= subwords.spelling(number)
    if len(kept | subwords.basis) * _CHARACTER_SHARE <= size:
        kept |= subwords.basis
    if len(kept) > size:
        raise StudentError(
            f"vocab={size}: special tokens and the characters of the corpus are {len(kept)} tokens; give at "
            f"least {len(kept)}"
        )
    order = sorted(tokens, key=lambda number: (-counts[number], is_unused(tokens[number]), number))
    # A token may need more others than fit; smaller ones then fill the room.
    while len(kept) < size:
        for number in order:
            wanted = subwords.closure(number) - kept if number not in kept else set()
            if wanted and len(kept) + len(wanted) <= size:
                kept |= wanted
            if len(kept) == size:
                break
    return kept


def _rewrite(state: dict[str, Any], subwords: Subwords, new_id: Mapping[int, int]) -> Tokenizer:
    """Return the tokenizer with new ids everywhere."""
    from tokenizers import Tokenizer

    changed = {
        **state,
        "model": subwords.keep(new_id),
        "added_tokens": [{**token, "id": new_id[token["id"]]} for token in state["added_tokens"]],
        "post_processor": _post_processor(state.get("post_processor"), new_id),
    }
    if padding := state.get("padding"):
        changed["padding"] = {**padding, "pad_id": new_id.get(padding["pad_id"], 0)}
    return Tokenizer.from_str(json.dumps(changed))


def _post_processor(state: dict[str, Any] | None, new_id: Mapping[int, int]) -> dict[str, Any] | None:
    kind = None if state is None else state["type"]
    if state is None or kind == "ByteLevel":
        return state
    if kind == "Sequence":
        return {**state, "processors": [_post_processor(one, new_id) for one in state["processors"]]}
    if kind == "TemplateProcessing":
        special = {
            name: {**token, "ids": [new_id[number] for number in token["ids"]]}
            for name, token in state["special_tokens"].items()
        }
        return {**state, "special_tokens": special}
    if kind in ("BertProcessing", "RobertaProcessing"):
        return {**state, **{side: [state[side][0], new_id[state[side][1]]] for side in ("cls", "sep")}}
    raise StudentError(f"the teacher's tokenizer has an unknown last step, {kind}; leave vocab out")


def _wrap(tokenizer: PreTrainedTokenizerFast, pruned: Tokenizer) -> PreTrainedTokenizerFast:
    """Return ``pruned`` as a transformers tokenizer.

    The plain class reads its file as it is; classes of model families rebuild the pipeline around it.
    """
    from transformers import PreTrainedTokenizerFast

    names = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=pruned,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        model_input_names=list(tokenizer.model_input_names),
        extra_special_tokens=list(tokenizer.extra_special_tokens),
        **{name: token for name in names if (token := getattr(tokenizer, name, None)) is not None},
    )
    return made
