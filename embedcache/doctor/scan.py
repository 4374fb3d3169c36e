"""Scan: one pass over the rows of corpora and one over the vectors of a store.

Memory is one byte a row, and eight bytes a vector to find equal ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.doctor.findings import EXAMPLES, Finding, judge
from embedcache.keys import KEY_DTYPE, KeyArray, first_occurrences
from embedcache.progress import Progress
from embedcache.sampling import KeySample
from embedcache.store import Positions, ShardStore

SECTION = "scan"
BLOCK_ROWS = 8192
"""Rows read at once: vectors of 4096 float32 take 128 MiB."""

TextsOf = Callable[[KeyArray], list[str]]
"""Texts of keys, for examples."""

_MOST_TOKENS = 1 << 16
_MOST_LABELS = 1000
# Rounding of vectors of length one. A pq code is a mean of its neighbours, hence shorter than they are.
_CODEC_ROUNDING = {"float32": 1e-3, "float16": 2e-3, "int8": 1e-2, "pq": 0.35}
_COMPUTE_ROUNDING = {"bfloat16": 1e-2, "float16": 2e-3}


class DistinctRows:
    """First row of each distinct text of a corpus: the rows that are trained on."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._is_first = first_occurrences(list(corpus.iter_keys()))

    def __len__(self) -> int:
        return int(np.count_nonzero(self._is_first))

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], KeyArray]]:
        """Yield (row numbers int64, keys), each of shape (n,), in order."""
        start = 0
        for part in self.corpus.iter_keys():
            for offset in range(0, len(part), BLOCK_ROWS):
                keys, begin = part[offset : offset + BLOCK_ROWS], start + offset
                first = np.flatnonzero(self._is_first[begin : begin + len(keys)])
                yield begin + first, keys[first]
            start += len(part)


def scan_corpus(
    rows: DistinctRows, store: ShardStore, *, may_be_foreign: bool, progress: Progress
) -> Iterator[Finding]:
    """Yield missing vectors, repeated texts and the balance of labels of a corpus.

    Args:
        rows: the corpus.
        store: the vectors.
        may_be_foreign: True if the corpus may belong to another teacher, and is passed over then.
        progress: receives phases and rows.
    """
    name, distinct = rows.corpus.name, len(rows)
    progress.phase(f"look up {name}", distinct)
    missing, examples = 0, np.empty(0, np.int64)
    for numbers, keys in rows.blocks():
        lost = numbers[store.locate(keys) < 0]
        missing += len(lost)
        examples = np.concatenate([examples, lost])[:EXAMPLES]
        progress.advance(len(keys))
    if may_be_foreign and missing == distinct:
        advice = "Not built with this teacher. Choose other corpora with --corpus."
        yield Finding(SECTION, f"missing vectors: {name}", "all", 1.0, "look", advice)
        return
    texts = [[text] for text in rows.corpus.texts(examples)]
    figure = f"{missing:,} of {distinct:,} texts"
    yield judge(SECTION, "missing vectors", missing / max(distinct, 1), figure, of=name, examples=texts)
    total = len(rows.corpus)
    share = (total - distinct) / max(total, 1)
    yield judge(SECTION, "repeated texts", share, f"{total - distinct:,} of {total:,} rows", of=name)
    yield from _labels(rows.corpus)


def _labels(corpus: Corpus) -> Iterator[Finding]:
    if not corpus.info.has_labels:
        return
    counts: Counter[object] = Counter()
    for number in range(len(corpus.parts)):
        for label in corpus.column(number, "label").value_counts().to_pylist():
            counts[label["values"]] += label["counts"]
    # Floats are scores, and so many labels are no classes.
    if len(counts) > _MOST_LABELS or any(isinstance(label, float) for label in counts):
        return
    (label, most), total = counts.most_common(1)[0], counts.total()
    figure = f"{label} on {most / total:.1%} of {total:,} rows, {len(counts):,} labels"
    yield judge(SECTION, "largest label", most / total, figure, of=corpus.name)


class JudgedVectors:
    """Vectors of a store, or those of one corpus; each distinct key once, always in the same order.

    Args:
        store: the vectors.
        rows: the corpus; None for all vectors.
    """

    def __init__(self, store: ShardStore, rows: DistinctRows | None = None) -> None:
        self.store, self._rows = store, rows

    def blocks(self) -> Iterator[tuple[KeyArray, Positions]]:
        """Yield (keys, positions), each of shape (n,)."""
        if self._rows is None:
            for shard, own in self.store.own_rows():
                keys = shard.keys[own]
                for start in range(0, len(keys), BLOCK_ROWS):
                    block = keys[start : start + BLOCK_ROWS]
                    yield block, self.store.locate(block)
            return
        for _, keys in self._rows.blocks():
            positions = self.store.locate(keys)
            yield keys[positions >= 0], positions[positions >= 0]

    def keys_at(self, numbers: NDArray[np.int64]) -> KeyArray:
        """Return the keys of the ``numbers``-th vectors."""
        found, start = [], 0
        for keys, _ in self.blocks():
            inside = numbers[(numbers >= start) & (numbers < start + len(keys))]
            found.append(keys[inside - start])
            start += len(keys)
        return np.concatenate(found)


