"""Fidelity: how closely a model's vectors follow its teacher's, on sentences without labels.

Cosines to the teacher's vectors say how well the vectors themselves were copied; they exist only where both
are equally wide. What a user of sentence vectors sees is their geometry, so two figures compare that,
whatever the widths: the Spearman correlation of all pairwise similarities, and the share of common nearest
neighbours. Both take at most :data:`SAMPLE` sentences, chosen by seed, because they grow with the square.

The teacher's vectors come from a cache as far as it holds them; only the others need the teacher itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.errors import DataError
from distill.evaluation.model import EvaluatedModel, run_folder
from distill.evaluation.tasks import (
    EvaluationResult,
    ModelReport,
    Request,
    encode_distinct,
    require_usable,
    unit_rows,
)
from embedcache.contract import Contract

SAMPLE = 2000
"""Sentences whose pairwise similarities are compared."""

NEIGHBOURS = 10
"""Nearest neighbours compared; never more than half of the other sentences, or any two models would agree."""

SMALLEST_SPREAD = 1e-6  # below this, similarities of float32 vectors differ by rounding alone
_HELD_OUT = "held_out.txt"
_FEWEST = 3  # with two sentences there is one similarity, and nothing to rank


@dataclass(frozen=True)
class FidelityScores:
    """One model's likeness to its teacher.

    Attributes:
        cosine_mean: mean cosine of model's to teacher's vector; None where the widths differ.
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
class _Sentences:
    """Distinct sentences in order, where they came from, and what was left out on the way."""

    texts: list[str]
    source: str
    duplicates: int
    skipped: str = ""


def score_fidelity(
    student: NDArray[np.float32], teacher: NDArray[np.float32], *, seed: int = 0
) -> FidelityScores:
    """Compare a student's vectors, (n, d_S), with the teacher's, (n, d_T), of the same n sentences.

    Raises:
        DataError: if there are fewer than three sentences, or one side gives every sentence the same vector.
    """
    rows = len(teacher)
    if len(student) != rows or rows < _FEWEST:
        raise DataError(
            f"{len(student)} student and {rows} teacher vectors: expected as many of each, at least {_FEWEST}"
        )
    cosines: NDArray[np.float64] | None = None
    if student.shape[1] == teacher.shape[1]:
        cosines = np.einsum("ij,ij->i", unit_rows(student), unit_rows(teacher))
    sample = np.arange(rows)
    if rows > SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(rows, SAMPLE, replace=False))
    similarities = [_similarities(vectors[sample]) for vectors in (student, teacher)]
    return FidelityScores(
        cosine_mean=None if cosines is None else float(cosines.mean()),
        cosine_p05=None if cosines is None else float(np.percentile(cosines, 5)),
        cosine_worst=None if cosines is None else float(cosines.min()),
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
    sentences = _read_sentences(request)
    if len(sentences.texts) < _FEWEST:
        raise DataError(
            f"{sentences.source} holds {len(sentences.texts)} distinct sentences, expected at least {_FEWEST}"
        )
    teacher, cached = _teacher_vectors(request, sentences.texts)
    notes = _notes(sentences, request.teacher.name, cached)
    reports = []
    for spec in request.models:
        model = request.load(spec)
        encoded = encode_distinct(model, sentences.texts, request.progress)
        scores = score_fidelity(encoded.pick(sentences.texts), teacher, seed=request.seed)
        if scores.cosine_mean is None:
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


def _teacher_vectors(request: Request, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
    """Return the teacher's vectors of ``texts``, (n, d), and how many of them the cache held."""
    cached, contract = _cached_vectors(request, texts)
    missing = [text for text in texts if text not in cached]
    fresh: dict[str, NDArray[np.float32]] = {}
    if missing:
        model = request.load_teacher()
        if cached and contract is not None:
            _require_same_teacher(contract, model, request)
        fresh = dict(
            zip(missing, encode_distinct(model, missing, request.progress).pick(missing), strict=True)
        )
    vectors = np.stack([cached[text] if text in cached else fresh[text] for text in texts])
    require_usable(vectors, texts, "the teacher")
    return vectors, len(cached)


def _cached_vectors(
    request: Request, texts: Sequence[str]
) -> tuple[dict[str, NDArray[np.float32]], Contract | None]:
    """Return the vectors that the cache holds, by text, and their contract; nothing without a cache."""
    if request.cache is None or request.teacher is None:
        return {}, None
    import embedcache
    from embedcache.keys import key_array

    cache = embedcache.open(request.cache)
    # A name may have been given to another contract since the run; its contract's id cannot.
    contract = cache.teacher(request.teacher.contract_id or request.teacher.name).contract
    held = cache.store(contract).locate(key_array(texts)) >= 0
    found = [text for text, is_held in zip(texts, held, strict=True) if is_held]
    if not found:
        return {}, contract
    return dict(zip(found, cache.lookup(found, teacher=contract.id), strict=True)), contract


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
        f"{request.cache} lacks some vectors of {model.name}, and the teacher as loaded has another contract "
        f"({why}): give the teacher that the cache was built with, or leave out --cache",
        found,
    )


def _notes(sentences: _Sentences, teacher: str, cached: int) -> list[str]:
    count = len(sentences.texts)
    notes = [
        f"{count} distinct sentences; vectors of {teacher}: {cached} cached, {count - cached} encoded now"
    ]
    if count > SAMPLE:
        notes.append(f"similarities and neighbours on {SAMPLE} of them, chosen by seed")
    if sentences.duplicates:
        notes.append(f"{sentences.duplicates} repeated sentences counted once")
    if sentences.skipped:
        notes.append(f"rows skipped: {sentences.skipped}")
    return notes


def _read_sentences(request: Request) -> _Sentences:
    if request.data is not None:
        return _read_file(request.data, request.text_column, request.limit)
    if request.text_column is not None:
        raise DataError("--text-column names a column of --data: give --data, or leave it out")
    runs = dict.fromkeys(run for run in map(run_folder, request.models) if run is not None)
    if not runs:
        raise DataError("no sentences to compare on: give --data FILE, or evaluate a run that held some out")
    held_out = {run: _read_held_out(run / _HELD_OUT) for run in runs}
    first_run, texts = next(iter(held_out.items()))
    for run, other in held_out.items():
        if other != texts:
            raise DataError(f"{first_run} and {run} held out different sentences: give --data FILE")
    return _distinct(texts[: request.limit], str(first_run / _HELD_OUT))


def _read_file(path: Path, text_column: str | None, limit: int | None) -> _Sentences:
    from embedcache.corpus.readers import ReadOptions, ReadReport, expand_sources, read_batches

    if path.is_dir():
        raise DataError(
            f"{path} is a folder; the fidelity suite reads sentences from a file: give --data FILE"
        )
    report = ReadReport()
    options = ReadOptions(text_column=text_column, limit=limit)
    texts = [t for batch in read_batches(expand_sources([path]), options, report) for t in batch.texts]
    return _distinct(texts, str(path), report.describe_skipped())


def _read_held_out(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        texts = [json.loads(line) for line in lines if line]
    except FileNotFoundError as error:
        raise DataError(f"no {path}: the run held no sentences out; give --data FILE") from error
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} cannot be read, expected one JSON string a line ({error}); give --data"
        ) from error
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path} holds something else than JSON strings; give --data FILE")
    return texts


def _distinct(texts: Sequence[str], source: str, skipped: str = "") -> _Sentences:
    distinct = list(dict.fromkeys(texts))
    return _Sentences(distinct, source, len(texts) - len(distinct), skipped)


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
