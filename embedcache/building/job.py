"""A build that is ready to run: everything checked that can be checked before the teacher is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.building.outputs import codec_of
from embedcache.building.result import BuildResult, OutputResult
from embedcache.building.views import plan_views_of
from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.origin import SourceNote, observe, read_note, unchanged, write_note
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, check_sources, read_batches
from embedcache.corpus.sources import Source, corpus_name_of, find_sources
from embedcache.corpus.store import store_corpus
from embedcache.errors import InputError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.teacher.outputs import EMBEDDING
from embedcache.views.plan import PlannedView, ViewOptions

if TYPE_CHECKING:
    from embedcache.share.read_through import ReadThrough, RemoteOptions
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher


@dataclass
class Job:
    """A build to run.

    Attributes:
        folder: the cache's folder.
        cache: the cache; None where the folder is empty or missing.
        name: the corpus's name.
        sources: files to read, or standard input.
        read: what to read of them.
        unchanged: the corpus, where the cache has it and its sources have not changed since.
        report: counts of the rows read so far.
        teacher: the teacher.
        encode: what is kept of it.
        views: views asked for.
        planned: the same, ready to make.
        remote: remote to fetch from.
        overwrite: whether a corpus or views of the same names are replaced.
    """

    folder: Path
    cache: Cache | None
    name: str
    sources: Sequence[Source]
    read: ReadOptions
    unchanged: Corpus | None
    report: ReadReport
    teacher: LazyTeacher
    encode: EncodeOptions
    views: ViewOptions
    planned: list[PlannedView]
    remote: ReadThrough | None
    overwrite: bool

    @classmethod
    def prepare(
        cls,
        sources: object,
        teacher: str | Path | TeacherOptions | Teacher | Encoder,
        cache: str | Path,
        name: str | None,
        read: ReadOptions,
        encode: EncodeOptions,
        views: ViewOptions | Sequence[str],
        remote: RemoteOptions | str | None,
        overwrite: bool,
    ) -> Job:
        """Check sources, names, columns, views and options; nothing is written, no teacher loaded."""
        found = find_sources(sources)
        name = check_name(name or corpus_name_of(found[0]))
        _check(encode)
        folder = Path(cache).expanduser()
        opened = _open(folder)
        same = None if opened is None or overwrite else _unchanged_corpus(opened, name, found, read)
        if same is None:
            check_sources(found, read)
        lazy = LazyTeacher(teacher, encode, None if opened is None else opened.derived_folder)
        if not isinstance(views, ViewOptions):
            views = ViewOptions([views] if isinstance(views, str) else list(views), device=encode.device)
        planned = plan_views_of(views, found, read, folder / "corpora" / name)
        through = None
        if remote is not None:
            from embedcache.share.read_through import ReadThrough

            through = ReadThrough(remote)
        return cls(
            folder=folder,
            cache=opened,
            name=name,
            sources=found,
            read=read,
            unchanged=same,
            report=ReadReport(),
            teacher=lazy,
            encode=encode,
            views=views,
            planned=planned,
            remote=through,
            overwrite=overwrite,
        )

    def store_corpus(self, cache: Cache, progress: Progress = NO_PROGRESS) -> Corpus:
        """Bring the corpus into ``cache``; one whose sources are unchanged is not read again.

        Raises:
            InputError, CorruptCacheError, StorageError: as :func:`embedcache.corpus.store.store_corpus`.
        """
        if self.unchanged is not None:
            return self.unchanged
        progress.phase("read")
        before = observe(self.sources)
        batches = _counted(read_batches(self.sources, self.read, self.report), progress)
        corpus, _ = store_corpus(
            cache.corpora_folder, self.name, batches, self.report, replace=self.overwrite
        )
        # A file that changed while it was read is read again next time.
        if before is not None and before == observe(self.sources):
            note = SourceNote(corpus.info.digest, before, self.read)
            write_note(cache.derived_folder, self.name, note)
        return corpus

    def result(self, corpus: Corpus, outputs: Sequence[OutputResult], **counts: Any) -> BuildResult:
        """Return the result of this build.

        Args:
            corpus: its corpus.
            outputs: the result of each output.
            counts: further fields of the result.
        """
        first = outputs[0]
        return BuildResult(
            corpus=self.name,
            teacher=first.teacher,
            contract_id=first.contract_id,
            rows=len(corpus),
            cached=first.cached,
            reused=first.reused,
            fetched=first.fetched,
            bytes_written=sum(output.bytes_written for output in outputs),
            column=self.report.column or self.read.text_column,
            example=corpus.texts(np.arange(1))[0],
            skipped=dict(corpus.info.skipped),
            first_skipped=dict(self.report.first_skipped),
            not_asked=self.report.not_asked,
            outputs=tuple(outputs),
            embedded_views=tuple(self.views.embed),
            remote=None if self.remote is None else self.remote.url,
            **counts,
        )


def _check(encode: EncodeOptions) -> None:
    if encode.shard_rows < 1:
        raise InputError(f"--shard-rows {encode.shard_rows}: expected at least 1")
    for output in encode.output.split(","):
        codec_of(output.strip(), encode)
    if encode.token_embeddings and EMBEDDING not in encode.output:
        raise InputError("--token-embeddings needs --output embedding or embedding,logits")


def _open(folder: Path) -> Cache | None:
    """Return the cache in ``folder``; None where there is nothing yet."""
    if folder.is_file() or (folder / "cache.json").exists():
        return Cache(folder)
    if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        return Cache.create(folder)  # refuses it, and says what the folder holds
    return None


def _unchanged_corpus(cache: Cache, name: str, sources: Sequence[Source], read: ReadOptions) -> Corpus | None:
    note, folder = read_note(cache.derived_folder, name), cache.corpora_folder / name
    if note is None or not folder.exists() or not unchanged(note, sources, read):
        return None
    corpus = Corpus(folder)
    return corpus if corpus.info.digest == note.digest and not corpus.missing_parts() else None


def _counted(batches: Iterator[RowBatch], progress: Progress) -> Iterator[RowBatch]:
    for batch in batches:
        progress.advance(len(batch.texts))
        yield batch
