"""Fidelity: how closely a model's vectors follow its teacher's, on sentences without labels.

Cosines to the teacher's vectors say how well the vectors themselves were copied; they exist only where both
are equally wide. What a user of sentence vectors sees is their geometry, so two figures compare that,
whatever the widths: the Spearman correlation of all pairwise similarities, and the share of common nearest
neighbours. Both take at most :data:`SAMPLE` sentences, chosen by seed, because they grow with the square.

The teacher's vectors come from a cache as far as it holds them; only the others need the teacher itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError, DistillError
from distill.evaluation.model import EvaluatedModel
from distill.evaluation.record import RunTeacher, is_in_target_space, read_run_cache, run_folder
from distill.evaluation.sentences import Sentences, read_sentences
from distill.evaluation.tasks import (
    EvaluationResult,
    ModelReport,
    Request,
    TeacherChoice,
    encode_distinct,
    require_usable,
    unit_rows,
)
from embedcache.contract import Contract
from embedcache.errors import EmbedCacheError

SAMPLE = 2000
"""Sentences whose pairwise similarities are compared."""

NEIGHBOURS = 10
"""Nearest neighbours compared; never more than half of the other sentences, or any two models would agree."""

SMALLEST_SPREAD = 1e-6  # below this, similarities of float32 vectors differ by rounding alone
_FEWEST = 3  # with two sentences there is one similarity, and nothing to rank


@dataclass(frozen=True)
class FidelityScores:
    """One model's likeness to its teacher.

    Attributes:
        cosine_mean: mean cosine of model's to teacher's vector; None where the widths differ, or the
            model's vectors are not to be like the teacher's.
        cosine_p05: 5th percentile of those cosines.
        cosine_worst: smallest of those cosines.
        similarity_spearman: Spearman correlation, times 100, of the two matrices of pairwise cosines.
        neighbour_overlap: per cent of nearest neighbours in common, mean over sentences.
    """

    cosine_mean: float | None
    cosine_p05: float | None
    cosine_worst: float | None
    similarity_spearman: float
    neighbour_overlap: float

    def to_json(self) -> dict[str, object]:
        """Return ``cosine`` (``mean``, ``p05``, ``worst``; or null) and the two figures of the geometry."""
        cosine = {"mean": self.cosine_mean, "p05": self.cosine_p05, "worst": self.cosine_worst}
        rounded = {name: round(value, 6) for name, value in cosine.items() if value is not None}
        return {
            "cosine": rounded or None,
            "similarity_spearman": round(self.similarity_spearman, 4),
            "neighbour_overlap": round(self.neighbour_overlap, 4),
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return nothing: the summary says it all."""
        return []

    def summary(self) -> dict[str, str]:
        """Return the five figures."""

        def cell(value: float | None) -> str:
            return "-" if value is None else f"{value:.4f}"

        return {
            "cosine": cell(self.cosine_mean),
            "5th pct": cell(self.cosine_p05),
            "worst": cell(self.cosine_worst),
            "similarity rho": f"{self.similarity_spearman:.2f}",
            "neighbours": f"{self.neighbour_overlap:.2f} %",
        }


@dataclass(frozen=True)
class _TeacherVectors:
    """The teacher's vectors, (n, d).

    Attributes:
        vectors: float32.
        cached: how many of them a cache held.
        contract: that of the cached ones, where they are one teacher's own.
        model: the teacher itself, where it had to be loaded.
        speed: sentences per second, where it encoded all of them.
    """

    vectors: NDArray[np.float32]
    cached: int
    contract: Contract | None
    model: EvaluatedModel | None
    speed: float | None


def score_fidelity(
    student: NDArray[np.float32], teacher: NDArray[np.float32], *, cosines: bool = True, seed: int = 0
) -> FidelityScores:
    """Compare a student's vectors, (n, d_S), with the teacher's, (n, d_T), of the same n sentences.

    Args:
        student, teacher: the vectors.
        cosines: whether one of them is to be like the other, so that their cosine says something.
        seed: chooses the sample.

    Raises:
        DataError: if there are fewer than three sentences, or one side gives every sentence the same vector.
    """
    rows = len(teacher)
    if len(student) != rows or rows < _FEWEST:
        raise DataError(
            f"{len(student)} student and {rows} teacher vectors: expected as many of each, at least {_FEWEST}"
        )
    own: NDArray[np.float64] | None = None
    if cosines and student.shape[1] == teacher.shape[1]:
        own = np.einsum("ij,ij->i", unit_rows(student), unit_rows(teacher))
    sample = np.arange(rows)
    if rows > SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(rows, SAMPLE, replace=False))
    similarities = [_similarities(vectors[sample]) for vectors in (student, teacher)]
    return FidelityScores(
        cosine_mean=None if own is None else float(own.mean()),
        cosine_p05=None if own is None else float(np.percentile(own, 5)),
        cosine_worst=None if own is None else float(own.min()),
        similarity_spearman=_similarity_spearman(*similarities),
        neighbour_overlap=_neighbour_overlap(*similarities),
    )


