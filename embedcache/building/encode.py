"""Encoding: outputs of a teacher, the store of each, and missing texts encoded into them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from embedcache.building.result import OutputResult
from embedcache.cache import Cache
from embedcache.codecs import FLOAT_CODECS, Vectors, check_codec_name, pq
from embedcache.contract import Contract
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.keys import key_array
from embedcache.live import keep_canary, refuse_changed_server
from embedcache.missing import MissingRows
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import default_codec, related_stores
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.lazy import LazyTeacher, columns_of
from embedcache.teacher.load import Teacher, load_by_contract
from embedcache.teacher.options import EMBEDDING, LOGITS, EncodeOptions, TeacherOptions
from embedcache.teacher.resolve import is_local, origin_of

if TYPE_CHECKING:
    from embedcache.teacher.batching import EncodedTexts
    from embedcache.teacher.text_encoder import TextEncoder


class Texts(Protocol):
    """Texts to encode: a corpus, a view, or texts in memory."""

    def place(self, row: int) -> str:
        """Return the name of a row in messages."""
        ...

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the texts of some rows."""
        ...


@dataclass
class BuildOutput:
    """One output of a build.

    Attributes:
        store: receives its vectors.
        related: stores of the same teacher at another ``max_length``.
        result: counts so far.
    """

    store: ShardStore
    related: list[ShardStore]
    result: OutputResult

    @classmethod
    def open(cls, cache: Cache, name: str, contract: Contract, encode: EncodeOptions) -> BuildOutput:
        """Open the store of the output of teacher ``name``, in the codec asked for or that of stored vectors.

        Raises:
            InputError, ContractMismatchError, CorruptCacheError: as ``embedcache.cache.Cache.store``.
        """
        codec = codec_of(contract.output, encode)
        store = cache.store(contract, codec, encode.store)
        related = related_stores(cache, contract)
        codec = codec or default_codec(store, related)
        if codec != store.codec_name:
            store = cache.store(contract, codec, encode.store)
        return cls(store, related, OutputResult(contract.output, name, contract.id, codec))

    def refuse_untrained(self, rows: int, split_by: str = "") -> None:
        """Raise ``InputError`` if a codebook is needed and cannot be learnt.

        Args:
            rows: rows of the first shard, which it would be learnt from.
            split_by: option that several processes share the work by; each would learn another codebook.
        """
        if self.store.codec_name != pq.NAME or self.store.shards:
            return
        if split_by:
            raise InputError(
                f"codec pq: with {split_by} each process would learn another codebook. Build a sample "
                f"of the texts under another name without {split_by} first, or take another codec"
            )
        pq.refuse_too_few(rows)


def register(cache: Cache, teacher: LazyTeacher) -> None:
    """List a teacher in the cache; last, so that a rejected build leaves no empty teacher."""
    for name, contract in teacher.contracts.items():
        cache.register_teacher(name, contract, origin_of(teacher.source))
        if teacher.source.server is not None:
            cache.remember_model(contract, teacher.source.spec)
        elif is_local(teacher.source):
            cache.remember_model(contract, str(teacher.source.folder.resolve()))


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
        raise InputError(f"codec {asked}: logits are stored as {' or '.join(FLOAT_CODECS)}")
    return None


@dataclass
class Encoded:
    """Counts of encoded texts: all, truncated ones, their tokens, and wall-clock seconds."""

    rows: int = 0
    truncated: int = 0
    tokens: int = 0
    seconds: float = 0.0


