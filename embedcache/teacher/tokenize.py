"""Token ids of many texts in flat arrays, truncation recorded.

A text with a separator is a pair (``embedcache.pairs``): its ids are those of both texts together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.errors import InputError
from embedcache.pairs import SEPARATOR, join_pair, split_pair

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LONGEST_PROBE = 40_000
_PROBES = ("A probe.", "Ünïcode, NUMBERS 123 & 'quotes' — 漢字 🙂", " blank  ends ")


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of n texts, special tokens included.

    Attributes:
        ids: int32, ids of all texts in a row.
        offsets: int64, shape (n + 1,); text i has ``ids[offsets[i]:offsets[i + 1]]``.
        truncated: bool, shape (n,); True for texts cut to the maximal length.
        first: int32, shape (n,); tokens before a pair's second text, all tokens of a single text; None if no
            text is a pair.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    first: NDArray[np.int32] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, shape (n,)."""
        return np.diff(self.offsets)

    @property
    def first_tokens(self) -> NDArray[np.int32]:
        """``first`` also where no text is a pair, shape (n,)."""
        return self.lengths.astype(np.int32) if self.first is None else self.first


class FastTokenizer:
    """Rust tokenizer of a transformers tokenizer, called without its Python wrapper, several times faster.

    The ids are those of ``tokenizer(text, truncation=True, max_length=...)``, for a pair those of
    ``tokenizer(text, text2, ...)``. Works on a copy, so the caller's tokenizer keeps its settings.

    Args:
        tokenizer: a transformers tokenizer with a Rust backend.
        max_length: truncate texts to this many tokens, special tokens included; 0 means never.
        prompt: text put before every text, before the first of a pair.
        special_tokens: put the tokenizer's own tokens around a text. Pairs need them.

    Attributes:
        pad_id: id that fills a batch's short rows.
        uses_token_types: True if the model takes token types.
        pads_left: True if padding comes before the text.
        takes_pairs: False if pairs are refused.
    """

    def __init__(
        self, tokenizer: Any, max_length: int, prompt: str = "", *, special_tokens: bool = True
    ) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        # The one setting that a tokenizer's text does not hold.
        self._splits_special = bool(getattr(tokenizer, "split_special_tokens", False))
        self._backend.encode_special_tokens = self._splits_special
        self._backend.no_padding()
        self._backend.no_truncation()
        if not special_tokens:
            # The step that adds special tokens, and does nothing else to ids.
            self._backend.post_processor = None
        if max_length:
            self._backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
        self.pad_id: int = tokenizer.pad_token_id or 0
        self.uses_token_types = "token_type_ids" in tokenizer.model_input_names
        self.pads_left = tokenizer.padding_side == "left"
        self._prompt = prompt
        # With less room than a token of each text, a tokenizer cuts nothing at all.
        self._least_for_pairs = self._backend.num_special_tokens_to_add(True) + 2
        self.takes_pairs = special_tokens and not 0 < max_length < self._least_for_pairs

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, added tokens included; an upper bound of every id."""
        return max(self._backend.get_vocab_size(with_added_tokens=True), self.pad_id + 1)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the ids: tokenizer, truncation, prompt."""
        state = f"{self._prompt}\0{self._backend.to_str()}" + "\0split" * self._splits_special
        return hashlib.sha256(state.encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise texts on all cores, outside Python's lock.

        Raises:
            InputError: if a text is a pair, and pairs are refused.
        """
        inputs: list[Any] = [self._prompt + text for text in texts]
        pairs = [place for place, text in enumerate(inputs) if SEPARATOR in text]
        if pairs and not self.takes_pairs:
            raise InputError(
                "the corpus holds pairs of texts, and the model has no form for pairs, or a max_length "
                f"below {self._least_for_pairs} leaves no room for them"
            )
        try:
            for place in pairs:
                inputs[place] = split_pair(inputs[place])
        except ValueError as error:
            raise InputError(f"{texts[place][:80]!r}: {error}; remove it from the corpus") from error
        encodings = self._backend.encode_batch_fast(inputs)
        rows = [encoding.ids for encoding in encodings]
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
        truncated = np.array([bool(encoding.overflowing) for encoding in encodings], dtype=np.bool_)
        first = np.diff(offsets).astype(np.int32) if pairs else None
        if first is not None:
            first[pairs] = [encodings[place].type_ids.count(0) for place in pairs]
        return TokenizedTexts(ids, offsets, truncated, first)


def fast_tokenizer(
    model: SentenceTransformer, max_length: int, prompt: str, task: str | None = None
) -> FastTokenizer | None:
    """Build the ``FastTokenizer`` of a model if it equals the model's own preprocessing.

    Args:
        model: the model.
        max_length: truncate texts to this many tokens; 0 means never.
        prompt: text put before every text.
        task: value of ``task`` that the model is called with.

    Returns:
        The tokenizer. None for models whose input is more than token ids (chat templates, images, static
        embeddings), for tokenizers without a Rust backend, and if the two disagree on a probe text. If they
        disagree on pairs alone, the tokenizer refuses pairs.
    """
    first: Any = model[0]
    tokenizer = getattr(first, "tokenizer", None)
    if type(first).__name__ != "Transformer" or tokenizer is None or not getattr(tokenizer, "is_fast", False):
        return None
    fast = FastTokenizer(tokenizer, max_length, prompt)
    special = " ".join(["A", *map(str, tokenizer.all_special_tokens), "text"])
    probes = [*_PROBES, special, "word " * min(max_length or 64, _LONGEST_PROBE)]
    if not all(_agree(fast, model, probe, prompt, task) for probe in probes):
        return None
    pairs = [join_pair(one, other) for one, other in zip(probes, probes[1:] + probes[:1], strict=True)]
    fast.takes_pairs = fast.takes_pairs and all(_agree(fast, model, pair, prompt, task) for pair in pairs)
    return fast


def _agree(fast: FastTokenizer, model: SentenceTransformer, text: str, prompt: str, task: str | None) -> bool:
    """Compare the fast tokenizer with the model's own preprocessing on one text."""
    keywords = {} if task is None else {"task": task}
    features = model.preprocess([split_pair(text) or text], prompt=prompt or None, **keywords)
    if set(features) - {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length"}:
        return False
    found = fast([text])
    if features["input_ids"][0].tolist() != found.ids.tolist():
        return False
    if "token_type_ids" not in features:
        return True
    types = np.arange(len(found.ids)) >= found.first_tokens[0]
    return bool(features["token_type_ids"][0].tolist() == types.tolist())