def scan_vectors(
    judged: JudgedVectors, texts_of: TextsOf, drawn: KeySample, progress: Progress
) -> tuple[list[Finding], KeyArray]:
    """Look at every vector once.

    Args:
        judged: the vectors.
        texts_of: texts of keys, for examples.
        drawn: sample to draw.
        progress: receives phases and rows.

    Returns:
        The findings, and the keys of the sample: finite vectors that are not zero.
    """
    store = judged.store
    progress.phase("scan vectors", len(store))
    broken: dict[str, list[KeyArray]] = {"NaN or infinite": [], "zero vectors": []}
    digests, usable = [np.empty(0, np.int64)], 0
    least, most, length = np.inf, 0.0, 0.0
    tokens, truncated = np.zeros(_MOST_TOKENS, np.int64), 0
    for keys, positions in judged.blocks():
        vectors = store.vectors(positions)
        finite, nonzero = np.isfinite(vectors).all(axis=1), vectors.any(axis=1)
        broken["NaN or infinite"].append(keys[~finite])
        broken["zero vectors"].append(keys[~nonzero])
        good: NDArray[np.bool_] = np.logical_and(finite, nonzero)
        norms = np.linalg.norm(vectors[good].astype(np.float64), axis=1)
        least, most = min([least, *norms.tolist()]), max([most, *norms.tolist()])
        length, usable = length + float(norms.sum()), usable + len(norms)
        drawn.add(keys[good])
        # The key stands in for a broken vector, which is equal to no other.
        seen = (row if is_good else key for row, key, is_good in zip(vectors, keys, good, strict=True))
        digests.append(np.fromiter((hash(one.tobytes()) for one in seen), np.int64, len(keys)))
        counts, cut = store.seen(positions)
        tokens += np.bincount(np.clip(counts, 0, _MOST_TOKENS - 1), minlength=_MOST_TOKENS)
        truncated += int(np.count_nonzero(cut))
        progress.advance(len(keys))
    findings = [
        _broken(name, np.concatenate([np.empty(0, KEY_DTYPE), *keys]), texts_of)
        for name, keys in broken.items()
    ]
    if usable:
        findings.append(_lengths(store, least, length / usable, most))
    findings.append(_identical(judged, np.concatenate(digests), texts_of))
    scanned = int(tokens.sum())
    findings.append(_tokens(tokens))
    figure = f"{truncated:,} of {scanned:,}, cut at {store.contract.max_length or 'no length'}"
    findings.append(judge(SECTION, "truncated texts", truncated / max(scanned, 1), figure))
    return findings, drawn.keys()


def _broken(name: str, keys: KeyArray, texts_of: TextsOf) -> Finding:
    examples = [[text] for text in texts_of(keys[:EXAMPLES])]
    return judge(SECTION, name, len(keys), f"{len(keys):,}", examples=examples)


def _lengths(store: ShardStore, least: float, mean: float, most: float) -> Finding:
    figure = f"{least:.5g} to {most:.5g}, mean {mean:.5g}"
    if not store.contract.normalize:
        return judge(SECTION, "outliers", most / mean, f"lengths {figure}")
    allowed = max(
        _CODEC_ROUNDING[shard.header.codec]
        + _COMPUTE_ROUNDING.get(str(shard.header.provenance.get("compute_dtype")), 0)
        for shard in store.shards
    )
    return judge(SECTION, "lengths of vectors", max(abs(least - 1), abs(most - 1)) / allowed, figure)


def _identical(judged: JudgedVectors, digests: NDArray[np.int64], texts_of: TextsOf) -> Finding:
    values, counts = np.unique(digests, return_counts=True)
    shared, sizes = values[counts > 1], counts[counts > 1]
    largest = shared[np.argsort(-sizes, kind="stable")[:EXAMPLES]]
    groups = [texts_of(judged.keys_at(np.flatnonzero(digests == value)[:2])) for value in largest]
    figure = f"{sizes.sum():,} of {len(digests):,}, at most {sizes.max(initial=0):,} alike"
    return judge(SECTION, "identical vectors", sizes.sum() / max(len(digests), 1), figure, examples=groups)


def _tokens(counts: NDArray[np.int64]) -> Finding:
    known = counts.copy()
    known[0] = 0
    total = int(known.sum())
    if not total:
        return Finding(SECTION, "tokens a text", "unknown", 0.0, "ok")
    mean = float(known @ np.arange(len(known))) / total
    median, most = (int(np.searchsorted(known.cumsum(), share * total)) for share in (0.5, 0.95))
    figure = f"mean {mean:.1f}, median {median}, 95 % up to {most}, longest {np.flatnonzero(known)[-1]}"
    return Finding(SECTION, "tokens a text", figure, mean, "ok")
