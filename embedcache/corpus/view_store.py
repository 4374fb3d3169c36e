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
    RECIPE,
    VIEWS,
    ViewRecord,
    is_recorded,
    read_info,
    read_record,
    write_record,
)
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import (
    ReadOptions,
    ReadReport,
    RowBatch,
    RowConditions,
    is_read_once,
    may_be_empty,
)
from embedcache.corpus.sources import Source, format_of, source_name
from embedcache.corpus.store import store_corpus
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import TEMPORARY_PREFIX, canonical_json, read_sealed_json, remove_file, write_sealed_json
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.views.recipe import Kept, Made, Recipe

CHUNK_ROWS = 4096
"""Rows that are made at a time; where chunks end depends on the corpus alone."""

_DRAFT = f"{TEMPORARY_PREFIX}draft-"
_MOST_DRAFT_BYTES = 1 << 30

MakeRows: TypeAlias = Callable[[int, list[str]], list[Made]]
"""(First row, texts of a chunk) -> outcome for each."""


def store_view(
    corpus: Corpus,
    recipe: Recipe,
    make: MakeRows,
    *,
    replace: bool = False,
    append: bool = False,
    keep_drafts: bool = False,
    progress: Progress = NO_PROGRESS,
) -> tuple[View, bool]:
    """Make a view of ``corpus``, unless it exists.

    Killed or out of disk, what is written stays, and the same call continues from it.

    Args:
        corpus: the corpus.
        recipe: recipe of the texts.
        make: makes them.
        replace: replace a view of the same name by another recipe.
        append: True where the sources are of the last rows of the corpus alone.
        keep_drafts: keep every chunk at once, because making it again would take long.
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
    there = None if replace or not is_recorded(folder) else read_record(folder)
    shorter, counts = None, Counter[str]()
    if there is not None and there.of != corpus.info.digest:  # the corpus was replaced, or has grown
        if there.recipe == recipe and (shorter := _shorter(corpus, folder, there)):
            counts.update(there.counts)
        there = None
    if there is not None:
        if there.recipe != recipe:
            raise InputError(
                f"the corpus has another view called {recipe.name!r}: {there.recipe.describe()}, not "
                f"{recipe.describe()}. Set overwrite to replace it, or name the new one: "
                f"NAME={recipe.kind}..."
            )
        # Only reading a source again shows that a column is still the same.
        if (append or not recipe.reads_source) and not View(corpus, recipe.name).missing_parts():
            return View(corpus, recipe.name), True
    elif is_recorded(folder) and shorter is None:
        # Rows by one recipe beside the name of another must never be seen.
        remove_file(folder / RECIPE)
    drafts = _drafts_of(folder, corpus, recipe) if keep_drafts else None
    batches = _rows(corpus, make, counts, drafts, progress, shorter)
    _, was_there = store_corpus(folder.parent, recipe.name, batches, ReadReport(), replace=there is None)
    record = ViewRecord(recipe, corpus.info.digest, read_info(folder).digest, dict(sorted(counts.items())))
    if there != record:
        write_record(folder, record)
    for path in folder.glob(f"{_DRAFT}*"):
        remove_file(path)
    return View(corpus, recipe.name), was_there and there == record


def _shorter(corpus: Corpus, folder: Path, record: ViewRecord) -> Corpus | None:
    """Return a view's stored rows where they are of the first rows of the corpus; else None."""
    with suppress(CorruptCacheError):
        stored = Corpus(folder)
        same = stored.info.digest == record.digest and len(stored) < len(corpus)
        if same and not stored.missing_parts() and corpus.digest_of(0, len(stored)) == record.of:
            return stored
    return None


