"""The deep check: encode a sample again with the live teacher, and compare with what is stored.

Two runs of one teacher over the same texts differ in the last bits, because texts are batched differently.
How much that is, is measured as well: the sample is encoded twice, in other batches, and the first result is
passed through the store's codec. A store that is as near to the teacher as the teacher is to itself is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.codecs.ranking import Ranking
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.texts import find_texts
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.live import Computing, compute_dtypes
from embedcache.noise import COMPUTE_COSINE
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import shard_places
from embedcache.sampling import KeySample
from embedcache.sizes import counted
from embedcache.store import Positions, ShardStore

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder

OK, LOOK, BAD = "ok", "look", "bad"
_VERDICTS = (OK, LOOK, BAD)

LEAST_SAMPLE = 12
"""Texts that have to be there for a comparison."""
# A measure may be so many times what the teacher's own noise makes of it, and so much beside: for vectors
# the rounding of float32, or what two runs in a coarser dtype differ by; for neighbours, that two of them
# which are as near as each other change places.
_TIMES_NOISE, _BESIDE, _NEIGHBOURS_BESIDE = 3.0, 1e-5, 0.02
# A teacher in another compute dtype stays within this; another teacher is far outside.
_TIMES_SAME, _SAME, _NEIGHBOURS_SAME = 10.0, 5e-3, 0.25
# Which shards of a bad sample are wrong: a row may be so many times as far from the teacher's as its codec
# and other batches make it, and so much beside, which another compute dtype does not reach.
_ROW_TIMES_NOISE, _ROW_BESIDE = 3.0, 0.1
_TOP_TEN = "top 10 lost"
_PARTS = 3


@dataclass(frozen=True)
class DeepLine:
    """One measure of how far stored vectors are from the teacher's.

    Attributes:
        measure: what is measured.
        stored: of the stored vectors against the live teacher's.
        noise: the same of the teacher against itself, through the store's codec.
        verdict: ``ok`` within the noise, ``look`` beyond it, ``bad`` where it is another teacher's vectors.
        meaning: what that says, and what to do.
    """

    measure: str
    stored: float
    noise: float
    verdict: str
    meaning: str


@dataclass(frozen=True)
class DeepCheck:
    """The deep check of one teacher.

    Attributes:
        teacher: its name.
        contract_id: its contract.
        sampled: texts encoded again.
        vectors: rows stored.
        compute_dtypes: what the stored vectors were computed in, the commonest first.
        compute_dtype: what the sample was computed in.
        lines: the measures.
        wrong_shards: names of the shards that rows of a bad sample are wrong in, sorted; none of a good one.
    """

    teacher: str
    contract_id: str
    sampled: int
    vectors: int
    compute_dtypes: tuple[str, ...]
    compute_dtype: str
    lines: tuple[DeepLine, ...]
    wrong_shards: tuple[str, ...]

    @property
    def worst(self) -> str:
        """The worst verdict."""
        return worst_line(self.lines).verdict

    def to_json(self) -> dict[str, object]:
        """Return the check as a JSON object."""
        return {**asdict(self), "worst": self.worst}


def check_deep(
    cache: str | Path,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    sample: int = 1000,
    seed: int = 0,
    computing: Computing | None = None,
    progress: Progress = NO_PROGRESS,
) -> list[DeepCheck]:
    """Encode a sample of texts again and compare with the stored vectors, teacher by teacher.

    Args:
        cache: the cache's folder.
        corpus: take the texts from this corpus and its views; default: from all.
        teacher: check this teacher; default: all that have vectors.
        sample: how many texts; all, where there are fewer.
        seed: of the sample.
        computing: how to run the teacher; default: as when the vectors were made.
        progress: receives phases and rows.

    Raises:
        InputError: if there is nothing to compare.
        TeacherError: if the teacher cannot be found or loaded.
        ContractMismatchError: if the model found is another one; it names the fields that differ.
        CorruptCacheError: if the cache is damaged: repair it first.
    """
    if sample < LEAST_SAMPLE:
        raise InputError(f"--sample {sample}: expected at least {LEAST_SAMPLE}, or nothing can be compared")
    opened = Cache(cache)
    chosen = opened.corpora() if corpus is None else [opened.corpus(corpus)]
    corpora = [texts for one in chosen for texts in (one, *one.views())]
    known = opened.teachers() if teacher is None else [opened.teacher(teacher)]
    checks = []
    for one in {each.contract: each for each in known}.values():
        store = opened.store(one.contract)
        if teacher is not None or store.shards:
            texts = _sampled_texts(store, corpora, one.name, sample, seed, progress)
            progress.phase(f"load teacher {one.name}")
            encoder = (computing or Computing()).encoder(
                one.contract, spec=opened.model_source(one), name=one.name, shards=store.shards
            )
            checks.append(_compare(one, store, encoder, texts, seed, progress))
    if not checks:
        raise InputError(f"the cache {opened.folder} holds no vectors: there is nothing to compare")
    return checks


def _sampled_texts(
    store: ShardStore, corpora: Sequence[Corpus], teacher: str, sample: int, seed: int, progress: Progress
) -> list[str]:
    """Return a sample of the distinct texts that have a vector."""
    drawn = KeySample(sample, seed)
    progress.phase("sample texts", sum(map(len, corpora)))
    for corpus in corpora:
        for keys in corpus.iter_keys():
            drawn.add(keys[store.locate(keys) >= 0])
            progress.advance(len(keys))
    texts = [text for text in find_texts(drawn.keys(), corpora) if text is not None]
    if len(texts) < LEAST_SAMPLE:
        raise InputError(
            f"{counted(len(texts), 'text')} of the corpora have a vector of {teacher!r}, expected at least "
            f"{LEAST_SAMPLE}: build a corpus with it first"
        )
    return texts


def _compare(
    teacher: CachedTeacher,
    store: ShardStore,
    encoder: Encoder,
    texts: list[str],
    seed: int,
    progress: Progress,
) -> DeepCheck:
    positions = store.locate(key_array(texts))
    progress.phase("encode", 2 * len(texts))
    live = encoder.encode(texts).vectors
    progress.advance(len(texts))
    again = in_other_batches(lambda some: encoder.encode(some).vectors, texts, seed)
    progress.advance(len(texts))
    compute_dtype = str(encoder.provenance["compute_dtype"])
    lines = compare_vectors(store, positions, live, again, compute_dtype, seed)
    is_bad = worst_line(lines).verdict == BAD
    wrong = wrong_shards(store, positions, live, again) if is_bad else frozenset()
    return DeepCheck(
        teacher=teacher.name,
        contract_id=teacher.contract.id,
        sampled=len(texts),
        vectors=len(store),
        compute_dtypes=tuple(compute_dtypes(store.shards)),
        compute_dtype=compute_dtype,
        lines=lines,
        wrong_shards=tuple(sorted(wrong)),
    )


def compare_vectors(
    store: ShardStore,
    positions: Positions,
    live: Vectors,
    again: Vectors,
    compute_dtype: str,
    seed: int = 0,
) -> tuple[DeepLine, ...]:
    """Return the measures of how far stored vectors are from the live teacher's.

    Args:
        store: where they are stored.
        positions: which of them, shape (n,).
        live: what the teacher returns for their texts, float32, shape (n, d).
        again: the same, computed in other batches.
        compute_dtype: what the live teacher computed in. Vectors that were computed in the same may be as
            far from its as ``diff`` and ``merge`` expect of two runs in it.
        seed: of the probes that ranks are taken with.
    """
    stored = _gaps(store.vectors(positions), live, seed)
    noisy = _gaps(_as_stored(store, positions, live), again, seed)
    beside = max(_BESIDE, _between_runs(store, positions, compute_dtype))
    return tuple(_line(measure, stored[measure], noisy[measure], beside) for measure in stored)


def _between_runs(store: ShardStore, positions: Positions, compute_dtype: str) -> float:
    """Return 1 - the least cosine of two runs in one compute dtype; 0 where rows are of another dtype."""
    numbers, _ = shard_places(store, positions)
    computed = {store.shards[number].header.provenance.get("compute_dtype") for number in np.unique(numbers)}
    if computed != {compute_dtype} or compute_dtype not in COMPUTE_COSINE:
        return 0.0
    return 1 - math.cos(2 * math.acos(COMPUTE_COSINE[compute_dtype]))


def wrong_shards(shards: ShardStore, positions: Positions, live: Vectors, again: Vectors) -> frozenset[str]:
    """Return the shards that rows of a bad sample are wrong in; all of its, where none is by itself.

    Args:
        shards: the shards that the sample is of.
        positions: the rows of the sample.
        live: what the teacher returns for their texts.
        again: the same, computed in other batches.
    """
    stored = shards.vectors(positions)
    numbers, _ = shard_places(shards, positions)
    bad = set()
    for number in np.unique(numbers).tolist():
        mine, shard = numbers == number, shards.shards[number]
        noise = _largest_error(shard.codec.decode(shard.codec.encode(live[mine])), again[mine])
        if _largest_error(stored[mine], live[mine]) > _ROW_TIMES_NOISE * noise + _ROW_BESIDE:
            bad.add(shard.name)
    return frozenset(bad or (shards.shards[number].name for number in np.unique(numbers).tolist()))


def _largest_error(found: Vectors, expected: Vectors) -> float:
    """Return how far a row is at most from the one expected, relative to the length of that."""
    lengths = np.maximum(np.linalg.norm(expected, axis=1), np.finfo(np.float32).tiny)
    return float((np.linalg.norm(found - expected, axis=1) / lengths).max())


def worst_line(lines: Sequence[DeepLine]) -> DeepLine:
    """Return the first line with the worst verdict."""
    return max(lines, key=lambda line: _VERDICTS.index(line.verdict))


def in_other_batches(
    encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str], seed: int = 0
) -> Vectors:
    """Return what ``encode`` gives for ``texts`` where others stand beside each of them than at once.

    Args:
        encode: returns the teacher's vectors of texts.
        texts: the texts.
        seed: of the order they are encoded in.
    """
    order = np.random.default_rng(seed).permutation(len(texts))
    parts = np.array_split(order, min(_PARTS, len(texts)))
    shuffled = np.concatenate([encode([texts[i] for i in part]) for part in parts])
    vectors = np.empty_like(shuffled)
    vectors[order] = shuffled
    return vectors


def _as_stored(store: ShardStore, positions: Positions, vectors: Vectors) -> Vectors:
    """Return ``vectors`` as they would come back out of the shards that hold the rows at ``positions``."""
    out = np.empty_like(vectors)
    numbers, _ = shard_places(store, positions)
    for number in np.unique(numbers).tolist():
        rows, codec = numbers == number, store.shards[number].codec
        out[rows] = codec.decode(codec.encode(vectors[rows]))
    return out


def _gaps(found: Vectors, expected: Vectors, seed: int) -> dict[str, float]:
    """Return how far vectors are from those expected; each measure is 0 where they are the same."""
    wide, right = found.astype(np.float64), expected.astype(np.float64)
    norms, right_norms = np.linalg.norm(wide, axis=1), np.linalg.norm(right, axis=1)
    safe = np.maximum(norms * right_norms, np.finfo(np.float64).tiny)
    turned = np.maximum(1 - np.einsum("nd,nd->n", wide, right) / safe, 0)
    stretched = np.abs(norms - right_norms) / np.maximum(right_norms, np.finfo(np.float64).tiny)
    ranking = Ranking(expected, seed)
    agreement, kept = ranking.agreement(found), ranking.kept(found)
    return {
        "1 - mean cosine": float(turned.mean()),
        "1 - worst cosine": float(turned.max()),
        "mean error of the norm": float(stretched.mean()),
        "1 - rank agreement": 0.0 if agreement is None else 1 - agreement,
        _TOP_TEN: 0.0 if kept is None else 1 - kept,
    }


def _line(measure: str, stored: float, noise: float, beside: float) -> DeepLine:
    beside, same = (_NEIGHBOURS_BESIDE, _NEIGHBOURS_SAME) if measure == _TOP_TEN else (beside, _SAME)
    if stored <= _TIMES_NOISE * noise + beside:
        return DeepLine(measure, stored, noise, OK, "the stored vectors are the teacher's")
    if stored <= _TIMES_SAME * noise + same:
        return DeepLine(
            measure,
            stored,
            noise,
            LOOK,
            "more than batching explains: another compute dtype, device or library version made them",
        )
    return DeepLine(
        measure,
        stored,
        noise,
        BAD,
        "these are not this teacher's vectors, at least in the shards that are named",
    )
