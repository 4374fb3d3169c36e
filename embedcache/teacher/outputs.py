"""Outputs of a model: sentence vectors, and logits of the classifier in its folder.

Each output has a contract of its own, so a cache keeps logits as it keeps vectors: as those of one more
teacher, called ``NAME.logits``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from embedcache.contract import Contract
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.teacher.classifier import ClassifierHead

EMBEDDING, LOGITS, PROJECTION = "embedding", "logits", "projection"
OUTPUTS = (EMBEDDING, LOGITS)
"""Outputs that a build keeps; a projection is made of kept vectors, see :mod:`embedcache.projection`."""

CLASSIFIER_ENTRY = "Classifier"


def parse_outputs(text: str) -> tuple[str, ...]:
    """Return the outputs in a list such as ``embedding,logits``, in the order of :data:`OUTPUTS`.

    Raises:
        InputError: if one is unknown or named twice, or there is none.
    """
    names = [name.strip() for name in text.split(",")]
    if set(names) - set(OUTPUTS) or len(set(names)) != len(names):
        raise InputError(f"--output {text!r}: expected {', '.join(OUTPUTS)}, or both with a comma between")
    return tuple(name for name in OUTPUTS if name in names)


def logits_contract(contract: Contract, head: ClassifierHead) -> Contract:
    """Return the contract of a classifier's logits.

    A classifier takes sentence vectors whole and before they are scaled, so it is the same contract however
    the vectors themselves are kept.

    Args:
        contract: of the vectors of the same model.
        head: the classifier.
    """
    entry = {"type": CLASSIFIER_ENTRY, "labels": list(head.labels), "weights": head.digest}
    return replace(
        contract,
        output=LOGITS,
        dimension=len(head.labels),
        normalize=False,
        truncate_dim=None,
        modules=canonical_json([*modules_of(contract), entry]).decode(),
    )


def modules_of(contract: Contract) -> list[dict[str, Any]]:
    """Return the entries of a contract's modules after the pooling."""
    found: list[dict[str, Any]] = json.loads(contract.modules) if contract.modules else []
    return found


def logits_name(name: str) -> str:
    """Return the name of the logits of the teacher ``name``."""
    return f"{name}.{LOGITS}"
