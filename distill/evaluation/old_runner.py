"""Evaluating: the tasks' data is read first, each model encodes the sentences of all tasks once, tasks score.

The teacher comes first, so that every model can be held against it. What a run's folder keeps of an earlier
evaluation is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError
from distill.evaluation.archive import Archive
from distill.evaluation.encoding import encode_distinct
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.kept import Noted
from distill.evaluation.loader import Loader, require_there
from distill.evaluation.options import EvaluationOptions, with_defaults
from distill.evaluation.result import EvaluationResult
from distill.evaluation.scoreboard import Scoreboard
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NothingToScoreError, NotThereError, Request, Spec, Subject, Task
from distill.evaluation.teacher_choice import choose_teacher, sized, teacher_subject, tell_of_vectors
from distill.record import run_folder

if TYPE_CHECKING:
    from typing_extensions import Unpack


def evaluate(
    models: Sequence[Spec] | Spec, *, suite: str = "sts", **options: Unpack[EvaluationOptions]
) -> EvaluationResult:
    """Evaluate one or more models on one suite, beside their teacher where it is known.

    Arguments and errors are those of :func:`evaluate_suites`.
    """
    (result,) = evaluate_suites(models, suites=[suite], **options)
    return result


def evaluate_suites(
    models: Sequence[Spec] | Spec,
    *,
    suites: Sequence[str] | None = None,
    tasks: Mapping[str, Task] | None = None,
    **options: Unpack[EvaluationOptions],
) -> list[EvaluationResult]:
    """Evaluate one or more models on several suites; no model encodes a sentence twice.

    Args:
        models: run folders, sentence-transformers folders, ONNX exports, hub ids, aliases,
            ``cache:FOLDER#TEACHER`` or loaded models.
        suites: keys of :data:`SUITES`; None for every suite that finds its files in ``data``, but for
            those that run on request only.
        tasks: the same suites, read already, for who evaluates on the same files several times; None: they
            are read now.
        options: see :class:`distill.evaluation.options.EvaluationOptions`.

    Raises:
        DataError: if a suite is unknown, no model is given, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
        EmbedCacheError: if a cache that was named cannot be used.
        TypeError: if an option is given that there is not.
    """
    given = with_defaults(options)
    _refuse_unused(suites, options)
    specs: tuple[Spec, ...] = (models,) if isinstance(models, str | Path | EvaluatedModel) else tuple(models)
    if not specs:
        raise DataError("no model to evaluate; name at least one")
    for spec in specs:
        require_there(spec)
    notes: list[str] = []
    teacher, cache, corpus, progress = given["teacher"], given["cache"], given["corpus"], given["progress"]
    wanted = given["beside_teacher"] or teacher is not None
    choice = choose_teacher(specs, teacher, notes) if wanted else None
    if cache is not None and choice is None:
        raise DataError(
            f"--cache {cache} is for a teacher's vectors, but no teacher is known: give --teacher, or leave "
            "out --cache"
        )
    request = Request(
        models=specs,
        data=None if given["data"] is None else Path(given["data"]),
        teacher=choice.name if choice else None,
        text_column=given["text_column"],
        limit=given["limit"],
        sst2_sentences=given["sst2_sentences"],
        snli_pairs=given["snli_pairs"],
        seed=given["seed"],
        progress=progress,
    )
    tasks = read_tasks(suites, request, notes) if tasks is None else dict(tasks)
    if corpus is not None and not given["contamination"]:
        raise DataError(f"corpus {corpus} is looked at for contamination only: leave out one of the two")
    if corpus is not None and all(map(run_folder, specs)):
        raise DataError(
            f"corpus {corpus} is for models that are no runs: runs say themselves what they were trained on, "
            "leave out --corpus"
        )
    looked_at = None if corpus is None else Path(corpus)
    from distill.evaluation.origin import Origins

    origins = Origins(tasks, looked_at, progress, search=given["contamination"])
    board = Scoreboard(tasks, given["bootstrap"], given["seed"], origins)
    dtype, keep = given["compute_dtype"], given["keep"]
    load = Loader(given["device"], dtype)
    archive = Archive(tasks, request, choice, dtype, use=keep and not given["again"], write=keep)
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
        found = {suite: board.put(suite, _renamed(one, name), spec) for suite, one in found.items()}
        archive.tell_of_use(spec, found, notes)
        archive.write_new(spec, new, found, board, notes)
    return board.results(request, notes)


def _refuse_unused(suites: Sequence[str] | None, options: EvaluationOptions) -> None:
    """Refuse what is for one suite where only others are asked for: it would change nothing."""
    for_suites = {"--sst2-sentences": ("transfer", bool(options.get("sst2_sentences")))}
    for_suites["--snli-pairs"] = ("nli", "snli_pairs" in options)
    for flag, (suite, is_given) in for_suites.items():
        if is_given and suites is not None and suite not in suites:
            raise DataError(
                f"{flag} is for the {suite} suite, found {', '.join(suites)}: leave it out, or evaluate "
                f"{suite} as well"
            )


def read_tasks(suites: Sequence[str] | None, request: Request, notes: list[str]) -> dict[str, Task]:
    """Return the tasks by suite; with no suite named, those whose files are there and hold what is scored.

    Only what raises :class:`NotThereError` is left out: a file that is damaged stops the evaluation.

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
        told = (f"{name} ({error})" if _is_told(name, error) else name for name, error in absent.items())
        notes.append(f"suites left out, nothing for them to read: {', '.join(told)}")
    on_request = [name for name, suite in SUITES.items() if suite.on_request]
    if on_request:
        notes.append(f"suites that run only when they are named: {', '.join(on_request)}")
    return tasks


def _is_told(suite: str, error: NotThereError) -> bool:
    """Return whether a reader must know why: what a folder lacks is plain from its files, all else is not."""
    return SUITES[suite].reads_sentences or isinstance(error, NothingToScoreError)


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
