"""Outputs of a model: sentence vectors, and logits of the classifier in its folder.

Each output has a contract of its own. A cache stores logits as vectors of one more teacher, ``NAME.logits``.
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
"""Outputs of a build. A projection is computed from stored vectors, see :mod:`embedcache.projection`."""

CLASSIFIER_ENTRY = "Classifier"


def parse_outputs(text: str) -> tuple[str, ...]:
    """Parse a list such as ``embedding,logits`` into outputs in the order of :data:`OUTPUTS`.

    Raises:
        InputError: if an output is unknown or named twice, or the list is empty.
    """
    names = [name.strip() for name in text.split(",")]
    if set(names) - set(OUTPUTS) or len(set(names)) != len(names):
        raise InputError(f"--output {text!r}: expected {', '.join(OUTPUTS)}, or both with a comma between")
    return tuple(name for name in OUTPUTS if name in names)


def logits_contract(contract: Contract, head: ClassifierHead) -> Contract:
    """Contract of a classifier's logits.

    A classifier takes whole, unscaled vectors, so the vectors' own scaling and truncation do not change it.

    Args:
        contract: contract of the same model's vectors.
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
    """Entries of a contract's modules after the pooling."""
    found: list[dict[str, Any]] = json.loads(contract.modules) if contract.modules else []
    return found


def logits_name(name: str) -> str:
    """Name of a teacher's logits in a cache."""
    return f"{name}.{LOGITS}"
