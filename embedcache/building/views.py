"""Views of a build: planned before anything is written, made once the corpus is stored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from embedcache.building.result import ViewResult
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import VIEWS, read_record
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import Source
from embedcache.corpus.view_store import (
    MakeRows,
    column_cells,
    refuse_missing_column,
    store_view,
)
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.missing import is_embedded
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store import ShardStore
from embedcache.views.plan import PlannedView, ViewOptions, plan_views
from embedcache.views.recipe import Recipe


def plan_views_of(
    options: ViewOptions,
    sources: Sequence[Source],
    read: ReadOptions,
    corpus: Path,
    *,
    append: bool = False,
) -> list[PlannedView]:
    """Find what the views need, so that what cannot be made is known before anything is written.

    Args:
        options: the views.
        sources: sources of the corpus.
        read: options of reading it.
        corpus: the corpus's folder, which need not exist.
        append: plan the views that the corpus has as well, for the rows that are added.

    Raises:
        InputError, MissingInputError: if a view cannot be understood, its column is missing, or a view to be
            encoded is never made.
        TeacherError, MissingExtraError: if a model cannot be found or loaded, or something is not installed.
    """
    if read.text2_column is not None and (options.views or options.embed):
        raise InputError(
            "views are made of single texts, and text2_column makes pairs: leave one of them out"
        )
    planned, recipes = plan_views(options), dict[str, Recipe]()
    # The corpus may be missing; if it is damaged, storing it says so.
    with suppress(CorruptCacheError, CacheFormatError):
        recipes = {name: read_record(corpus / VIEWS / name).recipe for name in Corpus(corpus).view_names()}
    if append:
        asked = {view.recipe.name for view in planned}
        others = [recipe for name, recipe in recipes.items() if name not in asked]
        if slow := [recipe.name for recipe in others if recipe.models]:
            raise InputError(
                f"the corpus has views that models make ({', '.join(slow)}): give them again, with their "
                "options, so that the rows that are added get theirs"
            )
        planned += [PlannedView(recipe, {}, options.device) for recipe in others]
    for view in planned:
        if view.recipe.reads_source:
            refuse_missing_column(sources, read, str(view.recipe.parameters["column"]))
    for view in planned:
        if not view.recipe.reads_source and (append or view.recipe not in recipes.values()):
            view.maker  # noqa: B018 - loads its model or lexicon
    names = {*recipes, *(view.recipe.name for view in planned)}
    if unknown := [name for name in options.embed if name not in names]:
        raise InputError(
            f"no view {unknown[0]!r} to embed (views: {', '.join(sorted(names)) or 'none'}): make it in the "
            "same build"
        )
    return planned


def make_views(
    corpus: Corpus,
    planned: Sequence[PlannedView],
    sources: Sequence[Source],
    read: ReadOptions,
    *,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress = NO_PROGRESS,
) -> list[ViewResult]:
    """Make the views that are missing, or are of rows that the corpus no longer has.

    Raises:
        InputError: if a view's name is taken by another recipe and ``overwrite`` is off, or a column does not
            fit the corpus.
        CorruptCacheError: if a view is damaged and ``overwrite`` is off.
        TeacherError, MissingExtraError: if a model cannot be loaded.
        StorageError: if the cache cannot be written.
    """
    made = []
    for view in planned:
        name = view.recipe.name
        progress.phase(f"view {name}", len(corpus))
        stored, was_there = store_view(
            corpus,
            view.recipe,
            _maker_of(view, sources, read),
            replace=overwrite,
            append=append,
            keep_drafts=view.is_slow,
            progress=progress,
        )
        made.append(ViewResult(name, "there already" if was_there else "made", dict(stored.record.counts)))
    return made


def refuse_growth(corpus: Corpus, planned: Sequence[PlannedView]) -> None:
    """Raise ``InputError`` if a view of a column cannot follow rows that are added to its corpus."""
    for name in (view.recipe.name for view in planned if view.recipe.reads_source):
        if name not in corpus.view_names():
            raise InputError(
                f"view {name!r} needs the column of every row, and --append reads only the new files: leave "
                "the view out, or build the corpus from all of its sources with --overwrite"
            )
        if read_record(corpus.folder / VIEWS / name).of != corpus.info.digest:
            raise InputError(
                f"view {name!r} is incomplete: an earlier --append was interrupted. Run that command again "
                "first, or build the corpus from all of its sources with --overwrite"
            )


def embedded_views(corpus: Corpus, store: ShardStore) -> list[str]:
    """Return the names of the views of a corpus that the teacher encoded."""
    return [view.name for view in corpus.views() if is_embedded(view, store)]


def _maker_of(view: PlannedView, sources: Sequence[Source], read: ReadOptions) -> MakeRows:
    if view.recipe.reads_source:
        return column_cells(sources, read, str(view.recipe.parameters["column"]))
    return lambda first_row, texts: view.maker(texts)