def encode_missing(
    texts: Texts,
    missing: Sequence[MissingRows],
    outputs: Sequence[BuildOutput],
    encoder: TextEncoder,
    shard_rows: int,
    done: Encoded,
    *,
    watch: bool = True,
    backwards: bool = False,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Encode the rows that any output lacks and store their vectors, a shard at a time in corpus order.

    Rows that another build has stored meanwhile are left out, whole shards at a time, if ``watch`` is given.

    Args:
        texts: the texts.
        missing: the rows that each output lacks.
        outputs: receive the vectors, each of a contract of ``encoder.teachers``.
        encoder: the teacher.
        shard_rows: rows per shard.
        done: counts what was encoded.
        watch: look for new shards before each shard; every one of them is read.
        backwards: begin with the last shard, because another build has begun with the first.
        progress: receives the phase ``encode``.

    Raises:
        NonFiniteVectorError: if a vector holds NaN or infinity; shards before it are stored.
        TeacherError: if the teacher cannot encode a text.
        StorageError: if a store cannot be written.
    """
    lacking = replace(missing[0], mask=np.logical_or.reduce([rows.mask for rows in missing]))
    progress.phase("encode", len(lacking))
    started, counts, before = time.perf_counter(), encoder.counts, replace(encoder.counts)
    shown = 0
    taken: deque[NDArray[np.int64]] = deque()

    def windows() -> Iterator[list[str]]:
        others = 0
        in_order = list(lacking.windows(shard_rows))
        for rows in reversed(in_order) if backwards else in_order:
            others += sum(output.store.open_new() for output in outputs) if watch else 0
            keys = lacking.keys(rows)
            if others and all((output.store.locate(keys) >= 0).all() for output in outputs):
                progress.advance(len(rows))
                continue
            taken.append(rows)
            yield texts.texts(rows)

    def report() -> None:
        nonlocal shown
        rate = (counts.tokens - before.tokens) / max(time.perf_counter() - started, 1e-9)
        progress.note(f"{rate:,.0f} tokens/s")
        progress.advance(counts.rows - before.rows - shown)
        shown = counts.rows - before.rows

    # Closed at once where storing fails: windows that are worked on ahead would keep the process from ending.
    with closing(encoder.encode_windows(windows(), report)) as results:
        for encoded in results:
            rows = taken.popleft()
            _refuse_non_finite(encoded, texts, rows)
            for output, lacked in zip(outputs, missing, strict=True):
                own = lacked.mask[rows]
                vectors = encoded.vectors[own, columns_of(encoder, output.store.contract)]
                seen = encoded.tokens[own], encoded.truncated[own]
                keys = lacked.keys(rows[own])
                output.store.put(VectorBatch(keys, np.ascontiguousarray(vectors), *seen, encoder.provenance))
                output.result.encoded += len(keys)
            done.rows += len(rows)
            done.truncated += int(encoded.truncated.sum())
            report()
    done.tokens += counts.tokens - before.tokens
    done.seconds += time.perf_counter() - started


def _refuse_non_finite(encoded: EncodedTexts, texts: Texts, rows: NDArray[np.int64]) -> None:
    bad = np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))
    if len(bad):
        row = rows[bad[:1]]
        raise NonFiniteVectorError(
            f"the teacher returned NaN or infinity for {texts.place(row[0])} "
            f"({texts.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; earlier shards are "
            "stored. Compute in float32, or remove the text"
        )


class _TextList:
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def place(self, row: int) -> str:
        return f"text {row} of {len(self._texts)}"

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._texts[row] for row in rows]


def encode_texts(
    cache: Cache, texts: Sequence[str], teacher: str | Path | TeacherOptions | Teacher | TextEncoder | None
) -> Vectors:
    """Return vectors of ``texts``, which join no corpus; see ``Cache.encode``."""
    if teacher is None or teacher in [one.name for one in cache.teachers()]:
        held = cache.teacher(None if teacher is None else str(teacher))
        remedy = "encode with that model under another name"
        source = cache.model_source(held)
        teacher = load_by_contract(source, held.contract, name=held.name, remedy=remedy, device="auto")
    options = EncodeOptions(backend="torch")  # a few texts do not pay for converting a model
    lazy = LazyTeacher(teacher, options, cache.derived_folder)
    ((name, contract),) = lazy.contracts.items()
    cache.refuse_other_contract(name, contract)
    output = BuildOutput.open(cache, name, contract, options)
    refuse_changed_server(output.store, cache.corpora, lazy.vectors)
    distinct = list(dict.fromkeys(texts))
    keys = key_array(distinct)
    missing = MissingRows(len(keys), len(keys), output.store.locate(keys) < 0, [keys])
    if len(missing):
        register(cache, lazy)
        encode_missing(_TextList(distinct), [missing], [output], lazy.encoder, options.shard_rows, Encoded())
        keep_canary(output.store, lazy)
        output.store.finish()
        lazy.note(cache.derived_folder)
    return cache.lookup(texts, contract.id)
