"""The steps: what each depends on, what it has made, and how it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from distill.config import RunConfig
from distill.config_sources import Settings
from distill.digests import ABSENT, folder_digest
from distill.errors import CheckpointError
from distill.finetune_config import FinetuneConfig
from distill.layout import BEST, CHECKPOINT, CONFIG
from distill.pipeline.digests import Facts, file_facts, model_facts, settings_facts
from distill.pipeline.spec import BuildSettings, EvalSettings, ExportSettings, Pipeline
from distill.training.record import read_record
from distill.training.tracking import OnProgress
from embedcache.build_report import OnProgress as OnBuildProgress
from embedcache.cache import Cache
from embedcache.errors import EmbedCacheError
from embedcache.fsio import sha256_file, write_json

# Where something lies, and what it is computed on, does not change what comes out.
_PLACES = (
    *("cache", "out", "overwrite", "start", "model", "teacher_model"),
    *("device", "threads", "batch_tokens"),
)
_MACHINE = ("training.device", "training.threads", "training.checkpoint_every")
_TRACKING = ("tracking.log_every", "tracking.tensorboard")

C = TypeVar("C", RunConfig, FinetuneConfig)

Done = Mapping[str, Facts]
"""The outputs of the steps that are done, by their names."""


@dataclass(frozen=True)
class Watch:
    """Whom to tell how far a step is.

    Attributes:
        build: told while a cache is built.
        train: told while a student is trained.
        evaluate: told (model, sentences done, sentences in all).
        say: told, in a line, what is worth knowing afterwards too.
    """

    build: OnBuildProgress | None = None
    train: OnProgress | None = None
    evaluate: Callable[[str, int, int], None] = lambda name, done, total: None
    say: Callable[[str], None] = lambda line: None


class Step(Protocol):
    """One step of a pipeline."""

    @property
    def name(self) -> str:
        """The step's name."""
        ...

    def facts(self, done: Done) -> Facts:
        """Return what the outcome depends on, as it is now.

        Args:
            done: the outputs of the steps before, by their names.

        Raises:
            ConfigError: if something that it reads is not there.
        """
        ...

    def outputs(self, before: Facts) -> Facts:
        """Return what is there of the outputs that were there ``before``."""
        ...

    def vacant(self) -> bool:
        """Return whether nothing is there yet that it could replace."""
        ...

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Do it and return the outputs.

        Args:
            watch: whom to tell.
            done: the outputs of the steps before, by their names.
            mine: whether what lies there is the pipeline's own, which it may replace.
            unchanged: whether it had the same facts then, so that it may be gone on with.
        """
        ...


def make_steps(pipeline: Pipeline) -> list[Step]:
    """Return the steps of a pipeline, in order."""
    steps: list[Step] = []
    if pipeline.build is not None:
        steps.append(BuildStep(pipeline.build))
    if pipeline.run is not None:
        steps.append(RunStep(pipeline.run))
    if pipeline.finetune is not None:
        steps.append(FinetuneStep(pipeline.finetune))
    if pipeline.evaluations:
        steps.append(EvalStep(pipeline.evaluations, tuple(pipeline.trained), pipeline.out))
    if pipeline.export is not None:
        steps.append(ExportStep(pipeline.export))
    return steps


@dataclass(frozen=True)
class BuildStep:
    """A corpus and its vectors into a cache."""

    settings: BuildSettings
    name: str = "build"

    def facts(self, done: Done) -> Facts:
        """Return the settings and the digests of the sources, and of a teacher that is a folder."""
        from embedcache.corpus.readers import expand_sources

        settings, sources = self.settings, self.settings.sources
        models = {f"translators.{pair}": model for pair, model in settings.translators.items()}
        models |= {"mask_model": settings.mask_model} if settings.mask_model else {}
        facts = settings_facts(
            settings.model_dump(exclude={"sources", "teacher", "translators", "mask_model"}), _PLACES
        )
        for path in expand_sources([sources] if isinstance(sources, str) else list(sources)):
            facts |= file_facts(f"source {Path(path).name}", path)
        for name, model in {"teacher": settings.teacher, **models}.items():
            facts |= model_facts(name, model)
        return facts

    def outputs(self, before: Facts) -> Facts:
        """Return the digests of the corpus and its views, and the contract of the teacher."""
        found = dict.fromkeys(before, ABSENT)
        try:
            cache = Cache(self.settings.cache)
            found |= _corpus_facts(cache, before.get("corpus"))
            if before.get("contract") in {teacher.contract.id for teacher in cache.teachers()}:
                found["contract"] = before["contract"]
        except EmbedCacheError:
            pass
        return found

    def vacant(self) -> bool:
        """Return whether there is no cache yet."""
        return not Path(self.settings.cache).expanduser().exists()

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Build; only what the cache lacks is encoded."""
        from embedcache.builder import build
        from embedcache.views.plan import ViewOptions

        given = self.settings.model_dump(exclude_none=True)
        sources = given.pop("sources")
        views = ViewOptions(
            given.pop("views"),
            seed=given.pop("view_seed"),
            replace=mine,
            via=given.pop("via", None),
            language=given.pop("language"),
            translators=given.pop("translators"),
            mask_model=given.pop("mask_model", None),
            device=given["device"],
            embed=given.pop("embed_views"),
        )
        cache = build(sources, **given, replace=mine and not unchanged, views=views, on_progress=watch.build)
        summary = cache.last_build
        if summary is None:
            raise RuntimeError("a build leaves a summary")
        return {**_corpus_facts(cache, summary.corpus), "contract": summary.contract_id}


