"""Evaluate models on suites, beside their teacher.

The teacher comes first. A model encodes each distinct sentence once for all suites, and nothing for suites
whose evaluation is kept.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distill.errors import DataError
from distill.evaluation import stats
from distill.evaluation.cache import Scored
from distill.evaluation.models import CACHE_PREFIX, Model, Progress, Spec, open_model, silent
from distill.evaluation.result import Evaluation
from distill.evaluation.session import Session
from distill.evaluation.task import SNLI_PAIRS, SuiteOptions
from distill.evaluation.teachers import find_teacher, with_cache
from distill.layout import RECORD
from distill.record import find_runs, run_folder


def evaluate(
    models: Sequence[Spec] | Spec,
    suite: str = "sts",
    data: str | Path | None = None,
    teacher: Spec | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate one or more models on one suite, beside their teacher where it is known.

    Arguments and errors are those of :func:`evaluate_suites`; an unknown option is a :class:`DataError`.
    """
    known = [
        name for name in inspect.signature(evaluate_suites).parameters if name not in ("models", "suites")
    ]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DataError(
                f"no option {name!r} of an evaluation; {f'did you mean {near[0]}?' if near else known}"
            )
    (found,) = evaluate_suites(models, [suite], data=data, teacher=teacher, cache=cache, **options)
    return found


def evaluate_suites(
    models: Sequence[Spec] | Spec,
    suites: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    teacher: Spec | None = None,
    cache: str | Path | None = None,
    beside_teacher: bool = True,
    corpus: str | Path | None = None,
    contamination: bool = False,
    device: str = "auto",
    compute_dtype: str = "float32",
    limit: int | None = None,
    text_column: str | None = None,
    sst2_sentences: bool = False,
    snli_pairs: int = SNLI_PAIRS,
    seed: int = 0,
    bootstrap: int = stats.DRAWS,
    keep: bool = False,
    again: bool = False,
    progress: Progress = silent,
) -> list[Evaluation]:
    """Evaluate one or more models on several suites.

    Args:
        models: run folders, folders with runs below them, sentence-transformers folders, ONNX exports, hub
            ids, aliases, ``cache:FOLDER#TEACHER`` or :class:`distill.evaluation.models.Model`.
        suites: names of suites; None: every suite that finds its files in ``data``, but for those that run on
            request only.
        data: folder of test files, or a file of sentences (``fidelity``; default: those the run held out).
        teacher: the teacher to compare with; default: the one that the runs name.
        cache: cache to look for the teacher's vectors in; default: the run's. It is not written.
        beside_teacher: evaluate the teacher that a run names as well.
        corpus: training texts of models that are no runs, searched for test sentences.
        contamination: search the training texts of runs for test sentences, and for test pairs what their
            checkpoints were chosen on.
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        limit, text_column: of the sentences of ``fidelity``.
        sst2_sentences: learn SST2 from whole sentences, a tenth as many as its phrases.
        snli_pairs: pairs that SNLI is learnt from; 0 for all.
        seed: choice of folds, samples and draws.
        bootstrap: draws for confidence intervals; 0 for none.
        keep: keep evaluations, and use those that are kept.
        again: use none that is kept.
        progress: called with a step's name, units done and units in all.

    Raises:
        DataError: if a suite or model is unknown, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
        EmbedCacheError: if a cache that was named cannot be used.
    """
    opened = _open_all(models, device, compute_dtype)
    notes: list[str] = []
    beside = None
    if beside_teacher or teacher is not None:
        beside = find_teacher(opened, teacher, notes, device, compute_dtype)
    if cache is not None:
        if beside is None:
            raise DataError(
                f"--cache {cache} is for a teacher's vectors, but no teacher is known: give --teacher"
            )
        beside = with_cache(beside, cache)
    students = [model for model in opened if model is not beside]
    _name_apart([*([beside] if beside else []), *students])
    for model in [*opened, *([beside] if beside else [])]:
        model.progress = progress
    session = Session(
        options=SuiteOptions(
            seed=seed,
            limit=limit,
            text_column=text_column,
            sst2_sentences=sst2_sentences,
            snli_pairs=snli_pairs,
            teacher=beside.encode if beside else None,
            progress=progress,
        ),
        teacher=beside,
        implied=teacher is None,
        compute_dtype=compute_dtype,
        draws=bootstrap,
        keep=keep,
        again=again,
        search=contamination,
        corpus=None if corpus is None else Path(corpus),
        notes=notes,
    )
    session.choose(suites, None if data is None else Path(data), opened)
    session.score_teacher()
    found: dict[str, list[Scored]] = {name: [] for name in session.jobs}
    for model in students:
        for name, scored in session.score_student(model).items():
            found[name].append(scored)
        model.forget()
    return [session.evaluation(name, scored) for name, scored in found.items()]


def _open_all(models: Sequence[Spec] | Spec, device: str, compute_dtype: str) -> list[Model]:
    specs = [models] if isinstance(models, str | Path | Model) else list(models)
    expanded = [one for spec in specs for one in _expand(spec)]
    if not expanded:
        raise DataError("no model to evaluate; name at least one")
    opened = [open_model(spec, device=device, compute_dtype=compute_dtype) for spec in expanded]
    for model, spec in zip(opened, expanded, strict=True):
        model.spec = model.name if isinstance(spec, Model) else str(spec)
    return opened


def _name_apart(models: Sequence[Model]) -> None:
    """Call a second model of one name by what the caller typed."""
    names: set[str] = set()
    for model in models:
        free = (f"{model.name} ({number})" for number in range(2, 2 + len(models)))
        model.name = next(name for name in (model.name, model.spec, *free) if name and name not in names)
        names.add(model.name)


def _expand(spec: Spec) -> Iterable[Spec]:
    """Return the runs below a folder that holds no model."""
    if isinstance(spec, Model) or str(spec).startswith(CACHE_PREFIX) or run_folder(spec) is not None:
        return [spec]
    folder = Path(spec).expanduser()
    is_model = any((folder / name).exists() for name in ("config.json", "modules.json", "onnx"))
    return [spec] if is_model or not any(folder.glob(f"*/**/{RECORD}")) else find_runs(folder)