def run(request: Request) -> EvaluationResult:
    """Compare every model with the teacher on the sentences of ``request.data`` or those the run held out.

    Raises:
        DataError: if there is no teacher, no sentences, or vectors that cannot be compared.
        TeacherError: if vectors are missing from the cache and the teacher cannot be loaded.
    """
    if request.teacher is None:
        raise DataError(
            "fidelity is to a teacher, and no model given is a run that names one: give --teacher"
        )
    sentences = read_sentences(request)
    if len(sentences.texts) < _FEWEST:
        raise DataError(
            f"{sentences.source} holds {len(sentences.texts)} distinct sentences, expected at least {_FEWEST}"
        )
    lookup_notes: list[str] = []
    known = _teacher_vectors(request, sentences.texts, lookup_notes)
    teacher, cached = known.vectors, known.cached
    notes = [*_notes(sentences, request.teacher.name, cached), *lookup_notes]
    row = _teacher_report(request, known, sentences.texts, notes)
    reports = [] if row is None else [row]
    for spec in request.models:
        if row is not None and spec == request.teacher.spec:
            continue
        model = request.load(spec)
        encoded = encode_distinct(model, sentences.texts, request.progress)
        vectors, alike = encoded.pick(sentences.texts), is_in_target_space(spec)
        scores = score_fidelity(vectors, teacher, cosines=alike, seed=request.seed)
        if not alike:
            notes.append(
                f"{model.name}: no cosine to the teacher, whose vectors its own were like only behind a head "
                "that is not part of it"
            )
        elif scores.cosine_mean is None:
            notes.append(
                f"{model.name}: no cosine to the teacher, its vectors are {model.dimension} wide "
                f"and the teacher's {teacher.shape[1]}"
            )
        reports.append(ModelReport.of(model, "model", encoded.sentences_per_second, scores))
    facts: dict[str, object] = {
        "data": sentences.source,
        "teacher": request.teacher.name,
        "sentences": len(sentences.texts),
        "duplicates": sentences.duplicates,
        "compared_pairwise": min(len(sentences.texts), SAMPLE),
        "neighbours": _neighbours(min(len(sentences.texts), SAMPLE)),
        "teacher_vectors_cached": cached,
        "teacher_vectors_encoded": len(sentences.texts) - cached,
    }
    return EvaluationResult("fidelity", tuple(reports), facts, tuple(notes))


def _teacher_vectors(request: Request, texts: Sequence[str], notes: list[str]) -> _TeacherVectors:
    """Return the teacher's vectors of ``texts``: cached ones, and the teacher's own of the others."""
    cached, contract = _cached_vectors(request, texts, notes)
    missing = [text for text in texts if text not in cached]
    fresh: dict[str, NDArray[np.float32]] = {}
    model, speed = None, None
    if missing:
        model = request.load_teacher()
        if cached and contract is not None:
            _require_same_teacher(contract, model, request)
        encoded = encode_distinct(model, missing, request.progress)
        fresh = dict(zip(missing, encoded.pick(missing), strict=True))
        speed = None if cached else encoded.sentences_per_second
    vectors = np.stack([cached[text] if text in cached else fresh[text] for text in texts])
    require_usable(vectors, texts, "the teacher")
    return _TeacherVectors(vectors, len(cached), contract, model, speed)


def _cached_vectors(
    request: Request, texts: Sequence[str], notes: list[str]
) -> tuple[dict[str, NDArray[np.float32]], Contract | None]:
    """Return the vectors that the cache holds, by text, and their contract; nothing without a cache.

    Targets made of several teachers' vectors have none; each teacher is checked on its own.
    """
    if request.teacher is None:
        return {}, None
    if request.cache is not None:
        return _look_up(request.cache, request.teacher, texts)
    # Only the run that names the teacher can say where its vectors are.
    runs = (
        [run for run in map(run_folder, request.models) if run is not None] if request.teacher.implied else []
    )
    folder = next((cache for cache in map(read_run_cache, runs) if cache is not None), None)
    if folder is None:
        return {}, None
    try:
        return _look_up(folder, request.teacher, texts)
    except EmbedCacheError as error:
        # A cache nobody asked for is a service; the teacher itself may still be there.
        notes.append(f"the run's cache {folder} is not usable: {error}")
        return {}, None


