"""Short measurements: how fast a teacher encodes, a training loop would run it, and a cache reads.

Rates are tokens a second where the teacher's tokenizer can be asked, else rows a second; :attr:`Speed.unit`
says which.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from embedcache.keys import key_array
from embedcache.store import MemoryShards, ShardStore
from embedcache.store.base import VectorBatch

if TYPE_CHECKING:
    from embedcache.contract import Contract
    from embedcache.teacher.encode import Encoder

LIVE_BATCH_ROWS = 128
"""Rows of a training step that runs the teacher itself."""

_SLICES = 5
_WARM_UP_ROWS = 32
_LEAST_SLICE_ROWS = 32
_MOST_SLICE_ROWS = 16384
_UNLIMITED_TOKENS = 1 << 40
_READ_ROWS = 4096
_READ_BATCH_ROWS = 512
_READ_SECONDS = 0.2


@dataclass(frozen=True)
class Speed:
    """A rate with its spread.

    Attributes:
        low: the slowest slice.
        mean: over all slices.
        high: the fastest slice.
        unit: ``tokens/s`` or ``rows/s``.
        seconds: how long was measured.
    """

    low: float
    mean: float
    high: float
    unit: str
    seconds: float


def encoding_speed(encoder: Encoder, texts: Sequence[str], seconds: float) -> Speed:
    """Measure how fast ``encoder`` works as a build drives it.

    Args:
        encoder: the teacher, ready to encode.
        texts: a random sample of what is to be encoded, at least one.
        seconds: about how long to measure, after warming up.
    """

    def run(chunk: Sequence[str]) -> int:
        return int(encoder.encode(chunk).tokens.sum())

    return _measured(run, texts, seconds, _LEAST_SLICE_ROWS)


def live_speed(encoder: Encoder, texts: Sequence[str], seconds: float) -> Speed:
    """Measure how fast ``encoder`` works in random batches of 128 texts, as a training loop needs them.

    Layers and precision are those of a build; what is missing is the sorting by length, which a loop that
    takes its batches at random cannot do.
    """
    # A shallow copy: the model is shared, the limits of a batch are not.
    live = copy.copy(encoder)
    live.batch_tokens = _UNLIMITED_TOKENS

    def run(chunk: Sequence[str]) -> int:
        batches = [chunk[i : i + LIVE_BATCH_ROWS] for i in range(0, len(chunk), LIVE_BATCH_ROWS)]
        return sum(int(part.tokens.sum()) for part in live.encode_windows(batches))

    return _measured(run, texts, seconds, LIVE_BATCH_ROWS)


def _measured(
    run: Callable[[Sequence[str]], int], texts: Sequence[str], seconds: float, least_rows: int
) -> Speed:
    source = cycle(texts)
    _, took = _timed(run, source, _WARM_UP_ROWS)
    all_tokens, all_rows, spent = 0, 0, 0.0
    rates: list[tuple[float, float]] = []
    size = _WARM_UP_ROWS
    while len(rates) < 2 or spent < seconds:
        # As many rows as should take a share of the time, by the slice before.
        size = min(max(int(size / took * seconds / _SLICES), least_rows), _MOST_SLICE_ROWS)
        tokens, took = _timed(run, source, size)
        all_tokens, all_rows, spent = all_tokens + tokens, all_rows + size, spent + took
        rates.append((tokens / took, size / took))
    by_tokens = all_tokens > 0
    chosen = [tokens if by_tokens else rows for tokens, rows in rates]
    mean = (all_tokens if by_tokens else all_rows) / spent
    return Speed(min(chosen), mean, max(chosen), "tokens/s" if by_tokens else "rows/s", spent)


def _timed(run: Callable[[Sequence[str]], int], source: Iterator[str], size: int) -> tuple[int, float]:
    chunk = list(islice(source, size))
    started = time.perf_counter()
    tokens = run(chunk)
    return tokens, max(time.perf_counter() - started, 1e-9)


def reading_speed(contract: Contract, codec: str) -> float:
    """Return how many vectors a second a store hands out in random batches, from memory.

    ``pq`` is measured as int8, which decodes about as fast, because codebooks do not exist before a build.
    """
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(_READ_ROWS, contract.dimension)).astype(np.float32)
    keys = key_array(str(number) for number in range(_READ_ROWS))
    tokens, truncated = np.ones(_READ_ROWS, np.int32), np.zeros(_READ_ROWS, np.bool_)
    store = ShardStore(MemoryShards(), contract, "int8" if codec == "pq" else codec)
    store.put(VectorBatch(keys, vectors, tokens, truncated))
    rows, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < _READ_SECONDS:
        store.vectors(generator.integers(_READ_ROWS, size=_READ_BATCH_ROWS))
        rows += _READ_BATCH_ROWS
    return rows / spent


def shard_overhead(contract: Contract) -> int:
    """Return how many bytes a shard takes beside its rows."""
    container = MemoryShards()
    vectors = np.ones((1, contract.dimension), np.float32)
    store = ShardStore(container, contract, "float32")
    store.put(VectorBatch(key_array([""]), vectors, np.ones(1, np.int32), np.zeros(1, np.bool_)))
    return store.bytes_on_disk - vectors.nbytes
