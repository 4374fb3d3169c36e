"""Views by a masked language model: a share of the words is masked at once, and the model fills them.

Into the place of a word goes the likeliest token that is a word by itself, never the word that was there; the
punctuation around it stays. Nothing is drawn from what the model gives, so only which words are masked
depends on the seed. Of a text longer than the model reads, words of its beginning are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from embedcache.errors import TeacherError
from embedcache.views.kept import Kept, Made, Maker
from embedcache.views.models import ModelFolder, batches_of_one_length, load_model
from embedcache.views.recipe import Recipe
from embedcache.views.stream import Draws
from embedcache.views.words import CORE, put, words_of_share

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST = 512
_MOST_LOGITS = 1 << 26
# What begins a token that continues a word, or one that begins one, in the usual vocabularies.
_CONTINUES, _BEGINS = "##", ("Ġ", "▁")


def mask_fill_maker(
    recipe: Recipe, model: ModelFolder, device: str, *, batch_tokens: int | None = None
) -> Maker:
    """Return the maker of a ``mask-fill`` view.

    Args:
        recipe: the recipe.
        model: the masked language model.
        device: where it runs.
        batch_tokens: tokens of a forward pass, in which all texts have one length; default: as many as would
            give 256 MB of logits, were all of them masks.

    Raises:
        TeacherError: if the model cannot be loaded, or cannot fill masks.
        MissingExtraError: if its tokenizer needs a library that is not installed.
    """
    loaded, tokenizer = load_model(model, "AutoModelForMaskedLM", device)
    if tokenizer.mask_token is None:
        raise TeacherError(
            f"{model.spec} has no mask token, so it can fill none; name a masked language model"
        )
    return _MaskFill(recipe, loaded, tokenizer, batch_tokens).make


class _Masked(NamedTuple):
    """The words of a text, masks among them; ``places`` are theirs, ``hidden`` the words they hide."""

    words: list[str]
    places: list[int]
    hidden: list[str]


class _MaskFill:
    def __init__(self, recipe: Recipe, model: Any, tokenizer: Any, batch_tokens: int | None) -> None:
        import torch

        self._model, self._tokenizer = model, tokenizer
        self._share = float(recipe.parameters["share"])
        self._of = Draws(recipe.salt).of
        self._mask = str(tokenizer.mask_token)
        positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
        # RoBERTa and its kin number their positions from 2.
        self._longest = min(int(tokenizer.model_max_length), int(positions) - 2, _LONGEST)
        self._words = _whole_words(tokenizer, model.get_output_embeddings().weight.shape[0])
        self._batch_tokens = batch_tokens or max(_MOST_LOGITS // len(self._words), 1)
        self._refused = torch.tensor([word is None for word in self._words], device=model.device)
        self._numbers: dict[str, list[int]] = {}
        for number, word in enumerate(self._words):
            if word is not None:
                self._numbers.setdefault(word.casefold(), []).append(number)

    def make(self, texts: Sequence[str]) -> list[Made]:
        made: list[Made] = [Kept.NOTHING_TO_MASK] * len(texts)
        masked = {place: found for place, text in enumerate(texts) if (found := self._masked(text))}
        rows = list(masked)
        tokens = [
            self._tokenizer(
                " ".join(masked[row].words[: self._longest]), truncation=True, max_length=self._longest
            )["input_ids"]
            for row in rows
        ]

        def run(batch: list[int]) -> None:
            found = [masked[rows[one]] for one in batch]
            filled = self._filled([tokens[one] for one in batch], found)
            for one, (words, places, hidden), new in zip(batch, found, filled, strict=True):
                for place, old in zip(places, hidden, strict=True):
                    words[place] = old
                # Masks that were cut off have no word, and stay what they were.
                for place, word in zip(places, new, strict=False):
                    put(words, place, word)
                if new:
                    made[rows[one]] = " ".join(words)

        batches_of_one_length([len(ids) for ids in tokens], self._batch_tokens, run)
        return made

    def _masked(self, text: str) -> _Masked | None:
        if self._mask in text:
            return None
        words = text.split()
        cores = map(CORE.fullmatch, words[: self._longest])
        candidates = [
            place
            for place, core in enumerate(cores)
            if core is not None and any(character.isalpha() for character in core[2])
        ]
        if not candidates:
            return None
        count = min(words_of_share(min(len(words), self._longest), self._share), len(candidates))
        places = sorted(candidates[one] for one in self._of(text).sample(len(candidates), count))
        hidden = [words[place] for place in places]
        for place in places:
            words[place] = CORE.sub(lambda core: core[1] + self._mask + core[3], words[place], count=1)
        return _Masked(words, places, hidden)

    def _filled(self, tokens: list[list[int]], masked: list[_Masked]) -> list[list[str]]:
        """Return the words for the masks that each of some token lists of one length holds."""
        import torch

        ids = torch.tensor(tokens, device=self._model.device)
        with torch.inference_mode():
            is_mask = ids == self._tokenizer.mask_token_id
            owners = is_mask.nonzero()[:, 0].tolist()
            logits = logits_at(self._model, ids, is_mask).masked_fill(self._refused, -torch.inf)
            # The word that was there is no choice, however it is spelled.
            seen = [0] * len(tokens)
            rows, columns = [], []
            for mask, owner in enumerate(owners):
                core = CORE.fullmatch(masked[owner].hidden[seen[owner]])
                same = self._numbers.get(core[2].casefold(), []) if core is not None else []
                rows += [mask] * len(same)
                columns += same
                seen[owner] += 1
            logits[rows, columns] = -torch.inf
            chosen = logits.argmax(dim=1).tolist()
        filled: list[list[str]] = [[] for _ in tokens]
        for owner, number in zip(owners, chosen, strict=True):
            filled[owner].append(self._words[number] or "")
        return filled


def logits_at(model: Any, ids: Tensor, where: Tensor) -> Tensor:
    """Return what a masked language model makes of M of its tokens.

    Args:
        model: a model of transformers' ``AutoModelForMaskedLM``.
        ids: int64, shape (B, L); no token is padding.
        where: bool, shape (B, L); the M tokens.

    Returns:
        The logits, shape (M, V), row after row of ``ids``.
    """
    import torch

    def asked_for_alone(projection: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        hidden, *rest = inputs
        return (hidden[where], *rest) if hidden.shape[:-1] == where.shape else None

    # Nothing is as wide as the vocabulary, and most words are not asked about.
    projection = model.get_output_embeddings()
    hook = None if projection is None else projection.register_forward_pre_hook(asked_for_alone)
    try:
        logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    finally:
        if hook is not None:
            hook.remove()
    # Some models name no projection, and some heads multiply with its weights and never call it.
    return logits[where] if logits.dim() == 3 else logits


def _whole_words(tokenizer: Any, size: int) -> list[str | None]:
    """Return the word that each number of the vocabulary is, None where it is no whole word."""
    tokens = [str(token or "") for token in tokenizer.convert_ids_to_tokens(range(min(size, len(tokenizer))))]
    begins = any(token.startswith(_BEGINS) for token in tokens)
    special = set(tokenizer.all_special_ids)
    words: list[str | None] = [None] * size
    for number, token in enumerate(tokens):
        is_word = token.startswith(_BEGINS) if begins else not token.startswith(_CONTINUES)
        if is_word and number not in special:
            word = tokenizer.decode([number]).strip()
            words[number] = word if word.isalpha() else None
    return words
