"""The corpus of a build: its first rows looked at before anything is written, then brought into the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain

from embedcache.build_report import BuildProgress, OnProgress
from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.origin import SourceNote, observe, read_note, unchanged, write_note
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, Source, read_batches
from embedcache.corpus.store import store_corpus


class SourceRows:
    """The rows of a build's sources, which can be read only once, and looked at before.

    Args:
        sources: as :func:`embedcache.corpus.readers.expand_sources` returns them.
        options: what to take from them.

    Raises:
        InputError: as :func:`embedcache.corpus.readers.read_batches`.
    """

    def __init__(self, sources: Sequence[Source], options: ReadOptions) -> None:
        self.sources, self.options = sources, options
        self.report = ReadReport()
        """What became of the rows that were read so far."""
        self.files = observe(sources)
        """What the sources looked like before they were read."""
        self._seen: list[RowBatch] = []
        self._unread = read_batches(sources, options, self.report)

    def look(self, distinct: int) -> int:
        """Read on until so many different texts are seen; return how many there are, ``distinct`` at most.

        Raises:
            MissingInputError, InputError: if what is read for that cannot be used.
        """
        texts = {text for batch in self._seen for text in batch.texts}
        while len(texts) < distinct and (batch := next(self._unread, None)) is not None:
            self._seen.append(batch)
            texts.update(batch.texts)
        return min(len(texts), distinct)

    def batches(self) -> Iterator[RowBatch]:
        """Return all rows in order, those that were looked at among them; to be called once."""
        seen, self._seen = self._seen, []
        return chain(seen, self._unread)


def read_corpus(
    cache: Cache,
    name: str,
    rows: SourceRows,
    progress: BuildProgress,
    on_progress: OnProgress | None,
    *,
    replace: bool,
) -> Corpus:
    """Bring the rows into the cache; where they are there and unchanged they are not read again.

    Args:
        cache: the cache.
        name: the corpus's name.
        rows: its rows; what became of them is in their report afterwards.
        progress: kept up to date.
        on_progress: called with it after every batch.
        replace: whether a corpus of the same name with other rows may be replaced.

    Raises:
        InputError, CorruptCacheError, StorageError: as :func:`embedcache.corpus.store.store_corpus`.
    """
    folder = cache.corpora_folder / name
    note, report = read_note(cache.derived_folder, name), rows.report
    # To replace is to read: that also mends what is damaged.
    if note is not None and not replace and folder.exists() and unchanged(note, rows.sources, rows.options):
        corpus = Corpus(folder)
        if corpus.info.digest == note.digest and not corpus.missing_parts():
            report.rows = len(corpus)
            report.skipped.clear()
            report.skipped.update(corpus.info.skipped)
            return corpus
    batches = _counted(rows.batches(), report, progress, on_progress)
    corpus, _ = store_corpus(cache.corpora_folder, name, batches, report, replace=replace)
    # What they looked like before and after: a file that changed while it was read is read again next time.
    if rows.files is not None and rows.files == observe(rows.sources):
        write_note(cache.derived_folder, name, SourceNote(corpus.info.digest, rows.files, rows.options))
    return corpus


def _counted(
    batches: Iterator[RowBatch], report: ReadReport, progress: BuildProgress, on_progress: OnProgress | None
) -> Iterator[RowBatch]:
    started = time.perf_counter()
    progress.begin("read")
    for batch in batches:
        progress.rows, progress.seconds = report.rows, time.perf_counter() - started
        if on_progress is not None:
            on_progress(progress)
        yield batch
