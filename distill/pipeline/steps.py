"""The steps but those that train: what each depends on, what it has made, and how it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.digests import ABSENT, folder_digest
from distill.pipeline.digests import Facts, corpus_facts, file_facts, model_facts, settings_facts
from distill.pipeline.spec import BuildSettings, EvalSettings, ExportSettings, Pipeline
from distill.pipeline.step import PLACES, Done, Step, Watch
from distill.pipeline.training_steps import FinetuneStep, RunStep
from embedcache.cache import Cache
from embedcache.errors import EmbedCacheError
from embedcache.fsio import sha256_file, write_json


def make_steps(pipeline: Pipeline) -> list[Step]:
    """Return the steps of a pipeline, in order."""
    steps: list[Step] = []
    if pipeline.build is not None:
        steps.append(BuildStep(pipeline.build))
    if pipeline.run is not None:
        steps.append(RunStep(pipeline.run, recipe=pipeline.recipes.get("run")))
    if pipeline.finetune is not None:
        steps.append(FinetuneStep(pipeline.finetune, recipe=pipeline.recipes.get("finetune")))
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
        from embedcache.corpus.sources import expand_sources

        settings, sources = self.settings, self.settings.sources
        models = {f"translators.{pair}": model for pair, model in settings.translators.items()}
        models |= {"mask_model": settings.mask_model} if settings.mask_model else {}
        facts = settings_facts(
            # Where rows come from does not change what is built.
            settings.model_dump(exclude={"sources", "teacher", "translators", "mask_model", "remote"}),
            PLACES,
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
            found |= corpus_facts(cache, before.get("corpus"))
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
        from embedcache.building.build import build, grouped
        from embedcache.corpus.sources import expand_sources

        given = self.settings.model_dump(exclude_none=True)
        given.pop("sources")
        sources = self.settings.sources
        files = expand_sources([sources] if isinstance(sources, str) else sources)
        overwrite = mine and not unchanged
        cache = build(files, **grouped(given), overwrite=overwrite, progress=watch.build)
        result = cache.result
        if result is None:
            raise RuntimeError("a build leaves a result")
        return {**corpus_facts(cache, result.corpus), "contract": result.contract_id}


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
            label = settings.label
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
        from distill.evaluation.result import results_json
        from distill.evaluation.runner import evaluate_suites

        for settings in self.evaluations:
            given = settings.model_dump(exclude={"name", "models", "suite"})
            results = evaluate_suites(
                self._models(settings), suites=settings.suites, keep=True, **given, progress=watch.evaluate
            )
            single = isinstance(settings.suite, str) and settings.suites is not None
            write_json(
                self.out / settings.file_name, results[0].to_json() if single else results_json(results)
            )
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
            **settings_facts(self.settings.model_dump(), PLACES),
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
