"""Judging figures: the thresholds, each with its reason, and the sentence that goes with each verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.doctor.diagnosis import Coverage, Grade, Verdict
from embedcache.doctor.geometry import NEAR_DUPLICATE, Geometry
from embedcache.doctor.overlap import Overlap
from embedcache.doctor.scan import Norms, Scan
from embedcache.store import ShardHeader

# Training takes each text once, so repeats cost little; at half of the rows the corpus is not what it seems.
DUPLICATES_LOOK, DUPLICATES_BAD = 0.10, 0.50

# How far a vector of length one may be from it as stored. float16 rounds by 5e-4 at most; int8 steps by 1/127
# of the largest component, at worst, where that is all there is, 4e-3; a pq code is the mean of its
# neighbours, hence shorter than they are: by a tenth on real vectors, by more where they lie scattered.
CODEC_TOLERANCE = {"float32": 1e-3, "float16": 2e-3, "int8": 1e-2, "pq": 0.35}
# What computing in a short dtype adds: the length that a vector is divided by has its 8 or 11 bits as well.
COMPUTE_TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3}

# Where vectors are not normalised, a loss on differences follows the squares: ten times the mean length
# counts like a hundred rows.
NORM_OUTLIER = 10.0

# Spellings that the tokenizer does not tell apart share a vector, mostly fewer than one text in a hundred.
# One in ten, and a tenth of the corpus teaches nothing.
IDENTICAL_LOOK, IDENTICAL_BAD = 0.01, 0.10
# Many texts with one vector: the teacher cannot read them (a script it does not know, an empty template).
COLLAPSED_LOOK, COLLAPSED_TEXTS = 0.001, 10

NEAR_LOOK, NEAR_BAD = 0.05, 0.25

# Teachers trained with a contrastive loss lie at 0.0 to 0.3; bare masked language models at 0.5 to 0.8, with
# little of a cosine left to tell texts apart; above 0.9 rounding and the student's own error hide the rest.
COSINE_LOOK, COSINE_BAD = 0.5, 0.9

# As a share of the directions that a sample of this size can show. Sentence encoders use a third and more;
# below a tenth a student of that width, or a target reduced by PCA, would do as well.
RANK_LOOK, RANK_BAD = 0.10, 0.02

# In a healthy cloud no direction holds more than a few per cent. With a third of the variance, half of what a
# squared error rewards is a single number.
FIRST_LOOK, FIRST_BAD = 0.30, 0.60

# Trained encoders have a handful; a tenth of the width means a wrong --truncate-dim or a broken head.
DEAD_LOOK, DEAD_BAD = 0.01, 0.10

# The teacher saw only the beginning of such a text, the student may see another part of it.
TRUNCATED_LOOK, TRUNCATED_BAD = 0.05, 0.25

# Below one in a hundred, a score moves less than it does between two seeds.
CONTAMINATED = 0.01

_ANEW = (
    "delete it from the teacher's folder, and 'embedcache build', of a projection 'distill project --apply', "
    "makes its vectors again"
)

# Of fewer vectors, a near pair or a first component's share is chance.
LEAST_SAMPLE = 50

# With fewer rows a dimension, a spectrum says more about the sample than about the vectors.
ROWS_A_DIMENSION = 5


def judge(
    coverage: Sequence[Coverage],
    scan: Scan,
    geometry: Geometry | None,
    *,
    named: bool,
    tolerance: float | None,
    max_length: int,
    is_projection: bool = False,
) -> Iterator[Verdict]:
    """Yield a verdict for each figure but the overlap and the examples of vectors.

    Args:
        coverage, scan, geometry: the figures.
        named: whether the corpora were chosen by name; else some may belong to other teachers.
        tolerance: how far vectors may be from length one; None where the contract does not promise it.
        max_length: tokens after which the teacher cuts a text; 0 means never.
        is_projection: whether the vectors are made of another teacher's.
    """
    for one in coverage:
        yield _coverage(one, alone=named or len(coverage) == 1, is_projection=is_projection)
        yield _duplicates(one)
    yield _broken("NaN or infinite", scan.non_finite.count, "spoils every weight it meets in training")
    yield _broken("zero vectors", scan.zero.count, "has no direction, so a cosine to it means nothing")
    yield _norms(scan.norms, tolerance)
    yield _identical(scan)
    rows = geometry.rows if geometry is not None else 0
    if geometry is None or rows < LEAST_SAMPLE:
        yield Verdict(
            "sample",
            f"{rows:,} usable vectors",
            float(rows),
            "look",
            f"fewer than {LEAST_SAMPLE} are too few to judge their geometry: build more, or raise --sample",
        )
    else:
        yield from _geometry(geometry)
    yield _lengths(scan.tokens)
    yield _truncated(scan, max_length)


def norm_tolerance(headers: Iterable[ShardHeader]) -> float:
    """Return how far from length one the vectors of shards with these headers may be."""
    return max(
        CODEC_TOLERANCE[header.codec]
        + COMPUTE_TOLERANCE.get(str(header.provenance.get("compute_dtype")), 0.0)
        for header in headers
    )


def _grade(value: float, look: float, bad: float) -> Grade:
    return "bad" if value >= bad else "look" if value >= look else "ok"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _coverage(one: Coverage, *, alone: bool, is_projection: bool) -> Verdict:
    share = 1 - _share(one.missing, one.distinct)
    foreign = one.missing == one.distinct and not alone
    advice = (
        "texts without a vector cannot be trained on: "
        + (
            "this corpus was not built with this teacher; build it, or judge another with --corpus"
            if foreign
            else "run 'distill project --apply', which makes only these"
            if is_projection
            else "run 'embedcache build' again, which encodes only these"
        )
        if one.missing
        else "every text can be trained on"
    )
    grade: Grade = "look" if foreign else "bad" if one.missing else "ok"
    figure = f"{one.distinct - one.missing:,} of {one.distinct:,} texts"
    examples = tuple((text,) for text in one.examples)
    return Verdict(f"coverage of {one.corpus}", figure, share, grade, advice, examples)


def _duplicates(one: Coverage) -> Verdict:
    repeated = one.rows - one.distinct
    share = _share(repeated, one.rows)
    grade = _grade(share, DUPLICATES_LOOK, DUPLICATES_BAD)
    advice = "training takes each text once, so the corpus is smaller by these" + (
        ": see whether the source repeats itself" if grade != "ok" else ""
    )
    figure = f"{repeated:,} of {one.rows:,} rows ({share:.1%})"
    return Verdict(f"duplicate texts in {one.corpus}", figure, share, grade, advice)


def _broken(name: str, count: int, why: str) -> Verdict:
    if not count:
        return Verdict(name, "0", 0.0, "ok", f"one such vector {why}")
    mend = f"take the text out of the corpus, or see with 'embedcache explain' which shard it is in: {_ANEW}"
    return Verdict(name, f"{count:,}", float(count), "bad", f"such a vector {why}: {mend}")


def _norms(norms: Norms | None, tolerance: float | None) -> Verdict:
    if norms is None:
        return Verdict("norms", "no usable vector", None, "bad", "there is nothing to train on: build anew")
    figure = f"{norms.least:.5g} to {norms.most:.5g}, mean {norms.mean:.5g}"
    if tolerance is None:
        ratio = norms.most / norms.mean
        advice = "lengths are free under this contract" + (
            f"; the longest is {ratio:.0f} times the mean and rules a loss such as mse: use a cosine loss"
            if ratio >= NORM_OUTLIER
            else " and none stands out"
        )
        return Verdict("norms", figure, ratio, "look" if ratio >= NORM_OUTLIER else "ok", advice)
    off = max(abs(norms.least - 1), abs(norms.most - 1))
    if off <= tolerance:
        return Verdict(
            "norms", figure, off, "ok", f"length one, as the contract promises, within {tolerance:g}"
        )
    advice = (
        f"the contract promises length one, as stored within {tolerance:g}, so these are not its vectors: "
        f"'embedcache verify --deep' names their shards; {_ANEW}"
    )
    return Verdict("norms", figure, off, "bad", advice)


def _identical(scan: Scan) -> Verdict:
    found, usable = scan.identical, scan.vectors - scan.non_finite.count - scan.zero.count
    share = _share(found.vectors, usable)
    grade = _grade(share, IDENTICAL_LOOK, IDENTICAL_BAD)
    if grade == "ok" and found.largest >= COLLAPSED_TEXTS and found.largest >= COLLAPSED_LOOK * usable:
        grade = "look"
    figure = f"{found.vectors:,} ({share:.2%}), at most {found.largest:,} alike" if found.vectors else "0"
    advice = (
        "texts that share a vector cannot be told apart by any student: see what they have in common "
        "(case, an unknown script, the same beginning before the cut)"
        if grade != "ok"
        else "few texts look the same to the teacher"
    )
    return Verdict("identical vectors", figure, share, grade, advice)


def _geometry(geometry: Geometry) -> Iterator[Verdict]:
    near = geometry.near_rows / geometry.rows
    grade = _grade(near, NEAR_LOOK, NEAR_BAD)
    yield Verdict(
        "near-duplicate vectors",
        f"{geometry.near_rows:,} of {geometry.rows:,} sampled ({near:.2%})",
        near,
        grade,
        f"different vectors with a cosine of {NEAR_DUPLICATE} and more are one target twice"
        + ("; thin out texts that say the same" if grade != "ok" else ", here a few"),
    )
    grade = _grade(geometry.mean_cosine, COSINE_LOOK, COSINE_BAD)
    yield Verdict(
        "cosine of random pairs",
        f"mean {geometry.mean_cosine:.3f}",
        geometry.mean_cosine,
        grade,
        "texts of nothing in common point apart"
        if grade == "ok"
        else "all vectors point one way, so a cosine says little: choose a teacher trained for similarity, "
        "or a loss on the ranking of similarities",
    )
    yield from _spectrum(geometry)


def _spectrum(geometry: Geometry) -> Iterator[Verdict]:
    dimension = len(geometry.spectrum)
    most = min(dimension, geometry.rows - 1)
    share = geometry.effective_rank / most
    few = geometry.rows < ROWS_A_DIMENSION * dimension
    note = f" (a sample of {geometry.rows:,} is small for a width of {dimension:,})" if few else ""
    # Above the threshold on the good side: the grade falls with the share.
    grade: Grade = "bad" if share <= RANK_BAD else "look" if share <= RANK_LOOK else "ok"
    yield Verdict(
        "effective rank",
        f"{geometry.effective_rank:.0f} of {dimension:,}, participation {geometry.participation_ratio:.0f}",
        geometry.effective_rank,
        grade,
        (
            "the vectors use a good part of their width"
            if grade == "ok"
            else "the vectors use few of their directions: a narrower student or a reduced target would do, "
            "or the teacher has collapsed"
        )
        + note,
    )
    grade = _grade(geometry.first_component, FIRST_LOOK, FIRST_BAD)
    yield Verdict(
        "first component",
        f"{geometry.first_component:.1%} of the variance",
        geometry.first_component,
        grade,
        "no single direction rules the loss"
        if grade == "ok"
        else "one direction rules what a loss rewards: see what the texts at its ends have in common "
        "(length, language, source)",
    )
    dead = len(geometry.dead)
    grade = _grade(dead / dimension, DEAD_LOOK, DEAD_BAD)
    yield Verdict(
        "dead dimensions",
        f"{dead:,} of {dimension:,}",
        float(dead),
        grade,
        "practically every dimension varies"
        if grade == "ok"
        else "these hardly vary and teach nothing: see --truncate-dim and the model's last layer",
    )


def _lengths(tokens: NDArray[np.int64]) -> Verdict:
    known = tokens.copy()
    known[0] = 0
    total = int(known.sum())
    if not total:
        return Verdict("lengths", "unknown", None, "look", "no vector says how long its text was: build anew")
    upto = np.cumsum(known)
    median, p95 = (int(np.searchsorted(upto, share * total)) for share in (0.5, 0.95))
    mean = float((known * np.arange(len(known))).sum() / total)
    unknown = f", {int(tokens[0]):,} unknown" if tokens[0] else ""
    figure = f"mean {mean:.1f}, median {median}, 95 % up to {p95}, longest {len(known) - 1} tokens{unknown}"
    return Verdict("lengths", figure, mean, "ok", "the student needs to read no further than the longest")


def _truncated(scan: Scan, max_length: int) -> Verdict:
    share = _share(scan.truncated, scan.vectors)
    grade = _grade(share, TRUNCATED_LOOK, TRUNCATED_BAD)
    limit = f" at {max_length}" if max_length else ""
    advice = (
        "nearly every text was read to its end"
        if grade == "ok"
        else "the teacher saw only the beginning of these: cut the texts into sentences, or build with a "
        "higher --max-length, which keeps every other vector"
    )
    figure = f"{scan.truncated:,} of {scan.vectors:,}{limit} ({share:.1%})"
    return Verdict("truncated texts", figure, share, grade, advice)


def judge_overlap(overlaps: Sequence[Overlap]) -> Verdict:
    """Return the verdict on the evaluation sets; what is there to be trained on does not count."""
    judged = [one for one in overlaps if not one.training]
    contaminated = [one for one in judged if one.share >= CONTAMINATED]
    touched = [one for one in judged if one.folded]
    worst = max((one.share for one in judged), default=0.0)
    if contaminated:
        shown = ", ".join(one.name for one in sorted(contaminated, key=lambda one: -one.share)[:3])
        figure = f"contaminated: {len(contaminated)} of {len(judged)} sets"
        advice = (
            f"texts of {shown}{' and others' if len(contaminated) > 3 else ''} would be trained on: take "
            "them out of the source and build again, or report no score of these sets"
        )
        return Verdict("overlap", figure, worst, "bad", advice)
    if touched:
        advice = f"fewer than {CONTAMINATED:.0%} of each set: too few to move a score, yet say so beside it"
        return Verdict(
            "overlap", f"a few texts of {len(touched)} of {len(judged)} sets", worst, "look", advice
        )
    return Verdict("overlap", f"none with {len(judged)} sets", worst, "ok", "no text of them is trained on")
