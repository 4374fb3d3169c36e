"""Build: read a corpus, find what the cache lacks, encode exactly that, store it shard by shard.

Killed at any moment, a build loses at most the shard in flight: shards are cut from the missing rows in
corpus order and committed in that order, so the same command run again goes on where it stopped and cuts the
same shards.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.build_report import BuildProgress, BuildSummary, OnProgress, TokenTableSummary
from embedcache.cache import Cache
from embedcache.codecs import check_codec_name, pq
from embedcache.contract import describe_differences
from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.readers import ReadOptions, expand_sources
from embedcache.corpus_build import SourceRows, read_corpus
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.missing import MissingRows
from embedcache.reuse import Carried, Donor, carry_over, codec_for, donors
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.encoded import EncodedTexts, EncodeTimes
from embedcache.teacher.origin import is_local, origin_of
from embedcache.token_table import TokenTable, table_path
from embedcache.view_build import make_views, plan
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher

DEFAULT_SHARD_ROWS = 16384


def build(
    sources: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path | Teacher,
    cache: str | Path,
    name: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command line
    limit: int | None = None,
    replace: bool = False,
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    teacher_name: str | None = None,
    trust_remote_code: bool = False,
    codec: str | None = None,
    store: str | None = None,
    compute_dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    threads: int | None = None,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    encoder: Encoder | None = None,
    views: ViewOptions | Sequence[str] | str = (),
    token_embeddings: bool = False,
    on_progress: OnProgress | None = None,
) -> Cache:
    """Run a teacher once over a corpus and keep its vectors; return the cache.

    Only texts whose vectors the cache lacks are encoded. What was done is in :attr:`Cache.last_build`.

    Args:
        sources: files, globs or ``-`` for standard input.
        teacher: alias, hub id, folder, or a teacher already loaded.
        cache: the cache's folder; created where there is none.
        name: the corpus's name in the cache; default: from the first source's file name.
        text_column, id_column, label_column, format, limit: see :class:`ReadOptions`.
        replace: replace a corpus of the same name that has other rows; vectors are kept.
        pooling, prompt, max_length, truncate_dim, normalize, trust_remote_code, device: see
            :func:`embedcache.teacher.load.load_teacher`.
        teacher_name: the teacher's name in the cache.
        codec: ``float32``, ``float16``, ``int8`` or ``pq``; default: as the cache stores this teacher, or the
            same teacher at another ``max_length``, else ``float16``.
        store: ``arrow`` or ``lmdb``; default: as the cache keeps this teacher, else ``arrow``.
        compute_dtype, batch_tokens, threads: see :class:`embedcache.teacher.encode.Encoder`.
        shard_rows: vectors a shard; a killed build loses at most one shard.
        encoder: an encoder of the same teacher made before, in place of ``compute_dtype``, ``batch_tokens``
            and ``threads``; it saves preparing the model again when several corpora are built.
        views: other texts to make for every row, such as ``["crop", "delete-words*2"]``; with
            :class:`embedcache.views.plan.ViewOptions` also how, and which of them are encoded.
        token_embeddings: also keep the teacher's input token embeddings, unless they are there.
        on_progress: called with a :class:`BuildProgress` as the build goes on.

    Raises:
        InputError: for sources or settings that cannot be used.
        TeacherError: if the teacher, or a model that makes a view, cannot be loaded, or it has no token
            embeddings that could be kept.
        CorruptCacheError: if something that is in the cache and needed is damaged.
        MissingExtraError: if a view needs something that is not installed.
        ContractMismatchError: if the cache knows the teacher's name with another contract.
        NonFiniteVectorError: if the teacher returns NaN or infinity; it names the row.
        StorageError: if the cache cannot be written; run again once there is room.
    """
    started = time.perf_counter()
    progress = BuildProgress()
    if shard_rows < 1:
        raise InputError(f"--shard-rows {shard_rows}: expected at least 1")
    if codec is not None:
        check_codec_name(codec)
    paths = expand_sources([sources] if isinstance(sources, (str, Path)) else list(sources))
    name = check_name(name or corpus_name_from(paths[0]))
    options = ReadOptions(text_column, id_column, label_column, format, limit)

    # Everything that can be refused is refused before anything is written.
    if not isinstance(views, ViewOptions):
        views = ViewOptions([views] if isinstance(views, str) else list(views), device=device)
    planned = plan(views, paths, options, Path(cache).expanduser() / "corpora" / name)
    settings: dict[str, Any] = {
        "pooling": pooling,
        "prompt": prompt,
        "max_length": max_length,
        "truncate_dim": truncate_dim,
        "normalize": normalize,
    }
    if isinstance(teacher, (str, Path)):
        from embedcache.teacher.load import load_teacher

        teacher = load_teacher(
            teacher, **settings, name=teacher_name, device=device, trust_remote_code=trust_remote_code
        )
    else:
        _refuse_settings_of_a_loaded_teacher({**settings, "teacher_name": teacher_name})
    if encoder is None:
        from embedcache.teacher.encode import Encoder

        encoder = Encoder(teacher, compute_dtype=compute_dtype, batch_tokens=batch_tokens, threads=threads)
    elif encoder.teacher.contract != teacher.contract:
        raise InputError(
            f"the encoder was made of another teacher than {teacher.name!r} "
            f"({describe_differences(encoder.teacher.contract.differences(teacher.contract))}): "
            "make one with Encoder(teacher)"
        )
    encoder.times = EncodeTimes()
    table_file = table_path(Path(cache).expanduser(), teacher.contract)
    table = _token_table(table_file, teacher) if token_embeddings else None
    source = SourceRows(paths, options)
    if not (Path(cache).expanduser() / "cache.json").exists():
        # A build that cannot begin leaves no cache behind.
        source.look(1)
        _refuse_untrained(codec, source, shard_rows)
    opened = Cache.create(cache)
    vectors = opened.store(teacher.contract, codec, store)
    givers = donors(opened, teacher.contract)
    codec = codec or codec_for(vectors, givers)
    if codec != vectors.codec_name:
        vectors = opened.store(teacher.contract, codec, store)
    opened.refuse_other_contract(teacher.name, teacher.contract)
    if not vectors.shards:
        _refuse_untrained(codec, source, shard_rows)

    reading = time.perf_counter()
    corpus = read_corpus(opened, name, source, progress, on_progress, replace=replace)
    progress.busy["read"] = time.perf_counter() - reading
    made = make_views(corpus, planned, paths, options, progress, on_progress, replace=views.replace)
    # Their models are not needed any more, and the teacher can use the room.
    del planned

    missing = {texts: MissingRows.of(texts, vectors) for texts in (corpus, *map(corpus.view, views.embed))}
    # Only now: a build that is refused leaves no teacher without vectors behind.
    opened.register_teacher(teacher.name, teacher.contract, origin_of(teacher.source))
    if is_local(teacher.source):
        opened.remember_model(teacher.contract, str(teacher.folder.resolve()))
    kept = _keep(table, table_file, teacher) if table is not None else None
    if not vectors.is_current:
        # Garbage collected since it was opened is not to be counted on; from here on the corpus keeps it.
        vectors = opened.store(teacher.contract, codec, store)
        missing = {texts: MissingRows.of(texts, vectors) for texts in missing}
    bytes_before = vectors.bytes_on_disk
    carried = Carried()
    absent = encoded = truncated = 0
    encode_seconds = 0.0
    for texts, rows in missing.items():
        # What views have in common with the texts before them is there by now.
        rows.refresh(vectors)
        absent += len(rows)
        if len(rows) and givers:
            taken = _carry_over(opened, givers, vectors, rows, shard_rows, progress, on_progress)
            carried.rows, carried.unworthy = carried.rows + taken.rows, carried.unworthy + taken.unworthy
        encoded += len(rows)
        encode_started = time.perf_counter()
        truncated += _encode_missing(texts, rows, vectors, encoder, shard_rows, progress, on_progress)
        encode_seconds += time.perf_counter() - encode_started
    vectors.finish()
    distinct = sum(rows.distinct for rows in missing.values())
    opened.last_build = BuildSummary(
        corpus=corpus.name,
        teacher=teacher.name,
        contract_id=teacher.contract.id,
        rows=len(corpus),
        distinct=distinct,
        encoded=encoded,
        carried=carried.rows,
        unworthy=carried.unworthy,
        reused=distinct - absent,
        truncated=truncated,
        skipped=dict(source.report.skipped),
        tokens=encoder.times.tokens,
        batches_halved=encoder.times.batches_halved,
        bytes_written=vectors.bytes_on_disk - bytes_before,
        seconds=time.perf_counter() - started,
        encode_seconds=encode_seconds,
        busy=dict(progress.busy),
        views=made,
        embedded_views=list(views.embed),
        token_embeddings=kept,
    )
    return opened


def _token_table(path: Path, teacher: Teacher) -> TokenTable:
    """Return the token embeddings of a teacher, from their file where there is one."""
    return TokenTable.read(path, teacher.contract) if path.exists() else TokenTable.from_teacher(teacher)


def _keep(table: TokenTable, path: Path, teacher: Teacher) -> TokenTableSummary:
    """Store token embeddings, unless they are there."""
    outcome = "there already" if path.exists() else "stored now"
    if not path.exists():
        table.write(path, teacher.contract)
    rows, width = table.word.shape
    return TokenTableSummary(rows, width, path.stat().st_size, outcome)


def _refuse_untrained(codec: str | None, source: SourceRows, shard_rows: int) -> None:
    """Refuse the codec ``pq`` where the first shard will hold too few vectors to learn a codebook from."""
    if codec == pq.NAME:
        pq.refuse_too_few(min(source.look(pq.LEAST_TRAINING_ROWS), shard_rows))


def _carry_over(
    cache: Cache,
    givers: Sequence[Donor],
    store: ShardStore,
    missing: MissingRows,
    shard_rows: int,
    progress: BuildProgress,
    on_progress: OnProgress | None,
) -> Carried:
    """Take over what donors have of the missing rows, which those then no longer are."""
    started = time.perf_counter()
    progress.phase, progress.total = "carry over", len(missing)

    def report(looked_up: int) -> None:
        progress.rows, progress.seconds = looked_up, time.perf_counter() - started
        if on_progress is not None:
            on_progress(progress)

    carried = carry_over(cache, store, missing.keys(), shard_rows, report, givers=givers)
    missing.refresh(store)
    return carried


def _encode_missing(
    corpus: Corpus,
    missing: MissingRows,
    store: ShardStore,
    encoder: Encoder,
    shard_rows: int,
    progress: BuildProgress,
    on_progress: OnProgress | None,
) -> int:
    """Encode and store the missing rows and return how many texts were truncated."""
    total, rows_before, tokens_before = len(missing), encoder.times.rows, encoder.times.tokens
    started = time.perf_counter()
    truncated = 0
    taken: deque[NDArray[np.int64]] = deque()

    def texts_of_windows() -> Iterator[list[str]]:
        for rows in missing.windows(shard_rows):
            began = time.perf_counter()
            texts = corpus.texts(rows)
            progress.busy["read"] += time.perf_counter() - began
            taken.append(rows)
            yield texts

    def report() -> None:
        progress.phase, progress.total = "encode", total
        progress.rows = encoder.times.rows - rows_before
        progress.tokens = encoder.times.tokens - tokens_before
        progress.seconds = time.perf_counter() - started
        progress.busy["tokenise"] = encoder.times.tokenise
        # Forward passes run on several streams at once; what counts is the time they take together.
        progress.busy["encode"] = encoder.times.forward / encoder.streams
        if on_progress is not None:
            on_progress(progress)

    # Closed at once where storing fails: the windows worked on ahead would keep the process from ending.
    with closing(encoder.encode_windows(texts_of_windows(), report)) as results:
        for encoded in results:
            rows = taken.popleft()
            _refuse_non_finite(encoded, corpus, rows)
            began = time.perf_counter()
            store.put(
                VectorBatch(
                    missing.keys(rows),
                    encoded.vectors,
                    encoded.tokens,
                    encoded.truncated,
                    encoder.provenance,
                )
            )
            progress.busy["write"] += time.perf_counter() - began
            truncated += int(encoded.truncated.sum())
            report()
    return truncated


def _refuse_settings_of_a_loaded_teacher(settings: Mapping[str, object]) -> None:
    given = [name for name, value in settings.items() if value is not None]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be changed on a teacher that is already loaded: "
            "give it to load_teacher, or give build the teacher's name"
        )


def _refuse_non_finite(encoded: EncodedTexts, corpus: Corpus, rows: NDArray[np.int64]) -> None:
    bad = np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))
    if len(bad):
        row = rows[bad[:1]]
        raise NonFiniteVectorError(
            f"the teacher returned NaN or infinity for row {row[0]} of {corpus.title} "
            f"({corpus.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; what was "
            "stored before is kept. Try --compute-dtype float32, or take the text out of the corpus"
        )


def corpus_name_from(source: Path | str) -> str:
    """Return what a corpus is called of which this is the first source, where the user gives no name."""
    if source == "-":
        return "stdin"
    stem = Path(source).name.split(".")[0]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in stem) or "corpus"
