"""A build that is ready to run: sources, options, views and teacher checked, in this order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.building.encode import codec_of, open_store
from embedcache.building.result import BuildResult
from embedcache.building.views import embedded_views, plan_views_of, refuse_growth
from embedcache.cache import Cache
from embedcache.corpus.append import append_rows
from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.origin import SourceNote, observe, read_note, unchanged, write_note
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, check_sources, read_batches
from embedcache.corpus.sources import Source, corpus_name_of, find_sources
from embedcache.corpus.store import store_corpus
from embedcache.errors import InputError
from embedcache.live import refuse_changed_server
from embedcache.missing import KeyPart
from embedcache.pairs import split_pair
from embedcache.progress import Progress
from embedcache.store import ShardStore
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.options import (
    EMBEDDING,
    ENGINES,
    EncodeOptions,
    TeacherOptions,
    parse_devices,
    with_quantization,
)
from embedcache.views.plan import PlannedView, ViewOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.share.read_through import ReadThrough, RemoteOptions
    from embedcache.teacher.load import Teacher
    from embedcache.teacher.text_encoder import TextEncoder


class Job:
    """A build to run; arguments and errors are those of ``embedcache.build``.

    Attributes:
        folder: the cache's folder.
        cache: the cache; None where the folder is empty or missing.
        name: the corpus's name.
        unchanged: the corpus, where the cache has it and its sources have not changed since.
        before: the corpus that rows are added to.
        added: rows that were added.
        report: counts of the rows read so far.
        teacher: the teacher; its contract is known.
        part: part of the texts to encode; None for all.
        embed: names of the views that are encoded.
        planned: views, ready to make.
        remote: remote to fetch from.
    """

    def __init__(
        self,
        sources: object,
        teacher: str | Path | TeacherOptions | SentenceTransformer | Teacher | TextEncoder,
        cache: str | Path,
        name: str | None,
        read: ReadOptions,
        encode: EncodeOptions,
        views: ViewOptions | Sequence[str],
        remote: RemoteOptions | str | None,
        overwrite: bool,
        append: bool = False,
    ) -> None:
        if append and (overwrite or name is None):
            found = "overwrite" if overwrite else "no name"
            raise InputError(f"append adds rows to the corpus of a name, found {found}; give a name alone")
        if isinstance(teacher, TeacherOptions):
            if teacher.quantize is not None and encode.backend == "torch":
                raise InputError(f"quantize {teacher.quantize} runs in OpenVINO, found backend torch")
            encode = with_quantization(encode, teacher.quantize)
        self.read, self.encode, self.overwrite = read, encode, overwrite
        self.sources: Sequence[Source] = find_sources(sources)
        self.name = check_name(name or corpus_name_of(self.sources[0]))
        self.append = append
        _check(encode)
        self.part = None if encode.part is None else KeyPart.parse(encode.part)
        self.folder = Path(cache).expanduser()
        self.cache = open_existing(self.folder)
        self.report, self.added = ReadReport(), 0
        self.unchanged = None if self.cache is None or overwrite else self._unchanged_corpus(self.cache)
        self.before = self._corpus_before() if append and self.unchanged is None else None
        if self.unchanged is None:
            check_sources(self.sources, read)
        own = encode
        if encode.devices is not None:
            own = replace(encode, device=parse_devices(encode.devices)[0])
        elif encode.engine is not None:  # this machine may not have what the workers have
            own = replace(encode, compute_dtype="auto", device="auto")
        self.teacher = LazyTeacher(teacher, own, None if self.cache is None else self.cache.derived_folder)
        if not isinstance(views, ViewOptions):
            views = ViewOptions([views] if isinstance(views, str) else list(views), device=encode.device)
        self.embed = [*views.embed]
        corpus = self.folder / "corpora" / self.name
        self.planned = plan_views_of(views, self.sources, read, corpus, append=append)
        self.remote: ReadThrough | None = None
        if remote is not None:
            from embedcache.share.read_through import ReadThrough

            self.remote = ReadThrough(remote, may_be_empty=encode.engine is not None)
            if encode.engine is not None and self.remote.needs_signature:
                raise InputError(
                    "require_signature: workers of an engine push unsigned; leave one of them out"
                )
        # This loads the teacher unless its contract is noted.
        contract = self.teacher.contract
        if self.cache is not None:
            if self.teacher.is_model:  # a folder's name says less than the one that was given before
                known = [one.name for one in self.cache.teachers() if one.contract == contract]
                self.teacher.known_as = next(iter(known), "")
            self.cache.refuse_other_contract(self.teacher.name, contract)

    def _unchanged_corpus(self, cache: Cache) -> Corpus | None:
        note, folder = read_note(cache.derived_folder, self.name), cache.corpora_folder / self.name
        if (
            note is None
            or not folder.exists()
            or not unchanged(note, self.sources, self.read, append=self.append)
        ):
            return None
        corpus = Corpus(folder)
        if corpus.info.digest != note.digest or corpus.missing_parts():
            return None
        self.report.column = note.column
        return corpus

    def _corpus_before(self) -> Corpus | None:
        """Return the corpus that rows are added to; None where there is none yet.

        Raises:
            InputError: if the rows read have not the columns of the corpus.
        """
        if self.cache is None or self.name not in self.cache.corpus_names():
            return None
        corpus = self.cache.corpus(self.name)
        for column in ("id", "label"):
            asked = getattr(self.read, f"{column}_column") is not None
            if asked != (column in corpus.info.columns):
                has, remedy = ("no ", "leave out") if asked else ("", "give")
                raise InputError(f"{corpus.title} has {has}{column}s: {remedy} --{column}-column to add rows")
        has_pairs = split_pair(corpus.texts(np.arange(1))[0]) is not None
        if has_pairs != (self.read.text2_column is not None):
            found, remedy = ("pairs", "give") if has_pairs else ("single texts", "leave out")
            raise InputError(f"{corpus.title} is of {found}: {remedy} --text2-column to add rows")
        return corpus

    @property
    def split_by(self) -> str:
        """Option by which several processes share the work; empty where one does it all."""
        names = ("part", "devices", "engine")
        return next((name for name in names if getattr(self.encode, name) is not None), "")

    def open_store(self, cache: Cache) -> ShardStore:
        """Open the teacher's store in ``cache``; errors as ``embedcache.building.encode.open_store``.

        Raises:
            ContractMismatchError: also if a served teacher is not the one of the stored vectors.
        """
        store = open_store(cache, self.teacher.contract, self.encode)
        waiting = cache.waiting(store.contract)
        refuse_changed_server(store, cache.corpora, self.teacher.vectors, waiting)
        return store

    def read_corpus(self, cache: Cache, progress: Progress) -> Corpus:
        """Read the sources into a corpus of ``cache``.

        Raises:
            InputError, CorruptCacheError, StorageError: as ``embedcache.corpus.store.store_corpus``.
        """
        corpus = read_corpus(
            cache,
            self.name,
            self.sources,
            self.read,
            self.report,
            progress,
            overwrite=self.overwrite,
            append_to=self.before,
            append=self.append,
            planned=self.planned,
        )
        self.added = len(corpus) - (0 if self.before is None else len(self.before))
        return corpus

    def embed_as_before(self, store: ShardStore) -> None:
        """Encode the rows added to a view as well, if the teacher had encoded the view."""
        if self.before is not None:
            self.embed += [name for name in embedded_views(self.before, store) if name not in self.embed]

    def result(self, texts: Sequence[Corpus], store: ShardStore, **counts: Any) -> BuildResult:
        """Return the result of this build.

        Args:
            texts: its corpus, and the views that are encoded.
            store: the store of its vectors.
            counts: further fields of the result.
        """
        first_row = 0 if self.before is None or not self.added else len(self.before)
        return BuildResult(
            corpus=self.name,
            teacher=self.teacher.name,
            contract_id=self.teacher.contract.id,
            output=self.teacher.contract.output,
            codec=store.codec_name,
            rows=len(texts[0]),
            texts=sum(map(len, texts)),
            added=self.added if self.append else None,
            column=self.report.column,
            example=texts[0].texts(np.array([first_row]))[0],
            skipped=dict(self.report.skipped if self.append else texts[0].info.skipped),
            first_skipped=dict(self.report.first_skipped),
            not_asked=self.report.not_asked,
            kept_rows=np.array(self.report.kept, np.int64) if len(self.report.kept) else None,
            part=None if self.part is None else str(self.part),
            remote=None if self.remote is None else self.remote.url,
            prompt=self.teacher.contract.prompt,
            prompt_names=self.teacher.unused_prompts,
            loading=self.teacher.contract.loading or "",
            route=self.teacher.route,
            **counts,
        )


def _check(encode: EncodeOptions) -> None:
    if encode.shard_rows < 1:
        raise InputError(f"shard_rows {encode.shard_rows}: expected at least 1")
    codec_of(encode.output, encode)
    if encode.devices is not None and encode.device != "auto":
        raise InputError(f"device {encode.device} and devices {encode.devices}: leave one of them out")
    if encode.engine not in (None, *ENGINES):
        raise InputError(f"engine {encode.engine!r}: expected {' or '.join(ENGINES)}")
    if encode.engine is not None and encode.devices is not None:
        raise InputError(f"engine {encode.engine} and devices {encode.devices}: leave one of them out")
    if encode.engine is None and encode.address is not None:
        raise InputError(f"address {encode.address} is that of a cluster: give engine ray as well")
    if encode.token_embeddings and encode.output != EMBEDDING:
        raise InputError(f"token_embeddings needs output {EMBEDDING}, found {encode.output}")


def read_corpus(
    cache: Cache,
    name: str,
    sources: Sequence[Source],
    read: ReadOptions,
    report: ReadReport,
    progress: Progress,
    *,
    overwrite: bool,
    append: bool = False,
    append_to: Corpus | None = None,
    planned: Sequence[PlannedView] = (),
) -> Corpus:
    """Read ``sources`` into the corpus ``name`` of ``cache``, or add their rows to a corpus.

    Raises:
        InputError, CorruptCacheError, StorageError: as ``embedcache.corpus.store.store_corpus``.
    """
    progress.phase("read")
    before = observe(sources)
    batches = _counted(read_batches(sources, read, report), progress)
    if append_to is None:
        corpus, _ = store_corpus(cache.corpora_folder, name, batches, report, replace=overwrite)
    else:
        corpus = append_rows(
            append_to, cache.corpora_folder, batches, report, partial(refuse_growth, append_to, planned)
        )
    # A file that changed while it was read is read again next time.
    if before is not None and before == observe(sources):
        note = SourceNote(corpus.info.digest, before, read, report.column, append)
        write_note(cache.derived_folder, name, note)
    return corpus


def open_existing(folder: Path) -> Cache | None:
    """Return the cache in ``folder``; None where there is nothing yet."""
    if folder.is_file():
        return Cache(folder)  # refuses it
    if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        return Cache.create(folder)  # refuses any other folder
    return None


def _counted(batches: Iterator[RowBatch], progress: Progress) -> Iterator[RowBatch]:
    for batch in batches:
        progress.advance(len(batch.texts))
        yield batch
