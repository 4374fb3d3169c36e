"""Evaluating: the tasks' data is read first, each model encodes the sentences of all tasks once, tasks score.

The teacher comes first, so that every model can be held against it. What a run's folder keeps of an earlier
evaluation is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.archive import Archive
from distill.evaluation.encoding import Progress, encode_distinct, silent
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.kept import Noted
from distill.evaluation.loader import Loader, require_there
from distill.evaluation.record import run_folder
from distill.evaluation.result import EvaluationResult
from distill.evaluation.scoreboard import Scoreboard
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NotThereError, Request, Spec, Subject, Task
from distill.evaluation.teacher_choice import choose_teacher, sized, teacher_subject, tell_of_vectors

BOOTSTRAP = 1000
"""Draws for the confidence intervals, where a caller does not say how many."""


def evaluate(
    models: Sequence[Spec] | Spec,
    *,
    suite: str = "sts",
    data: str | Path | None = None,
    teacher: Spec | None = None,
    beside_teacher: bool = True,
    cache: str | Path | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    text_column: str | None = None,
    limit: int | None = None,
    sst2_sentences: bool = False,
    seed: int = 0,
    bootstrap: int = BOOTSTRAP,
    contamination: bool = True,
    corpus: str | Path | None = None,
    keep: bool = False,
    again: bool = False,
    progress: Progress = silent,
) -> EvaluationResult:
    """Evaluate one or more models on one suite, beside their teacher where it is known.

    Arguments and errors are those of :func:`evaluate_suites`.
    """
    (result,) = evaluate_suites(
        models,
        suites=[suite],
        data=data,
        teacher=teacher,
        beside_teacher=beside_teacher,
        cache=cache,
        device=device,
        compute_dtype=compute_dtype,
        text_column=text_column,
        limit=limit,
        sst2_sentences=sst2_sentences,
        seed=seed,
        bootstrap=bootstrap,
        contamination=contamination,
        corpus=corpus,
        keep=keep,
        again=again,
        progress=progress,
    )
    return result


def evaluate_suites(
    models: Sequence[Spec] | Spec,
    *,
    suites: Sequence[str] | None = None,
    data: str | Path | None = None,
    teacher: Spec | None = None,
    beside_teacher: bool = True,
    cache: str | Path | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    text_column: str | None = None,
    limit: int | None = None,
    sst2_sentences: bool = False,
    seed: int = 0,
    bootstrap: int = BOOTSTRAP,
    contamination: bool = True,
    corpus: str | Path | None = None,
    keep: bool = False,
    again: bool = False,
    progress: Progress = silent,
) -> list[EvaluationResult]:
    """Evaluate one or more models on several suites; no model encodes a sentence twice.

    Args:
        models: run folders, sentence-transformers folders, ONNX exports, hub ids, aliases,
            ``cache:FOLDER#TEACHER`` or loaded models.
        suites: keys of :data:`SUITES`; None for every suite that finds its files in ``data``, but for
            those that run on request only.
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
        sst2_sentences: learn SST2 from whole sentences, a tenth as many as its phrases (``transfer``).
        seed: chooses the sample where a suite takes one, and the draws of the intervals.
        bootstrap: draws for the confidence intervals; 0 for no intervals.
        contamination: look for the test sets among the texts that runs were trained and chosen on.
        corpus: file or folder of training texts, for models that are no runs.
        keep: keep what is found out about a run in its folder, and use what is kept there already.
        again: use nothing that is kept.
        progress: called with (model's name, sentences done, sentences in all).

    Raises:
        DataError: if a suite is unknown, no model is given, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
        EmbedCacheError: if a cache that was named cannot be used.
    """
    specs: tuple[Spec, ...] = (models,) if isinstance(models, str | Path | EvaluatedModel) else tuple(models)
    if not specs:
        raise DataError("no model to evaluate; name at least one")
    for spec in specs:
        require_there(spec)
    notes: list[str] = []
    choice = choose_teacher(specs, teacher, notes) if beside_teacher or teacher is not None else None
    if cache is not None and choice is None:
        raise DataError(
            f"--cache {cache} is for a teacher's vectors, but no teacher is known: give --teacher, or leave "
            "out --cache"
        )
    request = Request(
        models=specs,
        data=None if data is None else Path(data),
        teacher=choice.name if choice else None,
        text_column=text_column,
        limit=limit,
        sst2_sentences=sst2_sentences,
        seed=seed,
        progress=progress,
    )
    tasks = read_tasks(suites, request, notes)
    if corpus is not None and not contamination:
        raise DataError(f"corpus {corpus} is looked at for contamination only: leave out one of the two")
    if corpus is not None and all(map(run_folder, specs)):
        raise DataError(
            f"corpus {corpus} is for models that are no runs: runs say themselves what they were trained on, "
            "leave out --corpus"
        )
    looked_at = None if corpus is None else Path(corpus)
    origins = None
    if contamination:
        from distill.evaluation.origin import Origins

        origins = Origins(tasks, looked_at, progress)
    board = Scoreboard(tasks, bootstrap, seed, origins)
    load = Loader(device, compute_dtype)
    archive = Archive(tasks, request, choice, compute_dtype, use=keep and not again, write=keep)
    stands = None
    if choice is not None:
        lacking = archive.recall_teacher(board)
        asked = suites is not None and any(tasks[name].needs_teacher for name in lacking)
        if lacking:
            essential = asked or not choice.implied
            texts = _texts(tasks, lacking)
            stands = teacher_subject(choice, cache, request, load, texts, essential=essential, notes=notes)
            if stands is not None:
                board.add(stands, lacking)
            else:
                board.drop(name for name in lacking if tasks[name].needs_teacher)
        else:
            load.names.update(one.report.name for one in board.teacher.values())
    for spec in specs:
        if choice is not None and spec == choice.spec and set(board.teacher) >= set(board.tasks):
            continue
        found = archive.recall_model(spec, board.tasks)
        new: dict[str, Noted] = {}
        lacking = [name for name in board.tasks if name not in found]
        if lacking:
            model = load(spec)
            name = model.name
            encoded = encode_distinct(model, _texts(tasks, lacking), progress)
            tell_of_vectors(model, encoded, notes)
            new = board.add(Subject(spec, sized(model, notes), encoded, stands), lacking)
        else:
            name = load.free_name(next(iter(found.values())).report.name, spec)
        found = {suite: _renamed(one, name) for suite, one in found.items()}
        for suite, noted in found.items():
            board.put(suite, noted, spec)
        archive.tell_of_use(spec, found, notes)
        archive.write_new(spec, new, found, board, notes)
    return board.results(request, notes)


def read_tasks(suites: Sequence[str] | None, request: Request, notes: list[str]) -> dict[str, Task]:
    """Return the tasks by suite; with no suite named, those whose files are there.

    Raises:
        DataError: if a suite is unknown, or the data cannot be used.
    """
    if suites is not None:
        suites = list(dict.fromkeys(suites))
        unknown = [name for name in suites if name not in SUITES]
        if unknown or not suites:
            named = ", ".join(map(repr, unknown)) or "nothing"
            raise DataError(f"no suite is called {named}; choose one of {', '.join(SUITES)}")
        return {name: SUITES[name].read(_request_of(name, suites, request)) for name in suites}
    tasks: dict[str, Task] = {}
    absent = {}
    wanted = [name for name, suite in SUITES.items() if not suite.on_request]
    for name in wanted:
        try:
            tasks[name] = SUITES[name].read(_request_of(name, wanted, request))
        except NotThereError as error:  # noqa: PERF203 - a handful of suites
            absent[name] = error
    if not tasks:
        raise DataError(f"nothing to evaluate on: {'; '.join(str(error) for error in absent.values())}")
    if absent:
        # What a folder lacks is plain from its files; why runs give no sentences is not.
        told = (
            f"{name} ({error})" if SUITES[name].reads_sentences else name for name, error in absent.items()
        )
        notes.append(f"suites left out, nothing for them to read: {', '.join(told)}")
    on_request = [name for name, suite in SUITES.items() if suite.on_request]
    if on_request:
        notes.append(f"suites that run only when they are named: {', '.join(on_request)}")
    return tasks


def _request_of(suite: str, suites: Sequence[str], request: Request) -> Request:
    """Return the request for one of several suites: a folder is not for plain sentences, nor the reverse."""
    if not any(SUITES[name].reads_sentences for name in suites) or len(suites) == 1:
        return request
    if not SUITES[suite].reads_sentences:
        return replace(request, text_column=None, limit=None)
    folder = request.data is not None and request.data.is_dir()
    return replace(request, data=None) if folder else request


def _texts(tasks: dict[str, Task], suites: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for name in suites for text in tasks[name].texts()))


def _renamed(noted: Noted, name: str) -> Noted:
    return replace(noted, report=replace(noted.report, name=name))
