"""Scan: one pass over the rows of a corpus and one over the vectors of a store.

Memory is some 40 bytes a vector, and eight bytes a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.doctor.findings import EXAMPLES, Finding, judge
from embedcache.doctor.sampling import sample_keys
from embedcache.keys import KEY_DTYPE, KeyArray, first_occurrences
from embedcache.progress import Progress
from embedcache.store import Positions, ShardStore

BLOCK_ROWS = 8192
"""Rows read at once: vectors of 4096 float32 take 128 MiB."""

TextsOf = Callable[[KeyArray], list[str]]
"""Texts of keys, for examples."""

Rows = NDArray[np.int64]
"""Row numbers of a corpus, ascending."""

_MOST_LABELS = 1000
# Rounding of vectors of length one. A pq code is a mean of its neighbours, hence shorter than they are.
_CODEC_ROUNDING = {"float32": 1e-3, "float16": 2e-3, "int8": 1e-2, "pq": 0.35}
_COMPUTE_ROUNDING = {"bfloat16": 1e-2, "float16": 2e-3}


def distinct_rows(corpus: Corpus) -> Rows:
    """Return the first row of each distinct text: the rows that are trained on."""
    return np.flatnonzero(first_occurrences(list(corpus.iter_keys())))


def blocks(rows: Rows) -> Iterator[Rows]:
    """Cut row numbers or positions into blocks."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield rows[start : start + BLOCK_ROWS]


def own_positions(store: ShardStore) -> Positions:
    """Return the positions of all vectors that are read, one for each key."""
    return np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *(own for _, own in store.own_rows())]))


def corpus_positions(corpus: Corpus, rows: Rows, store: ShardStore, progress: Progress) -> Positions:
    """Return the positions of the vectors of rows, -1 where one is missing."""
    progress.phase(f"look up {corpus.name}", len(rows))
    found = [np.empty(0, np.int64)]
    for block in blocks(rows):
        found.append(store.locate(corpus.keys_of(block)))
        progress.advance(len(block))
    return np.concatenate(found)


def scan_corpus(
    corpus: Corpus, rows: Rows, positions: Positions, *, may_be_foreign: bool
) -> Iterator[Finding]:
    """Yield missing vectors, repeated texts and the balance of labels of a corpus.

    Args:
        corpus: the corpus.
        rows: its distinct rows.
        positions: positions of their vectors.
        may_be_foreign: True if the corpus may belong to another teacher, and is passed over then.
    """
    missing, distinct, total = rows[positions < 0], len(rows), len(corpus)
    if may_be_foreign and len(missing) == distinct:
        advice = "Not built with this teacher. Choose other corpora with --corpus."
        yield Finding(f"missing vectors: {corpus.name}", "all", 1.0, "look", advice)
        return
    share, figure = len(missing) / max(distinct, 1), f"{len(missing):,} of {distinct:,} texts"
    texts = [[text] for text in corpus.texts(missing[:EXAMPLES])]
    yield judge("missing vectors", share, figure, of=corpus.name, examples=texts)
    share, figure = 1 - distinct / max(total, 1), f"{total - distinct:,} of {total:,} rows"
    yield judge("repeated texts", share, figure, of=corpus.name)
    yield from _labels(corpus)


def _labels(corpus: Corpus) -> Iterator[Finding]:
    if not corpus.info.has_labels:
        return
    counts: Counter[object] = Counter()
    for number in range(len(corpus.parts)):
        for label in corpus.column(number, "label").value_counts().to_pylist():
            counts[label["values"]] += label["counts"]
    # Floats are scores, and thousands of labels are no classes.
    if len(counts) > _MOST_LABELS or any(isinstance(label, float) for label in counts):
        return
    (label, most), total = counts.most_common(1)[0], counts.total()
    figure = f"{label} on {most / total:.1%} of {total:,} rows, {len(counts):,} labels"
    yield judge("largest label", most / total, figure, of=corpus.name)


