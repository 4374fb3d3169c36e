"""What a build would cost, and when it has paid for itself; nothing is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from embedcache.build_outputs import codec_of, teachers_of
from embedcache.build_report import BuildProgress
from embedcache.builder import corpus_name_from
from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, DEFAULT_CODEC, FLOAT_CODECS, check_codec_name, get_codec, pq
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import check_name
from embedcache.corpus.readers import ReadOptions, expand_sources
from embedcache.errors import InputError
from embedcache.keys import KEY_BYTES
from embedcache.missing import DEFAULT_SHARD_ROWS
from embedcache.plan.probe import Speed, encoding_speed, live_speed, reading_speed, shard_overhead
from embedcache.plan.report import CodecBytes, OutputOfPlan, Plan, Range, Tokens
from embedcache.plan.survey import Holdings, Survey, survey
from embedcache.plan.views import ViewOfPlan, views_of_build
from embedcache.reuse import codec_for, donors
from embedcache.teacher.outputs import EMBEDDING, LOGITS, parse_outputs
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from embedcache.share.read_through import RemoteOptions
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher

DEFAULT_TOKEN_SAMPLE = 100_000
DEFAULT_PROBE_SECONDS = 10.0
# Beside its vector a row has its key, a 32-bit count of tokens, and one bit.
_BYTES_BESIDE = KEY_BYTES + 4 + 1 / 8
_CODEBOOK_BYTES_A_DIMENSION = 4 * pq.CENTROIDS
_STANDARD_ERRORS = 2

OnProgress = Callable[[BuildProgress], None]
"""Called with where the plan stands; its phases are ``read``, ``count`` and ``probe``."""


def plan_build(
    sources: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path | Teacher,
    cache: str | Path | None = None,
    name: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command line
    limit: int | None = None,
    text2_column: str | None = None,
    delimiter: str | None = None,
    rows: Sequence[str] = (),
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    teacher_name: str | None = None,
    trust_remote_code: bool = False,
    output: str = EMBEDDING,
    codec: str | None = None,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    compute_dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    threads: int | None = None,
    views: ViewOptions | Sequence[str] = (),
    token_sample: int = DEFAULT_TOKEN_SAMPLE,
    probe_seconds: float = DEFAULT_PROBE_SECONDS,
    seed: int = 0,
    remote: RemoteOptions | str | None = None,
    on_progress: OnProgress | None = None,
) -> Plan:
    """Say what building ``sources`` into ``cache`` would do and cost.

    The source is read once; nothing is written into the cache, which need not exist.

    Args:
        sources, text_column, id_column, label_column, format, limit, text2_column, delimiter, rows: as for
            :func:`embedcache.build`.
        teacher: alias, hub id, folder, or a teacher already loaded.
        cache: the cache's folder; None for a new one.
        name: the corpus's name in the cache, for the views that it has there.
        pooling, prompt, max_length, truncate_dim, normalize, teacher_name, trust_remote_code, output, codec,
            shard_rows, device, compute_dtype, batch_tokens, threads: as for :func:`embedcache.build`.
        views: as for :func:`embedcache.build`; those that are to be encoded are counted, but where a model
            has yet to make them.
        token_sample: so many of the missing texts are tokenised; where there are more, a sample of them.
        probe_seconds: about how long the teacher runs to be timed; 0 leaves every time out.
        seed: of the sample.
        remote: as for :func:`embedcache.build`; its key lists are downloaded into a temporary folder.
        on_progress: called as it goes on.

    Raises:
        InputError: for sources or settings that cannot be used.
        TeacherError: if the teacher, or a model that makes a view, cannot be loaded.
        MissingExtraError: if a view needs something that is not installed.
        CacheFormatError, CorruptCacheError: if the cache cannot be read.
    """
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import load_teacher

    if token_sample < 1:
        raise InputError(f"--token-sample {token_sample}: expected at least 1")
    if not 0 <= probe_seconds < math.inf:
        raise InputError(f"--probe-seconds {probe_seconds}: expected 0 or more")
    if codec is not None:
        check_codec_name(codec)
    if shard_rows < 1:
        raise InputError(f"--shard-rows {shard_rows}: expected at least 1")
    outputs = parse_outputs(output)
    codecs = [codec_of(one, codec, alone=len(outputs) == 1) for one in outputs]
    paths = expand_sources([sources] if isinstance(sources, (str, Path)) else list(sources))
    opened = _open(cache)
    reading_options = ReadOptions(
        text_column, id_column, label_column, format, limit, text2_column, tuple(rows), delimiter
    )
    if not isinstance(views, ViewOptions):
        views = ViewOptions(list(views), device=device)
    name = check_name(name or corpus_name_from(paths[0]))
    folder = opened.corpora_folder / name if opened else None
    of_views, texts_of_views = views_of_build(views, paths, reading_options, folder)
    report = on_progress or (lambda *_: None)
    if isinstance(teacher, (str, Path)):
        settings: dict[str, Any] = {"pooling": pooling, "prompt": prompt, "max_length": max_length}
        settings |= {"truncate_dim": truncate_dim, "normalize": normalize, "name": teacher_name}
        teacher = load_teacher(teacher, **settings, device=device, trust_remote_code=trust_remote_code)
    wanted = teachers_of(teacher, outputs)
    holdings = [_holdings(opened, one.contract, asked) for one, asked in zip(wanted, codecs, strict=True)]
    with TemporaryDirectory(prefix="embedcache-plan-") as scratch:
        if remote is not None:
            holdings = _with_remote(holdings, remote, Cache.create(scratch))
        found = survey(
            paths,
            reading_options,
            holdings,
            sample_rows=token_sample,
            seed=seed,
            views=texts_of_views,
            on_rows=lambda rows, seconds: report(BuildProgress("read", rows, seconds=seconds)),
        )
        remote_bytes = None if remote is None else sum(one.remote_bytes() for one in holdings)
    contract, codec = holdings[0].contract, holdings[0].codec
    encoder = Encoder(
        wanted[0],
        compute_dtype=compute_dtype,
        batch_tokens=batch_tokens,
        threads=threads,
        also=wanted[1] if len(wanted) > 1 else None,
    )
    texts = found.sample.texts()
    report(BuildProgress("count", len(texts)))
    tokens = _tokens(encoder, found, texts)
    speeds: tuple[Speed | None, Speed | None] = (None, None)
    reading = None
    if probe_seconds:
        reading = found.rows / reading_speed(contract, codec)
    if probe_seconds and texts:
        report(BuildProgress("probe", len(texts)))
        speeds = (
            encoding_speed(encoder, texts, probe_seconds / 2),
            live_speed(encoder, texts, probe_seconds / 2),
        )
    build, live, paid = _times(found, tokens, *speeds, reading)
    return Plan(
        teacher=wanted[0].name,
        contract_id=contract.id,
        codec=codec,
        codec_in_use=_is_in_use(opened, contract, codec),
        rows=found.rows,
        skipped=found.skipped,
        distinct=found.distinct,
        cached=found.cached,
        reusable=found.reusable,
        missing=found.missing,
        tokens=tokens,
        bytes=_bytes(contract, found.distinct, found.distinct - found.outputs[0].cached, shard_rows),
        encode=speeds[0],
        live=speeds[1],
        build_seconds=build,
        live_epoch_seconds=live,
        cached_epoch_seconds=reading,
        epochs_to_pay=paid,
        notes=tuple(_notes(opened, wanted, found, of_views)),
        views=tuple(of_views),
        outputs=tuple(_outputs(wanted, holdings, found, shard_rows)),
        not_asked=found.not_asked,
        remote=found.remote,
        remote_bytes=remote_bytes,
    )


def _with_remote(holdings: Sequence[Holdings], remote: RemoteOptions | str, scratch: Cache) -> list[Holdings]:
    """Return holdings that know the keys on a remote."""
    from embedcache.share.read_through import ReadThrough

    source = ReadThrough.open(remote)
    return [replace(one, remote=source.keys(scratch, one.contract, one.codec)) for one in holdings]


def _is_in_use(cache: Cache | None, contract: Contract, codec: str) -> bool:
    store = cache.store(contract) if cache is not None else None
    return store is not None and bool(store.shards) and store.codec_name == codec


def _holdings(cache: Cache | None, contract: Contract, asked: str | None) -> Holdings:
    """Return what the cache has of an output, in the codec that a build would store the rest in."""
    if cache is None:
        return Holdings(contract, asked or DEFAULT_CODEC)
    codec = asked or codec_for(cache.store(contract), donors(cache, contract))
    return Holdings(contract, codec, cache)


def _outputs(
    teachers: Sequence[Teacher], holdings: Sequence[Holdings], found: Survey, shard_rows: int
) -> Iterator[OutputOfPlan]:
    for teacher, own, held in zip(teachers, holdings, found.outputs, strict=True):
        sizes = _bytes(own.contract, found.distinct, found.distinct - held.cached, shard_rows)
        (to_write,) = (one.to_write for one in sizes if one.codec == own.codec)
        yield OutputOfPlan(
            output=own.contract.output,
            teacher=teacher.name,
            contract_id=own.contract.id,
            codec=own.codec,
            cached=held.cached,
            reusable=held.reusable,
            to_write=to_write,
        )


def _open(cache: str | Path | None) -> Cache | None:
    """Return the cache, or None where there is nothing yet; a folder of other things is refused."""
    folder = None if cache is None else Path(cache).expanduser()
    if folder is None or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    return Cache(folder)


def _tokens(encoder: Encoder, found: Survey, texts: Sequence[str]) -> Tokens | None:
    if encoder.tokenizer is None:
        return None
    counted = encoder.tokenizer(texts)
    lengths, missing, sample = counted.lengths, found.missing, len(texts)
    mean = float(lengths.mean()) if sample else 0.0
    error = 0.0
    if 1 < sample < missing:
        # Drawn without replacement: the part that was counted is no guess.
        error = missing * float(lengths.std(ddof=1)) / math.sqrt(sample) * math.sqrt(1 - sample / missing)
    others = found.rows - found.known_rows
    truncated = found.known_truncated + others * float(counted.truncated.mean() if len(texts) else 0.0)
    return Tokens(
        missing=missing * mean,
        standard_error=error,
        sample=sample,
        an_epoch=found.known_tokens + others * mean,
        truncated_share=truncated / found.rows,
    )


def _times(
    found: Survey, tokens: Tokens | None, encode: Speed | None, live: Speed | None, reading: float | None
) -> tuple[Range | None, Range | None, Range | None]:
    """Return the seconds of a build, those of the teacher in a live epoch, and the epochs to pay."""
    if not found.missing:
        return Range(0, 0, 0), None, Range(0, 0, 0)
    if encode is None or live is None or reading is None:
        return None, None, None
    amount, spread, epoch = float(found.missing), 0.0, float(found.rows)
    if tokens is not None:
        amount, spread, epoch = tokens.missing, _STANDARD_ERRORS * tokens.standard_error, tokens.an_epoch
    build = Range((amount - spread) / encode.high, amount / encode.mean, (amount + spread) / encode.low)
    every = Range(epoch / live.high, epoch / live.mean, epoch / live.low)
    if every.mean <= reading:
        return build, every, None
    saved_least = every.low - reading
    paid = Range(
        build.low / (every.high - reading),
        build.mean / (every.mean - reading),
        build.high / saved_least if saved_least > 0 else math.inf,
    )
    return build, every, paid


def _bytes(contract: Contract, distinct: int, fresh: int, shard_rows: int) -> tuple[CodecBytes, ...]:
    """Return the sizes by codec of so many distinct texts, so many of which are not there yet."""
    overhead = shard_overhead(contract)

    def whole(rows: int, a_row: float, once: int) -> int:
        return round(rows * a_row + math.ceil(rows / shard_rows) * overhead + (once if rows else 0))

    sizes = []
    for name in FLOAT_CODECS if contract.output == LOGITS else CODEC_NAMES:
        is_pq = name == pq.NAME
        width = contract.dimension
        vector = pq.stored_width(width) if is_pq else get_codec(name).bytes_per_row(width)
        once = width * _CODEBOOK_BYTES_A_DIMENSION if is_pq else 0
        a_row = vector + _BYTES_BESIDE
        to_write, whole_corpus = (whole(rows, a_row, once) for rows in (fresh, distinct))
        sizes.append(CodecBytes(name, vector, a_row, to_write, whole_corpus, once))
    return tuple(sizes)


def _notes(
    cache: Cache | None, teachers: Sequence[Teacher], found: Survey, views: Sequence[ViewOfPlan]
) -> list[str]:
    notes = []
    there = {one.name: one for one in cache.teachers()} if cache else {}
    for teacher in teachers:
        other = there.get(teacher.name)
        if other is not None and other.contract != teacher.contract:
            fields = describe_differences(other.contract.differences(teacher.contract))
            notes.append(
                f"the cache holds {teacher.name!r} with another contract ({fields}): "
                "a build needs --teacher-name OTHER to keep both"
            )
    if found.reusable:
        notes.append(f"{found.reusable:,} vectors are carried over from another max_length, not encoded")
    if found.coarser_rows:
        notes.append(
            f"{found.coarser_rows:,} vectors of another max_length are encoded again, because their codec "
            "keeps less than this build's"
        )
    notes += [
        f"the texts of view {view.name!r} are not known before a model has made them: up to {found.rows:,} "
        "more to encode than is counted here"
        for view in views
        if view.is_embedded and not view.is_counted
    ]
    return notes
