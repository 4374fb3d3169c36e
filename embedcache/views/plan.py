"""Views that a user asks for: their options and requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from embedcache.errors import InputError
from embedcache.views.edits import edit_maker
from embedcache.views.models import MaskFill, ModelFolder, find_model, translation_maker
from embedcache.views.recipe import KINDS, Maker, Recipe, parse_views
from embedcache.views.synonyms import synonym_maker

MASK_MODEL = "google-bert/bert-base-uncased"
TRANSLATOR = "Helsinki-NLP/opus-mt-{}"


@dataclass(frozen=True)
class ViewOptions:
    """Views to make, and what to make them with.

    Attributes:
        views: specs as typed after ``--view``.
        seed: seed of random draws.
        language: the language of the texts, as the translators name it.
        translators: pair of languages, ``en-de`` -> hub id or folder of a model for it.
        mask_model: hub id or folder of a masked language model.
        device: device of models: ``auto``, ``cpu``, ``cuda`` ...
        embed: names of the views that the teacher encodes beside the original text.
    """

    views: Sequence[str] = ()
    seed: int = 0
    language: str = "en"
    translators: Mapping[str, str] = field(default_factory=dict)
    mask_model: str | None = None
    device: str = "auto"
    embed: Sequence[str] = ()


@dataclass(frozen=True)
class PlannedView:
    """View that can be made.

    Attributes:
        recipe: recipe of its texts, with the digests of its models.
        models: role -> model.
        device: device of models.
    """

    recipe: Recipe
    models: Mapping[str, ModelFolder]
    device: str

    @property
    def is_slow(self) -> bool:
        """True if a model makes the rows, so that each chunk is kept at once."""
        return bool(self.models)

    @cached_property
    def maker(self) -> Maker:
        """Maker of the texts; models are loaded at the first access.

        Raises:
            InputError: if a column is asked for, which only its source can give, or a language that its
                translator does not know.
            TeacherError: if a model cannot be loaded.
            MissingExtraError: if something that it needs is not installed.
        """
        kind = self.recipe.kind
        if kind in ("crop", "delete-words", "delete-one-word"):
            return edit_maker(self.recipe)
        if kind == "synonym":
            return synonym_maker(self.recipe)
        if kind == "mask-fill":
            return MaskFill(self.recipe, self.models["mask-fill"], self.device)
        if kind in ("translation", "back-translation"):
            return translation_maker(self.recipe, self.models, self.device)
        raise InputError(f"view {self.recipe.name!r} is a {kind} of the source; build the corpus from it")


def plan_views(options: ViewOptions) -> list[PlannedView]:
    """Find what the views that are asked for need.

    Raises:
        InputError: if a view cannot be understood, or a translator is named for no view.
        TeacherError: if a model cannot be found.
        MissingExtraError: if something that a view needs is not installed.
    """
    found: dict[str, ModelFolder] = {}
    planned, roles_asked = [], set()
    for recipe in parse_views(options.views, seed=options.seed):
        roles = [
            role.format(source=options.language, language=recipe.parameters.get("language"))
            for role in KINDS[recipe.kind].models
        ]
        roles_asked |= set(roles)
        models = {}
        for role in roles:
            spec = _spec(role, options)
            models[role] = found[spec] = found.get(spec) or find_model(spec)
        digests = {role: model.digest for role, model in models.items()}
        planned.append(PlannedView(replace(recipe, models=digests), models, options.device))
    if unused := sorted(options.translators.keys() - roles_asked):
        needed = ", ".join(sorted(roles_asked)) or "none"
        raise InputError(
            f"translators {unused[0]}=...: no view needs it (needed: {needed}). "
            "Pairs are en-de=MODEL, from the language of the texts (--language)"
        )
    return planned


def _spec(role: str, options: ViewOptions) -> str:
    if role == "mask-fill":
        return options.mask_model or MASK_MODEL
    return options.translators.get(role, TRANSLATOR.format(role))
