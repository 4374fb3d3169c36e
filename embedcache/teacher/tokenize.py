"""Texts to token ids, in bulk: flat arrays instead of a list of lists, truncation recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of n texts, special tokens included.

    Attributes:
        ids: int32, all texts' ids one after the other.
        offsets: int64, shape (n + 1,); text i has ``ids[offsets[i]:offsets[i + 1]]``.
        truncated: bool, shape (n,); which texts were cut to the maximal length.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    truncated: NDArray[np.bool_]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text, shape (n,)."""
        return np.diff(self.offsets)


class FastTokenizer:
    """Drives the Rust tokenizer of a transformers tokenizer directly.

    The ids are those of ``tokenizer(text, truncation=True, max_length=...)``; going around the Python wrapper
    is several times faster. Works on a copy, so the caller's tokenizer keeps its settings.

    Args:
        tokenizer: a transformers tokenizer with a Rust backend.
        max_length: tokens after which a text is cut, special tokens counted; 0 means never.
        prompt: text put before every text.
        special_tokens: whether the tokenizer puts its own tokens around a text.
    """

    def __init__(
        self, tokenizer: Any, max_length: int, prompt: str = "", *, special_tokens: bool = True
    ) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        if not special_tokens:
            # The step that puts them there; it does nothing else to ids.
            self._backend.post_processor = None
        if max_length:
            self._backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
        self.pad_id: int = tokenizer.pad_token_id or 0
        self.uses_token_types = "token_type_ids" in tokenizer.model_input_names
        self.pads_left = tokenizer.padding_side == "left"
        self._prompt = prompt

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, added tokens included; every id is below it."""
        return max(self._backend.get_vocab_size(with_added_tokens=True), self.pad_id + 1)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that determines the ids: tokenizer, truncation, prompt."""
        state = f"{self._prompt}\0{self._backend.to_str()}"
        return hashlib.sha256(state.encode()).hexdigest()

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenise ``texts``; runs on all cores outside Python's lock."""
        prompted = [self._prompt + text for text in texts] if self._prompt else list(texts)
        encodings = self._backend.encode_batch_fast(prompted)
        rows = [encoding.ids for encoding in encodings]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.fromiter((i for row in rows for i in row), dtype=np.int32, count=int(offsets[-1]))
        truncated = np.fromiter((bool(e.overflowing) for e in encodings), dtype=np.bool_, count=len(rows))
        return TokenizedTexts(ids, offsets, truncated)


def fast_tokenizer(model: SentenceTransformer, max_length: int, prompt: str) -> FastTokenizer | None:
    """Return a :class:`FastTokenizer` where it gives exactly what the model's own preprocessing gives.

    Returns None for models whose input is more than token ids (chat templates, images, static embeddings),
    for tokenizers without a Rust backend, and wherever the two disagree on a few probe texts: a fast path may
    skip work, never change the result.
    """
    first: Any = model[0]
    tokenizer = getattr(first, "tokenizer", None)
    if type(first).__name__ != "Transformer" or tokenizer is None or not getattr(tokenizer, "is_fast", False):
        return None
    fast = FastTokenizer(tokenizer, max_length, prompt)
    probes = [
        "A probe.",
        "Ünïcode, NUMBERS 123 & 'quotes' — 漢字 🙂",
        " blank  ends ",
        "word " * (max_length or 64),
    ]
    for probe in probes:
        features = model.preprocess([probe], prompt=prompt or None)
        if set(features) - {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length"}:
            return None
        if features["input_ids"][0].tolist() != fast([probe]).ids.tolist():
            return None
    return fast
