"""What a model gives of a text beside its sentence vector: the logits of the classifier in its folder.

Each output has a contract of its own, so a cache keeps logits as it keeps vectors: as those of one more
teacher, called ``NAME.logits``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embedcache.contract import Contract
from embedcache.errors import InputError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.classifier import ClassifierHead

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

EMBEDDING, LOGITS, PROJECTION = "embedding", "logits", "projection"
OUTPUTS = (EMBEDDING, LOGITS)
"""What a build can keep; a projection is made of vectors that are kept, see :mod:`embedcache.derived`."""

_CLASSIFIER = "Classifier"


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
    entry = {"type": _CLASSIFIER, "labels": list(head.labels), "weights": head.digest}
    return replace(
        contract,
        output=LOGITS,
        dimension=len(head.labels),
        normalize=False,
        truncate_dim=None,
        modules=canonical_json([*modules_of(contract), entry]).decode(),
    )


def modules_of(contract: Contract) -> list[dict[str, Any]]:
    """Return what follows a contract's pooling, as its entries say."""
    found: list[dict[str, Any]] = json.loads(contract.modules) if contract.modules else []
    return found


def logits_teacher(teacher: Teacher) -> Teacher:
    """Return the teacher that gives the logits of the classifier in ``teacher``'s folder, on the same model.

    Raises:
        TeacherError: if there is no classifier, or one of vectors that the model does not give.
        CorruptCacheError: if its files are damaged.
    """
    head = ClassifierHead.read(teacher.folder)
    if head is None:
        raise TeacherError(
            f"{teacher.folder} has no classifier, so there are no logits: make one with 'distill teach', or "
            "leave --output out"
        )
    kinds = [type(module).__name__ for module in teacher.model]
    if "Normalize" in kinds[:-1]:
        raise TeacherError(
            f"{teacher.folder} goes on after scaling vectors to length one ({', '.join(kinds)}), and a "
            "classifier takes them as they are before: make one with 'distill teach'"
        )
    # Not the model's own figure, which is that of the vectors once they are cut.
    widths = [m.get_embedding_dimension() for m in teacher.model if hasattr(m, "get_embedding_dimension")]
    width = widths[-1]
    if head.dimension != width:
        raise TeacherError(
            f"the classifier in {teacher.folder} takes vectors of {head.dimension} dimensions, the model "
            f"gives {width}: it belongs to another model; copy the folder again"
        )
    source = replace(teacher.source, name=logits_name(teacher.name))
    return replace(teacher, source=source, contract=logits_contract(teacher.contract, head), head=head)


def logits_name(name: str) -> str:
    """Return what a cache calls the logits of the teacher ``name``."""
    return f"{name}.{LOGITS}"


def describe_other_classifier(expected: Contract, found: Contract) -> str:
    """Return how the classifier of ``found`` differs from that of ``expected``; empty where it does not."""
    wanted, other = modules_of(expected)[-1:], modules_of(found)[-1:]
    if not wanted or wanted == other or wanted[0].get("type") != _CLASSIFIER:
        return ""
    labels = [_shown(one[0]["labels"] if one else []) for one in (wanted, other)]
    if labels[0] != labels[1]:
        return f"its classifier has the labels {labels[1]}, not {labels[0]}"
    return "its classifier has other weights"


def _shown(labels: Sequence[object]) -> str:
    return ", ".join(map(str, labels[:5])) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
