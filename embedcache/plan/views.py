"""The views of a build that is planned: which of them are encoded, and what their texts will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.readers import ReadOptions, Source
from embedcache.corpus.view_store import MakeRows, refuse_other_recipe
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.view_build import maker_of, plan
from embedcache.views.kept import Kept
from embedcache.views.plan import ViewOptions

ViewTexts: TypeAlias = Callable[[int, list[str]], list[str]]
"""(First row, texts of some rows of the corpus) -> the texts that a view has for them."""


@dataclass(frozen=True)
class ViewOfPlan:
    """A view of a build.

    Attributes:
        name: its name.
        recipe: how it is made, in words; empty where that cannot be read.
        is_there: whether the cache has it, so that it is not made.
        is_embedded: whether the teacher is to encode it as well.
        is_counted: whether its texts are among those that the plan counts. Those of a view that is encoded
            are, but where a model has yet to make them.
    """

    name: str
    recipe: str
    is_there: bool
    is_embedded: bool
    is_counted: bool


def views_of_build(
    options: ViewOptions, sources: Sequence[Source], reading: ReadOptions, folder: Path | None
) -> tuple[list[ViewOfPlan], list[ViewTexts]]:
    """Return the views that a build makes or encodes, and what gives the texts of those that are counted.

    Args:
        options: the views.
        sources: what the corpus is read from.
        reading: how.
        folder: the corpus's folder, whether it is there or not; None without a cache.

    Raises:
        InputError: if a view of another recipe has the name, and is not to be replaced.
        InputError, TeacherError, MissingExtraError: as :func:`embedcache.view_build.plan`.
    """
    planned = {view.recipe.name: view for view in plan(options, sources, reading, folder)}
    there = _views_there(folder)
    found, texts = [], []
    for name in dict.fromkeys([*planned, *options.embed]):
        view, stored = planned.get(name), there.get(name)
        if view is not None and stored is not None:
            if not options.replace:
                refuse_other_recipe(stored.recipe, view.recipe)
            elif stored.recipe.differences(view.recipe):
                stored = None
        made: ViewTexts | None = None
        if name in options.embed:
            if view is not None and not view.is_slow:
                made = _as_made(maker_of(view, sources, reading))
            elif stored is not None:
                made = _as_stored(stored)
        if made is not None:
            texts.append(made)
        recipe = view.recipe if view is not None else stored.recipe if stored is not None else None
        described = "" if recipe is None else recipe.describe()
        found.append(ViewOfPlan(name, described, stored is not None, name in options.embed, made is not None))
    return found, texts


def _views_there(folder: Path | None) -> dict[str, View]:
    # There may be no corpus yet; a damaged one is told of when it is built.
    with suppress(CorruptCacheError, CacheFormatError):
        return {} if folder is None else {view.name: view for view in Corpus(folder).views()}
    return {}


def _as_made(make: MakeRows) -> ViewTexts:
    def texts_of(first_row: int, texts: list[str]) -> list[str]:
        made = make(first_row, texts)
        return [old if isinstance(new, Kept) else new for old, new in zip(texts, made, strict=True)]

    return texts_of


def _as_stored(view: View) -> ViewTexts:
    def texts_of(first_row: int, texts: list[str]) -> list[str]:
        end = first_row + len(texts)
        rows = np.arange(first_row, end)
        if end > len(view) or view.of.texts(rows) != texts:
            raise InputError(
                f"view {view.name!r} was made of {view.of.title}, which holds other rows than the source: "
                "plan with the source that it was built from, or with another --name"
            )
        return view.texts(rows)

    return texts_of