def _look_up(
    folder: Path, teacher: TeacherChoice, texts: Sequence[str]
) -> tuple[dict[str, NDArray[np.float32]], Contract | None]:
    import embedcache
    from embedcache.keys import key_array

    cache = embedcache.open(folder)
    whole = teacher.run_teacher or RunTeacher(teacher.name, teacher.name, None)
    # A name may have been given to another contract since the run; its contract's id cannot.
    contracts = [cache.teacher(one.contract_id or one.name).contract for one in whole.parts or (whole,)]
    stores = [cache.store(contract) for contract in contracts]
    keys = key_array(texts)
    places = np.stack([store.locate(keys) for store in stores])
    held = np.flatnonzero((places >= 0).all(axis=0))
    vectors = [store.vectors(place[held]) for store, place in zip(stores, places, strict=True)]
    targets = whole.combination().apply(vectors) if whole.parts else vectors[0]
    found = [texts[row] for row in held.tolist()]
    return dict(zip(found, targets, strict=True)), None if whole.parts else contracts[0]


def _teacher_report(
    request: Request, known: _TeacherVectors, texts: Sequence[str], notes: list[str]
) -> ModelReport | None:
    """Return the teacher's own row, by definition a full likeness; None, with a note, where it is not there.

    Its speed is measured on the same sentences as the models', where most vectors are cached on a sample.
    """
    try:
        model = known.model or request.load_teacher()
        if known.cached and known.contract is not None:
            _require_same_teacher(known.contract, model, request)
        speed = known.speed
        if speed is None:
            timed = texts[:: -(-len(texts) // SAMPLE)]
            speed = encode_distinct(model, timed, request.progress).sentences_per_second
    except (DistillError, EmbedCacheError) as error:
        # Its vectors are all there, so the models can be scored without it.
        notes.append(f"no row of the teacher: {error}")
        return None
    return ModelReport.of(model, "teacher", speed, FidelityScores(1.0, 1.0, 1.0, 100.0, 100.0))


def _require_same_teacher(cached: Contract, model: EvaluatedModel, request: Request) -> None:
    """Check that vectors encoded now may stand beside the cached ones.

    Raises:
        ContractMismatchError: if the contracts differ; it names the fields and both values.
    """
    from embedcache.contract import describe_differences
    from embedcache.errors import ContractMismatchError

    if model.contract == cached:
        return
    found = {} if model.contract is None else cached.differences(model.contract)
    why = describe_differences(found) or "the loaded model has none"
    raise ContractMismatchError(
        f"vectors of {model.name} in the cache are of another contract than the teacher as loaded "
        f"({why}): give the teacher that the cache was built with, or leave out --cache",
        found,
    )


def _notes(sentences: Sentences, teacher: str, cached: int) -> list[str]:
    count = len(sentences.texts)
    notes = [
        f"{count} distinct sentences; vectors of {teacher}: {cached} cached, {count - cached} encoded now"
    ]
    if count > SAMPLE:
        notes.append(f"similarities and neighbours on {SAMPLE} of them, chosen by seed")
    if sentences.note:
        notes.append(sentences.note)
    if sentences.duplicates:
        notes.append(f"{sentences.duplicates} repeated sentences counted once")
    if sentences.skipped:
        notes.append(f"rows skipped: {sentences.skipped}")
    return notes


def _similarities(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    unit = unit_rows(vectors)
    similarities: NDArray[np.float64] = unit @ unit.T
    return similarities


def _similarity_spearman(student: NDArray[np.float64], teacher: NDArray[np.float64]) -> float:
    from scipy.stats import spearmanr

    above_diagonal = np.triu_indices(len(teacher), 1)
    pairs = {"student": student[above_diagonal], "teacher": teacher[above_diagonal]}
    for side, values in pairs.items():
        if np.ptp(values) < SMALLEST_SPREAD:
            raise DataError(
                f"all similarities of the {side}'s vectors are equal ({values[0]:.6f}): "
                "it gives every sentence the same vector, so there is nothing to compare"
            )
    return 100 * float(spearmanr(pairs["student"], pairs["teacher"]).statistic)


def _neighbours(rows: int) -> int:
    return max(1, min(NEIGHBOURS, (rows - 1) // 2))


def _neighbour_overlap(student: NDArray[np.float64], teacher: NDArray[np.float64]) -> float:
    common = _nearest(student) & _nearest(teacher)
    return 100 * float(common.sum(axis=1).mean()) / _neighbours(len(teacher))


def _nearest(similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (n, n) booleans: which sentences are the nearest neighbours of each row's sentence."""
    count = _neighbours(len(similarities))
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    nearest = np.zeros(others.shape, dtype=np.bool_)
    np.put_along_axis(nearest, np.argpartition(-others, count - 1, axis=1)[:, :count], True, axis=1)
    return nearest
