"""Rows added to a corpus: the longer corpus is that of one build of all rows, and no rows come twice."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
from filelock import FileLock

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import DESCRIPTION
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import info_there, refuse_repeated, write_parts
from embedcache.errors import InputError
from embedcache.fsio import make_directory, write_sealed_json


def append_rows(
    old: Corpus,
    corpora: Path,
    batches: Iterable[RowBatch],
    report: ReadReport,
    before_growing: Callable[[], None] = lambda: None,
) -> Corpus:
    """Add rows at the end of a corpus, unless it has them already, one after the other.

    The corpus, its files and its digest are those that all rows together would have given. Of rows that begin
    with the whole corpus, as those of a file that has grown do, the rest is added.

    Args:
        old: the corpus.
        corpora: folder of corpora that receives the longer one; most often that of ``old``.
        batches: the rows to add, with the columns of the corpus.
        report: counts of the rows that the reader skipped, complete once ``batches`` is exhausted.
        before_growing: called before the corpus is changed; what it raises leaves the corpus as it is.

    Raises:
        InputError: if ids are not unique, columns are not those of the corpus, there are no rows, or another
            process changed the corpus.
        CorruptCacheError: if the corpus is damaged.
        StorageError: if the cache cannot be written.
    """
    folder = corpora / old.name
    info, ids = write_parts(folder, chain(_batches_of(old), _as_stored(batches, old)), report)
    new, before = Corpus(folder, info), len(old)
    if (added := len(new) - before) == 0:
        raise InputError(f"there are no rows to add to corpus {old.name!r}; expected at least one")
    if _has_added(old, new):
        return old
    if added > before and new.digest_of(before, 2 * before) == old.info.digest:
        info, ids = write_parts(folder, _batches_of(new, before), report)
    refuse_repeated(ids, old.name)
    skipped = dict(Counter(report.skipped) + Counter(old.info.skipped))
    with _locked(corpora.parent / "derived"):
        there = info_there(folder)
        if there is not None and there.digest not in (old.info.digest, info.digest):
            raise InputError(
                f"corpus {old.name!r} was changed by another process while rows were added: run the command "
                "again"
            )
        before_growing()
        write_sealed_json(folder / DESCRIPTION, dataclasses.replace(info, skipped=skipped).to_json())
    return Corpus(folder)


def _has_added(old: Corpus, new: Corpus) -> bool:
    """Return whether ``old`` has the last rows of ``new``, those that it lacks by their number, in a row."""
    before, added = len(old), len(new) - len(old)
    first, last = new.keys_of(np.array([before, len(new) - 1]))
    start, digest = 0, ""
    for keys in old.iter_keys():
        for row in (start + np.flatnonzero(keys == first)).tolist():
            end = row + added
            if end <= before and old.keys_of(np.array([end - 1]))[0] == last:
                digest = digest or new.digest_of(before, len(new))
                if old.digest_of(row, end) == digest:
                    return True
        start += len(keys)
    return False


def _batches_of(corpus: Corpus, first: int = 0) -> Iterator[RowBatch]:
    """Yield the rows of a corpus from row ``first`` on, a part at a time."""
    for number, part in enumerate(corpus.parts):
        rows = slice(min(first, part.rows), None)
        first -= rows.start
        if rows.start < part.rows:
            columns = {name: corpus.column(number, name)[rows].to_pylist() for name in corpus.info.columns}
            yield RowBatch(columns[ORIGINAL], columns.get("id"), columns.get("label"))


def _as_stored(batches: Iterable[RowBatch], old: Corpus) -> Iterator[RowBatch]:
    """Yield batches with whole numbers among labels that are fractions as fractions."""
    are_fractions = "label" in old.info.columns and old.info.columns["label"].type == "double"
    for batch in batches:
        if are_fractions and batch.labels is not None:
            labels = cast("list[float]", [one + 0.0 if isinstance(one, int) else one for one in batch.labels])
            yield RowBatch(batch.texts, batch.ids, labels)
        else:
            yield batch


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from adding rows, where the file system has locks."""
    lock = FileLock(folder / "append.lock")
    try:
        make_directory(folder)
        lock.acquire()
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()
