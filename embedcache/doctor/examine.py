"""Examination of a cache, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.corpus.corpus import find_texts
from embedcache.doctor.codec_loss import CodecLoss, compare_codecs
from embedcache.doctor.deep import LIVE, check_deep
from embedcache.doctor.findings import Finding
from embedcache.doctor.texts import find_evaluation_texts, judge_corpus, read_evaluation_sets
from embedcache.doctor.vectors import LEAST_SAMPLE, judge_geometry, judge_vectors
from embedcache.errors import InputError
from embedcache.keys import KeyArray
from embedcache.live import Computing, sample_texts
from embedcache.progress import NO_PROGRESS, Progress

SAMPLE, CODEC_SAMPLE = 20_000, 10_000
"""Most vectors whose geometry is measured, and on which codecs are compared."""


@dataclass(frozen=True)
class Diagnosis:
    """Result of an examination.

    Attributes:
        cache: the cache's folder.
        teacher: name of the teacher.
        stored_as: codecs of the stored vectors.
        findings: figures with their verdicts.
        codecs: size and loss of each codec; empty unless they were compared.
    """

    cache: str
    teacher: str
    stored_as: tuple[str, ...]
    findings: tuple[Finding, ...]
    codecs: tuple[CodecLoss, ...] = ()

    @property
    def has_wrong_vectors(self) -> bool:
        """True if the deep check found vectors that are not the teacher's."""
        return any(one.name == LIVE and one.level == "bad" for one in self.findings)


def examine(
    cache: Cache | str | Path,
    *,
    teacher: str | None = None,
    corpus: str | None = None,
    evaluation_sets: Sequence[str | Path] = (),
    deep: int = 0,
    codecs: bool = False,
    seed: int = 0,
    computing: Computing | None = None,
    progress: Progress = NO_PROGRESS,
) -> Diagnosis:
    """Judge a cache before a student is trained on it.

    Args:
        cache: the cache or its folder.
        teacher: name of the teacher; may be left out where there is one.
        corpus: judge the vectors of this corpus; default: all vectors and all corpora.
        evaluation_sets: files and folders of texts that must not be trained on.
        deep: number of texts to encode again with the live teacher; of imported shards that were not
            compared before, some of each.
        codecs: compare the codecs, on at least 50 vectors.
        seed: seed of all samples.
        computing: settings of the teacher for the deep check; default: as when the vectors were computed.
        progress: receives phases and rows.

    Raises:
        InputError: if a name is unknown, there are no vectors, or an evaluation set cannot be read.
        TeacherError, ContractMismatchError: if the teacher of the deep check cannot be loaded, or is another.
        CorruptCacheError: if the cache is damaged.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    cached = opened.teacher(teacher)
    corpora = opened.corpora() if corpus is None else [opened.corpus(corpus)]
    # Views are trained on as well.
    texts = [one for each in corpora for one in (each, *each.views())]
    sets = read_evaluation_sets(evaluation_sets)
    if sets and not corpora:
        raise InputError(f"{opened.folder}: no corpus to compare with evaluation sets")

    def texts_of(keys: KeyArray) -> list[str]:
        found = find_texts(keys, texts)
        return [text or f"(key {key.tobytes().hex()})" for key, text in zip(keys, found, strict=True)]

    store = opened.store(cached.contract)
    checked = []
    if deep:
        drawn = sample_texts(store, texts, deep, seed, opened.unchecked(store))
        checked = [check_deep(opened, cached, drawn, computing or Computing(), progress)]
    judged = np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *(own for _, own in store.own_rows())]))
    findings: list[Finding] = []
    for one in corpora:
        own, positions = judge_corpus(one, store)
        findings += own
        judged = judged if corpus is None else positions
    if not len(judged):
        raise InputError(f"{opened.folder}: no vectors of {cached.name!r}. Run 'embedcache build' first.")
    scanned, good = judge_vectors(store, judged, texts_of, progress)
    sample = np.random.default_rng(seed).permutation(good)[:SAMPLE]
    progress.phase("measure geometry")
    findings += [*scanned, *judge_geometry(store, sample, seed)]
    findings += find_evaluation_texts(texts, sets)
    if unchecked := sum(opened.unchecked(store).values()):
        advice = "A deep examination compares a sample of them with the live teacher."
        findings.append(
            Finding("imported vectors", f"{unchecked:,} stated, not checked", unchecked, "look", advice)
        )
    findings += checked
    losses: list[CodecLoss] = []
    if codecs and len(sample) >= LEAST_SAMPLE:
        progress.phase("compare codecs")
        losses = list(compare_codecs(store.vectors(sample[:CODEC_SAMPLE]), seed))
    stored_as = tuple(sorted({shard.header.codec for shard in store.shards}))
    return Diagnosis(str(opened.folder), cached.name, stored_as, tuple(findings), tuple(losses))
