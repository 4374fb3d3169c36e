"""Steps of a pipeline: what each depends on, what it has made, and how it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from distill.config.base import Settings, StrictConfig, keys
from distill.config.finetune import FinetuneConfig
from distill.config.models import ONLINE, RunConfig
from distill.config.tree import flat
from distill.digests import folder_digest, model_digest
from distill.errors import CheckpointError, ConfigError
from distill.layout import BEST, CHECKPOINT
from distill.pipeline.settings import EvalSettings, ExportSettings
from distill.record import read_record
from embedcache.cache import Cache
from embedcache.corpus.sources import expand_sources
from embedcache.errors import EmbedCacheError
from embedcache.fsio import sha256_file, write_json
from embedcache.progress import NO_PROGRESS, Progress

Facts = dict[str, str]
"""What a step depends on, or has made: name -> value or digest."""


@dataclass(frozen=True)
class Watch:
    """Receivers of progress.

    Attributes:
        build: progress of the build.
        train: progress of a training.
        evaluate: called with (model, sentences done, sentences in all).
        say: called with lines to keep.
    """

    build: Progress = NO_PROGRESS
    train: Callable[[Any], None] | None = None
    evaluate: Callable[[str, int, int], None] = lambda name, done, total: None
    say: Callable[[str], None] = lambda line: None


C = TypeVar("C", bound=StrictConfig)
Done = Mapping[str, Facts]
"""Outputs of the steps that are done, by step."""


@dataclass(frozen=True)
class Step(ABC, Generic[C]):
    """A step of a pipeline.

    Attributes:
        name: its name; of one of several evaluations ``eval.NUMBER``.
        config: its settings.
        place: folder or file that it makes.
        recipe: recipe that its settings were laid over; None without one.
    """

    name: str
    config: C
    place: Path
    recipe: str | None = None

    @abstractmethod
    def inputs(self, done: Done) -> Facts:
        """Return what the outcome depends on, as it is now.

        Raises:
            ConfigError, EmbedCacheError: if something is missing.
        """

    @abstractmethod
    def outputs(self, before: Facts) -> Facts:
        """Return those outputs that are there; ``before`` are the ones of the last time."""

    @abstractmethod
    def do(self, watch: Watch, done: Done, *, own: bool, resume: bool) -> Facts:
        """Do the step and return its outputs.

        Args:
            watch: receivers of progress.
            done: outputs of the steps before.
            own: whether this pipeline made what is there, and may replace it.
            resume: whether this pipeline began it with the same inputs, and did not finish.
        """


class BuildStep(Step[Any]):
    """A corpus and its vectors into a cache."""

    def inputs(self, done: Done) -> Facts:
        """Return the settings, and digests of sources and of models that are folders."""
        config = self.config
        content = {
            f"source {number} ({Path(path).name})": _file_digest(path)
            for number, path in enumerate(self._sources(), start=1)
        }
        models = {f"translators.{pair}": model for pair, model in config.translators.items()}
        models |= {"teacher": config.teacher, "mask_model": config.mask_model}
        content |= {name: model_digest(str(model)) for name, model in models.items() if model is not None}
        return _facts(config, content, left_out=("sources",))

    def outputs(self, before: Facts) -> Facts:
        """Return the digests of the corpus and its views, and the contract of the teacher."""
        try:
            cache = Cache(self.place)
            found = _corpus_facts(cache, before.get("corpus"))
            contracts = {teacher.contract.id for teacher in cache.teachers()}
        except EmbedCacheError:
            return {}
        return {**found, "contract": before["contract"]} if before.get("contract") in contracts else found

    def do(self, watch: Watch, done: Done, *, own: bool, resume: bool) -> Facts:
        """Build; only rows that the cache lacks are encoded."""
        from embedcache.building.build import build, grouped

        given = self.config.model_dump(exclude={"sources"}, exclude_none=True)
        cache = build(self._sources(), **grouped(given), overwrite=own and not resume, progress=watch.build)
        if cache.result is None:
            raise RuntimeError("a build leaves a result")
        return {**_corpus_facts(cache, cache.result.corpus), "contract": cache.result.contract_id}

    def _sources(self) -> list[str]:
        sources = self.config.sources
        return [str(path) for path in expand_sources([sources] if isinstance(sources, str) else sources)]


class TrainingStep(Step[C]):
    """Base of the steps that train."""

    def outputs(self, before: Facts) -> Facts:
        """Return the digest of the student."""
        record = read_record(self.place)
        finished = record is not None and record.is_finished
        return {"content of student": folder_digest(self.place / BEST)} if finished else {}

    def do(self, watch: Watch, done: Done, *, own: bool, resume: bool) -> Facts:
        """Train, or resume a training that was interrupted."""
        record = read_record(self.place) if resume else None
        if record is not None and not record.is_finished and (self.place / CHECKPOINT).is_file():
            try:
                self.resume(watch)
            except CheckpointError as error:
                watch.say(f"{self.name}: started again, because it cannot be resumed: {error}")
        if not self.outputs({}) or not resume:
            self.train(watch, done, overwrite=own)
        return self.outputs({})

    @abstractmethod
    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train from the start; ``overwrite`` replaces a run that is there."""

    @abstractmethod
    def resume(self, watch: Watch) -> None:
        """Resume the training; :class:`CheckpointError` if that is impossible."""


