"""Deep check: stored vectors compared with what the live teacher computes for the same texts.

A vector is wrong if it is farther from the live one than its codec loses, two runs differ
(:mod:`embedcache.store.noise`) and another device or library version explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus, find_texts
from embedcache.doctor.findings import EXAMPLES, Finding, Level
from embedcache.errors import InputError
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, key_array
from embedcache.live import Computing, compute_dtypes
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import shard_places
from embedcache.store import Positions, ShardStore
from embedcache.store.noise import COMPUTE_COSINE

LIVE = "live teacher"
"""Name of the finding."""
MARGIN = 0.1
"""Relative distance beyond the noise that another device or library version may cause."""
MESSAGES: dict[Level, str] = {
    "ok": "the stored vectors are the teacher's",
    "look": "beyond the noise: another device or library version computed these vectors",
    "bad": "these are not this teacher's vectors",
}
# A codec that loses more is no codec: pq may come with the codebook of a stranger.
_MOST_LOST = 0.7


@dataclass(frozen=True)
class LiveComparison:
    """Stored vectors beside the live teacher's; arrays of shape (n,).

    Attributes:
        differs: rows beyond the noise.
        wrong: rows beyond noise and margin: vectors of another text or teacher.
        noise: relative distance that two runs of the teacher explain.
        shards: number of each row's shard.
    """

    differs: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    noise: NDArray[np.float64]
    shards: NDArray[np.int64]

    @property
    def level(self) -> Level:
        """``ok`` within the noise, ``look`` within the margin, else ``bad``."""
        return "bad" if self.wrong.any() else "look" if self.differs.any() else "ok"


def compare_with_live(
    store: ShardStore, positions: Positions, live: Vectors, compute_dtype: str, *, margin: float = MARGIN
) -> LiveComparison:
    """Compare stored vectors with the live teacher's.

    Args:
        store: the stored vectors.
        positions: positions of the rows to compare, shape (n,).
        live: the teacher's vectors of their texts, float32, shape (n, d).
        compute_dtype: dtype that the live teacher computed in.
        margin: relative distance beyond the noise from which a vector is wrong.
    """
    stored = store.vectors(positions)
    shards, _ = shard_places(store, positions)
    lost, noise = np.empty(len(live)), np.empty(len(live))
    for number in np.unique(shards).tolist():
        rows, shard = shards == number, store.shards[number]
        # A codec rounds to the nearest value: a vector moved by e comes back at most 2 e farther away.
        lost[rows] = _distances(shard.codec.decode(shard.codec.encode(live[rows])), live[rows])
        noise[rows] = _run_noise(shard.header.provenance.get("compute_dtype")) + _run_noise(compute_dtype)
    distances = _distances(stored, live) - np.minimum(lost, _MOST_LOST)
    # Not a number is no distance within the noise.
    return LiveComparison(~(distances <= noise), ~(distances <= noise + margin), noise, shards)


def _distances(found: NDArray[np.floating], expected: Vectors) -> NDArray[np.float64]:
    wide = expected.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=1), np.finfo(np.float32).tiny)
    distances: NDArray[np.float64] = np.linalg.norm(found - wide, axis=1) / lengths
    return distances


def _run_noise(compute_dtype: object) -> float:
    return math.acos(COMPUTE_COSINE.get(str(compute_dtype), COMPUTE_COSINE["float32"]))


def check_deep(
    cache: Cache,
    teacher: CachedTeacher,
    texts: Sequence[str],
    computing: Computing,
    progress: Progress = NO_PROGRESS,
) -> Finding:
    """Encode texts again and compare the stored vectors.

    Args:
        cache: the cache.
        teacher: the teacher whose vectors are checked.
        texts: texts that have a vector; see :func:`sample_texts`.
        computing: how to run the teacher.
        progress: receives phases and rows.

    Raises:
        InputError: if there are no texts.
        TeacherError: if the teacher cannot be loaded.
        ContractMismatchError: if the model is another one; it names the fields that differ.
        CorruptCacheError: if the cache is damaged.
    """
    store = cache.store(teacher.contract)
    if not texts:
        raise InputError(f"no text of the corpora has a vector of {teacher.name!r}. Build a corpus first.")
    progress.phase(f"load teacher {teacher.name}")
    encoder = computing.encoder(
        teacher.contract, spec=cache.model_source(teacher), name=teacher.name, shards=store.shards
    )
    progress.phase("encode", len(texts))
    live = encoder.encode(texts).vectors
    compute_dtype = str(encoder.provenance["compute_dtype"])
    found = compare_with_live(store, store.locate(key_array(texts)), live, compute_dtype)
    wrong = np.flatnonzero(found.wrong)
    stored_in = ", ".join(compute_dtypes(store.shards)) or "an unknown dtype"
    differ = np.count_nonzero(found.differs)
    figure = (
        f"{len(texts):,} of {len(store):,} vectors, computed in {stored_in} and now in {compute_dtype}: "
        f"{differ:,} beyond the noise of {found.noise.max():.2g}, {len(wrong):,} wrong"
    )
    advice = "" if found.level == "ok" else f"{MESSAGES[found.level].capitalize()}."
    if len(wrong):
        names = sorted({store.shards[number].name for number in found.shards[wrong].tolist()})
        folder = cache.teacher_folder(teacher.contract)
        advice += f" Delete these shards from {folder}, and build again: {', '.join(names)}"
    examples = tuple((texts[row],) for row in wrong[:EXAMPLES].tolist())
    return Finding(LIVE, figure, len(wrong) / len(texts), found.level, advice, examples)


def sample_texts(store: ShardStore, corpora: Sequence[Corpus], sample: int, seed: int) -> list[str]:
    """Return a random sample of the distinct texts of corpora and views that have a vector.

    Keys are digests, so the texts whose keys rank lowest are a uniform sample; order and repeats do not
    matter.
    """
    drawn = np.empty(0, KEY_DTYPE)
    for corpus in corpora:
        for keys in corpus.iter_keys():
            keys = np.concatenate([drawn, keys[store.locate(keys) >= 0]])
            drawn = keys[np.unique(_ranks(keys, seed), return_index=True)[1][:sample]]
    return [text for text in find_texts(drawn, corpora) if text is not None]


def _ranks(keys: KeyArray, seed: int) -> NDArray[np.uint64]:
    """Return a number for each key, in an order that is random and depends on ``seed``; shape (n,)."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)[:, 0]
    factor = np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    # Odd, so that no two words get the same number.
    return words * factor