@dataclass(frozen=True)
class TrainingStep(ABC, Generic[C]):
    """What the steps that train have in common."""

    config: C
    name: str

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(str(self.config.out)).expanduser()

    @abstractmethod
    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train; a run that is there is replaced where ``overwrite`` is true."""

    @abstractmethod
    def resume(self, watch: Watch, done: Done) -> None:
        """Go on with the training that was interrupted.

        Raises:
            CheckpointError: if it cannot be gone on with.
        """

    def outputs(self, before: Facts) -> Facts:
        """Return the digest of the student."""
        finished = (read_record(self.folder) or {}).get("result") is not None
        return {"content of student": folder_digest(self.folder / BEST) if finished else ABSENT}

    def vacant(self) -> bool:
        """Return whether there is no run yet."""
        return read_record(self.folder) is None

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Train, or go on with a training that was interrupted."""
        standing = _standing(self.folder) if mine and unchanged else ""
        if standing == "interrupted":
            try:
                self.resume(watch, done)
            except CheckpointError as error:
                watch.say(f"{self.name}: begun anew, as it cannot be gone on with: {error}")
                self.train(watch, done, overwrite=True)
        elif standing != "finished":
            self.train(watch, done, overwrite=mine)
        return self.outputs({})


@dataclass(frozen=True)
class RunStep(TrainingStep[RunConfig]):
    """A student from the cache."""

    name: str = "run"

    def facts(self, done: Done) -> Facts:
        """Return the settings, the digests of corpus, views and development set, and the contracts."""
        config = self._config(done)
        cache = Cache(config.cache)
        names = config.teacher if isinstance(config.teacher, list) else [config.teacher]
        corpus = cache.corpus(config.corpus)
        files = ("student.spec", "evaluation.data")
        return {
            **settings_facts(config.model_dump(), (*_PLACES, *_MACHINE, *_TRACKING, *files)),
            **_corpus_facts(cache, corpus.name),
            **{f"contract {number}": cache.teacher(name).contract.id for number, name in enumerate(names)},
            **file_facts("evaluation.data", config.evaluation.data),
            **model_facts("student.spec", config.student.spec),
        }

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train."""
        from distill.training.run import run_config

        config = self._config(done)
        overwrite = overwrite or config.overwrite
        run_config(config.model_copy(update={"overwrite": overwrite}), watch.train)

    def resume(self, watch: Watch, done: Done) -> None:
        """Go on with the training that was interrupted."""
        from distill.training.run import resume

        resume(self.folder, cache=self.config.cache, on_progress=watch.train)

    def _config(self, done: Done) -> RunConfig:
        """Return the configuration with the corpus and the teacher that were built, where it names none."""
        built = done.get("build")
        if built is None:
            return self.config
        update: Settings = {}
        if self.config.corpus is None:
            update["corpus"] = built["corpus"]
        if self.config.teacher is None:
            teachers = Cache(self.config.cache).teachers()
            update["teacher"] = next(
                (one.name for one in teachers if one.contract.id == built["contract"]), None
            )
        return self.config.model_copy(update=update)


@dataclass(frozen=True)
class FinetuneStep(TrainingStep[FinetuneConfig]):
    """Stage 2."""

    name: str = "finetune"

    def facts(self, done: Done) -> Facts:
        """Return the settings and the digests of the model it starts from, the texts and development set."""
        config = self.config
        files = ("triples", "sentences", "evaluation.data")
        return {
            **settings_facts(config.model_dump(), (*_PLACES, *_MACHINE, *_TRACKING, *files)),
            **model_facts("start", config.start),
            **file_facts("triples", config.triples),
            **file_facts("sentences", config.sentences),
            **file_facts("evaluation.data", config.evaluation.data),
        }

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train."""
        from distill.training.finetune import finetune_config

        overwrite = overwrite or self.config.overwrite
        finetune_config(self.config.model_copy(update={"overwrite": overwrite}), watch.train)

    def resume(self, watch: Watch, done: Done) -> None:
        """Go on with the training that was interrupted."""
        from distill.training.finetune import resume_finetune

        resume_finetune(self.folder, on_progress=watch.train)


