"""Examine: go through a cache once, measure, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.derived import is_derived
from embedcache.doctor.diagnosis import Coverage, Diagnosis, Verdict
from embedcache.doctor.evaluation_sets import EvaluationSets, read_evaluation_sets
from embedcache.doctor.geometry import Geometry, measure_geometry
from embedcache.doctor.histogram import histogram_of_counts
from embedcache.doctor.overlap import find_overlap
from embedcache.doctor.population import DistinctRows, Population, find_texts
from embedcache.doctor.progress import Meter, OnProgress
from embedcache.doctor.scan import EXAMPLES, Scan, scan
from embedcache.doctor.verdicts import judge, judge_overlap, norm_tolerance
from embedcache.errors import InputError
from embedcache.keys import KeyArray
from embedcache.store import ShardStore

DEFAULT_SAMPLE = 20_000


def examine(
    cache: Cache | str | Path,
    *,
    teacher: str | None = None,
    corpus: str | None = None,
    against: Sequence[str | Path] = (),
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Judge a cache before a student is trained on it. Nothing but derived files is written.

    Every vector is looked at for NaN, zeros, its length and equals; a sample for what costs more.

    Args:
        cache: the cache or its folder.
        teacher: whose vectors; may be left out where the cache holds one teacher.
        corpus: judge the vectors of this corpus alone; default: all vectors, and all corpora.
        against: files and folders of evaluation sets that must not be trained on.
        sample: vectors whose geometry is measured; time grows with its square.
        seed: chooses the sample.
        on_progress: called as the examination goes on.

    Raises:
        InputError: if a name is not in the cache, there are no vectors, or an evaluation set cannot be read.
        CorruptCacheError: if the cache is damaged.
    """
    if sample < 2:
        raise InputError(f"--sample {sample}: expected at least 2")
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    cached = opened.teacher(teacher)
    corpora = opened.corpora() if corpus is None else [opened.corpus(corpus)]
    # Evaluation sets are read first: what is wrong with them should not come out after an hour.
    sets = EvaluationSets((), {})
    if against:
        if not corpora:
            raise InputError(f"the cache {opened.folder} holds no corpus to compare with evaluation sets")
        sets = read_evaluation_sets(against, Meter("evaluation sets", 0, on_progress))
    store = opened.store(cached.contract)
    if not len(store):
        raise InputError(
            f"the cache {opened.folder} holds no vector of {cached.name!r} yet: run 'embedcache build' first"
        )
    views = [view for one in corpora for view in one.views()]
    distinct = [DistinctRows(one) for one in corpora]
    coverage = _coverage(distinct, store, on_progress)
    population = Population(store, distinct[0] if corpus is not None else None)
    found = scan(population, sample=sample, seed=seed, on_progress=on_progress)
    geometry = measure_geometry(store.vectors(store.locate(found.sample)), seed=seed)
    verdicts = judge(
        coverage,
        found,
        geometry,
        named=corpus is not None,
        tolerance=norm_tolerance(shard.header for shard in store.shards)
        if cached.contract.normalize
        else None,
        max_length=cached.contract.max_length,
        is_projection=is_derived(cached.contract),
    )
    judged = _with_examples(list(verdicts), found, geometry, [*corpora, *views])
    overlaps = []
    if sets.sets:
        # What a view says is trained on as well.
        trained_on = [*distinct, *map(DistinctRows, views)]
        meter = Meter("overlap", sum(map(len, trained_on)), on_progress)
        overlaps = find_overlap(trained_on, sets.sets, meter)
        judged.append(judge_overlap(overlaps))
    return Diagnosis(
        cache=str(opened.folder),
        teacher=cached.name,
        contract_id=cached.contract.id,
        max_length=cached.contract.max_length,
        normalize=cached.contract.normalize,
        coverage=tuple(coverage),
        scan=found,
        geometry=geometry,
        overlaps=tuple(overlaps),
        unread=sets.unread,
        lengths=histogram_of_counts(np.concatenate([[0], found.tokens[1:]])),
        verdicts=tuple(judged),
    )


def _coverage(
    corpora: Sequence[DistinctRows], store: ShardStore, on_progress: OnProgress | None
) -> list[Coverage]:
    meter = Meter("coverage", sum(map(len, corpora)), on_progress)
    found = []
    for rows in corpora:
        missing, examples = 0, np.empty(0, dtype=np.int64)
        for numbers, keys in rows.blocks():
            lost = numbers[store.locate(keys) < 0]
            missing += len(lost)
            examples = np.concatenate([examples, lost])[:EXAMPLES]
            meter.step(len(keys))
        found.append(
            Coverage(
                corpus=rows.corpus.name,
                rows=len(rows.corpus),
                distinct=len(rows),
                missing=missing,
                examples=tuple(rows.corpus.texts(examples)),
            )
        )
    return found


def _with_examples(
    verdicts: list[Verdict], found: Scan, geometry: Geometry | None, corpora: Sequence[Corpus]
) -> list[Verdict]:
    """Return ``verdicts`` with the texts that broken and doubtful vectors belong to."""
    pairs = geometry.near_examples if geometry is not None else ()
    near = found.sample[[row for pair in pairs for row in (pair.first, pair.second)]]
    # The keys, and how many of them belong together.
    of: dict[str, tuple[KeyArray, int]] = {
        "NaN or infinite": (found.non_finite.keys, 1),
        "zero vectors": (found.zero.keys, 1),
        "identical vectors": (found.identical.keys, 2),
        "near-duplicate vectors": (near, 2),
    }

    def examples(keys: KeyArray, together: int) -> tuple[tuple[str, ...], ...]:
        texts = find_texts(corpora, keys)
        return tuple(tuple(texts[i : i + together]) for i in range(0, len(texts), together))

    return [
        replace(verdict, examples=examples(*of[verdict.name])) if verdict.name in of else verdict
        for verdict in verdicts
    ]
