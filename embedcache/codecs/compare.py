"""Codecs side by side on the same vectors: what each costs, and what it does to similarities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedcache.codecs import pq
from embedcache.codecs.base import Codec, Stored, Vectors
from embedcache.codecs.quality import measure
from embedcache.codecs.ranking import Ranking
from embedcache.codecs.registry import CODEC_NAMES, check_codec_name, get_codec
from embedcache.errors import InputError

if TYPE_CHECKING:
    from embedcache.store.store import ShardStore

_TIMED_ROWS = 16384
_TIMED_RUNS = 3

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done and how many there are."""


@dataclass(frozen=True)
class CodecReport:
    """One codec on a sample; every figure but the size is None where it could not be had.

    Attributes:
        codec: the codec's name.
        bytes_per_vector: what a vector takes in a shard, its scale included, its key not.
        times_smaller: than float32.
        mean_cosine, worst_cosine: between a vector and what comes back of it.
        rank_agreement: Spearman's correlation of the similarities of pairs, before and after.
        neighbours_kept: share of the ten nearest neighbours that still are.
        decode_rows_per_second: vectors read as float32, from memory, on this machine.
        scored: rows the figures are of.
        why_not: why there are no figures; else None.
    """

    codec: str
    bytes_per_vector: int
    times_smaller: float
    mean_cosine: float | None = None
    worst_cosine: float | None = None
    rank_agreement: float | None = None
    neighbours_kept: float | None = None
    decode_rows_per_second: float | None = None
    scored: int = 0
    why_not: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class StoreComparison:
    """Every codec on a sample of what a store holds.

    Attributes:
        used: codecs of the store's own shards.
        rows: rows of the store, a key in two shards counted twice.
        sampled: how many of them were drawn.
        reports: one for each codec.
    """

    used: tuple[str, ...]
    rows: int
    sampled: int
    reports: tuple[CodecReport, ...]

    @property
    def lossy(self) -> tuple[str, ...]:
        """The codecs in use that had changed the vectors before they were compared."""
        return tuple(name for name in self.used if name != "float32")

    def to_json(self) -> dict[str, object]:
        """Return the comparison as a JSON object."""
        return {
            "used": list(self.used),
            "lossy": list(self.lossy),
            "rows": self.rows,
            "sampled": self.sampled,
            "codecs": [report.to_json() for report in self.reports],
        }


def compare_stored(
    store: ShardStore, *, sample: int = 10_000, seed: int = 0, on_step: OnStep | None = None
) -> StoreComparison:
    """Compare every codec on vectors drawn from a store; its own vectors are what is compared with.

    Args:
        store: where the vectors come from.
        sample: how many to draw; all, where there are fewer.
        seed: of the draw and of everything drawn later.
        on_step: called as the work goes on.

    Raises:
        InputError: if the store is empty, or ``sample`` below 2.
    """
    if sample < 2:
        raise InputError(f"--sample {sample}: expected at least 2, or there is nothing to compare")
    rows = sum(map(len, store.shards))
    if not rows:
        raise InputError("the cache holds no vectors of this teacher: run 'embedcache build' first")
    sampled = min(sample, rows)
    positions = np.random.default_rng(seed).choice(rows, sampled, replace=False)
    used = {shard.header.codec for shard in store.shards}
    return StoreComparison(
        used=tuple(name for name in CODEC_NAMES if name in used),
        rows=rows,
        sampled=sampled,
        reports=tuple(
            compare_codecs(store.vectors(np.sort(positions)), CODEC_NAMES, seed=seed, on_step=on_step)
        ),
    )


def compare_codecs(
    vectors: Vectors, names: Sequence[str], *, seed: int = 0, on_step: OnStep | None = None
) -> list[CodecReport]:
    """Encode and decode the same vectors with several codecs.

    ``pq`` learns its codebook from one half of the rows, and all codecs are scored on the other half: on the
    rows it has learnt from, its figures would flatter it. Without ``pq``, or with too few rows for it, all
    rows are scored.

    Args:
        vectors: float32, shape (n, d).
        names: codecs to compare.
        seed: of the codebook, of the halves and of the pairs and neighbours looked at.
        on_step: called as the work goes on.

    Raises:
        InputError: for an unknown codec, or where there are no vectors.
    """
    if not len(vectors):
        raise InputError("no vectors to compare codecs on")
    for name in names:
        check_codec_name(name)
    order = np.random.default_rng(seed).permutation(len(vectors))
    half = len(order) // 2
    trains = pq.NAME in names and half >= pq.LEAST_TRAINING_ROWS
    training, scored = (vectors[order[:half]], vectors[order[half:]]) if trains else (None, vectors[order])
    ranking = Ranking(scored, seed)
    reports = []
    for done, name in enumerate(names):
        if on_step is not None:
            on_step("score", done, len(names))
        try:
            codec = _codec(name, training, len(vectors), seed, on_step)
            reports.append(_report(codec, scored, ranking))
        except InputError as error:
            reports.append(_sized(name, vectors.shape[1], why_not=str(error)))
    return reports


def _codec(name: str, training: Vectors | None, given: int, seed: int, on_step: OnStep | None) -> Codec:
    if name != pq.NAME:
        return get_codec(name)
    if training is None:
        raise InputError(
            f"needs {2 * pq.LEAST_TRAINING_ROWS} rows, {pq.LEAST_TRAINING_ROWS} to learn from and as many "
            f"others to be scored on, found {given}"
        )

    def on_pass(done: int, passes: int) -> None:
        if on_step is not None:
            on_step("train pq", done, passes)

    return pq.train(training, seed=seed, on_pass=on_pass)


def _sized(name: str, dimension: int, *, why_not: str | None = None) -> CodecReport:
    size = pq.stored_width(dimension) if name == pq.NAME else get_codec(name).bytes_per_row(dimension)
    return CodecReport(name, size, 4 * dimension / size, why_not=why_not)


def _report(codec: Codec, vectors: Vectors, ranking: Ranking) -> CodecReport:
    stored = codec.encode(vectors)
    error = measure(codec, vectors, stored)
    decoded = codec.decode(stored).astype(np.float32, copy=False)
    size = _sized(codec.name, vectors.shape[1])
    return CodecReport(
        codec=size.codec,
        bytes_per_vector=size.bytes_per_vector,
        times_smaller=size.times_smaller,
        mean_cosine=error.mean_cosine,
        worst_cosine=error.worst_cosine,
        rank_agreement=ranking.agreement(decoded),
        neighbours_kept=ranking.kept(decoded),
        decode_rows_per_second=_decode_rate(codec, stored),
        scored=len(vectors),
    )


def _decode_rate(codec: Codec, stored: Stored) -> float:
    """Return rows a second, of as many rows as a shard has."""
    shard = stored.take(np.resize(np.arange(len(stored)), _TIMED_ROWS))
    seconds = []
    for _ in range(_TIMED_RUNS):
        started = time.perf_counter()
        # Copied, or float32 would seem to be read in no time: decoding gives what is stored.
        codec.decode(shard).astype(np.float32)
        seconds.append(time.perf_counter() - started)
    return _TIMED_ROWS / min(seconds)
