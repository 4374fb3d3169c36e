"""Logits of a teacher's classifier in a cache, and the cached teachers that belong to one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.data.labelled import label_numbers
from distill.errors import ConfigError, DataError
from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.keys import KeyArray
from embedcache.projection import base_of, is_derived
from embedcache.store import ShardStore
from embedcache.teacher.classifier import modules_of
from embedcache.teacher.options import LOGITS

_ENCODER_FIELDS = (
    *("weights", "tokenizer", "architecture", "pooling", "prompt", "max_length"),
    *("loading", "code"),
)
"""Contract fields that all outputs of one model share; scaling is not one of them."""


@dataclass(frozen=True)
class SoftLabels:
    """Teacher's logits and corpus labels of a dataset's rows.

    Attributes:
        teacher: cached teacher that holds the logits.
        names: names of the c labels.
        rows: int64, shape (n,), ascending; corpus rows, training and held-out ones.
        logits: float32, shape (n, c).
        labels: int64, shape (n,); None for a corpus without labels.
    """

    teacher: CachedTeacher
    names: tuple[str, ...]
    rows: NDArray[np.int64]
    logits: Vectors
    labels: NDArray[np.int64] | None

    def places(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the positions of corpus rows in ``rows``."""
        return np.searchsorted(self.rows, rows)


def open_soft_labels(
    cache: Cache,
    teacher: CachedTeacher,
    corpus: Corpus,
    view: Corpus,
    rows: NDArray[np.integer],
    *,
    labelled: bool = False,
) -> SoftLabels:
    """Read the soft labels that a classifier is distilled from.

    Args:
        cache: the cache.
        teacher: teacher of the vectors, or a projection of them.
        corpus: the corpus, with its labels.
        view: the view of it that the teacher encoded.
        rows: corpus rows, in any order.
        labelled: the loss needs labels.

    Raises:
        ConfigError: if the loss needs labels and the corpus has none.
        DataError: if logits are missing, or the corpus has a label that the teacher does not know.
    """
    logits, names = find_logits(cache, teacher)
    ordered = np.sort(rows).astype(np.int64)
    vectors = stored_vectors(cache, logits, view.keys_of(ordered), view)
    has_labels = corpus.info.has_labels
    if labelled and not has_labels:
        raise ConfigError(
            f"the loss needs labels and {corpus.title} has none: build it with --label-column, or "
            "set loss.soft=1",
            "loss.soft",
        )
    labels = label_numbers(corpus.labels(ordered), names, corpus.title) if has_labels else None
    return SoftLabels(logits, names, ordered, vectors, labels)


def stored_vectors(cache: Cache, teacher: CachedTeacher, keys: KeyArray, corpus: Corpus) -> Vectors:
    """Return a teacher's vectors of some texts of a corpus, float32 of shape (n, d).

    Raises:
        DataError: as ``locate_vectors``.
    """
    store, places = locate_vectors(cache, teacher, keys, corpus)
    return store.vectors(places)


def locate_vectors(
    cache: Cache, teacher: CachedTeacher, keys: KeyArray, corpus: Corpus
) -> tuple[ShardStore, NDArray[np.int64]]:
    """Return a teacher's store, and the positions of some texts of a corpus in it.

    Raises:
        DataError: if vectors are missing; it names their number and the command that adds them.
    """
    store = cache.store(teacher.contract)
    places = store.locate(keys)
    if missing := int((places < 0).sum()):
        command = "distill kb project --apply" if is_derived(teacher.contract) else "embedcache build"
        output = " --output logits" if teacher.contract.output == LOGITS else ""
        raise DataError(
            f"{missing:,} of {len(keys):,} texts of {corpus.title} have no vector of teacher "
            f"{teacher.name!r}: run '{command}{output}' for this corpus and teacher"
        )
    return store, places


def base_teacher(cache: Cache, teacher: CachedTeacher) -> CachedTeacher:
    """Return the teacher that a projection maps, or the teacher itself if it is not a projection.

    Raises:
        InputError: if the cache lacks it.
    """
    return base_of(cache, teacher) if is_derived(teacher.contract) else teacher


def find_logits(cache: Cache, teacher: CachedTeacher) -> tuple[CachedTeacher, tuple[str, ...]]:
    """Find the cached logits of a teacher's classifier, and the names of its labels.

    Args:
        cache: the cache.
        teacher: teacher of the model's vectors, or a projection of them.

    Raises:
        DataError: if the cache holds none, or those of several classifiers.
        InputError: as ``base_teacher``.
    """
    base = base_teacher(cache, teacher)
    if base.contract.output == LOGITS:
        raise DataError(f"teacher {base.name!r} is a classifier's logits: name the teacher of its vectors")
    found = {one.contract: one for one in cache.teachers() if _are_logits_of(one.contract, base.contract)}
    if len(found) != 1:
        held = f"those of {len(found)} classifiers" if found else "none"
        raise DataError(
            f"the logits of teacher {base.name!r} are needed, and {cache.folder} holds {held}: build a "
            "classifier with 'embedcache build --output logits'"
        )
    (logits,) = found.values()
    return logits, tuple(module_entry(logits.contract, "Classifier")["labels"])


def encoder_of(contract: Contract) -> dict[str, object]:
    """Return the contract fields that determine the encoder; equal fields mean one vector space."""
    return {name: getattr(contract, name) for name in _ENCODER_FIELDS}


def module_entry(contract: Contract, kind: str) -> dict[str, Any]:
    """Return a contract's module of a kind; empty if it has none."""
    return next((module for module in modules_of(contract) if module.get("type") == kind), {})


def _are_logits_of(logits: Contract, vectors: Contract) -> bool:
    """Check if ``logits`` come from the model of ``vectors``, with the same modules before the classifier."""
    before = [module for module in modules_of(logits) if module.get("type") != "Classifier"]
    own = encoder_of(logits) == encoder_of(vectors) and before == modules_of(vectors)
    return own and logits.output == LOGITS
