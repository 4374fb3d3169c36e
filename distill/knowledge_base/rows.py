"""What a cache gives a knowledge base: a teacher's vectors of a corpus, and what it said of its texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.knowledge_base.base import contains
from distill.knowledge_base.header import Origin
from distill.knowledge_base.vote import softmax
from distill.reaugkd.soft_labels import encoder_of, find_logits, module_entry
from distill.vectors import unit
from embedcache.keys import first_occurrences

if TYPE_CHECKING:
    from embedcache.cache import Cache, CachedTeacher
    from embedcache.codecs import Vectors
    from embedcache.contract import Contract
    from embedcache.corpus.corpus import Corpus
    from embedcache.keys import KeyArray


@dataclass(frozen=True)
class BaseRows:
    """Rows of a corpus as a knowledge base takes them.

    Attributes:
        keys: of their texts, dtype ``V16``, shape (n,); all different.
        vectors: float32, shape (n, d), each of length one.
        soft_labels: float32, shape (n, c); the softmax of the teacher's logits.
        texts: the texts, where they were asked for.
        repeated: rows left out because their text stands earlier.
        left_out: rows left out because they were to be.
    """

    keys: KeyArray
    vectors: Vectors
    soft_labels: NDArray[np.float32]
    texts: tuple[str, ...] | None
    repeated: int
    left_out: int


def find_origin(cache: Cache, teacher: CachedTeacher) -> tuple[Origin, Contract]:
    """Return whose vectors and labels those of ``teacher`` are, and the contract of its logits.

    Raises:
        DataError: if the cache holds no logits of its classifier, or not the teacher that was projected.
    """
    logits, labels = find_logits(cache, teacher)
    projection = module_entry(teacher.contract, "Projection") or {}
    origin = Origin(
        teacher=teacher.name,
        contract=teacher.contract.id,
        base=projection.get("of"),
        projection=projection.get("weights"),
        logits=logits.contract.id,
        labels=labels,
        classifier=str((module_entry(logits.contract, "Classifier") or {})["weights"]),
        encoder=encoder_of(teacher.contract),
    )
    return origin, logits.contract


def read_rows(
    cache: Cache,
    corpus: Corpus,
    teacher: CachedTeacher,
    logits: Contract,
    without: KeyArray,
    *,
    texts: bool = False,
) -> BaseRows:
    """Read the rows of a corpus, each text once.

    Args:
        cache: the cache.
        corpus: the corpus.
        teacher: the teacher whose vectors are taken.
        logits: the contract of the logits.
        without: keys of texts to leave out.
        texts: whether to read the texts too.

    Raises:
        DataError: if vectors or logits are missing; it says of what and what to run.
    """
    keys = corpus.keys()
    first = first_occurrences([keys])
    wanted = first & ~contains(without, keys)
    rows = np.flatnonzero(wanted)
    found = keys[rows]
    command = (
        "distill project --apply" if module_entry(teacher.contract, "Projection") else "embedcache build"
    )
    vectors = _of(cache, teacher.contract, found, f"vector of teacher {teacher.name!r}", corpus, command)
    zero = int((~vectors.any(axis=1)).sum())
    if zero:
        raise DataError(
            f"{zero:,} of {len(found):,} vectors of teacher {teacher.name!r} are zero: look at "
            "them with 'embedcache doctor', and take another teacher, or make the projection anew"
        )
    said = _of(
        cache,
        logits,
        found,
        f"logits of the classifier of teacher {teacher.name!r}",
        corpus,
        "embedcache build --output embedding,logits",
    )
    return BaseRows(
        keys=found,
        # Codecs store a unit vector as one of nearly length one.
        vectors=unit(vectors),
        soft_labels=softmax(said).astype(np.float32),
        texts=tuple(corpus.texts(rows)) if texts else None,
        repeated=len(keys) - int(first.sum()),
        left_out=int((first & ~wanted).sum()),
    )


def known_vectors(cache: Cache, contract: Contract, keys: KeyArray) -> Vectors:
    """Return the vectors of ``keys`` that a cache has, scaled to length one, float32 (n, d)."""
    store = cache.store(contract)
    places = store.locate(keys)
    return unit(store.vectors(places[places >= 0]))


def _of(cache: Cache, contract: Contract, keys: KeyArray, what: str, corpus: Corpus, command: str) -> Vectors:
    store = cache.store(contract)
    places = store.locate(keys)
    if missing := int((places < 0).sum()):
        raise DataError(
            f"{missing} of {len(keys)} texts of {corpus.title} have no {what}: run '{command}' for this "
            "corpus and teacher (it makes only what is missing)"
        )
    return store.vectors(places)
