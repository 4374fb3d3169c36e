"""What each kind of tokenizer spells its tokens with, and its model with fewer of them.

A token that is gone has to be spelled with tokens that are left. Of each kind this module knows the pieces of
last resort (characters, bytes), what has to stay along with a token, and how to write the model down anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from distill.errors import StudentError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNUSED = re.compile(r"[\[<](?:unused|reserved|extra_id)[_ ]?-?\d+[\]>]|madeupword\d+")


def is_unused(token: str) -> bool:
    """Return whether ``token`` is one of those that vocabularies keep free for later, as ``[unused7]``."""
    return _UNUSED.fullmatch(token) is not None


class Subwords(Protocol):
    """The model of a tokenizer, as its JSON has it."""

    always: set[int]
    """Ids that every text may need: bytes, the unknown token."""
    basis: set[int]
    """Ids of the pieces of last resort, ``always`` included."""

    def spelling(self, token: int) -> set[int]:
        """Return the ids of the pieces of last resort that spell a token, as far as there are such."""
        ...

    def closure(self, token: int) -> set[int]:
        """Return the ids that a token cannot be made without, its own included."""
        ...

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """Return the model's JSON with the tokens of ``new_id`` alone, under their new ids."""
        ...


class WordPiece:
    """The longest piece that a word begins with, then the longest of what is left (Wu et al., 2016).

    With fewer pieces, the longest one is the same wherever it is kept; so a text made of kept pieces stays as
    it is.
    """

    def __init__(self, model: dict[str, Any], pipeline: str) -> None:
        self._model: dict[str, Any] = model
        self._vocabulary: dict[str, int] = model["vocab"]
        self._prefix: str = model["continuing_subword_prefix"]
        self._tokens = {number: token for token, number in self._vocabulary.items()}
        self.always = _known(self._vocabulary, model["unk_token"])
        inside = len(self._prefix) + 1
        self.basis = self.always | {
            number
            for token, number in self._vocabulary.items()
            if len(token) == 1 or (len(token) == inside and token.startswith(self._prefix))
        }

    def spelling(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        word = self._tokens.get(token, "")
        starts = not word.startswith(self._prefix)
        letters = word if starts else word[len(self._prefix) :]
        pieces = [letter if starts and i == 0 else self._prefix + letter for i, letter in enumerate(letters)]
        return {self._vocabulary[piece] for piece in pieces if piece in self._vocabulary}

    def closure(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        return {token}

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """See :class:`Subwords`."""
        return {**self._model, "vocab": _renumbered(self._vocabulary, new_id)}


class BytePairs:
    """Characters or bytes merged pair by pair (Sennrich et al., 2016).

    A token stays with every token that a merge on the way to it makes, whichever way. All the merges that
    made the tokens of a text are then still there when all its tokens are, and in the same order; so such a
    text stays as it is.
    """

    def __init__(self, model: dict[str, Any], pipeline: str) -> None:
        self._model = model
        self._vocabulary: dict[str, int] = model["vocab"]
        self._tokens = {number: token for token, number in self._vocabulary.items()}
        cut = len(model.get("continuing_subword_prefix") or "")
        self._merges: list[tuple[int, int, int]] = []
        self._parts: dict[int, set[int]] = {}
        for merge in model["merges"]:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            pair = (self._vocabulary[left], self._vocabulary[right])
            made = self._vocabulary[left + right[cut:]]
            self._merges.append((*pair, made))
            self._parts.setdefault(made, set()).update(pair)
        # Bytes are written as characters there; a text with a byte that is not there would lose it.
        of_bytes = '"ByteLevel"' in pipeline
        self.always = _known(self._vocabulary, model.get("unk_token")) | {
            number
            for token, number in self._vocabulary.items()
            if (of_bytes and len(token) == 1) or (model.get("byte_fallback") and _BYTE.fullmatch(token))
        }
        self.basis = self.always | {
            number for token, number in self._vocabulary.items() if number not in self._parts
        }

    def spelling(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        return {part for part in self.closure(token) if part not in self._parts}

    def closure(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        found: set[int] = set()
        left = [token]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left.extend(self._parts.get(one, ()))
        return found

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """See :class:`Subwords`."""
        merges = [
            [self._tokens[left], self._tokens[right]]
            for left, right, made in self._merges
            if left in new_id and right in new_id and made in new_id
        ]
        return {**self._model, "vocab": _renumbered(self._vocabulary, new_id), "merges": merges}


class Unigram:
    """The most probable of all ways to cut a text into pieces (Kudo, 2018).

    The best of fewer ways is the same wherever it is still there; so a text made of kept pieces stays as it
    is. The least probable piece always stays: what an unknown character costs is measured from it.
    """

    def __init__(self, model: dict[str, Any], pipeline: str) -> None:
        self._model = model
        self._pieces: list[tuple[str, float]] = [(piece, score) for piece, score in model["vocab"]]
        self._ids = {piece: number for number, (piece, _) in enumerate(self._pieces)}
        least = min(range(len(self._pieces)), key=lambda number: self._pieces[number][1])
        self.always = {least} | {
            number
            for number, (piece, _) in enumerate(self._pieces)
            if number == model["unk_id"] or (model.get("byte_fallback") and _BYTE.fullmatch(piece))
        }
        self.basis = self.always | {i for i, (piece, _) in enumerate(self._pieces) if len(piece) == 1}

    def spelling(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        piece = self._pieces[token][0] if token < len(self._pieces) else ""
        return {self._ids[letter] for letter in piece if letter in self._ids}

    def closure(self, token: int) -> set[int]:
        """See :class:`Subwords`."""
        return {token}

    def keep(self, new_id: Mapping[int, int]) -> dict[str, Any]:
        """See :class:`Subwords`."""
        unknown = self._model["unk_id"]
        return {
            **self._model,
            "vocab": [list(self._pieces[number]) for number in sorted(new_id) if number < len(self._pieces)],
            "unk_id": None if unknown is None else new_id[unknown],
        }


_KINDS: dict[str, Callable[[dict[str, Any], str], Subwords]] = {
    "WordPiece": WordPiece,
    "BPE": BytePairs,
    "Unigram": Unigram,
}


def subwords_of(state: Mapping[str, Any], pipeline: str) -> Subwords:
    """Return the model of a tokenizer.

    Args:
        state: the tokenizer's JSON.
        pipeline: the same, as text, of what happens to a text before the model sees it.

    Raises:
        StudentError: if it is of a kind whose vocabulary cannot be pruned.
    """
    kind = state["model"].get("type")
    if kind not in _KINDS:
        raise StudentError(
            f"the teacher's tokenizer is a {kind} model, of which no tokens can be taken away; known are "
            f"{', '.join(_KINDS)}: leave vocab out"
        )
    return _KINDS[kind](state["model"], pipeline)


def _known(vocabulary: Mapping[str, int], token: str | None) -> set[int]:
    return {vocabulary[token]} if token is not None and token in vocabulary else set()


def _renumbered(vocabulary: Mapping[str, int], new_id: Mapping[int, int]) -> dict[str, int]:
    return {token: new_id[number] for token, number in vocabulary.items() if number in new_id}
