"""Geometry: distribution of a model's vectors on the sphere, on the sentences of STS-B.

- Alignment, ``E |f(x) - f(x+)|^2`` over pairs that people scored above 4 of 5; lower is closer. Uniformity,
  ``log E exp(-2 |f(x) - f(y)|^2)`` over all pairs of distinct sentences; lower is more even (Wang and Isola,
  "Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere",
  ICML 2020; on STS-B as SimCSE and DistilCSE report them).
- Anisotropy, the mean cosine of two different sentences (Ethayarajh, EMNLP 2019).
- Effective rank, ``exp`` of the entropy of the normalised singular values (Roy and Vetterli, EUSIPCO 2007).

All on vectors of length one, not centred. Intervals are drawn over sentences, of alignment over pairs; the
effective rank has none, because sentences that are drawn twice span no further dimension.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.files import find_file, skipped_note
from distill.evaluation.models import Encode, Vectors
from distill.evaluation.pairs import PAIR_COLUMNS, PairSet, read_pairs
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Encoded, NotThereError, SuiteFile, SuiteOptions, register_suite
from distill.vectors import unit_rows

SIMILAR = 4.0
"""Pairs with a higher score are similar, as in SimCSE."""

_BLOCK = 1024  # rows whose cosines to all others are held at once


def measure_geometry(vectors: Vectors, left: Vectors, right: Vectors) -> dict[str, Figure]:
    """Measure vectors.

    Args:
        vectors: (n, d) vectors of distinct sentences, none zero.
        left, right: (pairs, d) vectors of both sides of similar pairs; there may be none.

    Raises:
        DataError: if there are fewer than two sentences.
    """
    count = len(vectors)
    if count < 2:
        raise DataError(f"geometry needs at least 2 distinct sentences (found: {count})")
    unit = unit_rows(vectors)
    potentials, mean_cosines = np.empty(count), np.empty(count)
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        cosines = unit[rows] @ unit.T
        # On unit vectors |x - y|^2 = 2 - 2 cos.
        gauss, own = np.exp(4 * cosines - 4), (np.arange(len(rows)), rows)
        # Of each sentence, the mean over its pairs with all others.
        potentials[rows] = (gauss.sum(axis=1) - gauss[own]) / (count - 1)
        mean_cosines[rows] = (cosines.sum(axis=1) - cosines[own]) / (count - 1)
    potential, anisotropy = float(potentials.mean()), float(mean_cosines.mean())
    uniformity = float(np.log(potential))
    spectrum = np.linalg.svd(unit, compute_uv=False)
    shares = spectrum[spectrum > 0] / spectrum.sum()
    found: dict[str, Figure] = {}
    if len(left):
        apart = ((unit_rows(left) - unit_rows(right)) ** 2).sum(axis=1)
        found["alignment"] = _figure(float(apart.mean()), "alignment", apart)
    # A sentence is on either side of pairs, so it moves a mean over pairs by twice its own difference: the
    # first-order part of a U-statistic (Hoeffding, Annals of Mathematical Statistics 19, 1948).
    found["uniformity"] = _figure(uniformity, "uniformity", uniformity + 2 * (potentials / potential - 1))
    found["anisotropy"] = _figure(anisotropy, "anisotropy", anisotropy + 2 * (mean_cosines - anisotropy))
    rank = float(np.exp(-(shares * np.log(shares)).sum()))
    return found | {"effective_rank": Figure(rank, "effective rank", items=count)}


def _figure(value: float, measure: str, outcomes: NDArray[np.float64]) -> Figure:
    return Figure(value, measure, items=len(outcomes), outcomes=Outcomes(outcomes))


@register_suite(
    "geometry",
    summary="alignment, uniformity, anisotropy and effective rank on STS-B",
    files=[SuiteFile("stsb_test", PAIR_COLUMNS), SuiteFile("stsb_dev", PAIR_COLUMNS)],
)
def geometry(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Measure the vectors of STS-B's sentences."""
    sts = read_stsb(data, "stsb_test", "stsb_dev")
    vectors = Encoded(encode, (text for column in sts.texts for text in column))
    similar = [pair for pair, score in zip(sts.items, sts.gold, strict=True) if score > SIMILAR]
    left, right = (vectors(pair[side] for pair in similar) for side in (0, 1))
    notes = [f"{len(vectors)} distinct sentences and {len(similar)} similar pairs of {sts.label}"]
    if not similar:
        notes.append(f"no alignment: no pair has a score above {SIMILAR:g}")
    return SuiteResult(
        measure_geometry(vectors.vectors, left, right),
        headline="effective_rank",
        notes=(*notes, *skipped_note(sts.label, sts.skipped)),
        settings={"data": str(data), "sentences": len(vectors), "dimension": vectors.vectors.shape[1]},
    )


def read_stsb(data: Path, *stems: str) -> PairSet:
    """Read the pairs of the first of ``stems`` that exists.

    Raises:
        NotThereError: if none does.
        DataError: if the file cannot be read.
    """
    path = find_file(data, *stems)
    if path is None:
        raise NotThereError(f"{data} holds no {' or '.join(f'{stem}.tsv' for stem in stems)}, also .gz")
    return read_pairs(path, "stsb", path.name)
