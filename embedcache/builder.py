"""Build: read a corpus, find what the cache lacks, encode exactly that, store it shard by shard.

Killed at any moment, a build loses at most the shard in flight: shards are cut from the missing rows in
corpus order and committed in that order, so the same command run again goes on where it stopped and cuts the
same shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.cache import Cache
from embedcache.codecs import get_codec
from embedcache.contract import describe_differences
from embedcache.corpus.corpus import Corpus, check_name, store_corpus
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, expand_sources, read_batches
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.key_index import KeyIndex
from embedcache.store.base import VectorBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.store.arrow import ArrowStore
    from embedcache.teacher.encode import EncodedTexts, Encoder
    from embedcache.teacher.load import Teacher

DEFAULT_SHARD_ROWS = 16384


@dataclass
class BuildProgress:
    """Where a build stands; handed to the progress callback again and again.

    Attributes:
        phase: ``read`` or ``encode``.
        rows: rows read so far, or vectors encoded so far.
        total: vectors to encode; 0 while reading.
        tokens: tokens encoded so far.
        seconds: seconds since the phase began.
        busy: seconds spent so far in ``read``, ``tokenise``, ``encode`` and ``write``; they overlap.
    """

    phase: str = "read"
    rows: int = 0
    total: int = 0
    tokens: int = 0
    seconds: float = 0.0
    busy: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("read", "tokenise", "encode", "write"), 0.0)
    )


@dataclass(frozen=True)
class BuildSummary:
    """What a build did.

    Attributes:
        corpus: the corpus's name.
        teacher: the teacher's name.
        contract_id: sha256 of the teacher's contract.
        rows: rows of the corpus.
        distinct: distinct texts among them.
        encoded: vectors computed by this build.
        reused: distinct texts whose vectors were there already.
        truncated: texts among the encoded that the teacher saw only the beginning of.
        skipped: reason -> source rows left out of the corpus.
        tokens: tokens encoded.
        batches_halved: forward batches that did not fit into memory and were halved.
        bytes_written: size of the new shards.
        seconds: wall-clock seconds of the whole build, loading the teacher included.
        encode_seconds: wall-clock seconds from the first text tokenised to the last shard written.
        busy: seconds spent in read, tokenise, encode and write; they overlap.
    """

    corpus: str
    teacher: str
    contract_id: str
    rows: int
    distinct: int
    encoded: int
    reused: int
    truncated: int
    skipped: dict[str, int]
    tokens: int
    batches_halved: int
    bytes_written: int
    seconds: float
    encode_seconds: float
    busy: dict[str, float]

    def to_json(self) -> dict[str, object]:
        """Return the summary as a JSON object."""
        return asdict(self)


OnProgress = Callable[[BuildProgress], None]


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
    compute_dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    threads: int | None = None,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    encoder: Encoder | None = None,
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
        codec: ``float16`` or ``float32``; default: as the cache stores this teacher, else ``float16``.
        compute_dtype, batch_tokens, threads: see :class:`embedcache.teacher.encode.Encoder`.
        shard_rows: vectors a shard; a killed build loses at most one shard.
        encoder: an encoder of the same teacher made before, in place of ``compute_dtype``, ``batch_tokens``
            and ``threads``; it saves preparing the model again when several corpora are built.
        on_progress: called with a :class:`BuildProgress` as the build goes on.

    Raises:
        InputError: for sources or settings that cannot be used.
        TeacherError: if the teacher cannot be loaded.
        ContractMismatchError: if the cache knows the teacher's name with another contract.
        NonFiniteVectorError: if the teacher returns NaN or infinity; it names the row.
        StorageError: if the cache cannot be written; run again once there is room.
    """
    from embedcache.teacher.encode import Encoder, EncodeTimes
    from embedcache.teacher.load import load_teacher

    started = time.perf_counter()
    progress = BuildProgress()
    if shard_rows < 1:
        raise InputError(f"--shard-rows {shard_rows}: expected at least 1")
    chosen_codec = get_codec(codec) if codec else None
    paths = expand_sources([sources] if isinstance(sources, (str, Path)) else list(sources))
    name = check_name(name or _name_from(paths[0]))
    options = ReadOptions(text_column, id_column, label_column, format, limit)

    # Everything that can be refused is refused before anything is written.
    settings: dict[str, Any] = {
        "pooling": pooling,
        "prompt": prompt,
        "max_length": max_length,
        "truncate_dim": truncate_dim,
        "normalize": normalize,
    }
    if isinstance(teacher, (str, Path)):
        teacher = load_teacher(
            teacher, **settings, name=teacher_name, device=device, trust_remote_code=trust_remote_code
        )
    else:
        _refuse_settings_of_a_loaded_teacher({**settings, "teacher_name": teacher_name})
    if encoder is None:
        encoder = Encoder(teacher, compute_dtype=compute_dtype, batch_tokens=batch_tokens, threads=threads)
    elif encoder.teacher.contract != teacher.contract:
        raise InputError(
            f"the encoder was made of another teacher than {teacher.name!r} "
            f"({describe_differences(encoder.teacher.contract.differences(teacher.contract))}): "
            "make one with Encoder(teacher)"
        )
    encoder.times = EncodeTimes()
    opened = Cache.create(cache)
    store = opened.store(teacher.contract, chosen_codec)
    opened.register_teacher(teacher.name, teacher.contract, _origin(teacher))
    if _is_local(teacher):
        opened.remember_model(teacher.contract, str(teacher.folder.resolve()))

    reading = time.perf_counter()
    report = ReadReport()
    batches = _counted(read_batches(paths, options, report), report, progress, on_progress)
    corpus, _ = store_corpus(opened.corpora_folder, name, batches, report, replace=replace)
    progress.busy["read"] = time.perf_counter() - reading

    keys = corpus.keys()
    distinct = KeyIndex(keys).first_places()
    missing = distinct[store.locate(keys[distinct]) < 0]
    encode_started = time.perf_counter()
    bytes_before = store.bytes_on_disk
    truncated = _encode_missing(corpus, missing, store, encoder, shard_rows, progress, on_progress)
    finished = time.perf_counter()
    opened.last_build = BuildSummary(
        corpus=corpus.name,
        teacher=teacher.name,
        contract_id=teacher.contract.id,
        rows=len(corpus),
        distinct=len(distinct),
        encoded=len(missing),
        reused=len(distinct) - len(missing),
        truncated=truncated,
        skipped=dict(report.skipped),
        tokens=encoder.times.tokens,
        batches_halved=encoder.times.batches_halved,
        bytes_written=store.bytes_on_disk - bytes_before,
        seconds=finished - started,
        encode_seconds=finished - encode_started,
        busy=dict(progress.busy),
    )
    return opened


