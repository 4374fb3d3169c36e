"""Deep check: stored vectors compared with what the live teacher computes for the same texts.

A vector is wrong if it is farther from the live one than its codec loses, two runs differ
(:mod:`embedcache.noise`) and another device or library version explains.
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
from embedcache.doctor.sampling import sample_keys
from embedcache.errors import InputError
from embedcache.keys import KEY_DTYPE, key_array
from embedcache.live import Computing, compute_dtypes
from embedcache.noise import COMPUTE_COSINE
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import shard_places
from embedcache.store import Positions, ShardStore

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
    store: ShardStore, positions: Positions, live: Vectors, compute_dtype: str
) -> LiveComparison:
    """Compare stored vectors with the live teacher's.

    Args:
        store: the stored vectors.
        positions: positions of the rows to compare, shape (n,).
        live: the teacher's vectors of their texts, float32, shape (n, d).
        compute_dtype: dtype that the live teacher computed in.
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
    return LiveComparison(~(distances <= noise), ~(distances <= noise + MARGIN), noise, shards)


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
    *,
    computing: Computing | None = None,
    progress: Progress = NO_PROGRESS,
) -> Finding:
    """Encode texts again and compare the stored vectors.

    Args:
        cache: the cache.
        teacher: the teacher whose vectors are checked.
        texts: texts that have a vector; see :func:`sample_texts`.
        computing: how to run the teacher; by default as when the vectors were computed.
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
    encoder = (computing or Computing()).encoder(
        teacher.contract, spec=cache.model_source(teacher), name=teacher.name, shards=store.shards
    )
    progress.phase("encode", len(texts))
    live = encoder.encode(texts).vectors
    compute_dtype = str(encoder.provenance["compute_dtype"])
    found = compare_with_live(store, store.locate(key_array(texts)), live, compute_dtype)
    wrong = int(np.count_nonzero(found.wrong))
    stored_in = ", ".join(compute_dtypes(store.shards))
    figure = (
        f"{len(texts):,} of {len(store):,} vectors, computed in {stored_in or 'an unknown dtype'} and now in "
        f"{compute_dtype}: {np.count_nonzero(found.differs):,} beyond the noise of {found.noise.max():.2g}, "
        f"{wrong:,} wrong"
    )
    advice = "" if found.level == "ok" else f"{MESSAGES[found.level].capitalize()}."
    if wrong:
        names = sorted({store.shards[number].name[:12] for number in found.shards[found.wrong].tolist()})
        more = f" and {len(names) - EXAMPLES:,} more" if len(names) > EXAMPLES else ""
        folder = cache.teacher_folder(teacher.contract)
        advice += f" Delete shards {', '.join(names[:EXAMPLES])}{more} from {folder}, and build again."
    examples = tuple((texts[row],) for row in np.flatnonzero(found.wrong)[:EXAMPLES].tolist())
    return Finding(LIVE, figure, wrong / len(texts), found.level, advice, examples)


def sample_texts(store: ShardStore, corpora: Sequence[Corpus], sample: int, seed: int) -> list[str]:
    """Return a random sample of the distinct texts of corpora and views that have a vector."""
    drawn = np.empty(0, KEY_DTYPE)
    for corpus in corpora:
        for keys in corpus.iter_keys():
            drawn = sample_keys(np.concatenate([drawn, keys[store.locate(keys) >= 0]]), sample, seed)
    return [text for text in find_texts(drawn, corpora) if text is not None]
