"""Geometry: how a model's vectors lie on the sphere, on the sentences of STS-B.

- Alignment, ``E |f(x) - f(x+)|^2`` over similar pairs: those that people scored above 4 of 5. Lower
  is closer.
- Uniformity, ``log E exp(-2 |f(x) - f(y)|^2)`` over all pairs of distinct sentences. Lower is more even.
  Both after Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
  Uniformity on the Hypersphere", ICML 2020; on STS-B as SimCSE and DistilCSE report them.
- Anisotropy, the mean cosine of two different sentences, over all pairs (Ethayarajh, EMNLP 2019). Near 0 is
  isotropic, near 1 a narrow cone.
- Effective rank, ``exp`` of the entropy of the singular values divided by their sum (Roy and Vetterli,
  EUSIPCO 2007): how many dimensions are in use, of the model's width.

Intervals are drawn over sentences, of alignment over pairs. The effective rank has none: sentences that are
drawn twice use no further dimension, so draws are lower than the figure.

All on vectors of length one, not centred, over distinct sentences. None of them is a model's quality, so
there is no headline figure. Read are ``stsb_test.tsv`` or, where it is not there, ``stsb_dev.tsv``, laid out
as for the ``sts`` suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.encoding import unit_rows
from distill.evaluation.old_sts import StsSet, read_pairs
from distill.evaluation.scores import WholeScores, rounded
from distill.evaluation.tasks import NotThereError, Request, Subject
from distill.evaluation.testset import count_repeats, describe_skipped, find_test_file

SIMILAR = 4.0
"""Pairs with a higher score are similar, as SimCSE, which DistilCSE follows, takes them."""

_FILES = ("stsb_test", "stsb_dev")
# Rows whose cosines to all others are held at once.
_BLOCK = 1024


@dataclass(frozen=True)
class GeometryScores(WholeScores):
    """How one model's vectors lie.

    Attributes:
        alignment: mean squared distance of similar pairs; None where there is none.
        uniformity: logarithm of the mean Gaussian potential of all pairs.
        anisotropy: mean cosine of all pairs.
        effective_rank: dimensions in use.
        width: the vectors' width, which the effective rank cannot exceed.
    """

    alignment: float | None
    uniformity: float
    anisotropy: float
    effective_rank: float
    width: int

    @property
    def headline(self) -> None:
        """None: what of this is good depends on the use."""

    def to_json(self) -> dict[str, object]:
        """Return the four figures with 6 decimals, and intervals; alignment may be null."""
        return {
            "alignment": None if self.alignment is None else round(self.alignment, 6),
            "uniformity": round(self.uniformity, 6),
            "anisotropy": round(self.anisotropy, 6),
            "effective_rank": round(self.effective_rank, 4),
            "intervals": {name: rounded(ends, 6) for name, ends in self.intervals.items()},
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return nothing: the summary says it all."""
        return []

    def figures(self) -> dict[str, float | None]:
        """Return the four figures."""
        return {
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            "anisotropy": self.anisotropy,
            "effective rank": self.effective_rank,
        }

    def summary(self) -> dict[str, str]:
        """Return the four figures, the effective rank with the width."""
        return {
            "alignment": "-" if self.alignment is None else f"{self.alignment:.4f}",
            "uniformity": f"{self.uniformity:.4f}",
            "anisotropy": f"{self.anisotropy:.4f}",
            "effective rank": f"{self.effective_rank:.1f} of {self.width}",
        }


