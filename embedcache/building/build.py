"""Build: read a corpus, find what the cache lacks, reuse or encode exactly that, store it shard by shard.

Killed at any moment, a build loses at most the shard in flight: shards are cut from the missing rows in
corpus order and committed in that order, so the same command run again goes on where it stopped and cuts the
same shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from filelock import FileLock, Timeout

from embedcache.building.job import Job
from embedcache.building.outputs import BuildOutput, Encoded, encode_missing, refuse_untrained
from embedcache.building.result import BuildResult
from embedcache.building.views import make_views
from embedcache.cache import Cache
from embedcache.codecs import pq
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions
from embedcache.errors import StorageError
from embedcache.fsio import make_directory
from embedcache.missing import MissingRows
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import reuse_rows
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.teacher.resolve import is_local, origin_of
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from typing_extensions import Required, TypedDict, Unpack

    from embedcache.share.read_through import RemoteOptions
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.load import Teacher

    class BuildArguments(TypedDict, total=False):
        """Further arguments of :func:`build`."""

        teacher: Required[str | Path | TeacherOptions | Teacher | Encoder]
        cache: Required[str | Path]
        name: str | None
        read: ReadOptions
        encode: EncodeOptions
        views: ViewOptions | Sequence[str]
        remote: RemoteOptions | str | None
        overwrite: bool
        progress: Progress


T = TypeVar("T")


@overload
def build(
    sources: object, *, dry_run: Literal[False] = False, **arguments: Unpack[BuildArguments]
) -> Cache: ...
@overload
def build(sources: object, *, dry_run: Literal[True], **arguments: Unpack[BuildArguments]) -> BuildResult: ...
def build(
    sources: object,
    *,
    teacher: str | Path | TeacherOptions | Teacher | Encoder,
    cache: str | Path,
    name: str | None = None,
    read: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
    encode: EncodeOptions = EncodeOptions(),  # noqa: B008 - frozen
    views: ViewOptions | Sequence[str] = (),
    remote: RemoteOptions | str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Cache | BuildResult:
    """Run a teacher once over a corpus and keep its vectors; return the cache.

    Only texts whose vectors the cache lacks are encoded. :attr:`Cache.result` says what was done.

    Args:
        sources: files, globs or ``-`` for standard input; or texts in memory: strings, dictionaries, a data
            frame, an Arrow table or a dataset.
        teacher: alias, hub id or folder; with :class:`TeacherOptions` also its pooling, prompt, length
            ...; or a teacher or encoder already loaded.
        cache: the cache's folder; created if missing.
        name: name of the corpus in the cache; default: from the first source's file name.
        read: columns, format and rows to read.
        encode: outputs, codec and store, and how the teacher computes.
        views: other texts to make of every row, such as ``["crop", "delete-words*2"]``; with
            :class:`ViewOptions` also how, and which of them are encoded.
        remote: name or URL of a remote whose vectors are fetched instead of encoded; with
            :class:`RemoteOptions` also its limits.
        overwrite: replace a corpus or views of the same names that hold other rows; vectors are kept.
        dry_run: write nothing and return what a build would do and cost.
        progress: receives the phases ``read``, ``view NAME``, ``look up``, ``reuse``, ``fetch``, ``encode``.

    Raises:
        InputError: if sources or options cannot be used.
        TeacherError: if the teacher, or a model that makes a view, cannot be loaded.
        MissingExtraError: if a view needs a package that is not installed.
        ContractMismatchError: if the cache has the teacher's name with another contract; it names the field.
        NonFiniteVectorError: if the teacher returns NaN or infinity; it names the row.
        CorruptCacheError: if something needed in the cache is damaged.
        StorageError: if the cache cannot be written; the same call goes on from there.
        RemoteError: if the remote cannot be read, or its vectors are not the teacher's.
    """
    started = time.perf_counter()
    job = Job.prepare(sources, teacher, cache, name, read, encode, views, remote, overwrite)
    for own_name, contract in job.teacher.contracts.items():
        if job.cache is not None:
            job.cache.refuse_other_contract(own_name, contract)
    if dry_run:
        from embedcache.building.dry_run import estimate_build

        return estimate_build(job, progress)
    table = _token_table(job.folder, job.teacher) if encode.token_embeddings else None
    opened = job.cache or Cache.create(job.folder)
    outputs = [BuildOutput.open(opened, *named, encode) for named in job.teacher.contracts.items()]
    corpus = job.store_corpus(opened, progress)
    made = make_views(corpus, job.planned, job.sources, read, overwrite=overwrite, progress=progress)
    job.planned.clear()  # the teacher can use the room of their models

    progress.phase("look up", len(corpus))
    # Garbage collection may have removed shards since they were opened; from here on the corpus keeps them.
    outputs = [
        one if one.store.is_current else BuildOutput.open(opened, one.name, one.store.contract, encode)
        for one in outputs
    ]
    missing = [MissingRows.of(corpus, one.store) for one in outputs]
    refuse_untrained(outputs, missing, encode.shard_rows)
    _register(opened, job.teacher)
    if table is not None and not (path := table_path(job.folder, outputs[0].store.contract)).exists():
        table.write(path, outputs[0].store.contract)
    before = [one.store.bytes_on_disk for one in outputs]
    distinct, encoded = 0, Encoded()
    with _other_build(opened) as is_other:
        for texts in [corpus, *map(corpus.view, job.views.embed)]:
            if texts is not corpus:
                missing = [MissingRows.of(texts, one.store) for one in outputs]
            distinct += missing[0].distinct
            encoded += _fill(opened, job, outputs, texts, missing, is_other, progress)
    for one, size in zip(outputs, before, strict=True):
        one.count(bytes_written=one.store.bytes_on_disk - size)
        one.store.finish()
    job.teacher.note(opened.derived_folder)
    opened.result = job.result(
        corpus,
        [one.result for one in outputs],
        distinct=distinct,
        encoded=encoded.rows,
        truncated=encoded.truncated,
        tokens=encoded.tokens,
        batches_halved=encoded.batches_halved,
        seconds=time.perf_counter() - started,
        encode_seconds=encoded.seconds,
        views=tuple(made),
        remote_bytes=job.remote.bytes if job.remote else 0,
        verdicts=tuple(job.remote.verdicts) if job.remote else (),
        token_embeddings=None if table is None else (len(table.word), table.word.shape[1]),
    )
    return opened


def _fill(
    cache: Cache,
    job: Job,
    outputs: Sequence[BuildOutput],
    texts: Corpus,
    missing: Sequence[MissingRows],
    is_other: bool,
    progress: Progress,
) -> Encoded:
    """Store the missing rows of ``texts`` in each output: reused, fetched, or encoded."""
    shard_rows = job.encode.shard_rows
    for output, rows in zip(outputs, missing, strict=True):
        output.count(cached=rows.distinct - len(rows))
        reused = reuse_rows(output.related, output.store, rows.keys(), shard_rows, progress)
        output.count(reused=reused.rows, coarser=reused.coarser)
        if reused.rows:
            rows.refresh(output.store)
        if job.remote is not None and (before := len(rows)):
            job.remote.fetch(cache, output.store, rows.keys(), texts, job.teacher, progress)
            rows.refresh(output.store)
            output.count(fetched=before - len(rows))
    total = Encoded()
    for lacking, rows in _groups(outputs, missing):
        stores = [output.store for output in lacking]
        # A codebook is learnt from the first shard.
        backwards = is_other and all(store.codec_name != pq.NAME for store in stores)
        encoder = job.teacher.encoder
        done = encode_missing(
            texts, rows, encoder, stores, shard_rows, backwards=backwards, progress=progress
        )
        total += done
        for output in lacking:
            output.count(encoded=done.rows)
    return total


def _groups(
    outputs: Sequence[BuildOutput], missing: Sequence[MissingRows]
) -> list[tuple[Sequence[BuildOutput], MissingRows]]:
    """Return the rows that all outputs lack, then those that one alone lacks, each with its outputs."""
    everywhere = np.logical_and.reduce([rows.mask for rows in missing])
    groups: list[tuple[Sequence[BuildOutput], MissingRows]] = [
        (outputs, replace(missing[0], mask=everywhere))
    ]
    for output, rows in zip(outputs, missing, strict=True):
        groups.append(([output], replace(rows, mask=rows.mask & ~everywhere)))
    return [(lacking, rows) for lacking, rows in groups if len(rows)]


@contextmanager
def _other_build(cache: Cache) -> Iterator[bool]:
    """Yield whether another build into ``cache`` runs on this machine; the two share the work."""
    lock, is_other = FileLock(cache.derived_folder / "build.lock"), False
    try:
        make_directory(cache.derived_folder)
        lock.acquire(blocking=False)
    except Timeout:
        is_other = True
    except (OSError, StorageError, NotImplementedError):
        pass  # a read-only cache, or a file system without locks
    try:
        yield is_other
    finally:
        lock.release()


def _token_table(folder: Path, teacher: LazyTeacher) -> TokenTable:
    """Return a teacher's token embeddings, from the cache or else from its model."""
    contract = next(iter(teacher.contracts.values()))
    path = table_path(folder, contract)
    if path.exists():
        return TokenTable.read(path, contract)
    from embedcache.teacher.token_table import token_table_of

    return token_table_of(teacher.encoder.teacher)


def _register(cache: Cache, teacher: LazyTeacher) -> None:
    """List the teacher in the cache; last, so that a rejected build leaves no empty teacher."""
    for name, contract in teacher.contracts.items():
        cache.register_teacher(name, contract, origin_of(teacher.source))
        if is_local(teacher.source):
            cache.remember_model(contract, str(teacher.source.folder.resolve()))


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`build` for flat settings, named as the options of the command line.

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
