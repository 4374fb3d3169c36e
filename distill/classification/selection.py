"""What the best checkpoint of a classifier is chosen by: labelled texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from distill.classification.labels import label_numbers
from distill.classification.rows import (
    FEWEST_SCORED,
    Columns,
    read_labelled,
    refuse_few,
    refuse_test_rows,
)
from distill.classification.score import accuracy, macro_f1
from distill.errors import ConfigError
from distill.training.selection import refuse_test_file
from embedcache.corpus.origin import read_note
from embedcache.corpus.readers import ReadOptions
from embedcache.pairs import split_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from distill.config.models import RunConfig, RunEvaluationConfig
    from distill.data.dataset import DistillDataset
    from distill.reaugkd.head import LabelHead
    from distill.reaugkd.soft_labels import SoftLabels
    from embedcache.cache import Cache
    from embedcache.codecs import Vectors
    from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts


@dataclass(frozen=True)
class ClassSelector:
    """Accuracy of the student's classifier on labelled texts, with the macro F1 beside it.

    Attributes:
        texts: n texts.
        labels: int64, shape (n,); what they are.
        head: the classifier, in the state it is trained in.
        rows: where the texts are from: ``dev`` or ``held_out``; the names of the scores begin with it.
        measure: ``accuracy``, or ``agreement`` where the labels are those that a teacher gives.
    """

    texts: TokenizedTexts
    labels: NDArray[np.int64]
    head: LabelHead
    rows: str
    measure: Literal["accuracy", "agreement"] = "accuracy"
    _found: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """What the accuracy is called."""
        return f"{self.rows}_{self.measure}"

    def score(self, encode: Callable[[TokenizedTexts], Vectors]) -> float:
        """Return the accuracy, 0 to 1; NaN where a logit is not finite."""
        logits = self.head.kept().logits(encode(self.texts))
        if not np.isfinite(logits).all():
            return float("nan")
        predicted = logits.argmax(axis=1)
        self._found[f"{self.rows}_f1"] = macro_f1(predicted, self.labels)
        return accuracy(predicted, self.labels)

    def details(self) -> dict[str, float]:
        """Return the macro F1 of the last score."""
        return dict(self._found)


def with_dev_columns(
    evaluation: RunEvaluationConfig, cache: Cache, dataset: DistillDataset
) -> RunEvaluationConfig:
    """Return what checkpoints are chosen by with the columns of the development file filled in.

    Where they are not given they are those that the corpus was built from, if the cache still knows: most
    often it is the same file, or one that was made with it.

    Raises:
        ConfigError: if columns or rows are given and there is no file, or a second text and the corpus is of
            single texts.
    """
    if evaluation.data is None:
        if given := evaluation.of_labelled:
            raise ConfigError(
                f"{', '.join(given)}: they are of the development file, and there is none; give --dev FILE, "
                "or leave them out"
            )
        return evaluation
    corpus = dataset.corpus
    note = read_note(cache.derived_folder, corpus.name)
    # A corpus may have come from elsewhere since.
    built = note.options if note is not None and note.digest == corpus.info.digest else ReadOptions()
    has_pairs = split_pair(dataset.texts(dataset.rows[:1])[0]) is not None
    if evaluation.text2 is not None and not has_pairs:
        raise ConfigError(
            f"{evaluation.text2!r} is the column of a second text, and {corpus.title} is "
            "of single texts; leave --dev-text2 out",
            "evaluation.text2",
        )
    columns = {
        "text": evaluation.text or built.text_column,
        "text2": (evaluation.text2 or built.text2_column or "text2") if has_pairs else None,
        "label": evaluation.label or built.label_column or "label",
    }
    return evaluation.model_copy(update=columns)


def class_selector(
    config: RunConfig, dataset: DistillDataset, soft: SoftLabels, head: LabelHead, tokenizer: FastTokenizer
) -> ClassSelector | None:
    """Return what the checkpoints of a classifier are chosen by; None where there are too few rows.

    That is the accuracy on the rows of ``evaluation.data``, whose columns are filled in, else on the held-out
    rows of the corpus; where the corpus has no labels, how often the student says what the teacher says.

    Raises:
        ConfigError: if ``evaluation.data`` is a test set.
        DataError: if it holds labels that the teacher does not know, or too few rows.
        InputError: if it cannot be read.
    """
    evaluation = config.evaluation
    if evaluation.data is not None:
        refuse_test_file(Path(evaluation.data))
        refuse_test_rows("evaluation.rows", evaluation.rows or ())
        columns = Columns(evaluation.text, evaluation.text2, evaluation.label, prefix="--dev-")
        dev = read_labelled(evaluation.data, columns, evaluation.rows or ())
        refuse_few(dev, f"evaluation.data: {evaluation.data}")
        numbers = label_numbers(dev.labels, soft.names, f"evaluation.data: {evaluation.data}")
        return ClassSelector(tokenizer(dev.texts), numbers, head, "dev")
    if len(dataset.held_out) < FEWEST_SCORED:
        return None
    places = soft.places(dataset.held_out)
    texts = tokenizer(dataset.texts(dataset.held_out))
    if soft.labels is None:
        return ClassSelector(texts, soft.logits[places].argmax(axis=1), head, "held_out", "agreement")
    return ClassSelector(texts, soft.labels[places], head, "held_out")