@dataclass(frozen=True)
class EvalStep:
    """Suites over the students."""

    evaluations: tuple[EvalSettings, ...]
    trained: tuple[str, ...]
    out: Path
    name: str = "eval"

    def facts(self, done: Done) -> Facts:
        """Return the settings and the digests of data and models."""
        facts: Facts = {}
        for settings in self.evaluations:
            label = settings.name or settings.suite
            shown = settings.model_dump(exclude={"data", "device", "models", "name", "teacher"})
            facts |= {f"{label}.{key}": value for key, value in settings_facts(shown).items()}
            facts |= file_facts(f"{label}.data", settings.data)
            models = self._models(settings)
            names = [Path(model).name for model in models]
            for number, (name, model) in enumerate(zip(names, models, strict=True)):
                # Folders of the same name are told apart by where they stand in the list.
                number_there = f" ({number + 1})" if names.count(name) > 1 else ""
                facts |= model_facts(f"{label}.{name}{number_there}", model)
            if settings.teacher is not None:
                facts |= model_facts(f"{label}.teacher", settings.teacher)
        return facts

    def outputs(self, before: Facts) -> Facts:
        """Return the digests of the files of results."""
        places = {settings.file_name: self.out / settings.file_name for settings in self.evaluations}
        return {
            f"content of {name}": sha256_file(place) if place.is_file() else ABSENT
            for name, place in places.items()
        }

    def vacant(self) -> bool:
        """Return True: results are written anew wherever they are."""
        return True

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Evaluate every model, beside its teacher where that is known."""
        from distill.evaluation.suites import evaluate

        for settings in self.evaluations:
            given = settings.model_dump(exclude={"name", "models"})
            result = evaluate(self._models(settings), **given, progress=watch.evaluate)
            write_json(self.out / settings.file_name, result.to_json())
        return self.outputs({})

    def _models(self, settings: EvalSettings) -> list[str]:
        return settings.models if settings.models is not None else list(self.trained)


@dataclass(frozen=True)
class ExportStep:
    """The student, ready to ship."""

    settings: ExportSettings
    name: str = "export"

    def facts(self, done: Done) -> Facts:
        """Return the settings and the digest of the model."""
        return {
            **settings_facts(self.settings.model_dump(), _PLACES),
            **model_facts("model", self.settings.model),
        }

    def outputs(self, before: Facts) -> Facts:
        """Return the digest of the export."""
        return {"content of the export": folder_digest(Path(self.settings.out).expanduser())}

    def vacant(self) -> bool:
        """Return whether there is no export yet."""
        return not Path(self.settings.out).expanduser().exists()

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Export, and check that the export gives the model's vectors."""
        from distill.export import export_onnx

        given: dict[str, Any] = self.settings.model_dump(exclude={"to"})
        export_onnx(given.pop("model"), given.pop("out"), **given, force=mine)
        return self.outputs({})


def _corpus_facts(cache: Cache, name: str | None) -> Facts:
    """Return the digests of a corpus and of its views."""
    corpus = cache.corpus(name)
    facts = {"corpus": corpus.name, "content of corpus": corpus.info.digest}
    views = {f"content of view {view}": corpus.view(view).info.digest for view in corpus.view_names()}
    return facts | views


def _standing(folder: Path) -> str:
    """Return ``finished`` or ``interrupted`` of a run in ``folder``; nothing where it has to start anew."""
    record = read_record(folder)
    if record is None:
        return ""
    if record.get("result") is not None:
        return "finished"
    return "interrupted" if (folder / CHECKPOINT).is_file() and (folder / CONFIG).is_file() else ""
