"""A pipeline as its YAML file has it, checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from distill.config.base import PositiveInt, Seed, Settings, StrictConfig
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.recipes import find_recipe
from distill.config.sources import find_problems, over_recipe, suggest_key
from distill.config.tree import read_yaml
from distill.errors import ConfigError, DistillError
from distill.evaluation.suites import SUITES
from distill.pipeline.places import TRAINS, placed, with_places

STEPS = ("build", "run", "finetune", "eval", "export")
"""The steps, in the order they are done in; each may be left out."""

ALL_SUITES = "all"
"""Stands for every suite whose files are there."""


class BuildSettings(StrictConfig):
    """The arguments of :func:`embedcache.build`; what is left out is as it is there."""

    sources: str | list[str] = Field(description="files or globs")
    teacher: str = Field(description="alias, hub id or folder")
    cache: str = Field(description="the cache's folder; default: OUT/cache")
    name: str | None = None
    text_column: str | None = None
    text2_column: str | None = Field(default=None, description="column of the second texts of pairs")
    id_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    limit: PositiveInt | None = None
    rows: list[str] = Field(default=[], description="COLUMN=VALUE, as after --rows")
    delimiter: str | None = None
    pooling: str | None = None
    prompt: str | None = None
    max_length: PositiveInt | None = None
    truncate_dim: PositiveInt | None = None
    normalize: bool | None = None
    quantize: str | None = None
    teacher_name: str | None = None
    trust_remote_code: bool = False
    codec: str | None = None
    store: str | None = None
    compute_dtype: str = "auto"
    backend: str = "auto"
    device: str = "auto"
    devices: str | None = Field(default=None, description="a process for each, such as 0,1 or all")
    engine: str | None = Field(default=None, description="ray: workers in a Ray cluster")
    address: str | None = Field(default=None, description="address of that cluster")
    requests: PositiveInt | None = Field(default=None, description="requests in flight to a served teacher")
    batch_tokens: PositiveInt | None = None
    threads: PositiveInt | None = None
    shard_rows: PositiveInt | None = None
    output: str = Field(default="embedding", description="embedding, logits, or both with a comma between")
    token_embeddings: bool = Field(default=False, description="keep the teacher's token embeddings as well")
    remote: str | None = Field(default=None, description="remote to take rows from, its name or URL")
    views: list[str] = Field(default=[], description="views to make, as after --view")
    view_seed: Seed = 0
    embed_views: list[str] = Field(default=[], description="views that the teacher encodes as well")
    language: str = Field(default="en", description="language of the texts")
    translators: dict[str, str] = Field(default={}, description="as after --translator")
    mask_model: str | None = None


class EvalSettings(StrictConfig):
    """The arguments of :func:`distill.evaluate`."""

    suite: str | list[str] = Field(
        default="sts",
        description="a suite of 'distill eval', or several, or all: every one whose files are there",
    )
    data: str | None = Field(default=None, description="what the suites read")
    name: str | None = Field(default=None, description="name of the file of results; default: the suites")
    models: list[str] | None = Field(default=None, description="default: what the steps before have trained")
    teacher: str | None = None
    text_column: str | None = None
    limit: PositiveInt | None = None
    seed: Seed = 0
    device: str = "auto"
    compute_dtype: str = "float32"

    @property
    def suites(self) -> list[str] | None:
        """The suites; None for every one whose files are there."""
        named = [self.suite] if isinstance(self.suite, str) else self.suite
        return None if named == [ALL_SUITES] else named

    @property
    def label(self) -> str:
        """What the evaluation is called: its name, else its suites."""
        return self.name or "-".join(self.suites if self.suites is not None else [ALL_SUITES])

    @property
    def file_name(self) -> str:
        """The file that receives the result."""
        return f"eval-{self.label}.json"


class ExportSettings(StrictConfig):
    """The arguments of ``distill export``."""

    model: str = Field(description="default: the student of the last step that trains")
    out: str = Field(description="default: OUT/export")
    to: Literal["onnx"] = "onnx"
    int8: bool = False
    opset: Annotated[int, Field(ge=18)] = 18
    tolerance: Annotated[float, Field(gt=0)] = 1e-4


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be run.

    Attributes:
        out: folder of all that its steps make, unless they say otherwise.
        build, run, finetune, export: the steps' settings; None where a step is left out.
        evaluations: what is evaluated, in order.
        recipes: step that trains -> name of the recipe whose settings its own were laid over.
    """

    out: Path
    build: BuildSettings | None = None
    run: RunConfig | None = None
    finetune: FinetuneConfig | None = None
    evaluations: tuple[EvalSettings, ...] = ()
    export: ExportSettings | None = None
    recipes: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> list[str]:
        """The steps there are, in order."""
        there = (self.build, self.run, self.finetune, self.evaluations or None, self.export)
        return [name for name, settings in zip(STEPS, there, strict=True) if settings is not None]

    @property
    def trained(self) -> list[str]:
        """The folders of the students that the pipeline trains."""
        return [str(config.out) for config in (self.run, self.finetune) if config is not None]