def score_geometry(
    vectors: NDArray[np.float32], left: NDArray[np.float32], right: NDArray[np.float32]
) -> GeometryScores:
    """Describe how vectors lie.

    Args:
        vectors: (n, d) vectors of distinct sentences, none zero.
        left, right: (pairs, d) vectors of the two sides of similar pairs; there may be none.

    Raises:
        DataError: if there are fewer than two sentences.
    """
    count, width = vectors.shape
    if count < 2:
        raise DataError(f"{count} distinct sentences, expected at least 2: there is no pair to look at")
    unit = unit_rows(vectors)
    potentials, cosine_sums = np.empty(count), np.empty(count)
    for start in range(0, count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, count))
        cosines = unit[rows] @ unit.T
        # On unit vectors |x - y|^2 = 2 - 2 cos.
        gauss = np.exp(4 * cosines - 4)
        own = np.arange(len(rows)), rows
        potentials[rows] = gauss.sum(axis=1) - gauss[own]
        cosine_sums[rows] = cosines.sum(axis=1) - cosines[own]
    # Of each sentence, the mean over its pairs with all others.
    potentials, mean_cosines = potentials / (count - 1), cosine_sums / (count - 1)
    potential, anisotropy = float(potentials.mean()), float(mean_cosines.mean())
    uniformity = float(np.log(potential))
    spectrum = np.linalg.svd(unit, compute_uv=False)
    shares = spectrum[spectrum > 0] / spectrum.sum()
    apart = ((unit_rows(left) - unit_rows(right)) ** 2).sum(axis=1) if len(left) else None
    # A sentence is on either side of pairs, so it moves a mean over pairs by twice what its own pairs differ.
    outcomes = {
        "uniformity": uniformity + 2 * (potentials / potential - 1),
        "anisotropy": anisotropy + 2 * (mean_cosines - anisotropy),
    }
    return GeometryScores(
        alignment=None if apart is None else float(apart.mean()),
        uniformity=uniformity,
        anisotropy=anisotropy,
        effective_rank=float(np.exp(-(shares * np.log(shares)).sum())),
        width=width,
        outcomes=outcomes if apart is None else {"alignment": apart, **outcomes},
    )


@dataclass(frozen=True)
class GeometryTask:
    """The pairs of STS-B.

    Attributes:
        path: the file.
        sts: its pairs.
    """

    path: Path
    sts: StsSet
    needs_teacher: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    @property
    def facts(self) -> dict[str, object]:
        """The file, the number of distinct sentences and of similar pairs."""
        return {
            "data": str(self.path),
            "sentences": len(self.distinct()),
            "similar_pairs": len(self.similar()),
        }

    @property
    def notes(self) -> list[str]:
        """How many sentences and pairs, and what was left out."""
        similar = self.similar()
        notes = [
            f"{len(self.distinct())} distinct sentences and {len(similar)} similar pairs of {self.path.name}"
        ]
        if not similar:
            notes.append(f"no alignment: no pair has a score above {SIMILAR:g}")
        if self.sts.skipped:
            count, reasons = sum(self.sts.skipped.values()), describe_skipped(Counter(self.sts.skipped))
            notes.append(f"{count} rows skipped ({reasons})")
        if repeats := count_repeats(similar):
            notes.append(f"{repeats} similar pairs occur before in the file; each counts")
        return notes

    def distinct(self) -> list[str]:
        """Return the distinct sentences, in the file's order."""
        return list(dict.fromkeys((*self.sts.left, *self.sts.right)))

    def similar(self) -> list[tuple[str, str]]:
        """Return the similar pairs."""
        sts = self.sts
        pairs = zip(sts.scores, sts.left, sts.right, strict=True)
        return [(left, right) for score, left, right in pairs if score > SIMILAR]

    def texts(self) -> Sequence[str]:
        """Return the distinct sentences."""
        return self.distinct()

    def score(self, subject: Subject, notes: list[str]) -> GeometryScores:
        """Describe how one model's vectors lie."""
        pick = subject.encoded.pick
        similar = self.similar()
        left, right = (pick([pair[side] for pair in similar]) for side in (0, 1))
        return score_geometry(pick(self.distinct()), left, right)


def read(request: Request) -> GeometryTask:
    """Read STS-B's test set in the request's folder or, where it is not there, its dev set.

    Raises:
        NotThereError: if neither is there.
        DataError: if no folder was given, or the file cannot be read.
    """
    folder = request.folder("geometry")
    paths = [path for path in (find_test_file(folder, stem) for stem in _FILES) if path is not None]
    if not paths:
        raise NotThereError(f"{folder} holds no STS-B: looked for {' and '.join(f'{s}.tsv' for s in _FILES)}")
    return GeometryTask(paths[0], read_pairs(paths[0], paths[0].name.partition(".")[0]))
