"""The registry of suites, and :func:`evaluate`, the one way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError
from distill.evaluation.model import EvaluatedModel, load_model
from distill.evaluation.record import RunTeacher, read_run_teacher, run_folder
from distill.evaluation.tasks import EvaluationResult, Progress, Request, Spec, TeacherChoice, silent

if TYPE_CHECKING:
    from distill.data.combination import Combination


@dataclass(frozen=True)
class Suite:
    """A set of evaluation tasks: ``run`` does them, ``summary`` says in a few words what they are."""

    summary: str
    run: Callable[[Request], EvaluationResult]


def _run_sts(request: Request) -> EvaluationResult:
    # Suites are imported when run: listing their names must not load numpy or scipy.
    from distill.evaluation import sts

    return sts.run(request)


def _run_fidelity(request: Request) -> EvaluationResult:
    from distill.evaluation import fidelity

    return fidelity.run(request)


SUITES: dict[str, Suite] = {
    "sts": Suite("similarity of sentence pairs as people judge it: STS12-16, STS-B, SICK-R", _run_sts),
    "fidelity": Suite("likeness to the teacher's vectors on unlabelled sentences", _run_fidelity),
}


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
    """Evaluate one or more models, beside their teacher where it is known.

    Args:
        models: run folders, sentence-transformers folders, ONNX exports, hub ids, aliases or loaded models.
        suite: a key of :data:`SUITES`.
        data: what the suite reads: a folder of test files (``sts``) or a file of sentences (``fidelity``;
            default: the sentences that the evaluated run held out).
        teacher: the teacher to compare with; default: the one that the evaluated run names.
        cache: folder of a cache that may hold the teacher's vectors (``fidelity``; default: the cache of the
            run that names the teacher, where it still exists).
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        limit: read at most so many sentences of ``data`` (``fidelity``).
        seed: chooses the sample where a suite takes one.
        progress: called with (model's name, sentences done, sentences in all).

    Raises:
        DataError: if the suite is unknown, no model is given, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
    """
    if suite not in SUITES:
        raise DataError(f"no suite is called {suite!r}; choose one of {', '.join(SUITES)}")
    specs: tuple[Spec, ...] = (models,) if isinstance(models, str | Path | EvaluatedModel) else tuple(models)
    if not specs:
        raise DataError("no model to evaluate; name at least one")
    for spec in specs:
        _require_there(spec)
    notes: list[str] = []
    request = Request(
        models=specs,
        data=None if data is None else Path(data),
        teacher=_choose_teacher(specs, teacher, notes),
        cache=None if cache is None else Path(cache),
        load=_Loader(device, compute_dtype),
        text_column=text_column,
        limit=limit,
        seed=seed,
        progress=progress,
    )
    result = SUITES[suite].run(request)
    return EvaluationResult(result.suite, result.models, result.facts, (*notes, *result.notes))


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


@dataclass
class _Loader:
    """Loads models; a second model of the same name is called by what the caller typed."""

    device: str
    compute_dtype: str
    names: set[str] = field(default_factory=set)

    def __call__(self, spec: Spec, teacher: RunTeacher | None = None) -> EvaluatedModel:
        model = load_model(spec, device=self.device, compute_dtype=self.compute_dtype, teacher=teacher)
        if model.name in self.names and not isinstance(spec, EvaluatedModel):
            model = replace(model, name=str(spec))
        self.names.add(model.name)
        return model


def _choose_teacher(models: Sequence[Spec], asked: Spec | None, notes: list[str]) -> TeacherChoice | None:
    """Return the teacher asked for, else the one that all evaluated runs agree on."""
    if asked is not None:
        return TeacherChoice(_short_name(asked), asked)
    runs = dict.fromkeys(run for run in map(run_folder, models) if run is not None)
    named = dict.fromkeys(teacher for teacher in map(read_run_teacher, runs) if teacher is not None)
    if len(named) > 1:
        names = ", ".join(f"{t.name} ({t.contract_id[:12] if t.contract_id else t.spec})" for t in named)
        notes.append(
            f"the runs have different teachers ({names}); give --teacher to compare with one of them"
        )
        return None
    chosen = next((TeacherChoice(t.name, t.spec, t) for t in named), None)
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
