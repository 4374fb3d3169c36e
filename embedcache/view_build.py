"""Views as a build makes them: planned before anything is written, made once the corpus is there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from embedcache.build_report import BuildProgress, OnProgress, ViewSummary
from embedcache.corpus.column_view import ColumnCells, refuse_missing_column
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions, Source
from embedcache.corpus.view_record import VIEWS, read_record
from embedcache.corpus.view_store import MakeRows, remove_view, stale_views, store_view
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.views.plan import PlannedView, ViewOptions, plan_views
from embedcache.views.recipe import Recipe


def plan(
    options: ViewOptions, sources: Sequence[Source], reading: ReadOptions, folder: Path | None
) -> list[PlannedView]:
    """Find what the views that are asked for need, and refuse what can be refused.

    Args:
        options: the views.
        sources: what the corpus is read from.
        reading: how.
        folder: the corpus's folder, whether it is there or not; None without a cache.

    Raises:
        InputError, MissingInputError: if a view cannot be understood, its column is not there, or a view is
            to be encoded that nobody makes.
        TeacherError, MissingExtraError: if a model cannot be found, or something is not installed.
    """
    if reading.text2_column is not None and (options.views or options.embed):
        raise InputError(
            "views are made of single texts, and --text2-column makes pairs: leave --view and --embed-views "
            "out, or build the texts as a corpus of their own"
        )
    planned = plan_views(options)
    for view in planned:
        if view.recipe.reads_source:
            refuse_missing_column(sources, reading, str(view.recipe.parameters["column"]))
    names = {view.recipe.name for view in planned}
    there: list[Recipe] = []
    # There may be no corpus yet; a damaged one is told of when it is built.
    with suppress(CorruptCacheError, CacheFormatError):
        if folder is not None:
            corpus = Corpus(folder)
            names |= set(corpus.view_names())
            there = [read_record(corpus.folder / VIEWS / name).recipe for name in corpus.view_names()]
    for view in planned:
        # A model that cannot do its work is to be known of by now.
        if view.is_slow and view.recipe not in there:
            view.maker  # noqa: B018 - this loads it
    if unknown := [name for name in options.embed if name not in names]:
        raise InputError(
            f"--embed-views {unknown[0]}: there is no such view; there "
            + (f"will be {', '.join(sorted(names))}" if names else "are none")
            + ", and the original text is encoded anyway. Add views with --view"
        )
    return planned


def make_views(
    corpus: Corpus,
    planned: Sequence[PlannedView],
    sources: Sequence[Source],
    reading: ReadOptions,
    progress: BuildProgress,
    on_progress: OnProgress | None,
    *,
    replace: bool,
) -> list[ViewSummary]:
    """Make the views that are not there, and remove those of rows that the corpus has no longer.

    Raises:
        InputError: if a view's name is taken by another recipe and ``replace`` is off, or a column does not
            fit the corpus.
        CorruptCacheError: if a view is damaged and ``replace`` is off.
        TeacherError, MissingExtraError: if a model cannot be loaded.
        StorageError: if the cache cannot be written.
    """
    stale = stale_views(corpus)
    for name in stale:
        remove_view(corpus, name)
    made = []
    for view in planned:
        recipe, started = view.recipe, time.perf_counter()
        progress.begin(f"view {recipe.name}", len(corpus))

        def report(rows: int, since: float = started) -> None:
            progress.rows, progress.seconds = rows, time.perf_counter() - since
            if on_progress is not None:
                on_progress(progress)

        replaces = recipe.name in stale or recipe.name in corpus.view_names()
        found, was_there = store_view(
            corpus,
            recipe,
            maker_of(view, sources, reading),
            replace=replace,
            keep_drafts=view.is_slow,
            on_rows=report,
        )
        outcome = "reused" if was_there else "remade" if replaces else "made"
        counts = dict(found.record.counts)
        seconds = time.perf_counter() - started
        made.append(ViewSummary(recipe.name, recipe.describe(), outcome, counts, seconds))
    names = {view.name for view in made}
    made += [ViewSummary(name, "", "removed", {}, 0.0) for name in stale if name not in names]
    return made


def maker_of(view: PlannedView, sources: Sequence[Source], reading: ReadOptions) -> MakeRows:
    """Return what makes the rows of a view, given the corpus's in their order; see :func:`make_views`."""
    if view.recipe.reads_source:
        return ColumnCells(sources, reading, str(view.recipe.parameters["column"])).make
    return lambda first_row, texts: view.maker(texts)
