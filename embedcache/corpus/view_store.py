"""Storing views: rows first, recipe last, and nothing done twice.

What is cheap to make is made again after a kill. What a model makes is kept as drafts, a chunk of rows each,
until the view is complete.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from embedcache.corpus.columns import Columns, Problem, is_utf8
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import (
    DESCRIPTION,
    RECIPE,
    VIEWS,
    ViewRecord,
    is_recorded,
    read_info,
    read_record,
    write_record,
)
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, RowConditions, is_read_once
from embedcache.corpus.sources import Source, format_of, source_name
from embedcache.corpus.store import store_corpus
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, canonical_json, read_sealed_json, remove_file, write_sealed_json
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.views.recipe import Kept, Made, Recipe

CHUNK_ROWS = 4096
"""Rows that are made at a time; where chunks end depends on the corpus alone."""

_MOST_DRAFT_BYTES = 1 << 30

MakeRows: TypeAlias = Callable[[int, list[str]], list[Made]]
"""(First row, texts of a chunk) -> outcome for each."""


def store_view(
    corpus: Corpus,
    recipe: Recipe,
    make: MakeRows,
    *,
    replace: bool = False,
    keep_drafts: bool = False,
    progress: Progress = NO_PROGRESS,
) -> tuple[View, bool]:
    """Make a view of ``corpus``, unless it is there.

    Killed or out of disk, what is written stays, and the same call goes on from it.

    Args:
        corpus: the corpus.
        recipe: recipe of the texts.
        make: makes them.
        replace: whether a view of the same name by another recipe may be replaced.
        keep_drafts: whether every chunk is kept at once, because making it again would take long.
        progress: receives the rows made.

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
        if difference := there.recipe.differences(recipe):
            raise InputError(
                f"the corpus has another view called {recipe.name!r} ({difference}): replace it with "
                f"--overwrite, or name the new one: --view NAME={recipe.kind}..."
            )
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
    batches = rows_of_view(corpus, make, counts, drafts, progress)
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


def rows_of_view(
    corpus: Corpus,
    make: MakeRows,
    counts: Counter[str],
    drafts: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> Iterator[RowBatch]:
    """Yield the rows of a view as :func:`store_corpus` takes them.

    Args:
        corpus: the corpus.
        make: makes the texts.
        counts: outcomes of the rows are counted here.
        drafts: how the paths of drafts begin, if drafts are kept.
        progress: receives the rows made.

    Raises:
        CorruptCacheError: if the corpus is damaged.
        StorageError: if drafts cannot be written.
    """
    done = 0
    for part in corpus.iter_texts():
        for start in range(0, len(part), CHUNK_ROWS):
            texts = part[start : start + CHUNK_ROWS]
            made = make(done, texts) if drafts is None else _drafted(drafts, done, texts, make)
            done += len(texts)
            settled = []
            for text, new in zip(texts, made, strict=True):
                counts[new.value if isinstance(new, Kept) else "unchanged" if new == text else "changed"] += 1
                settled.append(text if isinstance(new, Kept) else new)
            yield RowBatch(settled, None, None)
            progress.advance(len(texts))


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


def _drafts_of(folder: Path, corpus: Corpus, recipe: Recipe) -> Path:
    """Return how the paths of the drafts of a view begin: with the digest of what determines its texts."""
    identity = canonical_json([corpus.info.digest, recipe.to_json(), CHUNK_ROWS])
    return folder / f"{TEMPORARY_PREFIX}draft-{hashlib.sha256(identity).hexdigest()[:16]}"


def _drafted(drafts: Path, first_row: int, texts: list[str], make: MakeRows) -> list[Made]:
    """Return the outcomes of a chunk from its draft, which is sealed; made and kept where there is none."""
    path = drafts.with_name(f"{drafts.name}-{first_row}.json")
    with suppress(OSError, ValueError, KeyError):
        values = read_sealed_json(path, _MOST_DRAFT_BYTES)["made"]
        if len(values) == len(texts):
            return [Kept(one[0]) if isinstance(one, list) else str(one) for one in values]
    made = make(first_row, texts)
    write_sealed_json(path, {"made": [[one.value] if isinstance(one, Kept) else one for one in made]})
    return made


def _remove_drafts(folder: Path) -> None:
    for path in folder.glob(f"{TEMPORARY_PREFIX}draft-*"):
        remove_file(path)


# A column of the source as a view: the source is read again, and a row that the corpus skipped is skipped.


def refuse_missing_column(sources: Sequence[Source], options: ReadOptions, column: str) -> None:
    """Check that every source has ``column``, from their first rows.

    Raises:
        MissingInputError: if a source or the column is missing.
        InputError: if the source can be read only once.
    """
    for source in sources:
        if is_read_once(source):
            raise InputError(
                f"a view of column {column!r} reads {source_name(source)} a second time, which is not "
                "possible: give a file"
            )
        with raw_rows(source, format_of(source, options.format), _columns(options, column)) as rows:
            next(rows, None)


class ColumnCells:
    """Cells of a column, chunk by chunk in the order of the corpus's rows.

    Args:
        sources, options: what the corpus was read from, and how.
        column: the column.
    """

    def __init__(self, sources: Sequence[Source], options: ReadOptions, column: str) -> None:
        self._cells = (cell for source in sources for cell in _cells_of(source, options, column))
        self._name = f"column {column!r} of {', '.join(source_name(source) for source in sources)[:200]}"

    def make(self, first_row: int, texts: list[str]) -> list[Made]:
        """Return the cells beside ``texts``, which are the corpus's rows from ``first_row`` on.

        Raises:
            InputError: if the source has other rows than the corpus, or cannot be read.
        """
        found = list(islice(self._cells, len(texts)))
        if [text for text, _ in found] != texts:
            raise InputError(
                f"{self._name} does not fit the corpus from row {first_row} on: the source changed while "
                "it was read; run the same command again"
            )
        return [cell for _, cell in found]


def _columns(options: ReadOptions, column: str) -> Columns:
    return options.columns(("--view column:NAME", column))


def _cells_of(source: Source, options: ReadOptions, column: str) -> Iterator[tuple[str, Made]]:
    conditions, place = RowConditions(options.rows), -1 - len(options.rows)
    with raw_rows(source, format_of(source, options.format), _columns(options, column)) as rows:
        for row in filter(conditions.hold, rows):
            if not isinstance(text := options.text_of(row), Problem):
                yield text, _made(row[place])


def _made(cell: object) -> Made:
    if not isinstance(cell, str) or not cell or cell.isspace():
        return Kept.EMPTY_CELL
    return cell if "\0" not in cell and is_utf8(cell) else Kept.UNUSABLE_CELL