def read_pipeline(file: Path, start: str | None = None) -> Pipeline:
    """Read a pipeline; its paths are relative to the folder that the file lies in.

    Args:
        file: the YAML file.
        start: the step to start with, where not all are done: what those before it read need not be there.

    Raises:
        ConfigError: naming everything that is wrong with it, each with its dotted path.
    """
    whole = read_yaml(file)
    problems = [
        f"{key}: unknown step{suggest_key(str(key), ['out', *STEPS])}"
        for key in whole
        if key not in ("out", *STEPS)
    ]
    steps = {name: whole[name] for name in STEPS if name in whole}
    if not steps:
        problems.append(f"no step; give at least one of {', '.join(STEPS)}")
    base = file.expanduser().parent
    out = Path(placed(str(whole.get("out") or file.stem), base))
    for name, settings in list(steps.items()):
        kinds = (dict, list) if name == "eval" else (dict,)
        if not isinstance(settings, kinds):
            problems.append(f"{name}: expected keys and values (found {settings!r})")
            del steps[name]
    filled = _fill(with_places(steps, base, out), out, problems)
    checked: dict[str, Any] = {}
    kinds_of: dict[str, type[BaseModel]] = {
        "build": BuildSettings,
        "run": RunConfig,
        "finetune": FinetuneConfig,
        "export": ExportSettings,
    }
    for name, kind in kinds_of.items():
        if name in filled:
            checked[name] = _checked(kind, filled[name], f"{name}.", problems)
    evaluations = filled.get("eval", [])
    for number, settings in enumerate(evaluations):
        prefix = f"eval.{number}." if isinstance(steps["eval"], list) else "eval."
        checked.setdefault("eval", []).append(_checked(EvalSettings, settings, prefix, problems))
    problems += _contradictions(checked, steps)
    problems += _missing_inputs(checked, steps, out, start)
    if problems:
        raise ConfigError(f"{file} cannot be run: {'; '.join(problems)}")
    return Pipeline(
        out,
        checked.get("build"),
        checked.get("run"),
        checked.get("finetune"),
        tuple(checked.get("eval", ())),
        checked.get("export"),
        {name: str(steps[name]["recipe"]) for name in TRAINS if steps.get(name, {}).get("recipe")},
    )


