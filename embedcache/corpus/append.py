"""Append rows to a corpus. The result equals one build of all rows."""

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
    """Append rows, except those that the corpus has already.

    Nothing is appended if the corpus contains all of them in sequence. Of rows that begin as the corpus ends,
    such as those of a file that has grown, the rest is appended.

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
    known = _count_known(old, new)
    if known == added:
        return old
    if known:
        info, ids = write_parts(folder, chain(_batches_of(old), _batches_of(new, before + known)), report)
    refuse_repeated(ids, old.name)
    # Rows skipped in a file that has grown were counted before.
    skipped = Counter(report.skipped) + (Counter() if known == before else Counter(old.info.skipped))
    with _locked(corpora.parent / "derived"):
        there = info_there(folder)
        if there is not None and there.digest not in (old.info.digest, info.digest):
            raise InputError(
                f"corpus {old.name!r} was changed by another process while rows were added: run the command "
                "again"
            )
        before_growing()
        write_sealed_json(folder / DESCRIPTION, dataclasses.replace(info, skipped=dict(skipped)).to_json())
    return Corpus(folder)


def _count_known(old: Corpus, new: Corpus) -> int:
    """Count the appended rows, from the first on, that ``old`` has: all in sequence, or some at its end."""
    before, added = len(old), len(new) - len(old)
    first, start = new.keys_of(np.array([before]))[0], 0
    for keys in old.iter_keys():
        for row in (start + np.flatnonzero(keys == first)).tolist():
            end = min(row + added, before)
            count = end - row
            last = old.keys_of(np.array([end - 1])) == new.keys_of(np.array([before + count - 1]))
            if last and old.digest_of(row, end) == new.digest_of(before, before + count):
                return int(count)
        start += len(keys)
    return 0


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