def _encode_missing(
    corpus: Corpus,
    missing: NDArray[np.int64],
    store: ArrowStore,
    encoder: Encoder,
    shard_rows: int,
    progress: BuildProgress,
    on_progress: OnProgress | None,
) -> int:
    """Encode and store the rows ``missing`` and return how many texts were truncated."""
    keys = corpus.keys()
    windows = [missing[i : i + shard_rows] for i in range(0, len(missing), shard_rows)]
    started = time.perf_counter()
    truncated = 0

    def texts_of_windows() -> Iterator[list[str]]:
        for rows in windows:
            began = time.perf_counter()
            texts = corpus.texts(rows)
            progress.busy["read"] += time.perf_counter() - began
            yield texts

    def report() -> None:
        progress.phase, progress.total = "encode", len(missing)
        progress.rows, progress.tokens = encoder.times.rows, encoder.times.tokens
        progress.seconds = time.perf_counter() - started
        progress.busy["tokenise"] = encoder.times.tokenise
        # Forward passes run on several streams at once; what counts is the time they take together.
        progress.busy["encode"] = encoder.times.forward / encoder.streams
        if on_progress is not None:
            on_progress(progress)

    # Closed at once where storing fails: the windows worked on ahead would keep the process from ending.
    with closing(encoder.encode_windows(texts_of_windows(), report)) as results:
        for rows, encoded in zip(windows, results, strict=True):
            _refuse_non_finite(encoded, corpus, rows)
            began = time.perf_counter()
            store.put(
                VectorBatch(
                    keys[rows], encoded.vectors, encoded.tokens, encoded.truncated, encoder.provenance
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
            f"the teacher returned NaN or infinity for row {row[0]} of corpus {corpus.name!r} "
            f"({corpus.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; what was "
            "stored before is kept. Try --compute-dtype float32, or take the text out of the corpus"
        )


def _counted(
    batches: Iterator[RowBatch], report: ReadReport, progress: BuildProgress, on_progress: OnProgress | None
) -> Iterator[RowBatch]:
    started = time.perf_counter()
    for batch in batches:
        progress.rows, progress.seconds = report.rows, time.perf_counter() - started
        if on_progress is not None:
            on_progress(progress)
        yield batch


def _is_local(teacher: Teacher) -> bool:
    spec = Path(teacher.source.spec).expanduser()
    return teacher.source.alias is None and spec.is_dir() and spec.resolve() == teacher.folder.resolve()


def _origin(teacher: Teacher) -> dict[str, str]:
    source = teacher.source
    # A local path says something about somebody's machine and nothing to a teammate; its last part is enough.
    origin = {"spec": source.folder.resolve().name if _is_local(teacher) else source.spec}
    if source.revision:
        origin["revision"] = source.revision
    if source.alias:
        origin |= {"model_id": source.alias.model_id, "licence": source.alias.licence}
    return origin


def _name_from(source: Path | str) -> str:
    if source == "-":
        return "stdin"
    stem = Path(source).name.split(".")[0]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in stem) or "corpus"
