"""Deep check: stored vectors compared with what the live teacher computes for the same texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.cache_documents import note_compared
from embedcache.doctor.findings import EXAMPLES, Finding
from embedcache.errors import InputError
from embedcache.live import ENOUGH, MESSAGES, Computing, compare_with_live, compute_dtypes
from embedcache.progress import NO_PROGRESS, Progress

LIVE = "live teacher"
"""Name of the finding."""


def check_deep(
    cache: Cache,
    teacher: CachedTeacher,
    texts: Sequence[str],
    computing: Computing,
    progress: Progress = NO_PROGRESS,
) -> Finding:
    """Encode texts again and compare the stored vectors.

    If none is wrong, imported shards that the texts are in are noted as compared.

    Args:
        cache: the cache.
        teacher: the teacher whose vectors are checked.
        texts: texts that have a vector; see ``embedcache.live.sample_texts``.
        computing: settings of the teacher.
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
    found = compare_with_live(store, texts, encoder)
    compute_dtype = encoder.provenance["compute_dtype"]
    wrong = np.flatnonzero(found.wrong)
    stored_in = ", ".join(compute_dtypes(store.shards)) or "an unknown dtype"
    differ = np.count_nonzero(found.differs)
    figure = (
        f"{len(texts):,} of {len(store):,} vectors, computed in {stored_in} and now in {compute_dtype}: "
        f"{differ:,} beyond the noise of {found.noise.max():.2g}, {len(wrong):,} wrong"
    )
    advice = "" if found.level == "ok" else f"{MESSAGES[found.level].capitalize()}."
    if not len(wrong):
        numbers, counts = np.unique(found.shards, return_counts=True)
        shards = [(store.shards[number], count) for number, count in zip(numbers, counts, strict=True)]
        names = {shard.name for shard, count in shards if count >= min(ENOUGH, len(shard))}
        note_compared(cache.folder, teacher.contract.id, names & cache.unchecked(store).keys())
    else:
        names = {store.shards[number].name for number in found.shards[wrong].tolist()}
        folder = cache.teacher_folder(teacher.contract)
        advice += f" Delete these shards from {folder}, and build again: {', '.join(sorted(names))}"
    examples = tuple((texts[row],) for row in wrong[:EXAMPLES].tolist())
    return Finding(LIVE, figure, len(wrong) / len(texts), found.level, advice, examples)
