"""A tokenizer with fewer tokens: those that a corpus uses most, and what any other text is spelled with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import StudentError
from distill.students.subwords import Subwords, is_unused, subwords_of
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

CountTokens = Callable[[FastTokenizer], NDArray[np.int64]]
"""Counts the tokens of the training texts: a tokenizer -> how often each of its ids comes, (V,)."""

SampleTexts = Callable[[], Sequence[str]]
"""Gives some of the training texts."""

_CHARACTER_SHARE = 8
"""All characters stay, used or not, where they take at most one token in so many."""


@dataclass(frozen=True)
class SampleCoverage:
    """What pruning does to a sample of texts; special tokens around them are not counted.

    Attributes:
        before, after: tokens a text.
        unknown_before, unknown_after: share of the tokens that are the unknown one, 0 to 1.
    """

    before: float
    after: float
    unknown_before: float
    unknown_after: float


@dataclass(frozen=True)
class Coverage:
    """How much of a corpus a pruned vocabulary leaves as it was.

    Attributes:
        size: tokens that are left.
        of: tokens that there were.
        kept: share of the corpus' tokens that are left, special ones not counted, 0 to 1.
        sample: what became of a sample of texts; None where there was none.
    """

    size: int
    of: int
    kept: float
    sample: SampleCoverage | None = None

    def describe(self) -> str:
        """Return one line for people."""
        line = f"vocabulary: {self.size:,} of {self.of:,} tokens, which are {self.kept:.2%} of the corpus"
        if self.sample is None:
            return line
        found = self.sample
        return (
            f"{line}; {found.after:.1f} tokens a text (before: {found.before:.1f}), "
            f"{found.unknown_after:.2%} of them unknown (before: {found.unknown_before:.2%})"
        )


@dataclass(frozen=True)
class PrunedVocabulary:
    """A tokenizer with fewer tokens than the one it was made of.

    Attributes:
        tokenizer: the new tokenizer; texts made of tokens that are left have the ids that stand for the same
            tokens, and no id is as large as N.
        kept: int64, shape (N,), ascending; the old id of each new one.
        coverage: how much of the corpus it leaves as it was.
    """

    tokenizer: PreTrainedTokenizerFast
    kept: NDArray[np.int64]
    coverage: Coverage


def prune_to_texts(
    tokenizer: PreTrainedTokenizerFast,
    counts: NDArray[np.int64] | None,
    size: int,
    student: str,
    on_note: Callable[[str], None],
    sample_texts: SampleTexts | None = None,
) -> PrunedVocabulary:
    """Return the teacher's tokenizer with the ``size`` tokens that its student needs most for its texts.

    Args:
        tokenizer: the teacher's; it is left as it is.
        counts: int64, shape (V,); how often each id stands in the training texts; None where there are none.
        size: tokens to keep.
        student: the student's spec, for messages.
        on_note: told how much of the texts stays as it was.
        sample_texts: gives texts to tell by how much longer they become.

    Raises:
        StudentError: if there are no counts; else as :func:`prune_vocabulary`.
    """
    if counts is None:
        raise StudentError(
            f"student {student!r}: vocab={size} keeps the tokens that training texts use most, and there is "
            "no corpus to count them in; leave vocab out"
        )
    pruned = prune_vocabulary(tokenizer, counts, size, sample_texts() if sample_texts else None)
    on_note(pruned.coverage.describe())
    return pruned


def prune_vocabulary(
    tokenizer: PreTrainedTokenizerFast,
    counts: NDArray[np.int64],
    size: int,
    texts: Sequence[str] | None = None,
) -> PrunedVocabulary:
    """Return a tokenizer with the ``size`` tokens that a corpus needs most.

    Added and special tokens stay, and so do the characters (or bytes) that spell the tokens of the corpus;
    the rest of the room goes to the most frequent tokens. Equal counts are settled by the lower id, so the
    same counts give the same tokenizer.

    Args:
        tokenizer: the tokenizer; it is left as it is.
        counts: int64, shape (V,); how often each id stands in the corpus.
        size: tokens to keep.
        texts: a sample of texts to measure the change on.

    Raises:
        StudentError: if the tokenizer's kind is not known, ``size`` is too small to spell the corpus or not
            smaller than the vocabulary, or the counts are not of this tokenizer.
    """
    backend = tokenizer.backend_tokenizer
    state: dict[str, Any] = json.loads(backend.to_str())
    pipeline = json.dumps([state.get("normalizer"), state.get("pre_tokenizer")])
    subwords = subwords_of(state, pipeline)
    tokens = {number: token for token, number in backend.get_vocab(with_added_tokens=True).items()}
    added = {int(token["id"]) for token in state["added_tokens"]}
    full = _checked(counts, tokens, size)
    kept = np.array(sorted(_choose(subwords, full, tokens, added, size)), dtype=np.int64)
    new_id = {old: new for new, old in enumerate(kept.tolist())}
    pruned = _rewritten(state, subwords, new_id)
    _require_same_tokens(pruned, tokens, new_id)
    used = full.copy()
    used[sorted(added)] = 0
    coverage = Coverage(
        size=size,
        of=len(tokens),
        kept=float(used[kept].sum() / used.sum()) if used.any() else 1.0,
        sample=_measure(backend, pruned, tokenizer.unk_token, texts) if texts else None,
    )
    return PrunedVocabulary(_wrapped(tokenizer, pruned), kept, coverage)


def _checked(counts: NDArray[np.int64], tokens: Mapping[int, str], size: int) -> NDArray[np.int64]:
    """Return the counts of all ids up to the largest one that a token has."""
    if size >= len(tokens):
        raise StudentError(
            f"vocab={size}: the teacher's tokenizer has {len(tokens)} tokens; give fewer, or leave vocab out"
        )
    if not counts.any():
        raise StudentError(
            f"vocab={size}: no token of the corpus was counted, so none can be chosen; expected a corpus "
            "with text in it, or leave vocab out"
        )
    full = np.zeros(max(max(tokens) + 1, len(counts)), dtype=np.int64)
    full[: len(counts)] = counts
    unknown = [number for number in np.flatnonzero(full).tolist() if number not in tokens]
    if unknown:
        raise StudentError(
            f"token {unknown[0]} was counted, and the tokenizer has no such token: the counts are of another "
            "one; count with the tokenizer that is to be pruned"
        )
    return full


def _choose(
    subwords: Subwords, counts: NDArray[np.int64], tokens: Mapping[int, str], added: set[int], size: int
) -> set[int]:
    kept = added | subwords.always
    for number in np.flatnonzero(counts).tolist():
        # Added tokens are found before the model sees a text.
        kept |= set() if number in added else subwords.spelling(number)
    if len(kept | subwords.basis) * _CHARACTER_SHARE <= size:
        kept |= subwords.basis
    if len(kept) > size:
        raise StudentError(
            f"vocab={size}: special tokens and the characters of the corpus alone are {len(kept)} tokens; "
            f"give at least {len(kept)}"
        )
    order = sorted(tokens, key=lambda number: (-counts[number], is_unused(tokens[number]), number))
    # A token that needs others may be too much when it is its turn; smaller ones then fill what room is left.
    while len(kept) < size:
        for number in order:
            if number in kept:
                continue
            wanted = subwords.closure(number) - kept
            if len(kept) + len(wanted) <= size:
                kept |= wanted
            if len(kept) == size:
                break
    return kept


def _rewritten(state: dict[str, Any], subwords: Subwords, new_id: Mapping[int, int]) -> Tokenizer:
    """Return the tokenizer with other ids, everywhere where ids stand."""
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
    if state is None:
        return None
    kind = state["type"]
    if kind == "Sequence":
        return {**state, "processors": [_post_processor(one, new_id) for one in state["processors"]]}
    if kind == "TemplateProcessing":
        special = {
            name: {**token, "ids": [new_id[number] for number in token["ids"]]}
            for name, token in state["special_tokens"].items()
        }
        return {**state, "special_tokens": special}
    if kind in ("BertProcessing", "RobertaProcessing"):
        around = {side: [state[side][0], new_id[state[side][1]]] for side in ("cls", "sep")}
        return {**state, **around}
    if kind == "ByteLevel":
        return state
    raise StudentError(
        f"the teacher's tokenizer ends with a {kind} step, of which it is not known where it holds ids; "
        "leave vocab out"
    )


def _require_same_tokens(pruned: Tokenizer, tokens: Mapping[int, str], new_id: Mapping[int, int]) -> None:
    """Raise :class:`StudentError` unless every new id stands for the token that its old one stood for."""
    wrong = [old for old, new in new_id.items() if pruned.id_to_token(new) != tokens[old]]
    found = pruned.get_vocab_size(with_added_tokens=True)
    if wrong or found != len(new_id):
        first = f"; {tokens[wrong[0]]!r} is another token now" if wrong else ""
        raise StudentError(
            f"the teacher's tokenizer cannot be written anew with {len(new_id)} tokens: {found} came out"
            f"{first}; leave vocab out"
        )


def _wrapped(tokenizer: PreTrainedTokenizerFast, pruned: Tokenizer) -> PreTrainedTokenizerFast:
    """Return ``pruned`` as transformers have it.

    As the plain class on purpose: classes of model families build their own pipeline around the vocabulary
    when they are loaded, this one reads the file as it is.
    """
    from transformers import PreTrainedTokenizerFast

    names = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    special = {name: token for name in names if (token := getattr(tokenizer, name, None)) is not None}
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=pruned,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        model_input_names=list(tokenizer.model_input_names),
        extra_special_tokens=list(tokenizer.extra_special_tokens),
        **special,
    )
    return made


def _measure(
    before: Tokenizer, after: Tokenizer, unknown: str | None, texts: Sequence[str]
) -> SampleCoverage:
    lengths: list[float] = []
    shares: list[float] = []
    for tokenizer in (before, after):
        # A copy: settings of padding would add tokens, those of truncation take some away.
        plain = type(tokenizer).from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        number = plain.token_to_id(unknown) if unknown else None
        found = [row.ids for row in plain.encode_batch(list(texts), add_special_tokens=False)]
        total = sum(map(len, found))
        lengths.append(total / len(found))
        shares.append(sum(row.count(number) for row in found) / max(total, 1) if number is not None else 0.0)
    return SampleCoverage(lengths[0], lengths[1], shares[0], shares[1])
