"""Views by translation, into another language or there and back, through Marian-style models.

Decoding is greedy, or by beams; nothing is drawn. A text longer than a model reads, or one that a model has
nothing to say to, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedcache.views.kept import Kept, Made, Maker
from embedcache.views.models import ModelFolder, batches_of_one_length, load_model
from embedcache.views.recipe import Recipe

BATCH_TOKENS = 2048
_LONGEST = 512
# A translation may be this many times as long, and some tokens more, before it is cut off as endless.
_GROWTH, _MORE = 2, 32


def translation_maker(
    recipe: Recipe, models: Sequence[ModelFolder], device: str, *, batch_tokens: int = BATCH_TOKENS
) -> Maker:
    """Return the maker of a ``translation`` or ``back-translation`` view.

    Args:
        recipe: the recipe.
        models: the translators, in the order in which texts go through them.
        device: where they run.
        batch_tokens: tokens that are read at once; all texts of a batch have one length.

    Raises:
        TeacherError: if a model cannot be loaded.
        MissingExtraError: if a tokenizer needs a library that is not installed.
    """
    translators = [
        _Translator(*load_model(model, "AutoModelForSeq2SeqLM", device), recipe, batch_tokens)
        for model in models
    ]

    def make(texts: Sequence[str]) -> list[Made]:
        made: list[Made] = list(texts)
        for translator in translators:
            left = list(dict.fromkeys(one for one in made if isinstance(one, str)))
            found = dict(zip(left, translator.translate(left), strict=True))
            made = [found[one] if isinstance(one, str) else one for one in made]
        return made

    return make


class _Translator:
    def __init__(self, model: Any, tokenizer: Any, recipe: Recipe, batch_tokens: int) -> None:
        self._model, self._tokenizer, self._batch_tokens = model, tokenizer, batch_tokens
        self._beams = int(recipe.parameters["beams"])
        positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
        self._longest = min(int(positions), int(tokenizer.model_max_length))

    def translate(self, texts: list[str]) -> list[Made]:
        """Return the translation of each text."""
        made: list[Made] = [Kept.TOO_LONG] * len(texts)
        tokens = [self._tokenizer(text, verbose=False)["input_ids"] for text in texts]
        fitting = [place for place, ids in enumerate(tokens) if len(ids) <= self._longest]

        def run(batch: list[int]) -> None:
            places = [fitting[one] for one in batch]
            for place, text in zip(places, self._generated([tokens[p] for p in places]), strict=True):
                made[place] = text if text and not text.isspace() else Kept.EMPTY_OUTPUT

        batches_of_one_length([len(tokens[place]) for place in fitting], self._batch_tokens, run)
        return made

    def _generated(self, tokens: list[list[int]]) -> list[str]:
        import torch

        ids = torch.tensor(tokens, device=self._model.device)
        room = min(self._longest, _GROWTH * ids.shape[1] + _MORE)
        with torch.inference_mode():
            generated = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=self._beams,
                do_sample=False,
                max_new_tokens=max(room - 1, 1),
                max_length=None,
            )
        texts: list[str] = self._tokenizer.batch_decode(generated, skip_special_tokens=True)
        return [text.replace("\0", "") for text in texts]
