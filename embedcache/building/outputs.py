"""Outputs of a build: the store of each, and the missing rows filled by reuse, a remote, or the teacher."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.building.result import OutputResult
from embedcache.cache import Cache
from embedcache.codecs import FLOAT_CODECS, check_codec_name, pq
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.missing import MissingRows
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import default_codec, related_stores
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.lazy import columns_of
from embedcache.teacher.options import DEFAULT_SHARD_ROWS, EncodeOptions
from embedcache.teacher.outputs import EMBEDDING, LOGITS

if TYPE_CHECKING:
    from embedcache.teacher.batching import EncodedTexts
    from embedcache.teacher.encode import Encoder


@dataclass
class BuildOutput:
    """One output of a build.

    Attributes:
        name: its teacher's name in the cache.
        store: receives its vectors.
        related: stores of the same teacher at another ``max_length``.
        result: counts so far.
    """

    name: str
    store: ShardStore
    related: list[ShardStore]
    result: OutputResult

    @classmethod
    def open(cls, cache: Cache, name: str, contract: Contract, encode: EncodeOptions) -> BuildOutput:
        """Open the store of an output, in the codec of the options or of the stored vectors.

        Raises:
            InputError, ContractMismatchError, CorruptCacheError: as :meth:`embedcache.cache.Cache.store`.
        """
        asked = codec_of(contract.output, encode)
        store = cache.store(contract, asked, encode.store)
        related = related_stores(cache, contract)
        codec = asked or default_codec(store, related)
        if codec != store.codec_name:
            store = cache.store(contract, codec, encode.store)
        return cls(name, store, related, OutputResult(contract.output, name, contract.id, codec))

    def count(self, **counts: int) -> None:
        """Add to the counts of the result."""
        added = {name: getattr(self.result, name) + count for name, count in counts.items()}
        self.result = replace(self.result, **added)


def codec_of(output: str, encode: EncodeOptions) -> str | None:
    """Return the codec asked for an output; None for the default.

    Logits are stored as floats: of two labels int8 takes more room than float16, of more it moves
    probabilities by up to 0.02.

    Raises:
        InputError: if there is no such codec, or it cannot store logits and they are the only output.
    """
    asked = encode.codec if encode.codec is None else check_codec_name(encode.codec)
    if output != LOGITS or asked is None or asked in FLOAT_CODECS:
        return asked
    if EMBEDDING not in encode.output:
        raise InputError(f"--codec {asked}: logits are stored as {' or '.join(FLOAT_CODECS)}")
    return None


def refuse_untrained(outputs: Sequence[BuildOutput], missing: Sequence[MissingRows], shard_rows: int) -> None:
    """Raise :class:`InputError` where an output needs a codebook and has too few rows to learn one from."""
    for output, rows in zip(outputs, missing, strict=True):
        if output.store.codec_name == pq.NAME and not output.store.shards:
            pq.refuse_too_few(min(len(rows), shard_rows))


@dataclass(frozen=True)
class Encoded:
    """Counts of what was encoded.

    Attributes:
        rows: texts.
        truncated: texts of which the teacher saw only the beginning.
        tokens: tokens.
        batches_halved: forward batches that did not fit into memory and were halved.
        seconds: wall-clock seconds.
    """

    rows: int = 0
    truncated: int = 0
    tokens: int = 0
    batches_halved: int = 0
    seconds: float = 0.0

    def __add__(self, other: Encoded) -> Encoded:
        return Encoded(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def encode_missing(
    corpus: Corpus,
    missing: MissingRows,
    encoder: Encoder,
    stores: Sequence[ShardStore],
    shard_rows: int = DEFAULT_SHARD_ROWS,
    *,
    backwards: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Encoded:
    """Encode missing rows of a corpus and store their vectors, a shard at a time in corpus order.

    Rows that another build has stored meanwhile are left out, whole shards at a time.

    Args:
        corpus: the corpus.
        missing: its missing rows, see :meth:`MissingRows.of`.
        encoder: the teacher.
        stores: receive the vectors, each of a contract of ``encoder.teachers``.
        shard_rows: rows per shard.
        backwards: begin with the last shard, because another build has begun with the first.
        progress: receives the phase ``encode``.

    Raises:
        NonFiniteVectorError: if a vector holds NaN or infinity; shards before it are stored.
        TeacherError: if the teacher cannot encode a text.
        StorageError: if a store cannot be written.
    """
    if not len(missing):
        return Encoded()
    progress.phase("encode", len(missing))
    started, before = time.perf_counter(), replace(encoder.times)
    shown = encoded_rows = truncated = 0
    taken: deque[NDArray[np.int64]] = deque()

    def windows() -> Iterator[list[str]]:
        others = 0
        in_order = list(missing.windows(shard_rows))
        for rows in reversed(in_order) if backwards else in_order:
            others += sum(store.open_new() for store in stores)
            if others and all((store.locate(missing.keys(rows)) >= 0).all() for store in stores):
                progress.advance(len(rows))
                continue
            taken.append(rows)
            yield corpus.texts(rows)

    def report() -> None:
        nonlocal shown
        done = encoder.times.rows - before.rows
        rate = (encoder.times.tokens - before.tokens) / max(time.perf_counter() - started, 1e-9)
        progress.note(f"{rate:,.0f} tokens/s")
        progress.advance(done - shown)
        shown = done

    # Closed at once where storing fails: windows that are worked on ahead would keep the process from ending.
    with closing(encoder.encode_windows(windows(), report)) as results:
        for encoded in results:
            rows = taken.popleft()
            _refuse_non_finite(encoded, corpus, rows)
            keys = missing.keys(rows)
            for store in stores:
                vectors = np.ascontiguousarray(encoded.vectors[:, columns_of(encoder, store.contract)])
                store.put(VectorBatch(keys, vectors, encoded.tokens, encoded.truncated, encoder.provenance))
            encoded_rows += len(rows)
            truncated += int(encoded.truncated.sum())
            report()
    times, seconds = encoder.times, time.perf_counter() - started
    tokens, halved = times.tokens - before.tokens, times.batches_halved - before.batches_halved
    return Encoded(encoded_rows, truncated, tokens, halved, seconds)


def _refuse_non_finite(encoded: EncodedTexts, corpus: Corpus, rows: NDArray[np.int64]) -> None:
    bad = np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))
    if len(bad):
        row = rows[bad[:1]]
        raise NonFiniteVectorError(
            f"the teacher returned NaN or infinity for row {row[0]} of {corpus.title} "
            f"({corpus.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; earlier shards are "
            "stored. Use --compute-dtype float32, or remove the text"
        )
