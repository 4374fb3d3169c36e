"""Encoding: the store of a teacher's output, and missing texts encoded into it."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedcache.building.pending import PendingWork
from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import FLOAT_CODECS, Vectors, check_codec_name, pq
from embedcache.contract import Contract
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.keys import key_array
from embedcache.live import refuse_changed_server
from embedcache.missing import MissingRows
from embedcache.probes import refuse_changed_teacher
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store import ShardStore, VectorBatch
from embedcache.store.waiting import SHARD_ROWS
from embedcache.teacher import canary
from embedcache.teacher.lazy import LazyTeacher, refuse_other_teacher
from embedcache.teacher.load import Teacher, load_by_contract
from embedcache.teacher.options import DEFAULT_SHARD_ROWS, LOGITS, EncodeOptions, TeacherOptions
from embedcache.teacher.resolve import is_local, origin_of

if TYPE_CHECKING:
    from embedcache.teacher.batching import EncodedTexts
    from embedcache.teacher.text_encoder import TextEncoder


GivenTeacher: TypeAlias = "str | Path | TeacherOptions | Teacher | TextEncoder"
"""A teacher as ``embedcache.build`` takes it."""


class Texts(Protocol):
    """Texts to encode: a corpus, a view, or texts in memory."""

    def place(self, row: int) -> str:
        """Return the name of a row in messages."""
        ...

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the texts of some rows."""
        ...


def open_store(cache: Cache, contract: Contract, encode: EncodeOptions) -> ShardStore:
    """Open the store of a contract, in the requested codec, else in the codec of the stored vectors.

    Raises:
        InputError, ContractMismatchError, CorruptCacheError: as ``embedcache.cache.Cache.store``.
    """
    return cache.store(contract, codec_of(contract.output, encode), encode.store)


def needs_codebook(store: ShardStore) -> bool:
    """Return whether the first shard of a store teaches its codebook."""
    return store.codec_name == pq.NAME and not store.shards


def refuse_untrained(store: ShardStore, rows: int, split_by: str = "") -> None:
    """Raise ``InputError`` if a codebook is needed and cannot be learnt.

    Args:
        store: the store.
        rows: rows of the first shard, which it would be learnt from.
        split_by: option that several processes share the work by; each would learn another codebook.
    """
    if not needs_codebook(store):
        return
    if split_by:
        raise InputError(
            f"codec pq: with {split_by} each process would learn another codebook. Build a sample "
            f"of the texts under another name without {split_by} first, or take another codec"
        )
    pq.refuse_too_few(rows)


def register(cache: Cache, teacher: LazyTeacher) -> None:
    """List a teacher in the cache; last, so that a rejected build leaves no empty teacher."""
    cache.register_teacher(teacher.name, teacher.contract, origin_of(teacher.source))
    if teacher.source.server is not None:
        cache.remember_model(teacher.contract, teacher.source.spec)
    elif is_local(teacher.source):
        cache.remember_model(teacher.contract, str(teacher.source.folder.resolve()))


def codec_of(output: str, encode: EncodeOptions) -> str | None:
    """Return the codec asked for an output; None for the default.

    Logits are stored as floats: of two labels int8 takes more room than float16, of more it moves
    probabilities by up to 0.02.

    Raises:
        InputError: if there is no such codec, or it cannot store logits.
    """
    asked = encode.codec if encode.codec is None else check_codec_name(encode.codec)
    if output == LOGITS and asked not in (None, *FLOAT_CODECS):
        raise InputError(f"codec {asked}: logits are stored as {' or '.join(FLOAT_CODECS)}")
    return asked


@dataclass
class BuildCounts:
    """Counts of a build.

    Attributes:
        rows: texts whose vectors were stored.
        resumed: stored texts that a stopped build had encoded.
        truncated: stored texts of which the teacher saw only the beginning.
        tokens: tokens encoded.
        seconds: wall-clock seconds.
    """

    rows: int = 0
    resumed: int = 0
    truncated: int = 0
    tokens: int = 0
    seconds: float = 0.0


