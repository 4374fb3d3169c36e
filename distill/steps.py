"""Steps of a pipeline: settings, inputs, outputs and execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from glob import glob
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from distill.config.base import PositiveInt, Seed, StrictConfig, keys, setting
from distill.config.models import ONLINE, RunConfig
from distill.config.tree import flat
from distill.digests import folder_digest, model_digest
from distill.errors import ConfigError
from distill.evaluation.task import find_suites, require_data
from distill.layout import BEST
from distill.training.tracking import OnProgress
from embedcache.cache import Cache
from embedcache.corpus.readers import ReadOptions
from embedcache.errors import EmbedCacheError
from embedcache.fsio import sha256_file, write_json
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.views.plan import ViewOptions

_OPTIONS: tuple[tuple[type, dict[str, str]], ...] = (
    (ReadOptions, {}),
    (TeacherOptions, {"spec": "teacher", "name": "teacher_name"}),
    (EncodeOptions, {}),
    (ViewOptions, {"seed": "view_seed", "embed": "embed_views"}),
)
_OF_MACHINE = {"batch_tokens", "threads", "device", "devices", "requests", "engine", "address"}
_MODELS = {"teacher", "mask_model", "translators"}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
"""One name or several."""


def _options() -> Iterator[tuple[str, Any]]:
    """Yield name and definition of the options of a build, flat as on its command line."""
    for kind, renamed in _OPTIONS:
        hints = get_type_hints(kind)
        for one in fields(kind):
            name = renamed.get(one.name, one.name)
            default: Any = ... if one.default is MISSING else one.default
            if one.default_factory is not MISSING:
                default = one.default_factory()
            affects: Literal["machine", "result"] = "machine" if name in _OF_MACHINE else "result"
            metavar = "SPEC" if name in _MODELS else None
            text = f"as of embedcache.build: {name}"
            # A part of a corpus is nothing to train on.
            if name != "part":
                yield name, (hints[one.name], setting(default, text, affects=affects, metavar=metavar))


class _Build(StrictConfig):
    """Settings of a build: the arguments of ``embedcache.build``, flat."""

    sources: Names = setting(..., "files or globs", metavar="FILE")
    cache: str = setting(..., "folder of the cache; default: OUT/cache", affects="place", metavar="DIR")
    name: str | None = setting(None, "name of the corpus")
    remote: str | None = setting(None, "remote to take rows from", affects="place")


BuildSettings = create_model("BuildSettings", __base__=_Build, **dict(_options()))


class EvalSettings(StrictConfig):
    """Settings of one evaluation: the arguments of ``distill.evaluate``."""

    suite: Names = setting(["sts"], "suite, several, or all: every one whose files are there")
    data: str | None = setting(None, "data of the suites", metavar="FILE")
    name: str | None = setting(None, "name of the file of results; default: the suites", affects="place")
    models: list[str] = setting(..., "models; default: those trained by the steps before", metavar="SPEC")
    teacher: str | None = setting(None, "teacher; default: that of each model", metavar="SPEC")
    text_column: str | None = setting(None, "column of the texts")
    limit: PositiveInt | None = setting(None, "evaluate on N items")
    seed: Seed = setting(0, "seed of the evaluation")
    device: str = setting("auto", "device", affects="machine")
    compute_dtype: str = setting("float32", "precision")

    @field_validator("suite")
    @classmethod
    def _known(cls, suites: list[str]) -> list[str]:
        find_suites(suites)
        return suites

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        for suite in find_suites(self.suite) if self.data is None else []:
            require_data(suite, None)
        return self


class ExportSettings(StrictConfig):
    """Settings of an export: the options of ``distill export``."""

    model: str = setting(..., "model; default: the student of the last step that trains", metavar="SPEC")
    out: str = setting(..., "folder of the export; default: OUT/export", affects="place", metavar="DIR")
    to: Literal["onnx"] = setting("onnx", "format")
    int8: bool = setting(False, "also write a quantized graph")
    opset: PositiveInt = setting(18, "version of the ONNX operators")
    tolerance: float = setting(1e-4, "largest difference to the model's vectors")


Facts = dict[str, str]
"""Inputs or outputs of a step: name -> value or digest."""


@dataclass(frozen=True)
class Watch:
    """Receivers of progress.

    Attributes:
        progress: progress of builds and evaluations.
        train: called with the progress of a training.
    """

    progress: Progress = NO_PROGRESS
    train: OnProgress | None = None


@dataclass(frozen=True)
class Step:
    """A step of a pipeline.

    Attributes:
        name: its name; of one of several evaluations ``eval.NUMBER``.
        config: its settings.
        place: folder or file that it makes.
        recipe: recipe that its settings were laid over; None without one.
    """

    name: str
    config: Any
    place: Path
    recipe: str | None = None

    @property
    def made(self) -> Path:
        """Path that later steps read."""
        return self.place

    def settled(self, done: Mapping[str, Facts]) -> Step:
        """Return the step with the settings that follow from the outputs of those before it, by name."""
        return self

    def reads(self) -> Iterator[tuple[str, str, str]]:
        """Yield key, ``FILE`` or ``SPEC``, and name of every file and model that decides the result."""
        kinds = {key.path: key.metavar for key in keys(type(self.config)) if key.affects == "result"}
        for key, value in flat(self.config.model_dump()):
            kind = kinds.get(key) or kinds.get(key.rpartition(".")[0])
            if kind in ("FILE", "SPEC") and value is not None:
                for name in map(str, value if isinstance(value, list) else [value]):
                    is_glob = kind == "FILE" and not Path(name).exists()
                    found = sorted(glob(name, recursive=True)) if is_glob else []  # noqa: PTH207 - absolute too
                    yield from ((key, kind, one) for one in found or [name])

    def inputs(self) -> Facts:
        """Return its settings, and the digests of the files and models that they name, as they are now.

        Raises:
            ConfigError, EmbedCacheError: if something is missing.
        """
        facts = {key: repr(value) for key, value in flat(self.config.identity())}
        if (seed := getattr(self.config, "seed", None)) is not None:
            facts["seed"] = repr(seed)
        for number, (key, kind, name) in enumerate(self.reads(), start=1):
            # The content stands for the name; a hub id or an alias stands for itself.
            facts.pop(key, None)
            digest = _digest(Path(name)) if kind == "FILE" else model_digest(name) or name
            facts[f"content of {key} {number} ({Path(name).name})"] = digest
        return facts

    def outputs(self, before: Facts) -> Facts:
        """Return those of its outputs that are there; ``before`` are the ones of the last time."""
        return {"content of the result": _digest(self.made)} if self.made.exists() else {}

    def do(self, watch: Watch, *, own: bool) -> Facts:
        """Do the step and return its outputs.

        Args:
            watch: receivers of progress.
            own: True if this pipeline made the existing output and may replace it.
        """
        raise NotImplementedError


class BuildStep(Step):
    """A corpus and its vectors into a cache."""

    def outputs(self, before: Facts) -> Facts:
        """Return corpus, views and teacher with their digests."""
        try:
            return _cached(Cache(self.place), before.get("corpus"), before.get("teacher"))
        except EmbedCacheError:
            return {}

    def do(self, watch: Watch, *, own: bool) -> Facts:
        """Build; only rows that the cache lacks are encoded."""
        from embedcache.building.build import build, grouped

        given = self.config.model_dump(exclude={"sources"}, exclude_none=True)
        cache = build(self.config.sources, **grouped(given), overwrite=own, progress=watch.progress)
        assert cache.result is not None  # noqa: S101 - a build leaves a result
        contract = cache.result.contract_id
        teacher = next(one.name for one in cache.teachers() if one.contract.id == contract)
        return _cached(cache, cache.result.corpus, teacher)


class TrainStep(Step):
    """A student from the cache, or a second stage on texts."""

    @property
    def made(self) -> Path:
        """The student."""
        return self.place / BEST

    def settled(self, done: Mapping[str, Facts]) -> Step:
        """Return the step with corpus and teacher of the build, where it names none."""
        built, config = done.get("build"), self.config
        if built is None or not isinstance(config, RunConfig):
            return self
        teacher = config.teacher
        if config.cached_teacher is None:
            teacher = f"{ONLINE}:{built['teacher']}" if config.online else built["teacher"]
        update = {"corpus": config.corpus or built["corpus"], "teacher": teacher}
        return replace(self, config=config.model_copy(update=update))

    def inputs(self) -> Facts:
        """Return the settings, and the digests of what they name, in the cache too."""
        facts, config = super().inputs(), self.config
        if not isinstance(config, RunConfig):
            return facts
        return facts | _cached(Cache(config.cache), config.corpus, config.cached_teacher)

    def do(self, watch: Watch, *, own: bool) -> Facts:
        """Train, or resume a training that was interrupted."""
        from distill.training.train import complete

        update = {"overwrite": own}
        complete(self.config.model_copy(update=update), watch.train, recipe=self.recipe)
        return self.outputs({})


class EvalStep(Step):
    """One suite or several over the students, into a file of results."""

    def do(self, watch: Watch, *, own: bool) -> Facts:
        """Evaluate every model, beside its teacher where that is known."""
        from distill.evaluation.runner import evaluate_suites, to_json

        given, suites = self.config.model_dump(exclude={"name", "models", "suite"}), self.config.suite
        results = evaluate_suites(self.config.models, suites, keep=True, **given, progress=watch.progress)
        write_json(self.place, to_json(results, suites))
        return self.outputs({})


class ExportStep(Step):
    """The student, ready to ship."""

    def do(self, watch: Watch, *, own: bool) -> Facts:
        """Export, and check that the export gives the model's vectors."""
        from distill.export import export_onnx

        given = self.config.model_dump(exclude={"to", "model", "out"})
        export_onnx(self.config.model, self.place, **given, overwrite=own)
        return self.outputs({})


def _digest(path: Path) -> str:
    if not path.exists():
        raise ConfigError(f"there is no {path}")
    return sha256_file(path) if path.is_file() else folder_digest(path)


def _cached(cache: Cache, corpus: str | None, teacher: str | list[str] | None) -> Facts:
    """Return a corpus of a cache with its views, and teachers, each with its digest."""
    found = cache.corpus(corpus)
    names = teacher if isinstance(teacher, list) else [cache.teacher(teacher).name]
    facts = {"corpus": found.name, "content of corpus": found.info.digest, "teacher": " + ".join(names)}
    facts |= {f"content of view {name}": found.view(name).info.digest for name in found.view_names()}
    return facts | {f"content of teacher {name}": cache.teacher(name).contract.id for name in names}
