"""Comparison of a served teacher with the vectors that a cache has of it, before more are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus
from embedcache.doctor.deep import compare_with_live, sample_texts
from embedcache.keys import key_array
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher import canary

if TYPE_CHECKING:
    from embedcache.teacher.lazy import LazyTeacher

# Relative distance of two vectors at the least cosine. What a codec loses comes on top of it.
_MARGIN = float(np.sqrt(2 - 2 * canary.LEAST_COSINE))


def refuse_changed_server(
    store: ShardStore,
    corpora: Callable[[], Sequence[Corpus]],
    encode: Callable[[Sequence[str]], Vectors],
) -> None:
    """Refuse a served teacher whose vectors are not the stored ones; other teachers pass.

    The canary's texts are compared; where the store lacks some of them, because a build was killed or a part
    was copied, texts of the corpora are as well.

    Args:
        store: the stored vectors.
        corpora: returns the corpora that may have their texts.
        encode: returns the served vectors of texts, float32, shape (n, d).

    Raises:
        ContractMismatchError: if a vector differs by more than two runs and the codec explain.
        ServedTeacherError: if the server does not answer.
        CorruptCacheError: if the cache is damaged.
    """
    if not store.contract.is_served:
        return
    texts = [text for text in canary.TEXTS if store.locate(key_array([text]))[0] >= 0]
    if len(texts) < len(canary.TEXTS) and len(store):
        texts += sample_texts(store, corpora(), len(canary.TEXTS), seed=0)
    if not texts:
        return
    positions, now = store.locate(key_array(texts)), encode(texts)
    found = compare_with_live(store, positions, now, "", margin=_MARGIN)
    before = store.vectors(positions)
    canary.refuse_other_model(store.contract.weights, texts, before, now, found.wrong, "in the cache")


def keep_canary(store: ShardStore, teacher: LazyTeacher) -> None:
    """Store the canary of a served teacher beside its vectors; other teachers have none.

    It comes last: the first vectors that are stored may have to teach a codebook.

    Raises:
        StorageError: if the store cannot be written.
    """
    keys = key_array(canary.TEXTS)
    if store.contract.is_served and len(store) and (store.locate(keys) < 0).any():
        found = teacher.encoder.encode(canary.TEXTS)
        store.put(VectorBatch(keys, *found, teacher.encoder.provenance))