class RunStep(TrainingStep[RunConfig]):
    """A student from the cache."""

    def inputs(self, done: Done) -> Facts:
        """Return the settings, and digests of corpus, views, contracts, development set and student."""
        config = self._config(done)
        cache, teacher = Cache(config.cache), config.cached_teacher
        names = teacher if isinstance(teacher, list) else [teacher]
        content = {
            "evaluation.data": _file_digest(config.evaluation.data),
            "student.spec": model_digest(config.student.spec),
            **{f"teacher {number}": cache.teacher(one).contract.id for number, one in enumerate(names)},
        }
        return _corpus_facts(cache, config.corpus) | _facts(config, content, left_out=("corpus", "teacher"))

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train from the start."""
        from distill.training.train import train

        config = self._config(done)
        train(_overwriting(config, overwrite), watch.train, recipe=self.recipe)

    def resume(self, watch: Watch) -> None:
        """Resume the training."""
        from distill.training.train import resume

        resume(self.place, cache=self.config.cache, on_progress=watch.train)

    def _config(self, done: Done) -> RunConfig:
        """Return the configuration with corpus and teacher of the build, where it names none."""
        built, config = done.get("build"), self.config
        update: Settings = {}
        if built is not None and config.corpus is None:
            update["corpus"] = built["corpus"]
        if built is not None and config.cached_teacher is None:
            teachers = Cache(config.cache).teachers()
            name = next((one.name for one in teachers if one.contract.id == built["contract"]), None)
            update["teacher"] = f"{ONLINE}:{name}" if config.online and name else name
        return config.model_copy(update=update)


class FinetuneStep(TrainingStep[FinetuneConfig]):
    """A second stage on texts."""

    def inputs(self, done: Done) -> Facts:
        """Return the settings, and digests of model, texts and development set."""
        content = {key: _file_digest(path) for key, path in files_of(self.config).items()}
        return _facts(self.config, {**content, "start": model_digest(self.config.start)})

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train from the start."""
        from distill.training.train import train

        train(_overwriting(self.config, overwrite), watch.train, recipe=self.recipe)

    def resume(self, watch: Watch) -> None:
        """Resume the training."""
        from distill.training.train import resume

        resume(self.place, on_progress=watch.train)


class EvalStep(Step[EvalSettings]):
    """One suite or several over the students, into a file of results."""

    def inputs(self, done: Done) -> Facts:
        """Return the settings, and digests of data and models."""
        config = self.config
        content = {"data": _file_digest(config.data)}
        for number, model in enumerate(config.models):
            content[f"model {number + 1} ({Path(model).name})"] = model_digest(model) or model
        if config.teacher is not None:
            content["teacher"] = model_digest(config.teacher)
        return _facts(config, content, left_out=("models",))

    def outputs(self, before: Facts) -> Facts:
        """Return the digest of the file of results."""
        return {"content of results": sha256_file(self.place)} if self.place.is_file() else {}

    def do(self, watch: Watch, done: Done, *, own: bool, resume: bool) -> Facts:
        """Evaluate every model, beside its teacher where that is known."""
        from distill.evaluation.runner import evaluate_suites

        given = self.config.model_dump(exclude={"name", "models", "suite"})
        results = evaluate_suites(
            self.config.models, suites=self.config.suites, keep=True, **given, progress=watch.evaluate
        )
        single = isinstance(self.config.suite, str) and self.config.suites is not None
        several = {"results": [one.to_json() for one in results]}
        write_json(self.place, results[0].to_json() if single else several)
        return self.outputs({})


class ExportStep(Step[ExportSettings]):
    """The student, ready to ship."""

    def inputs(self, done: Done) -> Facts:
        """Return the settings and the digest of the model."""
        return _facts(self.config, {"model": model_digest(self.config.model)})

    def outputs(self, before: Facts) -> Facts:
        """Return the digest of the export."""
        return {"content of export": folder_digest(self.place)} if self.place.is_dir() else {}

    def do(self, watch: Watch, done: Done, *, own: bool, resume: bool) -> Facts:
        """Export, and check that the export gives the model's vectors."""
        from distill.export import export_onnx

        given = self.config.model_dump(exclude={"to", "model", "out"})
        export_onnx(self.config.model, self.place, **given, force=own)
        return self.outputs({})


def files_of(config: StrictConfig) -> dict[str, str]:
    """Return the files that a step reads: dotted key -> path."""
    values: Settings = dict(flat(config.model_dump()))
    return {
        key.path: str(values[key.path])
        for key in keys(type(config))
        if key.metavar == "FILE" and values.get(key.path)
    }


def _facts(config: StrictConfig, content: Mapping[str, str | None], left_out: Sequence[str] = ()) -> Facts:
    """Return the settings that affect the result, with digests in the place of what they name.

    Args:
        config: the settings.
        content: name -> digest of a key or another input; None where the name itself says all.
        left_out: keys that ``content`` stands for.
    """
    facts = {key: repr(value) for key, value in flat(config.identity()) if key not in left_out}
    seed = getattr(config, "seed", None)
    digests = {f"content of {key}": digest for key, digest in content.items() if digest is not None}
    for key in content:
        if content[key] is not None:
            facts.pop(key, None)
    return {**facts, **({} if seed is None else {"seed": repr(seed)}), **digests}


def _file_digest(path: str | None) -> str | None:
    """Return the digest of a file, or of the files of a folder; None of None."""
    if path is None:
        return None
    place = Path(path)
    if not place.exists():
        raise ConfigError(f"there is no {place}")
    return sha256_file(place) if place.is_file() else folder_digest(place)


def _corpus_facts(cache: Cache, name: str | None) -> Facts:
    """Return the name of a corpus, and the digests of it and its views."""
    corpus = cache.corpus(name)
    views = {f"content of view {view}": corpus.view(view).info.digest for view in corpus.view_names()}
    return {"corpus": corpus.name, "content of corpus": corpus.info.digest, **views}


def _overwriting(config: C, overwrite: bool) -> C:
    return config.model_copy(update={"overwrite": True}) if overwrite else config
