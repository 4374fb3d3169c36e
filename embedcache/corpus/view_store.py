"""Storing views: rows first, recipe last, and nothing done twice.

What is cheap to make is made again after a kill. What a model makes is kept as drafts, a chunk of rows each,
until the view is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from embedcache.corpus.corpus import DESCRIPTION, Corpus, View, read_info
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
from embedcache.fsio import TEMPORARY_PREFIX, canonical_json, remove_file, write_bytes
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import Recipe

CHUNK_ROWS = 4096
"""Rows that are made at a time; where chunks end depends on the corpus alone."""

MakeRows: TypeAlias = Callable[[int, list[str]], list[Made]]
"""(First row, texts of a chunk) -> outcome for each."""


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
        recipe: recipe of the texts.
        make: makes them.
        replace: whether a view of the same name by another recipe may be replaced.
        keep_drafts: whether every chunk is kept at once, because making it again would take long.
        on_rows: called with the number of rows that are made.

    Returns:
        The view, and whether it was already there.

    Raises:
        InputError: if the name is taken by another recipe, or for a column by other texts, and ``replace`` is
            off.
        CorruptCacheError: if the view of that name is damaged; ``replace`` makes it again.
        StorageError: if the cache cannot be written.
    """
    folder = corpus.folder / VIEWS / recipe.name
    there = _record_there(folder, corpus, replace=replace)
    if there is not None and not replace:
        refuse_other_recipe(there.recipe, recipe)
        view = View(corpus, recipe.name)
        # Only reading a source again shows that a column is still the same.
        if not recipe.reads_source and not view.missing_parts():
            with suppress(StorageError):
                _remove_drafts(folder)
            return view, True
    elif is_recorded(folder):
        # Rows by one recipe beside the name of another must never be seen.
        remove_file(folder / RECIPE)
    counts: Counter[str] = Counter()
    drafts = _drafts_of(folder, corpus, recipe) if keep_drafts else None
    batches = rows_of_view(corpus, make, counts, drafts, on_rows)
    try:
        _, was_there = store_corpus(
            folder.parent, recipe.name, batches, ReadReport(), replace=there is None or replace
        )
    except InputError as error:
        if there is None or replace or not recipe.reads_source:
            raise
        raise InputError(
            f"view {recipe.name!r} of corpus {corpus.name!r} holds other texts than its column of the source "
            "has now: replace it with --overwrite, or name another with --view NAME=column:..."
        ) from error
    record = ViewRecord(recipe, corpus.info.digest, read_info(folder).digest, dict(sorted(counts.items())))
    if there != record or replace:
        write_record(folder, record)
    _remove_drafts(folder)
    return View(corpus, recipe.name), was_there and there == record


def stale_views(corpus: Corpus) -> list[str]:
    """Return the names of views that were made of other rows than ``corpus`` has now."""
    stale = []
    for name in corpus.view_names():
        with suppress(CorruptCacheError, CacheFormatError):
            if read_record(corpus.folder / VIEWS / name).of != corpus.info.digest:
                stale.append(name)
    return stale


def remove_view(corpus: Corpus, name: str) -> None:
    """Delete a view, its recipe first: without it, the rest is no view.

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


def refuse_other_recipe(there: Recipe, wanted: Recipe) -> None:
    """Raise :class:`InputError` where the view that is there has another recipe than the one wanted."""
    if difference := there.differences(wanted):
        raise InputError(
            f"the corpus has another view called {there.name!r} ({difference}): replace it with --overwrite, "
            f"or name the new one: --view NAME={wanted.kind}..."
        )


def rows_of_view(
    corpus: Corpus,
    make: MakeRows,
    counts: Counter[str],
    drafts: Path | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Iterator[RowBatch]:
    """Yield the rows of a view as :func:`store_corpus` takes them.

    Args:
        corpus: the corpus.
        make: makes the texts.
        counts: outcomes of the rows are counted here.
        drafts: how the paths of drafts begin, if drafts are kept.
        on_rows: called with the number of rows that are made.

    Raises:
        CorruptCacheError: if the corpus is damaged.
        StorageError: if drafts cannot be written.
    """
    done = 0
    for part in corpus.iter_texts():
        for start in range(0, len(part), CHUNK_ROWS):
            texts = part[start : start + CHUNK_ROWS]
            made = None if drafts is None else _read_draft(drafts, done, len(texts))
            if made is None:
                made = make(done, texts)
                if drafts is not None:
                    _write_draft(drafts, done, made)
            done += len(texts)
            for text, new in zip(texts, made, strict=True):
                counts[new.value if isinstance(new, Kept) else "unchanged" if new == text else "changed"] += 1
            settled = [text if isinstance(new, Kept) else new for text, new in zip(texts, made, strict=True)]
            yield RowBatch(settled, None, None)
            if on_rows is not None:
                on_rows(done)


def _record_there(folder: Path, corpus: Corpus, *, replace: bool) -> ViewRecord | None:
    """Return the record of a view of this corpus in ``folder``, None where there is none to go by."""
    if not is_recorded(folder):
        return None
    try:
        record = read_record(folder)
    except CorruptCacheError:
        if replace:
            return None
        raise
    # A view of other rows can be used by nothing.
    return record if record.of == corpus.info.digest else None


# Drafts have temporary names that carry the digest of what determines their texts and of their own bytes, so
# nothing mistakes them for rows, and a damaged one is made again.


def _drafts_of(folder: Path, corpus: Corpus, recipe: Recipe) -> Path:
    """Return how the paths of the drafts of a view begin."""
    identity = canonical_json([corpus.info.digest, recipe.to_json(), CHUNK_ROWS])
    return folder / f"{TEMPORARY_PREFIX}draft-{hashlib.sha256(identity).hexdigest()[:16]}"


def _write_draft(drafts: Path, first_row: int, made: Sequence[Made]) -> None:
    values = [[one.value] if isinstance(one, Kept) else one for one in made]
    data = json.dumps(values, ensure_ascii=False).encode()
    write_bytes(drafts.with_name(f"{drafts.name}-{first_row}-{hashlib.sha256(data).hexdigest()}.json"), data)


def _read_draft(drafts: Path, first_row: int, rows: int) -> list[Made] | None:
    for path in drafts.parent.glob(f"{drafts.name}-{first_row}-*.json"):
        with suppress(OSError, ValueError):
            data = path.read_bytes()
            if path.stem.rpartition("-")[2] == hashlib.sha256(data).hexdigest():
                values = json.loads(data)
                if len(values) == rows:
                    return [Kept(one[0]) if isinstance(one, list) else str(one) for one in values]
    return None


def _remove_drafts(folder: Path) -> None:
    for path in folder.glob(f"{TEMPORARY_PREFIX}draft-*"):
        remove_file(path)
