"""What an evaluation may be told: the keywords that its functions share, and what they are by default."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from distill.evaluation.encoding import Progress, silent
from distill.evaluation.tasks import SNLI_PAIRS, Spec

BOOTSTRAP = 1000
"""Draws for the confidence intervals, where a caller does not say how many."""


class EvaluationOptions(TypedDict, total=False):
    """The keywords of :func:`distill.evaluation.old_runner.evaluate_suites` and its kin; all may be left out.

    Attributes:
        data: what the suites read: a folder of test files, or a file of sentences (``fidelity``; default: the
            sentences that the evaluated run held out).
        teacher: the teacher to compare with; default: the one that the evaluated run names.
        beside_teacher: whether the teacher that a run names is evaluated as well.
        cache: folder of a cache that may hold the teacher's vectors; default: the cache of the run that names
            the teacher, where it still exists. It is not written.
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        limit: read at most so many sentences of ``data`` (``fidelity``).
        sst2_sentences: learn SST2 from whole sentences, a tenth as many as its phrases; refused where
            ``transfer`` is not evaluated.
        snli_pairs: how many pairs SNLI is learnt from; 0 for all; refused where ``nli`` is not evaluated.
        seed: chooses the sample where a suite takes one, and the draws of the intervals.
        bootstrap: draws for the confidence intervals; 0 for no intervals.
        contamination: look for the test sets among the texts that runs were trained on.
        corpus: file or folder of training texts, for models that are no runs.
        keep: keep what is found out about a run in its folder, and use what is kept there already.
        again: use nothing that is kept.
        progress: called with (model's name, sentences done, sentences in all).
    """

    data: str | Path | None
    teacher: Spec | None
    beside_teacher: bool
    cache: str | Path | None
    device: str
    compute_dtype: str
    text_column: str | None
    limit: int | None
    sst2_sentences: bool
    snli_pairs: int
    seed: int
    bootstrap: int
    contamination: bool
    corpus: str | Path | None
    keep: bool
    again: bool
    progress: Progress


DEFAULTS: EvaluationOptions = {
    "data": None,
    "teacher": None,
    "beside_teacher": True,
    "cache": None,
    "device": "auto",
    "compute_dtype": "float32",
    "text_column": None,
    "limit": None,
    "sst2_sentences": False,
    "snli_pairs": SNLI_PAIRS,
    "seed": 0,
    "bootstrap": BOOTSTRAP,
    "contamination": True,
    "corpus": None,
    "keep": False,
    "again": False,
    "progress": silent,
}
"""Every option, as it is where a caller does not give it."""


def with_defaults(options: EvaluationOptions) -> EvaluationOptions:
    """Return all options: those given, the others as :data:`DEFAULTS` has them.

    Raises:
        TypeError: if one is given that there is not.
    """
    # What a type checker refuses, a caller without one may still pass.
    if unknown := sorted(options.keys() - DEFAULTS.keys()):
        raise TypeError(
            f"no option of an evaluation is called {', '.join(unknown)}; there are {', '.join(DEFAULTS)}"
        )
    return {**DEFAULTS, **options}