def encode_missing(
    texts: Texts,
    missing: MissingRows,
    store: ShardStore,
    encoder: TextEncoder,
    shard_rows: int,
    done: BuildCounts,
    *,
    pending: PendingWork | None = None,
    watch: bool = True,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Encode the rows that a store lacks and store their vectors, a shard at a time in corpus order.

    A codebook is learnt from a first shard of rows that are spread over the corpus. Rows that another build
    has stored meanwhile are left out, if ``watch`` is given.

    Args:
        texts: the texts.
        missing: the rows that the store lacks.
        store: receives the vectors.
        encoder: the teacher.
        shard_rows: rows per shard.
        done: counts what was encoded.
        pending: keeps the batches of unfinished shards.
        watch: look for new shards before each shard; every one of them is read.
        progress: receives the phase ``encode``.

    Raises:
        ContractMismatchError: if encoder and store have different contracts.
        NonFiniteVectorError: if a vector holds NaN or infinity; shards before it are stored.
        TeacherError: if the teacher cannot encode a text.
        StorageError: if a store cannot be written.
        KeyboardInterrupt: after Ctrl-C; it says how many rows of the unfinished shard are kept.
    """
    refuse_other_teacher(encoder, store.contract)
    progress.phase("encode", len(missing))
    started, counts, before = time.perf_counter(), encoder.counts, replace(encoder.counts)
    shown = resumed = 0
    taken: deque[NDArray[np.int64]] = deque()

    def windows() -> Iterator[list[str]]:
        others, due = 0, 0.0
        for rows in missing.windows(shard_rows, spread_first=needs_codebook(store)):
            if watch and (now := time.monotonic()) >= due:
                others += store.open_new()
                # Listing thousands of shards takes at most a tenth of the time.
                due = now + 10 * (time.monotonic() - now)
            if others:
                lacking = store.locate(missing.keys(rows)) < 0
                progress.skip(len(rows) - int(lacking.sum()))
                rows = rows[lacking]
            if len(rows):
                taken.append(rows)
                yield texts.texts(rows)

    def show() -> None:
        nonlocal shown, resumed
        rate = (counts.tokens - before.tokens) / max(time.perf_counter() - started, 1e-9)
        progress.note(f"{rate:,.0f} tokens/s")
        progress.advance(counts.rows - before.rows - shown)
        progress.skip(counts.resumed - before.resumed - resumed)
        shown, resumed = counts.rows - before.rows, counts.resumed - before.resumed

    def on_wait() -> None:
        show()
        if pending is not None:
            pending.keep_if_due()

    # Closed at once where storing fails: windows that are worked on ahead would keep the process alive.
    with (
        pending or nullcontext(),
        closing(encoder.encode_windows(windows(), on_wait, pending)) as results,
    ):
        for encoded in results:
            rows = taken.popleft()
            _refuse_non_finite(encoded, texts, rows, encoder)
            store.put(VectorBatch(missing.keys(rows), *encoded, encoder.provenance))
            if pending is not None:
                pending.stored()
            done.rows += len(rows)
            done.truncated += int(encoded.truncated.sum())
            show()
    done.resumed += counts.resumed - before.resumed
    done.tokens += counts.tokens - before.tokens
    done.seconds += time.perf_counter() - started


def _refuse_non_finite(
    encoded: EncodedTexts, texts: Texts, rows: NDArray[np.int64], encoder: TextEncoder
) -> None:
    bad = np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))
    if len(bad):
        row, dtype = rows[bad[:1]], encoder.provenance.get("compute_dtype")
        remedy = "Remove the text"
        if dtype != "float32":
            remedy = f"It computes in {dtype}, which overflows in some models: set compute_dtype float32"
        raise NonFiniteVectorError(
            f"the teacher returned NaN or infinity for {texts.place(row[0])} "
            f"({texts.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; earlier shards are "
            f"stored. {remedy}"
        )


class _TextList:
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def place(self, row: int) -> str:
        return f"text {row} of {len(self._texts)}"

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._texts[row] for row in rows]


def encode_texts(cache: Cache, texts: list[str], teacher: GivenTeacher | None) -> Vectors:
    """Return vectors of ``texts``, which join no corpus; see ``Cache.encode``."""
    with cache.lock:
        lazy = _encoder_of(cache, teacher)
        distinct = list(dict.fromkeys(texts))
        is_there, held = cache.find(distinct, lazy.contract)
        known = dict(zip(itertools.compress(distinct, is_there), held, strict=True))
        if missing := [text for text in distinct if text not in known]:
            vectors = _encode_into(cache, cache.opened_store(lazy.contract), missing, list(known), lazy)
            known |= zip(missing, vectors, strict=True)
            lazy.note(cache.derived_folder)
        shape = len(texts), lazy.contract.dimension
        return np.array([known[text] for text in texts], np.float32).reshape(shape)


def _encoder_of(cache: Cache, given: GivenTeacher | None) -> LazyTeacher:
    """Return the teacher for ``Cache.encode``, from the cache object if it has used it before."""
    if given is None or given in [one.name for one in cache.teachers()]:
        held = cache.teacher(None if given is None else str(given))
        key: object = held.contract.id
        if key not in cache.encoders:
            cache.encoders[key] = _open_encoder(cache, _load_held(cache, held))
        return cache.encoders[key]
    key = given if isinstance(given, (str, Path, TeacherOptions)) else id(given)
    if key not in cache.encoders:
        cache.encoders[key] = _open_encoder(cache, given)
    return cache.encoders[key]


def _load_held(cache: Cache, held: CachedTeacher) -> Teacher:
    remedy = "encode with that model under another name"
    source = cache.model_source(held)
    return load_by_contract(source, held.contract, name=held.name, remedy=remedy, device="auto")


def _open_encoder(cache: Cache, given: GivenTeacher) -> LazyTeacher:
    options = EncodeOptions(backend="torch")  # a few texts do not pay for converting a model
    lazy = LazyTeacher(given, options, cache.derived_folder)
    cache.refuse_other_contract(lazy.name, lazy.contract)
    store, waiting = cache.opened_store(lazy.contract), cache.waiting(lazy.contract)
    refuse_changed_server(store, cache.corpora, lazy.vectors, waiting)
    return lazy


def _encode_into(
    cache: Cache, store: ShardStore, texts: list[str], known: Sequence[str], lazy: LazyTeacher
) -> Vectors:
    """Encode and keep distinct texts, few of them until others fill a shard; return their vectors.

    Args:
        cache, store: where to.
        texts: the texts.
        known: other texts, which have vectors.
        lazy: the teacher.
    """
    waiting = cache.waiting(store.contract)
    refuse_changed_teacher(lazy, store, cache.corpora, waiting, known)
    encoder = lazy.encoder
    if len(texts) < SHARD_ROWS:
        encoded = encoder.encode(texts)
        _refuse_non_finite(encoded, _TextList(texts), np.arange(len(texts)), encoder)
        vectors = store.as_stored(encoded.vectors)  # a value that does not fit the codec is refused at once
        register(cache, lazy)
        rows = VectorBatch(key_array(texts), *encoded, encoder.provenance)
        # A later process compares the canary with its server.
        canaries = key_array(canary.TEXTS)
        waiting.add(rows if encoder.canary is None else rows.with_canary(canaries, encoder.canary))
        if len(waiting) >= SHARD_ROWS:
            waiting.store(store)
        store.finish()
        return vectors
    register(cache, lazy)
    # The canary comes first: it shows later which model made the shards.
    first = [text for text in canary.TEXTS if encoder.canary is not None and text not in texts]
    named = _TextList([*first, *texts])
    keys = key_array([*first, *texts])
    missing = MissingRows(len(keys), len(keys), store.locate(keys) < 0, [keys])
    pending = PendingWork(cache.derived_folder, store, encoder, missing.holds)
    encode_missing(named, missing, store, encoder, DEFAULT_SHARD_ROWS, BuildCounts(), pending=pending)
    store.finish()
    return store.vectors(store.locate(key_array(texts)))
