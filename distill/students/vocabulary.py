"""Tokenizers with fewer tokens: the most frequent ones of a corpus, and those that spell any other text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import StudentError
from distill.students.subwords import Subwords, is_unused, subwords_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_CHARACTER_SHARE = 8
"""All characters stay, used or not, if they are at most one in this many tokens."""


def prune_vocabulary(
    tokenizer: PreTrainedTokenizerFast,
    counts: NDArray[np.int64] | None,
    size: int,
    on_note: Callable[[str], None] = lambda note: None,
) -> tuple[PreTrainedTokenizerFast, NDArray[np.int64]]:
    """Return a tokenizer with the ``size`` tokens that a corpus needs most.

    Added and special tokens stay, as do the characters (or bytes) that spell the tokens of the corpus. The
    most frequent tokens fill the remaining room; among equal counts the lower id wins, so the same counts
    give the same tokenizer. A text of kept tokens is tokenized as before.

    Args:
        tokenizer: the tokenizer; not changed.
        counts: int64, shape (V,); occurrences of each of its ids in the corpus; None without a corpus.
        size: tokens to keep.
        on_note: called with the share of the corpus' tokens that are kept, special ones not counted.

    Returns:
        The new tokenizer, and the old id of each new one, int64 (size,), ascending.

    Raises:
        StudentError: if the corpus is missing, the tokenizer's kind is unknown, or ``size`` cannot spell the
            corpus or is not below the size of the vocabulary.
    """
    if counts is None:
        raise StudentError(
            f"vocab={size} keeps the most frequent tokens of a corpus, and there is none; leave vocab out"
        )
    backend = tokenizer.backend_tokenizer
    state: dict[str, Any] = json.loads(backend.to_str())
    subwords = subwords_of(state)
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
    # A token that moved would get the row of another.
    if pruned.get_vocab(with_added_tokens=True) != {tokens[old]: new for old, new in new_id.items()}:
        raise StudentError(f"the teacher's tokenizer cannot be pruned to {size} tokens; leave vocab out")
    full[sorted(added)] = 0
    share = full[kept].sum() / max(full.sum(), 1)
    on_note(f"vocabulary: {size:,} of {len(tokenizer):,} tokens, which are {share:.2%} of the corpus")
    return _wrap(tokenizer, pruned), kept


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
