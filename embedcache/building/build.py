"""Build: read a corpus, find what the cache lacks, encode exactly that, store it shard by shard.

Shards are cut from the missing rows in corpus order and committed in that order; the batches of an unfinished
shard are kept every half minute. So a build that was killed at any moment goes on where it stopped when the
same command is run again, and cuts the same shards.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from filelock import FileLock, Timeout

from embedcache.building.encode import (
    BuildCounts,
    encode_missing,
    needs_codebook,
    refuse_untrained,
    register,
)
from embedcache.building.job import Job
from embedcache.building.pending import PendingWork, store_pending
from embedcache.building.result import BuildResult
from embedcache.building.views import make_views
from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions
from embedcache.errors import StorageError
from embedcache.fsio import make_directory, parsed_json, read_regular, write_json
from embedcache.live import keep_canary
from embedcache.missing import MissingRows
from embedcache.probes import Probes, refuse_changed_teacher
from embedcache.progress import Progress, shown
from embedcache.store import ShardStore
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from typing_extensions import Required, Unpack

    from embedcache.corpus.readers import ReadArguments
    from embedcache.parallel.pool import WorkerPool
    from embedcache.share.read_through import RemoteOptions
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.load import Teacher
    from embedcache.teacher.text_encoder import TextEncoder

    class BuildArguments(ReadArguments, total=False):
        """Further arguments of ``build``."""

        teacher: Required[str | Path | TeacherOptions | SentenceTransformer | Teacher | TextEncoder]
        cache: Required[str | Path]
        name: str | None
        read: ReadOptions
        encode: EncodeOptions
        views: ViewOptions | Sequence[str]
        remote: RemoteOptions | str | None
        overwrite: bool
        append: bool
        progress: Progress | bool | None


T = TypeVar("T")
_LOSS_TEXTS = 256


@overload
def build(
    sources: object, *, dry_run: Literal[False] = False, **arguments: Unpack[BuildArguments]
) -> Cache: ...
@overload
def build(sources: object, *, dry_run: Literal[True], **arguments: Unpack[BuildArguments]) -> BuildResult: ...
def build(
    sources: object,
    *,
    teacher: str | Path | TeacherOptions | SentenceTransformer | Teacher | TextEncoder,
    cache: str | Path,
    name: str | None = None,
    read: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
    encode: EncodeOptions = EncodeOptions(),  # noqa: B008 - frozen
    views: ViewOptions | Sequence[str] = (),
    remote: RemoteOptions | str | None = None,
    overwrite: bool = False,
    append: bool = False,
    dry_run: bool = False,
    progress: Progress | bool | None = None,
    **reading: Unpack[ReadArguments],
) -> Cache | BuildResult:
    """Run a teacher once over a corpus and keep its vectors; return the cache.

    Only texts whose vectors the cache lacks are encoded. ``Cache.result`` says what was done.

    Args:
        sources: files, globs or ``-`` for standard input; or texts in memory: strings, dictionaries, a data
            frame, an Arrow table or a dataset.
        teacher: alias, hub id or folder; with ``TeacherOptions`` also its pooling, prompt, length
            ...; or a ``SentenceTransformer``, whose files are meant; or a teacher or encoder already loaded.
        cache: the cache's folder; created if missing.
        name: name of the corpus in the cache; default: from the first source's file name.
        read: columns, format and rows to read; its fields can be given as arguments, as in
            ``text_column="body"``.
        encode: output, codec and store, and how the teacher computes.
        views: other texts to make of every row, such as ``["crop", "delete-words*2"]``; with
            ``ViewOptions`` also how, and which of them are encoded.
        remote: name or URL of a remote whose vectors are fetched instead of encoded; with
            ``RemoteOptions`` also its limits.
        overwrite: replace a corpus or views of the same names that hold other rows; vectors are kept.
        append: add the rows to the corpus called ``name`` and its views, except those that it has.
        dry_run: write nothing and return what a build would do and cost.
        progress: receives the phases ``read``, ``view NAME``, ``look up``, ``fetch``, ``encode``; default: a
            line on a terminal and in a notebook; False: none.

    Raises:
        InputError: if sources or options cannot be used.
        TeacherError: if the teacher, or a model that makes a view, cannot be loaded.
        MissingExtraError: if a view needs a package that is not installed.
        ContractMismatchError: if the cache has the teacher's name with another contract; it names the field.
            Also if the teacher now computes other vectors for stored texts; it names the library versions.
        NonFiniteVectorError: if the teacher returns NaN or infinity; it names the row.
        CorruptCacheError: if something needed in the cache is damaged.
        StorageError: if the cache cannot be written; the same call continues from there.
        RemoteError: if the remote cannot be read, or its vectors are not the teacher's.
    """
    started = time.perf_counter()
    if unknown := reading.keys() - {one.name for one in fields(ReadOptions)}:
        raise TypeError(f"build() got an unexpected keyword argument {min(unknown)!r}")
    read = replace(read, **reading)
    with shown(progress) as line:
        line.phase("load teacher")  # unless its contract is noted
        job = Job(sources, teacher, cache, name, read, encode, views, remote, overwrite, append)
        if dry_run:
            from embedcache.building.dry_run import estimate_build

            return estimate_build(job, line)
        return _build(job, started, line)


def _build(job: Job, started: float, progress: Progress) -> Cache:
    """Run a build that is ready, and return the cache."""
    encode = job.encode
    table = _token_table(job.folder, job.teacher) if encode.token_embeddings else None
    opened = job.cache or Cache.create(job.folder)
    store, contract = job.open_store(opened), job.teacher.contract
    job.embed_as_before(store)
    corpus = job.unchanged or job.read_corpus(opened, progress)
    made = make_views(
        corpus,
        job.planned,
        job.sources,
        job.read,
        overwrite=job.overwrite,
        append=job.append,
        progress=progress,
    )
    job.planned.clear()  # the teacher can use the room of their models
    # Garbage collection may have removed shards since they were opened; from here on the corpus keeps them.
    if not store.is_current:
        store = job.open_store(opened)
    texts = [corpus, *map(corpus.view, job.embed)]
    before, encoded = store.bytes_on_disk, BuildCounts()
    distinct = wanted = cached = fetched = resumed = 0
    with _build_lock(opened, job) as beside, _pool(opened, job, store) as pool:
        for some in texts:
            _store_waiting(opened, store, some)
        for some in texts:
            progress.phase("look up", len(some))
            missing = MissingRows.of(some, store, job.part)
            distinct, wanted = distinct + missing.distinct, wanted + missing.wanted
            cached += missing.wanted - len(missing)
            if some is corpus:
                refuse_untrained(store, min(len(missing), encode.shard_rows), job.split_by)
                register(opened, job.teacher)
                if table is not None:
                    table.write(table_path(job.folder, contract), contract)
            if pool is not None and len(missing):
                resumed += _store_pending(opened, job, store, missing)
            fetched += _fetch(opened, job, store, some, missing, progress)
            if pool is not None and len(missing):
                pool.encode(some, missing, encoded, progress)
                _collect(opened, job, store, some, missing, progress)
            elif len(missing):
                refuse_changed_teacher(job.teacher, store, opened.corpora)
                encode_missing(
                    some,
                    missing,
                    store,
                    job.teacher.encoder,
                    encode.shard_rows,
                    encoded,
                    pending=PendingWork(opened.derived_folder, store, job.teacher.encoder, missing.holds),
                    # No other build encodes the same part.
                    watch=job.part is None,
                    progress=progress,
                )
    keep_canary(store, job.teacher)
    written = store.bytes_on_disk - before
    store.finish()
    job.teacher.note(opened.derived_folder)
    opened.result = job.result(
        texts,
        store,
        distinct=distinct,
        wanted=wanted,
        cached=cached,
        fetched=fetched,
        encoded=encoded.rows - encoded.resumed,
        resumed=encoded.resumed + resumed,
        truncated=encoded.truncated,
        tokens=encoded.tokens,
        bytes_written=written,
        seconds=time.perf_counter() - started,
        encode_seconds=encoded.seconds,
        views=tuple(made),
        beside=beside,
        remote_bytes=job.remote.bytes if job.remote else 0,
        verdicts=tuple(job.remote.verdicts) if job.remote else (),
        computed=_computed(store) if encoded.rows else "",
        quantized=_quantization_loss(job, corpus) if encoded.rows else None,
    )
    return opened


def _computed(store: ShardStore) -> str:
    """Return dtype, device and backend of the shard that was stored last."""
    found = store.shards[-1].header.provenance
    if store.contract.is_served:
        return ""
    where = " on ".join(str(found[name]) for name in ("compute_dtype", "device") if name in found)
    return f"{where} ({found['backend']})" if "backend" in found else where


def _quantization_loss(job: Job, corpus: Corpus) -> tuple[float, float] | None:
    """Return mean and worst cosine of a quantized teacher to the whole one, on texts of a corpus."""
    if job.teacher.contract.quantization is None:
        return None
    from embedcache.teacher.encode import cosines_to_whole

    rows = np.linspace(0, len(corpus) - 1, min(len(corpus), _LOSS_TEXTS)).astype(np.int64)
    cosines = cosines_to_whole(job.teacher.encoder, corpus.texts(rows))
    return float(cosines.mean()), float(cosines.min())


def _fetch(
    cache: Cache, job: Job, store: ShardStore, texts: Corpus, missing: MissingRows, progress: Progress
) -> int:
    """Fetch the rows that the remote has; ``missing`` loses them. Return how many they are."""
    before = len(missing)
    if job.remote is not None and before:
        job.remote.fetch(cache, store, missing.keys(), texts, job.teacher, progress)
        missing.refresh(store)
    return before - len(missing)


def _store_waiting(cache: Cache, store: ShardStore, texts: Corpus) -> None:
    """Store the waiting rows of ``Cache.encode`` if the corpus has one of their texts."""
    waiting = cache.waiting(store.contract)
    waiting.refresh()
    if (
        len(waiting)
        and not needs_codebook(store)
        and any((waiting.locate(keys) >= 0).any() for keys in texts.iter_keys())
    ):
        waiting.store(store)


def _store_pending(cache: Cache, job: Job, store: ShardStore, missing: MissingRows) -> int:
    """Store the rows that stopped workers left; ``missing`` loses them. Return how many they are."""
    before = len(missing)
    served = job.teacher.encoder.canary if store.contract.is_served else None
    store_pending(cache.derived_folder, store, job.encode.shard_rows, job.encode.compute_dtype, served)
    missing.refresh(store)
    return before - len(missing)


@contextmanager
def _build_lock(cache: Cache, job: Job) -> Iterator[str]:
    """Mark the cache as being built; yield host and process of another build, or ``""``.

    Nothing waits: two builds at once are safe. Parts share nothing.
    """
    holder, lock = cache.derived_folder / "build.json", FileLock(cache.derived_folder / "build.lock")
    beside = ""
    try:
        make_directory(cache.derived_folder)
        lock.acquire(blocking=False)
        write_json(holder, {"host": socket.gethostname(), "process": os.getpid()})
    except Timeout:
        beside = _read_holder(holder) if job.part is None else ""
    except (OSError, NotImplementedError):
        pass  # a read-only cache, or a file system without locks
    if beside:
        logging.getLogger(__name__).warning(
            "another build (%s) is at work in %s: what it has stored is not encoded again, but both may "
            "encode the same rows. Stop one of them, or give each a --part",
            beside,
            cache.folder,
        )
    try:
        yield beside
    finally:
        lock.release()


def _read_holder(path: Path) -> str:
    with suppress(OSError, ValueError):
        found = parsed_json(read_regular(path))
        if isinstance(found, dict):
            return f"host {str(found.get('host'))[:80]}, process {str(found.get('process'))[:20]}"
    return "host and process unknown"


def _pool(cache: Cache, job: Job, store: ShardStore) -> AbstractContextManager[WorkerPool | None]:
    """Return the processes that share the work, None where this one does it all."""
    if job.encode.devices is None and job.encode.engine is None:
        return nullcontext()
    from embedcache.parallel.open_pool import open_pool

    job.teacher.unload()
    remote = None if job.remote is None else job.remote.url
    return open_pool(
        cache, job.teacher, job.encode, store, lambda: Probes.draw(store, cache.corpora()), remote
    )


def _collect(
    cache: Cache, job: Job, store: ShardStore, texts: Corpus, missing: MissingRows, progress: Progress
) -> None:
    """Open the shards that workers have stored, and fetch those that they have pushed."""
    store.open_new()
    missing.refresh(store)
    if job.remote is not None and len(missing):
        job.remote.list_again()
        job.remote.fetch(cache, store, missing.keys(), texts, job.teacher, progress)
        missing.refresh(store)
    if len(missing):
        raise StorageError(
            f"{len(missing):,} rows that workers have stored are not in {cache.folder}: look whether all "
            "machines see the same folder there, and run the same command again"
        )


def _token_table(folder: Path, teacher: LazyTeacher) -> TokenTable | None:
    """Return the teacher's token embeddings from its model; None where the cache has them."""
    if table_path(folder, teacher.contract).exists():
        return None
    return teacher.token_table()


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``build`` for flat settings, named as the options of the command line.

    >>> grouped({"teacher": "minilm-l6", "max_length": 64, "codec": "int8"})["encode"].codec
    'int8'
    """
    rest = dict(settings)

    def take(kind: type[T], **given_as: str) -> T:
        names = {field.name: given_as.get(field.name, field.name) for field in fields(kind)}  # type: ignore[arg-type]
        return kind(**{own: rest.pop(given) for own, given in names.items() if given in rest})

    found: dict[str, Any] = {
        "teacher": take(TeacherOptions, spec="teacher", name="teacher_name"),
        "read": take(ReadOptions),
        "encode": take(EncodeOptions),
    }
    rest["device"] = found["encode"].device
    found["views"] = take(ViewOptions, seed="view_seed", embed="embed_views")
    remote, limits = rest.pop("remote", None), ("max_bytes", "require_signature", "skip_manifests")
    given = {name: rest.pop(name) for name in limits if name in rest}
    if remote is not None:
        from embedcache.share.read_through import RemoteOptions

        found["remote"] = RemoteOptions(remote, **given)
    return {**rest, **found}
