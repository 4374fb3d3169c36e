"""Models of tokenizers: the spelling of tokens in each kind, and its JSON with fewer of them.

A token that is removed has to be spelled with tokens that are left. Each class knows the smallest pieces
(characters, bytes), the tokens that another token needs, and how the model is written with fewer tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from distill.errors import StudentError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNUSED = re.compile(r"[\[<](?:unused|reserved|extra_id)[_ ]?-?\d+[\]>]|madeupword\d+")


def is_unused(token: str) -> bool:
    """Return True for tokens that vocabularies reserve for later, such as ``[unused7]``."""
    return _UNUSED.fullmatch(token) is not None


class Subwords:
    """The model of a tokenizer, from its JSON.

    Attributes:
        always: ids that any text may need: bytes, the unknown token.
        basis: ids of the smallest pieces, ``always`` included.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.model = model = state["model"]
        # A Unigram model lists (piece, score) in the order of the ids.
        tokens: Mapping[str, int] = (
            model["vocab"]
            if isinstance(model["vocab"], dict)
            else {piece: number for number, (piece, _) in enumerate(model["vocab"])}
        )
        self.ids = tokens
        self.tokens = {number: token for token, number in tokens.items()}
        unknown, byte_fallback = model.get("unk_token") or "", model.get("byte_fallback")
        self.always = {tokens[unknown]} if unknown in tokens else set[int]()
        self.always |= {i for token, i in tokens.items() if byte_fallback and _BYTE.fullmatch(token)}
        self.basis = self.always | {i for token, i in tokens.items() if len(token) == 1}

    def spelling(self, token: int) -> set[int]:
        """Return the ids of the smallest pieces that spell a token, as far as they exist."""
        return {self.ids[letter] for letter in self.tokens.get(token, "") if letter in self.ids}

    def closure(self, token: int) -> set[int]:
        """Return the ids that a token needs, itself included."""
        return {token}

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """Return the model's JSON with only the tokens of ``new_id``, under their new ids."""
        kept = {token: new_id[number] for token, number in self.ids.items() if number in new_id}
        return {**self.model, "vocab": kept}


class WordPiece(Subwords):
    """The longest piece that a word begins with, then the longest of the rest (Wu et al., 2016).

    With fewer pieces the longest one is the same wherever it is kept, so a text of kept pieces is tokenized
    as before.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self._prefix: str = self.model["continuing_subword_prefix"]
        inside = [token for token in self.ids if token.startswith(self._prefix)]
        self.basis |= {self.ids[token] for token in inside if len(token) == len(self._prefix) + 1}

    def spelling(self, token: int) -> set[int]:
        """See ``Subwords``."""
        word = self.tokens.get(token, "")
        starts = not word.startswith(self._prefix)
        letters = word if starts else word[len(self._prefix) :]
        pieces = [letter if starts and i == 0 else self._prefix + letter for i, letter in enumerate(letters)]
        return {self.ids[piece] for piece in pieces if piece in self.ids}


class BytePairs(Subwords):
    """Characters or bytes merged pair by pair (Sennrich et al., 2016).

    A token keeps all tokens of the merges that lead to it. All merges of a text's tokens then remain when the
    tokens do, in the same order, so such a text is tokenized as before.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        cut = len(self.model.get("continuing_subword_prefix") or "")
        self._merges: list[tuple[int, int, int]] = []
        self._parts: dict[int, set[int]] = {}
        for merge in self.model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            made = self.ids[left + right[cut:]]
            self._merges.append((self.ids[left], self.ids[right], made))
            self._parts.setdefault(made, set()).update((self.ids[left], self.ids[right]))
        # Byte-level models write bytes as characters; a text with a missing byte would lose it.
        if '"ByteLevel"' in json.dumps([state.get("normalizer"), state.get("pre_tokenizer")]):
            self.always |= {i for token, i in self.ids.items() if len(token) == 1}
        self.basis = self.always | {i for i in self.tokens if i not in self._parts}

    def spelling(self, token: int) -> set[int]:
        """See ``Subwords``."""
        return {part for part in self.closure(token) if part not in self._parts}

    def closure(self, token: int) -> set[int]:
        """See ``Subwords``."""
        found: set[int] = set()
        left = [token]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left.extend(self._parts.get(one, ()))
        return found

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """See ``Subwords``."""
        merges = [
            [self.tokens[left], self.tokens[right]]
            for left, right, made in self._merges
            if {left, right, made} <= new_id.keys()
        ]
        return {**super().keep(new_id), "merges": merges}


class Unigram(Subwords):
    """The most probable way to cut a text into pieces (Kudo, 2018).

    The least probable piece always stays: the cost of an unknown character is measured from it.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        self._pieces: list[tuple[str, float]] = self.model["vocab"]
        least = min(range(len(self._pieces)), key=lambda number: self._pieces[number][1])
        self.always |= {least} if self.model["unk_id"] is None else {least, self.model["unk_id"]}
        self.basis |= self.always

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """See ``Subwords``."""
        unknown = self.model["unk_id"]
        return {
            **self.model,
            "vocab": [self._pieces[number] for number in sorted(new_id) if number < len(self._pieces)],
            "unk_id": None if unknown is None else new_id[unknown],
        }


_KINDS: dict[str, type[Subwords]] = {"WordPiece": WordPiece, "BPE": BytePairs, "Unigram": Unigram}


def subwords_of(state: Mapping[str, Any]) -> Subwords:
    """Return the model in a tokenizer's JSON.

    Raises:
        StudentError: if it is of a kind that cannot be pruned.
    """
    kind = state["model"].get("type")
    if kind not in _KINDS:
        raise StudentError(
            f"the teacher's tokenizer is a {kind} model, expected {', '.join(_KINDS)}: leave vocab out"
        )
    return _KINDS[kind](state)
