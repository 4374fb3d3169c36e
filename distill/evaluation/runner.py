"""Evaluate models on suites, beside their teacher.

The teacher comes first. A model encodes the sentences of each suite by themselves, so a figure does not
depend on the other suites. It encodes nothing for suites whose evaluation is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.config.signature import with_options_of
from distill.digests import files_digest
from distill.errors import DataError, DistillError
from distill.evaluation import stats
from distill.evaluation.cache import Kept, kept_path, read_kept, user_folder, write_kept
from distill.evaluation.contamination import CONTAMINATION, Seen, contamination, describe
from distill.evaluation.dimensions import shortened
from distill.evaluation.fidelity import read_sentences
from distill.evaluation.model_kinds import name_apart, open_models
from distill.evaluation.models import Model, Spec
from distill.evaluation.own_pairs import pairs_suite, read_pair_sets
from distill.evaluation.result import AVERAGE, Evaluation, ModelFacts, Scored, SuiteResult
from distill.evaluation.task import (
    ALL,
    DEFAULT,
    PAIRS,
    SNLI_PAIRS,
    Items,
    NotThereError,
    Suite,
    SuiteOptions,
    find_suites,
    require_data,
)
from distill.evaluation.task import suites as all_suites
from distill.evaluation.teachers import find_teacher, with_cache
from distill.layout import HELD_OUT
from distill.record import read_record
from embedcache import __version__
from embedcache.errors import EmbedCacheError, StorageError
from embedcache.fsio import canonical_json
from embedcache.progress import Progress, shown


def evaluate_suites(
    models: Sequence[Spec] | Spec,
    suites: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    pairs: object = None,
    columns: Sequence[str] | None = None,
    dims: Sequence[int] | int = (),
    teacher: Spec | None = None,
    cache: str | Path | None = None,
    beside_teacher: bool = True,
    contamination: bool = False,
    device: str = "auto",
    compute_dtype: str = "float32",
    pooling: str | None = None,
    limit: int | None = None,
    text_column: str | None = None,
    snli_pairs: int = SNLI_PAIRS,
    seed: int = 0,
    bootstrap: int = stats.DRAWS,
    keep: bool = False,
    again: bool = False,
    progress: Progress | bool | None = None,
) -> list[Evaluation]:
    """Evaluate one or more models on several suites.

    Args:
        models: run folders, folders with finished runs below them, sentence-transformers folders, ONNX
            exports, hub ids, aliases, ``cache:FOLDER#TEACHER``, ``whitened:FOLDER#TEACHER`` or
            ``distill.evaluation.models.Model``.
        suites: names of suites; ``all``: every suite that finds its files in ``data``, but for those that run
            on request only; default: ``all``, or ``pairs`` alone where they are given.
        data: folder of test files, or a file of sentences (``fidelity``; default: those the run held out).
        pairs: pairs or triplets of your own: a file, several, or rows in memory.
        columns: columns of two texts and a score in ``pairs``, or of anchor, positive and negative; default:
            those with usual names.
        dims: numbers of leading dimensions to score each model at as well; then also in int8 and binary.
        teacher: the teacher to compare with; default: the one that the runs name.
        cache: cache to look for the teacher's vectors in; default: the run's. It is not written.
        beside_teacher: evaluate the teacher that a run names as well.
        contamination: search the training texts of runs for test sentences, and for test pairs what their
            checkpoints were chosen on.
        device: ``auto``, ``cpu``, ``cuda`` ...
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``.
        pooling: pooling of token vectors, of models that are no runs; default: the model's.
        limit: read at most N sentences (``fidelity``).
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        snli_pairs: pairs that SNLI is learnt from; 0 for all.
        seed: choice of folds, samples and draws.
        bootstrap: draws for confidence intervals; 0 for none.
        keep: keep evaluations, and use those that are kept.
        again: use none that is kept.
        progress: progress of long work; default: a line on a terminal and in a notebook; False: none.

    Raises:
        DataError: if a suite or model is unknown, or the data cannot be used.
        TeacherError: if a model, or a teacher that was asked for, cannot be loaded.
        EmbedCacheError: if a cache that was named cannot be used.
    """
    if columns is not None and pairs is None:
        raise DataError(
            f"columns {', '.join(columns)} have no pairs to read: give pairs, or leave columns out"
        )
    own = () if pairs is None else read_pair_sets(pairs, columns)
    suites = list(suites if suites is not None else () if own else (ALL,))
    notes: list[str] = []
    with shown(progress) as line:
        opened = open_models(models, notes, device, compute_dtype, pooling)
        beside = None
        if beside_teacher or teacher is not None:
            beside = find_teacher(opened, teacher, notes, device, compute_dtype)
        if cache is not None:
            if beside is None:
                raise DataError(
                    f"--cache {cache} has vectors of a teacher, and none is known: give --teacher"
                )
            beside = with_cache(beside, cache)
        students = [model for model in opened if model is not beside]
        name_apart([*([beside] if beside else []), *students])
        for model in [*opened, *([beside] if beside else [])]:
            model.progress = line
        if dims:
            students = [one for model in students for one in shortened(model, dims)]
        session = _Session(
            SuiteOptions(
                seed=seed,
                limit=limit,
                text_column=text_column,
                snli_pairs=snli_pairs,
                teacher=beside.encode if beside else None,
                progress=line,
            ),
            teacher=beside,
            compute_dtype=compute_dtype,
            draws=bootstrap,
            keep=keep,
            again=again,
            search=contamination,
            notes=notes,
            drops_suites=ALL in suites,
        )
        session.choose(suites, None if data is None else Path(data), opened)
        if own:  # given, so they are neither looked for nor left out
            session.jobs[PAIRS] = pairs_suite(own), Path()
        session.score_teacher(implied=teacher is None)
        found = [session.score(model) for model in students]
        return [session.evaluation(name, [scored[name] for scored in found]) for name in session.jobs]


@with_options_of(evaluate_suites)
def evaluate(models: Sequence[Spec] | Spec, suite: str | None = None, **options: Any) -> Evaluation:
    """Evaluate models on one suite, ``pairs`` where they are given or else ``sts``; as ``evaluate_suites``.

    Example:
        >>> evaluate("runs/three-layers", pairs="faq.tsv")  # doctest: +SKIP
    """
    if suite not in (None, PAIRS) and options.get("pairs") is not None:
        raise DataError(f"suite {suite!r} beside pairs: use evaluate_suites for both, or leave one out")
    suites = [] if options.get("pairs") is not None else [suite or DEFAULT]
    (found,) = evaluate_suites(models, suites, **options)
    return found


def to_json(found: Sequence[Evaluation], suites: Sequence[str]) -> dict[str, Any]:
    """Return evaluations by suites as a JSON object: one alone, or a list as ``results``."""
    facts = [one.to_json() for one in found]
    return {"results": facts} if ALL in suites or len(facts) > 1 else facts[0]


@dataclass
class _Session:
    """One evaluation of several models on several suites.

    Attributes:
        options: settings of the suites.
        teacher: the teacher; None without one.
        compute_dtype: number format of the forward pass.
        draws: draws of the intervals.
        keep, again: keep evaluations; use none that is kept.
        search: search training texts of runs for test sentences.
        notes: remarks on all suites.
        drops_suites: leave out suites that find nothing to read.
        jobs: suite -> the suite and what it reads.
        beside: suite -> the teacher's result.
    """

    options: SuiteOptions
    teacher: Model | None
    compute_dtype: str
    draws: int
    keep: bool
    again: bool
    search: bool
    notes: list[str]
    drops_suites: bool
    jobs: dict[str, tuple[Suite, Path]] = field(default_factory=dict)
    beside: dict[str, Scored] = field(default_factory=dict)
    _texts: dict[str, Items] = field(default_factory=dict)
    _seen: dict[Path, dict[str, Seen]] = field(default_factory=dict)

    def choose(self, names: Sequence[str], data: Path | None, models: Sequence[Model]) -> None:
        """Choose the suites and what each reads.

        Raises:
            DataError: if a suite is unknown, or a named one has nothing to read.
        """
        wanted = find_suites(names)
        if self.drops_suites:
            on_request = [suite.name for suite in all_suites().values() if suite.on_request]
            self.notes.append(f"suites that run only when they are named: {', '.join(on_request)}")
        given = self.options.limit is not None or self.options.text_column is not None
        if given and not any(suite.needs_teacher for suite in wanted):
            raise DataError("--text-column and --limit are of fidelity; other suites score whole sets")
        for suite in wanted:
            try:
                self.jobs[suite.name] = suite, self._place(suite, data, models, alone=len(wanted) == 1)
            except NotThereError as error:  # noqa: PERF203 - a handful of suites
                self._drop(suite.name, error)

    def _place(self, suite: Suite, data: Path | None, models: Sequence[Model], *, alone: bool) -> Path:
        """Return the path of a suite's data: ``data``, or the sentences that runs held out."""
        if not suite.needs_teacher:
            require_data(suite, data)
            return data or Path()
        if self.teacher is None:
            raise NotThereError(f"{suite.name} needs a teacher: give --teacher")
        if data is not None and (alone or data.is_file()):
            return data
        held_out = [model.run / HELD_OUT for model in models if model.run is not None]
        if not held_out:
            raise NotThereError("no sentences to compare on: give --data FILE, or a run that held some out")
        first = read_sentences(held_out[0], self.options)
        if any(read_sentences(path, self.options) != first for path in held_out[1:]):
            raise NotThereError("the runs held out different sentences: give --data FILE")
        return held_out[0]

    def _drop(self, suite: str, error: NotThereError) -> None:
        self.jobs.pop(suite, None)
        if not self.drops_suites:
            raise error
        self.notes.append(f"{suite} left out: {error}")

    def score_teacher(self, *, implied: bool) -> None:
        """Score the teacher; one that only a run's record names and cannot be used becomes a note."""
        if self.teacher is None:
            return
        try:
            self.beside = self.score(self.teacher, "teacher")
        except (DistillError, EmbedCacheError) as error:
            needing = [name for name, (suite, _) in self.jobs.items() if suite.needs_teacher]
            if not implied or (needing and not self.drops_suites):
                raise
            self.jobs = {name: job for name, job in self.jobs.items() if name not in needing}
            left_out = f"no retention and no {', '.join(needing)}" if needing else "no retention"
            self.notes.append(f"{left_out}: the run's teacher {self.teacher.name} cannot be used: {error}")

    def score(self, model: Model, role: str = "student") -> dict[str, Scored]:
        """Score a model on all suites, mark its figures, and keep both.

        Raises:
            DataError: if there is nothing to evaluate on.
        """
        found, used, written = {}, [], False
        for name in list(self.jobs):
            try:
                found[name], was_kept, is_new = self._score(model, name, role)
            except NotThereError as error:  # noqa: PERF203 - a handful of suites
                self._drop(name, error)
            else:
                written |= is_new
                used += [kept_path(model.run, name).name] if was_kept and model.run else []
        if not self.jobs:
            raise DataError(f"nothing to evaluate on: {'; '.join(self.notes)}")
        if used:
            self.notes.append(f"{model.name}: {', '.join(used)} in {model.run} used; --again evaluates again")
        if model.recalled:
            self.notes.append(
                f"vectors of {model.name}: {model.recalled} cached, {model.encoded} encoded now"
            )
        self.notes += model.notes
        if written and model.run is not None:
            from distill.card import update_card

            if fault := update_card(model.run):
                self.notes.append(fault)
        return found

    def _score(self, model: Model, name: str, role: str) -> tuple[Scored, bool, bool]:
        """Return a model's facts and result, if the result was kept, and if something was written."""
        suite, data = self.jobs[name]
        identity = model.identity() if self.keep else None
        key = None if identity is None else self._key(suite, data, identity)
        folder = model.run or user_folder(identity or "")
        kept = read_kept(folder, name) if key is not None and not self.again else None
        if kept is not None and kept.key == key:
            # The model may be called otherwise this time.
            facts, result = replace(kept.scored[0], name=model.name, role=role), kept.scored[1]
        else:
            kept, result = None, suite.run(model.encode, data, replace(self.options, model=model))
            facts, result = _facts(model, role), stats.with_intervals(result, self.draws, self.options.seed)
        scored = facts, self._mark(model, name, result)
        if key is None:
            return scored, False, False
        beside = kept.evaluation.models[:-1] if kept else ()
        if model.run is not None and name in self.beside:
            beside = (self.beside[name],)
        own = replace(facts, role="student"), scored[1]
        evaluation = self._beside(name, beside, [own])
        if kept is not None and kept.evaluation == evaluation:
            return scored, True, False
        try:
            write_kept(folder, Kept(key, evaluation))
        except StorageError as error:
            self.notes.append(f"the evaluation by {name} is not kept in {folder}: {error}")
        return scored, kept is not None, True

    def evaluation(self, suite: str, students: Sequence[Scored]) -> Evaluation:
        """Return the evaluation of all models on one suite."""
        beside = (self.beside[suite],) if suite in self.beside else ()
        return replace(self._beside(suite, beside, students), notes=tuple(dict.fromkeys(self.notes)))

    def _beside(self, suite: str, teacher: Sequence[Scored], students: Sequence[Scored]) -> Evaluation:
        """Return students beside their teacher, if there is one, with intervals of retention."""
        found = Evaluation(suite, (*teacher, *students), teacher[0][0].name if teacher else None)
        if teacher and self.draws and teacher[0][1].headline == AVERAGE:
            ends = {
                facts.name: stats.retention_interval(result, teacher[0][1], self.draws, self.options.seed)
                for facts, result in students
            }
            known = {model: interval for model, interval in ends.items() if interval is not None}
            found = replace(found, retention_intervals=known)
        return found

    def _key(self, suite: Suite, data: Path, identity: str) -> dict[str, str] | None:
        """Return all that decides the figures; None if something is unknown."""
        if (version := suite.version()) is None:
            return None
        settings = {name: getattr(self.options, name) for name in suite.options}
        settings |= {
            "compute_dtype": self.compute_dtype,
            "draws": self.draws,
            "draws_seed": self.options.seed,
        }
        if suite.needs_teacher and self.teacher is not None:
            settings["teacher"] = self.teacher.identity()
        return {
            "data": files_digest(suite.files_in(data)),
            "model": identity,
            "settings": canonical_json({**settings, "version": version}).decode(),
            "version": __version__,
        }

    def _mark(self, model: Model, name: str, result: SuiteResult) -> SuiteResult:
        """Return a result marked with what of its sets the model was trained or chosen on, if asked for."""
        run = model.run if self.search and model is not self.teacher else None
        if run is None or not self._items(name) or CONTAMINATION in result.marks:
            return result
        if run not in self._seen:
            # One pass over the texts for all suites.
            items = {f"{suite} {of}": one for suite in self.jobs for of, one in self._items(suite).items()}
            self._seen[run] = contamination(items, run, self.options.progress)
        own = {of: self._seen[run][f"{name} {of}"] for of in self._items(name)}
        marks = {CONTAMINATION: {of: asdict(seen) for of, seen in own.items()}}
        return replace(result, marks={**result.marks, **marks}, notes=(*result.notes, *describe(own)))

    def _items(self, name: str) -> Items:
        """Return the test items of each set of a suite; nothing of a suite without sets."""
        if name not in self._texts:
            suite, data = self.jobs[name]
            try:
                self._texts[name] = suite.items(data, self.options) if suite.items else {}
            except NotThereError:
                self._texts[name] = {}
        return self._texts[name]


def _facts(model: Model, role: str) -> ModelFacts:
    parameters, megabytes = model.size
    record = None if model.run is None else read_record(model.run)
    return ModelFacts(
        name=model.name,
        role=role,
        parameters=parameters,
        megabytes=megabytes,
        dimension=model.dimension,
        run=None if model.run is None else str(model.run),
        seed=None if record is None else record.seed,
        setting=None if record is None else record.setting,
    )
