"""What a classifier is distilled from: a teacher's logits in a cache, and the labels of the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distill.classification.labels import label_numbers
from distill.classification.teachers import find_logits
from distill.data.targets import open_targets
from distill.errors import ConfigError
from distill.losses.registry import needs_labels

if TYPE_CHECKING:
    from distill.config import RunConfig
    from distill.data.dataset import DistillDataset
    from embedcache.cache import Cache, CachedTeacher
    from embedcache.codecs import Vectors


@dataclass(frozen=True)
class SoftLabels:
    """The teacher's logits and the corpus's labels, of the rows of a dataset.

    Attributes:
        teacher: the teacher in the cache that holds the logits.
        names: the names of the c labels.
        rows: int64, shape (n,), ascending; the rows trained on, and those held out.
        logits: float32, shape (n, c).
        labels: int64, shape (n,); None where the corpus has no labels.
    """

    teacher: CachedTeacher
    names: tuple[str, ...]
    rows: NDArray[np.int64]
    logits: Vectors
    labels: NDArray[np.int64] | None

    def places(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where corpus rows stand among ``rows``."""
        return np.searchsorted(self.rows, rows)


def open_soft_labels(cache: Cache, config: RunConfig, dataset: DistillDataset) -> SoftLabels:
    """Return what the classifier of a run is distilled from.

    Raises:
        ConfigError: if the loss takes labels, and the corpus has none, or the head is to be dropped.
        DataError: if the cache has no logits of the teacher, or not of all rows, or the corpus has labels
            that the teacher does not know.
    """
    if config.student.drop_head:
        raise ConfigError(
            f"student.drop_head: with the loss {config.loss.name} a classifier reads the vectors behind the "
            "head, which has to stay; leave it out"
        )
    teacher, names = find_logits(cache, dataset.teacher)
    rows = np.sort(np.concatenate([dataset.rows, dataset.held_out]))
    targets = open_targets(cache, [teacher.contract.id]).join(dataset.view, rows, rows[:0])
    logits = targets.gather(np.arange(len(rows))).astype(np.float32)
    labels = None
    if dataset.corpus.info.has_labels:
        labels = label_numbers(dataset.corpus.labels(rows), names, dataset.corpus.title)
    elif needs_labels(config.loss):
        raise ConfigError(
            f"loss.soft: {config.loss.soft} leaves a part to the labels of corpus {dataset.corpus.name!r}, "
            "which has none: build it with --label-column, or give --soft 1"
        )
    return SoftLabels(teacher, names, rows.astype(np.int64), logits, labels)
