"""One evaluation of several models on several suites: what is read, scored, marked and kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.digests import files_digest
from distill.errors import DataError, DistillError
from distill.evaluation import stats
from distill.evaluation.cache import Scored, cached, kept_path, read_kept, user_folder, write_kept
from distill.evaluation.contamination import CONTAMINATION, Seen, contamination, describe, marks
from distill.evaluation.fidelity import read_held_out
from distill.evaluation.files import require_folder
from distill.evaluation.models import Model
from distill.evaluation.result import AVERAGE, Evaluation, ModelFacts, SuiteResult
from distill.evaluation.task import Items, NotThereError, Suite, SuiteOptions, get_suite
from distill.evaluation.task import suites as all_suites
from distill.layout import HELD_OUT
from distill.record import read_record
from embedcache import __version__
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json


@dataclass
class Session:
    """One evaluation of several models on several suites.

    Attributes:
        options: settings of the suites.
        teacher: the teacher; None without one.
        implied: no caller named the teacher, but a run's record did.
        compute_dtype: number format of the forward pass.
        draws: draws of the intervals.
        keep, again: keep evaluations; use none that is kept.
        search: search training texts for test sentences.
        corpus: training texts of models that are no runs.
        notes: what a reader must know of all suites.
        jobs: suite -> the suite and what it reads.
        teacher_scored: suite -> the teacher's result.
    """

    options: SuiteOptions
    teacher: Model | None
    implied: bool
    compute_dtype: str
    draws: int
    keep: bool
    again: bool
    search: bool
    corpus: Path | None
    notes: list[str]
    jobs: dict[str, tuple[Suite, Path]] = field(default_factory=dict)
    teacher_scored: dict[str, Scored] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)
    _items: dict[str, Items] = field(default_factory=dict)
    _seen: dict[str, dict[str, Seen]] = field(default_factory=dict)

    def choose(self, names: Sequence[str] | None, data: Path | None, models: Sequence[Model]) -> None:
        """Choose the suites; with none named, those that find something to read.

        Raises:
            DataError: if a suite is unknown, or has nothing to read.
        """
        wanted = (
            [get_suite(name) for name in dict.fromkeys(names)]
            if names is not None
            else [suite for suite in all_suites().values() if not suite.on_request]
        )
        alone = len(wanted) == 1
        absent: dict[str, NotThereError] = {}
        for suite in wanted:
            try:
                self.jobs[suite.name] = suite, self._place(suite, data, models, alone=alone)
                # Files are read before anything is encoded, so that an error comes at once.
                if not self.keep or names is None:
                    self.items(suite.name)
            except NotThereError as error:  # noqa: PERF203 - a handful of suites
                if names is not None:
                    raise
                self.jobs.pop(suite.name, None)
                absent[suite.name] = error
        if not self.jobs:
            raise DataError(
                f"nothing to evaluate on: {'; '.join(map(str, absent.values())) or 'no suite named'}"
            )
        if absent:
            why = (
                f"{name} ({error})" if get_suite(name).reads_sentences else name
                for name, error in absent.items()
            )
            self.notes.append(f"suites left out, nothing for them to read: {', '.join(why)}")
        if names is None:
            on_request = [suite.name for suite in all_suites().values() if suite.on_request]
            self.notes.append(f"suites that run only when they are named: {', '.join(on_request)}")

    def items(self, suite: str) -> Items:
        """Return the test items of each set of a suite; nothing of a suite without sets."""
        if suite not in self._items:
            one, data = self.jobs[suite]
            self._items[suite] = {} if one.items is None else one.items(data, self.options)
        return self._items[suite]

    def score_teacher(self) -> None:
        """Score the teacher; one that was not asked for and cannot be used becomes a note."""
        if self.teacher is None:
            return
        for name in list(self.jobs):
            try:
                self.teacher_scored[name] = self._score(self.teacher, name, "teacher")[0]
            except (DistillError, EmbedCacheError) as error:  # noqa: PERF203 - a handful of suites
                if not self.implied or self.jobs[name][0].needs_teacher:
                    raise
                self.notes.append(
                    f"no retention: the run's teacher {self.teacher.name} cannot be used: {error}"
                )
                return
        self._note_vectors(self.teacher)

    def score_student(self, model: Model) -> dict[str, Scored]:
        """Score one model on all suites, mark its figures, and keep both."""
        found, used, changed = {}, [], False
        for name, (suite, _) in self.jobs.items():
            (facts, result), was_kept = self._score(model, name, "student")
            used += [name] if was_kept else []
            marked = self._mark(model, name, result) if suite.items is not None else result
            found[name] = facts, marked
            if self.keep and model.run is not None:
                changed |= self._keep_beside(
                    model.run, name, found[name], new=not was_kept or marked != result
                )
        if used and model.run is not None:
            files = ", ".join(kept_path(model.run, name).name for name in used)
            self.notes.append(f"{model.name}: {files} in {model.run} used; --again evaluates again")
        self._note_vectors(model)
        if changed and model.run is not None:
            from distill.card import update_card

            if fault := update_card(model.run):
                self.notes.append(fault)
        return found

    def _note_vectors(self, model: Model) -> None:
        if model.recalled:
            self.notes.append(
                f"vectors of {model.name}: {model.recalled} cached, {model.encoded} encoded now"
            )
        self.notes += model.notes

    def evaluation(self, suite: str, students: Sequence[Scored]) -> Evaluation:
        """Return what is found out on one suite."""
        teacher = self.teacher_scored.get(suite)
        scored = (*([teacher] if teacher else []), *students)
        name = teacher[0].name if teacher else None
        found = Evaluation(suite, scored, name, tuple(dict.fromkeys(self.notes)))
        if teacher is not None and self.draws and teacher[1].headline == AVERAGE:
            ends = {
                facts.name: stats.retention_interval(result, teacher[1], self.draws, self.options.seed)
                for facts, result in students
            }
            known = {model: interval for model, interval in ends.items() if interval is not None}
            found = replace(found, retention_intervals=known)
        return replace(found, over_seeds=stats.over_seeds(found))

    def _place(self, suite: Suite, data: Path | None, models: Sequence[Model], *, alone: bool) -> Path:
        """Return what a suite reads: ``data``, or the sentences that runs held out."""
        if not suite.reads_sentences:
            if alone and (self.options.limit is not None or self.options.text_column is not None):
                raise DataError(
                    f"the {suite.name} suite scores whole sets: leave out --text-column and --limit"
                )
            return Path() if data is None and not suite.files else require_folder(data, suite.name)
        if suite.needs_teacher and self.teacher is None:
            raise NotThereError(f"{suite.name} needs a teacher: give --teacher")
        if data is not None and (alone or data.is_file()):
            return data
        held_out = [model.run / HELD_OUT for model in models if model.run is not None]
        if not held_out:
            raise NotThereError("no sentences to compare on: give --data FILE, or a run that held some out")
        first = read_held_out(held_out[0])
        if any(read_held_out(path) != first for path in held_out[1:]):
            raise NotThereError("the runs held out different sentences: give --data FILE")
        return held_out[0]

    def _score(self, model: Model, suite: str, role: str) -> tuple[Scored, bool]:
        """Return a model's facts and result with its intervals, and if they were kept."""
        one, data = self.jobs[suite]

        def compute() -> Scored:
            result = one.run(model.encode, data, replace(self.options, model=model))
            return _facts(model, role), stats.with_intervals(result, self.draws, self.options.seed)

        folder, key = None, {}
        if self.keep and one.version is not None and (identity := model.identity()) is not None:
            folder = model.run or user_folder(identity)
            key = self._key(one, data, identity)
        (facts, result), was_kept, fault = cached(folder, suite, key, compute, again=self.again)
        if fault:
            self.notes.append(fault)
        # The model may be called otherwise, and be a teacher, this time.
        return (replace(facts, name=model.name, role=role), result), was_kept

    def _key(self, suite: Suite, data: Path, identity: str) -> dict[str, str]:
        settings = {**suite.settings(self.options), "compute_dtype": self.compute_dtype}
        settings |= {"draws": self.draws, "draws_seed": self.options.seed, "version": suite.version}
        if suite.needs_teacher and self.teacher is not None:
            settings["teacher"] = self.teacher.identity()
        return {
            "data": files_digest(_files(suite, data), known=self._digests),
            "model": identity,
            "settings": canonical_json(settings).decode(),
            "version": __version__,
        }

    def _mark(self, model: Model, suite: str, result: SuiteResult) -> SuiteResult:
        """Return a result marked with what of its sets the model was trained or chosen on, if asked for."""
        run = model.run if self.search else None
        corpus = self.corpus if model.run is None else None
        if CONTAMINATION in result.marks or (run is None and corpus is None):
            return result
        place = str(run or corpus)
        if place not in self._seen:
            # One pass over the texts for all suites.
            items = {f"{of} {name}": one for of in self.jobs for name, one in self.items(of).items()}
            self._seen[place] = contamination(items, run, corpus, self.options.progress)
        seen = self._seen[place]
        own = {name: seen[f"{suite} {name}"] for name in self.items(suite)}
        return replace(result, marks={**result.marks, **marks(own)}, notes=(*result.notes, *describe(own)))

    def _keep_beside(self, run: Path, suite: str, scored: Scored, *, new: bool) -> bool:
        """Keep a run's result beside its teacher's, if either is new; return if it was written."""
        kept = read_kept(run, suite)
        if kept is None:
            return False
        before = kept.evaluation.models[:-1]
        teacher = self.teacher_scored.get(suite)
        if not new and (teacher is None or before == (teacher,)):
            return False
        beside = self.evaluation(suite, [scored]) if teacher else Evaluation(suite, (*before, scored))
        if fault := write_kept(run, kept.key, replace(beside, notes=(), over_seeds=())):
            self.notes.append(fault)
        return True


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


def _files(suite: Suite, data: Path) -> list[Path]:
    """Return the files whose content may change a figure."""
    if data.is_file():
        return [data]
    if not suite.files:
        return sorted(path for path in data.glob("*") if path.is_file()) if data != Path() else []
    patterns = {re.sub(r"[A-Z]+\d*", "*", file.stem) for file in suite.files}
    return sorted({path for pattern in patterns for path in data.glob(f"{pattern}.tsv*") if path.is_file()})