def scan_vectors(
    store: ShardStore, positions: Positions, texts_of: TextsOf, sample: int, seed: int, progress: Progress
) -> tuple[list[Finding], KeyArray]:
    """Look at every vector once.

    Args:
        store: the vectors.
        positions: positions of those that are judged, at least one.
        texts_of: texts of keys, for examples.
        sample: size of the sample to draw.
        seed: its seed.
        progress: receives phases and rows.

    Returns:
        The findings, and the keys of the sample: finite vectors that are not zero.
    """
    progress.phase("scan vectors", len(positions))
    broken: dict[str, list[Positions]] = {"NaN or infinite": [], "zero vectors": []}
    usable, lengths, digests, drawn = [], [], [], np.empty(0, KEY_DTYPE)
    for block in blocks(positions):
        vectors = store.vectors(block)
        is_finite, is_zero = np.isfinite(vectors).all(axis=1), ~vectors.any(axis=1)
        broken["NaN or infinite"].append(block[~is_finite])
        broken["zero vectors"].append(block[is_zero])
        good = np.logical_and(is_finite, ~is_zero)
        usable.append(block[good])
        lengths.append(np.linalg.norm(vectors[good].astype(np.float64), axis=1))
        digests.append(np.fromiter(map(hash, map(bytes, vectors[good])), np.int64, len(usable[-1])))
        drawn = sample_keys(np.concatenate([drawn, store.keys_at(usable[-1])]), sample, seed)
        progress.advance(len(block))
    findings = []
    for name, found in broken.items():
        places = np.concatenate(found)
        texts = [[text] for text in texts_of(store.keys_at(places[:EXAMPLES]))]
        findings.append(judge(name, len(places), f"{len(places):,}", examples=texts))
    if len(drawn):
        findings.append(_lengths(store, np.concatenate(lengths)))
    findings.append(_identical(store, np.concatenate(usable), np.concatenate(digests), texts_of))
    tokens, truncated = store.seen(positions)
    findings.append(_tokens(tokens[tokens > 0]))
    figure = f"{truncated.sum():,} of {len(positions):,}, cut at {store.contract.max_length or 'no length'}"
    findings.append(judge("truncated texts", float(truncated.mean()), figure))
    return findings, drawn


def _lengths(store: ShardStore, lengths: NDArray[np.float64]) -> Finding:
    least, mean, most = float(lengths.min()), float(lengths.mean()), float(lengths.max())
    figure = f"{least:.5g} to {most:.5g}, mean {mean:.5g}"
    if not store.contract.normalize:
        return judge("outliers", most / mean, f"lengths {figure}")
    allowed = max(
        _CODEC_ROUNDING[shard.header.codec]
        + _COMPUTE_ROUNDING.get(str(shard.header.provenance.get("compute_dtype")), 0)
        for shard in store.shards
    )
    return judge("lengths of vectors", max(abs(least - 1), abs(most - 1)) / allowed, figure)


def _identical(
    store: ShardStore, positions: Positions, digests: NDArray[np.int64], texts_of: TextsOf
) -> Finding:
    values, counts = np.unique(digests, return_counts=True)
    shared, sizes = values[counts > 1], counts[counts > 1]
    largest = shared[np.argsort(-sizes, kind="stable")[:EXAMPLES]]
    groups = [texts_of(store.keys_at(positions[digests == value][:2])) for value in largest]
    figure = f"{sizes.sum():,} of {len(digests):,}, at most {sizes.max(initial=0):,} alike"
    return judge("identical vectors", sizes.sum() / max(len(digests), 1), figure, examples=groups)


def _tokens(tokens: NDArray[np.int32]) -> Finding:
    if not len(tokens):
        return Finding("tokens a text", "unknown", 0.0, "ok")
    mean = float(tokens.mean())
    median, most = np.percentile(tokens, [50, 95], method="inverted_cdf")
    figure = f"mean {mean:.1f}, median {median}, 95 % up to {most}, longest {tokens.max()}"
    return Finding("tokens a text", figure, mean, "ok")
