"""Storing views: rows first, recipe last, and nothing done twice.

What is cheap to make is made again after a kill. What a model makes is kept as drafts, a chunk of rows each,
until the view is there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from embedcache.corpus.corpus import DESCRIPTION, Corpus, View, read_info
from embedcache.corpus.drafts import Drafts, remove_drafts
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_record import (
    RECIPE,
    VIEWS,
    ViewRecord,
    is_recorded,
    read_record,
    write_record,
)
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, canonical_json, remove_file
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import Recipe

CHUNK_ROWS = 4096
"""Rows that are made at a time; where chunks end depends on the corpus alone."""

MakeRows: TypeAlias = Callable[[int, list[str]], list[Made]]
"""(First row, texts of a chunk) -> what is made of each."""


def store_view(
    corpus: Corpus,
    recipe: Recipe,
    make: MakeRows,
    *,
    replace: bool = False,
    keep_drafts: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> tuple[View, bool]:
    """Make a view of ``corpus``, unless it is there.

    Killed or out of disk, what is written stays, and the same call goes on from it.

    Args:
        corpus: the corpus.
        recipe: how its texts are made.
        make: makes them.
        replace: whether a view of the same name by another recipe may be replaced.
        keep_drafts: whether what was made is kept at every chunk, because making it again would take long.
        on_rows: called with the number of rows that are made.

    Returns:
        The view, and whether it was already there.

    Raises:
        InputError: if the name is taken by another recipe, or for a column by other texts, and ``replace`` is
            off.
        CorruptCacheError: if the view of that name is damaged; ``replace`` makes it anew.
        StorageError: if the cache cannot be written.
    """
    folder = corpus.folder / VIEWS / recipe.name
    there = _record_there(folder, corpus, replace=replace)
    if there is not None and not replace:
        refuse_other_recipe(there.recipe, recipe)
        view = View(corpus, recipe.name)
        # What comes from a source can be told to be the same by reading that alone.
        if not recipe.reads_source and not view.missing_parts():
            # Those of a build that was killed when all else was done; where nothing can be written they stay.
            with suppress(StorageError):
                remove_drafts(folder)
            return view, True
    elif is_recorded(folder):
        # Rows by one recipe beside the name of another must never be seen.
        remove_file(folder / RECIPE)
    counts: Counter[str] = Counter()
    drafts = Drafts(folder, _identity(corpus, recipe)) if keep_drafts else None
    batches = rows_of_view(corpus, make, counts, drafts, on_rows)
    try:
        _, was_there = store_corpus(
            folder.parent, recipe.name, batches, ReadReport(), replace=there is None or replace
        )
    except InputError as error:
        if there is None or replace or not recipe.reads_source:
            raise
        raise InputError(
            f"view {recipe.name!r} of corpus {corpus.name!r} holds other texts than column "
            f"{recipe.parameters['column']!r} of the source now: replace it with --replace-views, or keep "
            f"both: --view OTHER=column:{recipe.parameters['column']}"
        ) from error
    record = ViewRecord(recipe, corpus.info.digest, read_info(folder).digest, dict(sorted(counts.items())))
    was_there = was_there and there == record
    if there != record or replace:
        write_record(folder, record)
    remove_drafts(folder)
    return View(corpus, recipe.name), was_there


def stale_views(corpus: Corpus) -> list[str]:
    """Return the names of views that were made of other rows than ``corpus`` has now."""
    stale = []
    for name in corpus.view_names():
        with suppress(CorruptCacheError, CacheFormatError):
            if read_record(corpus.folder / VIEWS / name).of != corpus.info.digest:
                stale.append(name)
    return stale


def remove_view(corpus: Corpus, name: str) -> None:
    """Delete a view; killed on the way, it is no longer there, and what is left of it does no harm.

    Raises:
        StorageError: if it cannot be deleted.
    """
    folder = corpus.folder / VIEWS / name
    remove_file(folder / RECIPE)
    remove_file(folder / DESCRIPTION)
    for path in sorted(folder.glob("*")):
        if path.suffix == ".arrow" or path.name.startswith(TEMPORARY_PREFIX):
            remove_file(path)
    for one in (folder, folder.parent):
        with suppress(OSError):
            one.rmdir()


def _record_there(folder: Path, corpus: Corpus, *, replace: bool) -> ViewRecord | None:
    """Return what is written down about a view of this corpus in ``folder``, None where nothing counts."""
    if not is_recorded(folder):
        return None
    try:
        record = read_record(folder)
    except CorruptCacheError:
        if replace:
            return None
        raise
    # One that was made of other rows can be used by nobody.
    return record if record.of == corpus.info.digest else None


def refuse_other_recipe(there: Recipe, wanted: Recipe) -> None:
    """Raise :class:`InputError` where the view that is there was made otherwise than wanted."""
    if difference := there.differences(wanted):
        raise InputError(
            f"the corpus has another view called {there.name!r} ({difference}): choose another name, "
            f"--view OTHER={wanted.kind}..., or replace it with --replace-views"
        )


def _identity(corpus: Corpus, recipe: Recipe) -> str:
    return hashlib.sha256(canonical_json([corpus.info.digest, recipe.to_json(), CHUNK_ROWS])).hexdigest()


def rows_of_view(
    corpus: Corpus,
    make: MakeRows,
    counts: Counter[str],
    drafts: Drafts | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Iterator[RowBatch]:
    """Yield the rows of a view as :func:`store_corpus` takes them.

    Args:
        corpus: the corpus.
        make: makes the texts.
        counts: what became of the rows is counted here.
        drafts: what was made before and is kept, if it is.
        on_rows: called with the number of rows that are made.

    Raises:
        CorruptCacheError: if the corpus is damaged.
        StorageError: if drafts cannot be written.
    """
    done = 0
    for part in corpus.iter_texts():
        for start in range(0, len(part), CHUNK_ROWS):
            texts = part[start : start + CHUNK_ROWS]
            made = drafts.read(done, len(texts)) if drafts is not None else None
            if made is None:
                made = make(done, texts)
                if drafts is not None:
                    drafts.write(done, made)
            done += len(texts)
            yield RowBatch(_settled(texts, made, counts), None, None)
            if on_rows is not None:
                on_rows(done)


def _settled(texts: list[str], made: list[Made], counts: Counter[str]) -> list[str]:
    """Return the texts of a chunk of the view, and count what became of them."""
    settled = []
    for text, new in zip(texts, made, strict=True):
        if isinstance(new, Kept):
            counts[new.value] += 1
            settled.append(text)
        else:
            counts["unchanged" if new == text else "changed"] += 1
            settled.append(new)
    return settled