def _rows(
    corpus: Corpus,
    make: MakeRows,
    counts: Counter[str],
    drafts: Path | None,
    progress: Progress,
    shorter: Corpus | None = None,
) -> Iterator[RowBatch]:
    """Yield the rows of a view as ``store_corpus`` takes them, and count their outcomes.

    Args:
        corpus, make, progress: as for ``store_view``.
        counts: outcomes of the rows are counted here.
        drafts: prefix of the paths of drafts, if drafts are kept.
        shorter: its first rows, where they are stored.
    """
    done = 0
    for stored in shorter.iter_texts() if shorter is not None else ():
        yield RowBatch(stored, None, None)
        done += len(stored)
        progress.advance(len(stored))
    first = 0
    for whole in corpus.iter_texts():
        part, first = whole[max(0, done - first) :], first + len(whole)
        for start in range(0, len(part), CHUNK_ROWS):
            texts = part[start : start + CHUNK_ROWS]
            made = make(done, texts) if drafts is None else _drafted(drafts, done, texts, make)
            done += len(texts)
            for text, new in zip(texts, made, strict=True):
                counts[new.value if isinstance(new, Kept) else "unchanged" if new == text else "changed"] += 1
            settled = [text if isinstance(new, Kept) else new for text, new in zip(texts, made, strict=True)]
            yield RowBatch(settled, None, None)
            progress.advance(len(texts))


def _drafts_of(folder: Path, corpus: Corpus, recipe: Recipe) -> Path:
    """Return the prefix of the paths of a view's drafts, a digest of all that determines its texts."""
    identity = canonical_json([corpus.info.digest, recipe.to_json(), CHUNK_ROWS])
    return folder / f"{_DRAFT}{hashlib.sha256(identity).hexdigest()[:16]}"


def _drafted(drafts: Path, first_row: int, texts: list[str], make: MakeRows) -> list[Made]:
    """Return the outcomes of a chunk from its draft, which is sealed; made and kept where there is none."""
    path = drafts.with_name(f"{drafts.name}-{first_row}.json")
    with suppress(OSError, ValueError):
        made = read_sealed_json(path, _MOST_DRAFT_BYTES)["made"]
        return [Kept(one[0]) if isinstance(one, list) else one for one in made]
    made = make(first_row, texts)
    write_sealed_json(path, {"made": [[one.value] if isinstance(one, Kept) else one for one in made]})
    return made


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
        kind = format_of(source, options.format)
        with may_be_empty(sources), raw_rows(source, kind, _columns(options, column)) as rows:
            next(rows, None)


def column_cells(sources: Sequence[Source], options: ReadOptions, column: str) -> MakeRows:
    """Return a reader of a column's cells, chunk by chunk in the order of the corpus's rows.

    It raises ``InputError`` if the source has other rows than the corpus, or cannot be read.

    Args:
        sources, options: sources of the corpus, and options of reading them.
        column: the column.
    """
    cells = (cell for source in sources for cell in _cells_of(source, sources, options, column))

    def make(first_row: int, texts: list[str]) -> list[Made]:
        found = list(islice(cells, len(texts)))
        if [text for text, _ in found] != texts:
            names = ", ".join(source_name(source) for source in sources)[:200]
            raise InputError(
                f"column {column!r} of {names} does not fit the corpus from row {first_row} on: the source "
                "changed while it was read, or has a part of the rows alone; run the same command again, or "
                "build the corpus from all of its sources with --overwrite"
            )
        return [cell for _, cell in found]

    return make


def _columns(options: ReadOptions, column: str) -> Columns:
    return options.columns(("view column:NAME", column))


def _cells_of(
    source: Source, sources: Sequence[Source], options: ReadOptions, column: str
) -> Iterator[tuple[str, Made]]:
    conditions, text_of, place = RowConditions(options.rows), options.text_of, -1 - len(options.rows)
    kind = format_of(source, options.format)
    with may_be_empty(sources), raw_rows(source, kind, _columns(options, column)) as rows:
        for row in filter(conditions.hold, rows):
            if not isinstance(text := text_of(row), Problem):
                yield text, _made(row[place])


def _made(cell: object) -> Made:
    if not isinstance(cell, str) or not cell or cell.isspace():
        return Kept.EMPTY_CELL
    return cell if "\0" not in cell and is_utf8(cell) else Kept.UNUSABLE_CELL
