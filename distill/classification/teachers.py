"""Which teachers of a cache belong together: vectors, what was derived of them, and logits of one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distill.errors import DataError
from embedcache.projection import base_of, is_derived
from embedcache.teacher.classifier import modules_of
from embedcache.teacher.options import LOGITS

if TYPE_CHECKING:
    from embedcache.cache import Cache, CachedTeacher
    from embedcache.contract import Contract

_CLASSIFIER = "Classifier"
_OF_ONE_MODEL = ("weights", "tokenizer", "architecture", "pooling", "prompt", "max_length")
"""What two contracts of one model's outputs have in common; whether they are scaled is no part of it."""


def base_teacher(cache: Cache, teacher: CachedTeacher) -> CachedTeacher:
    """Return the teacher whose vectors ``teacher``'s are a projection of; itself where they are none.

    Raises:
        InputError: if the cache does not hold it any more.
    """
    return base_of(cache, teacher) if is_derived(teacher.contract) else teacher


def find_logits(cache: Cache, teacher: CachedTeacher) -> tuple[CachedTeacher, tuple[str, ...]]:
    """Return the teacher that holds the logits of ``teacher``'s classifier, and the names of the labels.

    Args:
        cache: the cache.
        teacher: a teacher of the model's vectors, or of a projection of them.

    Raises:
        DataError: if the cache holds none, or those of several classifiers.
        InputError: as :func:`base_teacher`.
    """
    base = base_teacher(cache, teacher)
    if base.contract.output == LOGITS:
        raise DataError(
            f"teacher {base.name!r} is the logits of a classifier: name the teacher of its vectors, by which "
            "they are found"
        )
    found = {one.contract: one for one in cache.teachers() if _are_of(one.contract, base.contract)}
    if len(found) != 1:
        held = f"those of {len(found)} classifiers" if found else "none"
        raise DataError(
            f"the logits of teacher {base.name!r} are needed, and {cache.folder} holds {held}: take a "
            "classifier as the teacher ('distill teach' makes one), and build it with "
            "'embedcache build --output embedding,logits'"
        )
    (logits,) = found.values()
    classifier = module_entry(logits.contract, _CLASSIFIER) or {}
    return logits, tuple(classifier["labels"])


def classifier_digest(logits: Contract) -> str | None:
    """Return the digest of the classifier that gives logits of a contract; None where none does."""
    entry = module_entry(logits, _CLASSIFIER)
    return None if entry is None else str(entry["weights"])


def encoder_of(contract: Contract) -> dict[str, object]:
    """Return what a contract says of the model that gives its vectors and of how it reads a text.

    Vectors of two contracts that say the same lie in one space, whether they are scaled or not.
    """
    return {name: getattr(contract, name) for name in _OF_ONE_MODEL}


def module_entry(contract: Contract, kind: str) -> dict[str, Any] | None:
    """Return the module of a kind that follows the pooling; None where there is none."""
    return next((module for module in modules_of(contract) if module.get("type") == kind), None)


def _are_of(logits: Contract, vectors: Contract) -> bool:
    """Return whether a contract is that of the logits of the model that gives ``vectors``."""
    if logits.output != LOGITS or encoder_of(logits) != encoder_of(vectors):
        return False
    # Of the vectors as the classifier reads them, with the same modules before it.
    before = [module for module in modules_of(logits) if module.get("type") != _CLASSIFIER]
    return before == modules_of(vectors)
