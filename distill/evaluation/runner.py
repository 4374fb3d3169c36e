"""Evaluating: the tasks' data is read first, each model encodes the sentences of all tasks once, tasks score.

The teacher comes first, so that every model can be held against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError, DistillError
from distill.evaluation.cached_teacher import cached_teacher, with_sizes
from distill.evaluation.encoding import Progress, encode_distinct, silent
from distill.evaluation.model import EvaluatedModel, load_model
from distill.evaluation.record import RunTeacher, read_run_cache, read_run_teacher, run_folder
from distill.evaluation.result import EvaluationResult, ModelReport
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NotThereError, Request, Spec, Subject, Task
from embedcache.errors import EmbedCacheError

if TYPE_CHECKING:
    from distill.data.combination import Combination


def evaluate(
    models: Sequence[Spec] | Spec,
    *,
    suite: str = "sts",
    data: str | Path | None = None,
    teacher: Spec | None = None,
    cache: str | Path | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    text_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
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
        cache=cache,
        device=device,
        compute_dtype=compute_dtype,
        text_column=text_column,
        limit=limit,
        seed=seed,
        progress=progress,
    )
    return result


def evaluate_suites(
    models: Sequence[Spec] | Spec,
    *,
    suites: Sequence[str] | None = None,
    data: str | Path | None = None,
    teacher: Spec | None = None,
    cache: str | Path | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    text_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> list[EvaluationResult]:
    """Evaluate one or more models on several suites; no model encodes a sentence twice.

    Args:
        models: run folders, sentence-transformers folders, ONNX exports, hub ids, aliases or loaded models.
        suites: keys of :data:`SUITES`; None for every suite that finds its files in ``data``.
        data: what the suites read: a folder of test files, or a file of sentences (``fidelity``; default: the
            sentences that the evaluated run held out).
        teacher: the teacher to compare with; default: the one that the evaluated run names.
        cache: folder of a cache that may hold the teacher's vectors; default: the cache of the run that names
            the teacher, where it still exists.
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        limit: read at most so many sentences of ``data`` (``fidelity``).
        seed: chooses the sample where a suite takes one.
        progress: called with (model's name, sentences done, sentences in all).

    Raises:
        DataError: if a suite is unknown, no model is given, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
    """
    specs: tuple[Spec, ...] = (models,) if isinstance(models, str | Path | EvaluatedModel) else tuple(models)
    if not specs:
        raise DataError("no model to evaluate; name at least one")
    for spec in specs:
        _require_there(spec)
    notes: list[str] = []
    choice = _choose_teacher(specs, teacher, notes)
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
        seed=seed,
        progress=progress,
    )
    tasks = _read(suites, request, notes)
    texts = list(dict.fromkeys(text for task in tasks.values() for text in task.texts()))
    load = _Loader(device, compute_dtype)
    board = _Scoreboard(tasks)
    stands: Subject | None = None
    if choice is not None:
        asked = suites is not None and any(task.needs_teacher for task in tasks.values())
        essential = asked or not choice.implied
        stands = _teacher_subject(choice, cache, request, load, texts, essential=essential, notes=notes)
        if stands is not None:
            board.add(stands)
        else:
            board.drop_those_that_need_a_teacher()
    for spec in specs:
        if stands is not None and choice is not None and spec == choice.spec:
            continue
        model = load(spec)
        board.add(Subject(spec, model, encode_distinct(model, texts, progress), stands))
    return board.results(request, notes)


@dataclass(frozen=True)
class _TeacherChoice:
    """The teacher that models are compared with.

    Attributes:
        name: the teacher's name, in the report and in a cache.
        spec: what it is loaded from.
        run_teacher: what a run's own record says of it; None where a caller named it.
    """

    name: str
    spec: Spec
    run_teacher: RunTeacher | None = None

    @property
    def implied(self) -> bool:
        """True where no caller named it but a run's own record did."""
        return self.run_teacher is not None


@dataclass
class _Scoreboard:
    """The tasks and what they say of each model."""

    tasks: Mapping[str, Task]
    teacher: dict[str, ModelReport] = field(default_factory=dict)
    counts: dict[str, object] = field(default_factory=dict)
    reports: dict[str, list[ModelReport]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, subject: Subject) -> None:
        """Score ``subject`` on every task."""
        speed = subject.encoded.sentences_per_second
        if subject.is_teacher:
            self.counts["teacher_vectors_cached"] = subject.encoded.recalled
            self.counts["teacher_vectors_encoded"] = len(subject.encoded.rows) - subject.encoded.recalled
        for name, task in self.tasks.items():
            scores = task.score(subject, self.notes.setdefault(name, []))
            role = "teacher" if subject.is_teacher else "model"
            report = ModelReport.of(subject.model, role, speed, scores)
            if subject.is_teacher:
                self.teacher[name] = report
            self.reports.setdefault(name, []).append(replace(report, retention=self._retention(name, report)))

    def drop_those_that_need_a_teacher(self) -> None:
        """Leave out the tasks that cannot be scored without one."""
        self.tasks = {name: task for name, task in self.tasks.items() if not task.needs_teacher}

    def results(self, request: Request, notes: Sequence[str]) -> list[EvaluationResult]:
        """Return one result per task; ``notes`` hold for all of them."""
        return [self._result(name, task, request, notes) for name, task in self.tasks.items()]

    def _result(self, name: str, task: Task, request: Request, notes: Sequence[str]) -> EvaluationResult:
        teacher = self.teacher.get(name)
        own = [*task.notes, *self.notes[name]]
        if teacher is not None and teacher.scores.headline is not None and teacher.scores.headline <= 0:
            own.append("no retention: the teacher's figure is not above zero, so a share of it says nothing")
        facts = {"teacher": request.teacher if teacher is not None else None, **task.facts, **self.counts}
        return EvaluationResult(name, tuple(self.reports[name]), facts, (*notes, *own))

    def _retention(self, name: str, report: ModelReport) -> float | None:
        teacher = self.teacher.get(name)
        whole = None if teacher is None else teacher.scores.headline
        if whole is None or whole <= 0 or report.scores.headline is None:
            return None
        return 100 * report.scores.headline / whole


@dataclass
class _Loader:
    """Loads models; a second model of the same name is called by what the caller typed."""

    device: str
    compute_dtype: str
    names: set[str] = field(default_factory=set)

    def __call__(self, spec: Spec) -> EvaluatedModel:
        """Load the model that ``spec`` names."""
        model = self.plain(spec)
        if model.name in self.names and not isinstance(spec, EvaluatedModel):
            model = replace(model, name=str(spec))
        return self.named(model)

    def plain(self, spec: Spec, teacher: RunTeacher | None = None) -> EvaluatedModel:
        """Load a model, a run's teacher as what it was then."""
        return load_model(spec, device=self.device, compute_dtype=self.compute_dtype, teacher=teacher)

    def named(self, model: EvaluatedModel) -> EvaluatedModel:
        """Return ``model``, whose name is taken from now on."""
        self.names.add(model.name)
        return model


def _read(suites: Sequence[str] | None, request: Request, notes: list[str]) -> dict[str, Task]:
    """Return the tasks; with no suite named, those whose files are there."""
    if suites is not None:
        unknown = [name for name in suites if name not in SUITES]
        if unknown or not suites:
            named = ", ".join(map(repr, unknown)) or "nothing"
            raise DataError(f"no suite is called {named}; choose one of {', '.join(SUITES)}")
        return {name: SUITES[name].read(_request_of(name, len(suites), request)) for name in suites}
    tasks: dict[str, Task] = {}
    absent = {}
    for name, suite in SUITES.items():
        try:
            tasks[name] = suite.read(_request_of(name, len(SUITES), request))
        except NotThereError as error:  # noqa: PERF203 - a handful of suites
            absent[name] = error
    if not tasks:
        raise DataError(f"nothing to evaluate on: {'; '.join(str(error) for error in absent.values())}")
    if absent:
        notes.append(f"suites left out, nothing for them to read: {', '.join(absent)}")
    return tasks


def _request_of(suite: str, suites: int, request: Request) -> Request:
    """Return the request for one of several suites: a folder of test files is not for plain sentences."""
    one_of_several = suites > 1 and request.data is not None and request.data.is_dir()
    return replace(request, data=None) if one_of_several and SUITES[suite].reads_sentences else request


def _teacher_subject(
    choice: _TeacherChoice,
    cache: str | Path | None,
    request: Request,
    load: _Loader,
    texts: Sequence[str],
    *,
    essential: bool,
    notes: list[str],
) -> Subject | None:
    """Return the teacher with its vectors, cached ones where a cache holds them; None where it is not usable.

    Raises:
        DistillError, EmbedCacheError: if it is not usable and ``essential``.
    """
    try:
        model = _find_teacher(choice, cache, request.models, load, notes)
        encoded = encode_distinct(model, texts, request.progress)
    except (DistillError, EmbedCacheError) as error:
        # A teacher nobody asked for is a service; its absence must not cost the models their scores.
        if essential:
            raise
        notes.append(f"no retention: the run's teacher {choice.name} is not usable: {error}")
        return None
    if encoded.recalled:
        fresh = len(encoded.rows) - encoded.recalled
        notes.append(f"vectors of {model.name}: {encoded.recalled} cached, {fresh} encoded now")
    try:
        model = with_sizes(model)
    except (DistillError, EmbedCacheError) as error:
        # Its vectors are all there, so the models can be scored without it.
        notes.append(f"{model.name}: its size is not known: {error}")
    return Subject(choice.spec, model, encoded, is_teacher=True)


def _find_teacher(
    choice: _TeacherChoice, cache: str | Path | None, models: Sequence[Spec], load: _Loader, notes: list[str]
) -> EvaluatedModel:
    whole = choice.run_teacher or RunTeacher(choice.name, choice.name, None)
    if cache is not None:
        return load.named(cached_teacher(cache, whole, lambda: _load_checked(choice, load)))
    # Only the run that names the teacher can say where its vectors are.
    kept = _cache_of_runs(models) if choice.implied else None
    if kept is not None:
        try:
            return load.named(cached_teacher(kept, whole, lambda: _load_checked(choice, load)))
        except EmbedCacheError as error:
            # A cache nobody asked for is a service; the teacher itself may still be there.
            notes.append(f"the run's cache {kept} is not usable: {error}")
    return load.named(_load_checked(choice, load))


def _cache_of_runs(models: Sequence[Spec]) -> Path | None:
    runs = [run for run in map(run_folder, models) if run is not None]
    return next((cache for cache in map(read_run_cache, runs) if cache is not None), None)


def _load_checked(choice: _TeacherChoice, load: _Loader) -> EvaluatedModel:
    """Load the teacher, and check that it still is what the run was distilled from, where a run named it."""
    model = load.plain(choice.spec, choice.run_teacher)
    wanted = choice.run_teacher.contract_id if choice.run_teacher else None
    contract_id = model.contract.id if model.contract else "none"
    if wanted not in (None, contract_id):
        raise DataError(
            f"{choice.name} as loaded now has contract {contract_id[:12]}, "
            f"but the run was distilled from {str(wanted)[:12]}; give --teacher"
        )
    return model


def _require_there(spec: Spec) -> None:
    """Refuse what is no folder and no file and cannot be an alias or a hub id either."""
    from embedcache.teacher.aliases import ALIASES

    if isinstance(spec, EvaluatedModel) or Path(spec).expanduser().exists():
        return
    base = str(spec).partition("@")[0]
    if base not in ALIASES and (base.count("/") != 1 or base.startswith((".", "/", "~"))):
        raise DataError(
            f"no model {str(spec)!r}: it is no folder or file, no alias (see 'embedcache teachers') "
            "and no hub id like 'org/name'"
        )


def _choose_teacher(models: Sequence[Spec], asked: Spec | None, notes: list[str]) -> _TeacherChoice | None:
    """Return the teacher asked for, else the one that all evaluated runs agree on."""
    if asked is not None:
        return _TeacherChoice(_short_name(asked), asked)
    runs = dict.fromkeys(run for run in map(run_folder, models) if run is not None)
    named = dict.fromkeys(teacher for teacher in map(read_run_teacher, runs) if teacher is not None)
    if len(named) > 1:
        names = ", ".join(f"{t.name} ({t.contract_id[:12] if t.contract_id else t.spec})" for t in named)
        notes.append(
            f"the runs have different teachers ({names}); give --teacher to compare with one of them"
        )
        return None
    chosen = next((_TeacherChoice(t.name, t.spec, t) for t in named), None)
    if chosen is not None and chosen.run_teacher is not None and chosen.run_teacher.parts:
        notes.append(f"{chosen.name}: {_describe(chosen.run_teacher.combination())}")
    return chosen


def _describe(combination: Combination) -> str:
    shares = zip(combination.names, combination.shares, strict=True)
    made = "the targets of the run, which are made of vectors of " + ", ".join(
        f"{name} ({share:.1%})" for name, share in shares
    )
    if combination.projection is not None:
        made += f", reduced from {sum(combination.widths)} to {combination.dimension} dimensions"
    return f"{made}; to see a teacher by itself, name it as a MODEL"


def _short_name(spec: Spec) -> str:
    """Return the name of a teacher in a cache: alias, folder's name or last part of a hub id."""
    if isinstance(spec, EvaluatedModel):
        return spec.name
    run = run_folder(spec)
    folder = run or Path(spec).expanduser()
    if folder.is_dir():
        return folder.resolve().name
    return str(spec).partition("@")[0].rpartition("/")[2]
