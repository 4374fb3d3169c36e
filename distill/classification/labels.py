"""Names of labels: in what order a classifier has them, and which of them a row has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError

_LISTED = 5


def label_names(labels: Sequence[object]) -> tuple[str, ...]:
    """Return the names of all labels that occur: by size where all of them are numbers, else by name.

    Raises:
        DataError: if there are fewer than two, or nearly every row has one of its own.
    """
    names = {str(label) for label in labels}
    if len(names) < 2:
        raise DataError(
            f"the label column holds {_listed(sorted(names)) or 'nothing'} alone: a classifier needs rows of "
            "two labels at least"
        )
    if len(names) > max(2, len(labels) // 2):
        raise DataError(
            f"the label column holds {len(names)} different labels in {len(labels)} rows: expected classes "
            "with several rows each; name the column of those with --label"
        )
    try:
        # Equal numbers may be written in two ways, and stay two labels.
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def label_numbers(labels: Sequence[object], names: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return the place of every label in ``names``, int64 of shape (n,).

    Args:
        labels: the labels of n rows.
        names: the names there are.
        where: what messages call the rows.

    Raises:
        DataError: if a label is not among the names; it lists those.
    """
    places = {name: place for place, name in enumerate(names)}
    strangers = Counter(str(label) for label in labels if str(label) not in places)
    if strangers:
        raise DataError(
            f"{where}: {strangers.total()} of {len(labels)} rows have a label that the classifier does not "
            f"know: {_listed(sorted(strangers))}; it knows {_listed(list(names))}. Leave those rows out, or "
            "train on rows with these labels as well"
        )
    return np.array([places[str(label)] for label in labels], dtype=np.int64)


def describe_counts(numbers: NDArray[np.int64], names: Sequence[str]) -> str:
    """Return how many rows have each label, the commonest first: ``1: 37,569 (55.8 %), 0: ...``."""
    counts = np.bincount(numbers, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    parts = [f"{names[i]}: {counts[i]:,} ({100 * counts[i] / max(1, len(numbers)):.1f} %)" for i in order]
    return ", ".join(parts[:_LISTED]) + (f" and {len(parts) - _LISTED} more" if len(parts) > _LISTED else "")


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(name) for name in names[:_LISTED]) + rest