def _fill(steps: Mapping[str, Any], out: Path, problems: list[str]) -> dict[str, Any]:
    """Return the steps' settings with what one step takes from another filled in, and recipes unfolded."""
    filled: dict[str, Any] = {}
    last: str | None = None
    if "build" in steps:
        filled["build"] = {"cache": str(out / "cache"), **steps["build"]}
    if "run" in steps:
        cache = {"cache": filled["build"]["cache"]} if "build" in filled else {}
        run = _unfold("run", steps["run"], problems)
        filled["run"] = {**cache, "out": str(out / "run"), **run}
        last = filled["run"]["out"]
    if "finetune" in steps:
        start = {"start": last} if last else {}
        finetune = _unfold("finetune", steps["finetune"], problems)
        filled["finetune"] = {**start, "out": str(out / "finetune"), **finetune}
        last = filled["finetune"]["out"]
    if "eval" in steps:
        given = steps["eval"]
        filled["eval"] = given if isinstance(given, list) else [given]
    if "export" in steps:
        model = {"model": last} if last else {}
        filled["export"] = {**model, "out": str(out / "export"), **steps["export"]}
    return filled


def _unfold(step: Literal["run", "finetune"], settings: Settings, problems: list[str]) -> Settings:
    values = dict(settings)
    name = values.pop("recipe", None)
    if name is None:
        return values
    try:
        return over_recipe(find_recipe(str(name), step).config, values)
    except ConfigError as error:
        problems.append(f"{step}.recipe: {error}")
        return values


def _checked(kind: type[BaseModel], values: Any, prefix: str, problems: list[str]) -> BaseModel | None:
    if not isinstance(values, dict):
        problems.append(f"{prefix.rstrip('.')}: expected keys and values (found {values!r})")
        return None
    found = [f"{prefix}{problem}" for problem in find_problems(kind, values)]
    problems += found
    return None if found else kind.model_validate(values)


def _contradictions(checked: Mapping[str, Any], steps: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with settings that are all right by themselves."""
    problems = []
    run = checked.get("run")
    if run is not None:
        try:
            # How many rows there are is not known yet, and does not decide which settings a loss takes.
            run.resolved(1_000_000)
        except DistillError as error:
            problems.append(f"run.{error}")
    trains = "run" in steps or "finetune" in steps
    names: set[str] = set()
    for settings in checked.get("eval", []):
        if settings is None:
            continue
        if settings.suites == []:
            problems.append("eval.suite: no suite is named; leave it out for sts")
        problems += [
            f"eval.suite: no suite is called {suite!r}; choose one of {', '.join(SUITES)}, or all by itself"
            for suite in settings.suites or ()
            if suite not in SUITES
        ]
        if settings.models is None and not trains:
            problems.append("eval.models: no step trains a student; name what is to be evaluated")
        if settings.file_name in names:
            problems.append(f"eval.name: two of them write {settings.file_name}; give each a name of its own")
        names.add(settings.file_name)
    return problems


def _missing_inputs(
    checked: Mapping[str, Any], steps: Mapping[str, Any], out: Path, start: str | None
) -> list[str]:
    """Return what the steps from ``start`` on read and will not find."""
    from distill.pipeline.inputs import find_missing_files, find_unknown_views, find_unusable_sources

    first = STEPS.index(start) if start in STEPS else 0
    build, run, finetune = (checked.get(name) if STEPS.index(name) >= first else None for name in STEPS[:3])
    problems = find_unusable_sources(build) if build is not None else []
    # Of views that cannot be understood one message is enough.
    if build is not None or "build" not in steps or first:
        problems += find_unknown_views(build, run)
    paths: dict[str, str | None] = {}
    if run is not None:
        paths["run.evaluation.data"] = run.evaluation.data
    if finetune is not None:
        paths |= {"finetune.triples": finetune.triples, "finetune.sentences": finetune.sentences}
        paths["finetune.evaluation.data"] = finetune.evaluation.data
    if first <= STEPS.index("eval"):
        for number, settings in enumerate(checked.get("eval", [])):
            key = f"eval.{number}.data" if isinstance(steps["eval"], list) else "eval.data"
            paths[key] = None if settings is None else settings.data
    folders = [settings.out for settings in (run, finetune) if settings is not None and settings.out]
    return problems + find_missing_files(paths, [out, *map(Path, folders)])
