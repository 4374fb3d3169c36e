"""The steps that train: stage 1 from the cache, stage 2 from texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from distill.config.base import Settings
from distill.config.finetune import FinetuneConfig
from distill.config.models import ONLINE, RunConfig
from distill.digests import ABSENT, folder_digest
from distill.errors import CheckpointError
from distill.layout import BEST, CHECKPOINT, CONFIG
from distill.pipeline.digests import Facts, corpus_facts, file_facts, model_facts, settings_facts
from distill.pipeline.step import PLACES, Done, Watch
from distill.record import read_record
from distill.training.place import refuse_remote
from embedcache.cache import Cache

_MACHINE = ("training.device", "training.threads", "training.checkpoint_every")
_TRACKING = ("tracking.log_every", "tracking.tensorboard")


C = TypeVar("C", RunConfig, FinetuneConfig)


@dataclass(frozen=True)
class TrainingStep(ABC, Generic[C]):
    """What the steps that train have in common.

    Attributes:
        config: the configuration.
        name: the step's name.
        recipe: name of the recipe that the configuration was made from, which the run writes down.
    """

    config: C
    name: str
    recipe: str | None

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
        record = read_record(self.folder)
        finished = record is not None and record.is_finished
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
    recipe: str | None = None

    def facts(self, done: Done) -> Facts:
        """Return the settings, the digests of corpus, views and development set, and the contracts."""
        config = self._config(done)
        refuse_remote(config.cache, "a pipeline")
        cache = Cache(config.cache)
        teacher = config.cached_teacher
        names = teacher if isinstance(teacher, list) else [teacher]
        corpus = cache.corpus(config.corpus)
        files = ("student.spec", "evaluation.data")
        return {
            **settings_facts(config.model_dump(), (*PLACES, *_MACHINE, *_TRACKING, *files)),
            **corpus_facts(cache, corpus.name),
            **{f"contract {number}": cache.teacher(name).contract.id for number, name in enumerate(names)},
            **file_facts("evaluation.data", config.evaluation.data),
            **model_facts("student.spec", config.student.spec),
        }

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train."""
        from distill.training.run import run_config

        config = self._config(done)
        overwrite = overwrite or config.overwrite
        run_config(config.model_copy(update={"overwrite": overwrite}), watch.train, recipe=self.recipe)

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
        if self.config.cached_teacher is None:
            teachers = Cache(self.config.cache).teachers()
            name = next((one.name for one in teachers if one.contract.id == built["contract"]), None)
            update["teacher"] = f"{ONLINE}:{name}" if self.config.online and name else name
        return self.config.model_copy(update=update)


@dataclass(frozen=True)
class FinetuneStep(TrainingStep[FinetuneConfig]):
    """Stage 2."""

    name: str = "finetune"
    recipe: str | None = None

    def facts(self, done: Done) -> Facts:
        """Return the settings and the digests of the model it starts from, the texts and development set."""
        config = self.config
        files = ("triples", "sentences", "evaluation.data")
        return {
            **settings_facts(config.model_dump(), (*PLACES, *_MACHINE, *_TRACKING, *files)),
            **model_facts("start", config.start),
            **file_facts("triples", config.triples),
            **file_facts("sentences", config.sentences),
            **file_facts("evaluation.data", config.evaluation.data),
        }

    def train(self, watch: Watch, done: Done, *, overwrite: bool) -> None:
        """Train."""
        from distill.training.finetune import finetune_config

        overwrite = overwrite or self.config.overwrite
        config = self.config.model_copy(update={"overwrite": overwrite})
        finetune_config(config, watch.train, recipe=self.recipe)

    def resume(self, watch: Watch, done: Done) -> None:
        """Go on with the training that was interrupted."""
        from distill.training.finetune import resume_finetune

        resume_finetune(self.folder, on_progress=watch.train)


def _standing(folder: Path) -> str:
    """Return ``finished`` or ``interrupted`` of a run in ``folder``; nothing where it has to start anew."""
    record = read_record(folder)
    if record is None:
        return ""
    if record.is_finished:
        return "finished"
    return "interrupted" if (folder / CHECKPOINT).is_file() and (folder / CONFIG).is_file() else ""
