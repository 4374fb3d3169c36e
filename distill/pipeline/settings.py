"""Settings of the steps build, eval and export; those that train have their own configurations."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Literal, get_type_hints

from pydantic import create_model

from distill.config.base import PositiveInt, Seed, StrictConfig, setting
from embedcache.corpus.readers import ReadOptions
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.views.plan import ViewOptions


def _build_settings() -> type[StrictConfig]:
    """Return the settings of the step build: the arguments of :func:`embedcache.build`, flat."""
    renamed: dict[tuple[type, str], str] = {
        (TeacherOptions, "spec"): "teacher",
        (TeacherOptions, "name"): "teacher_name",
    }
    renamed |= {(ViewOptions, "seed"): "view_seed", (ViewOptions, "embed"): "embed_views"}
    machine = {"batch_tokens", "threads", "device", "devices", "requests", "engine", "address"}
    models = {"teacher", "mask_model", "translators"}
    found: dict[str, Any] = {
        "sources": (str | list[str], setting(..., "files or globs", metavar="FILE")),
        "cache": (
            str,
            setting(..., "folder of the cache; default: OUT/cache", affects="place", metavar="DIR"),
        ),
        "name": (str | None, setting(None, "name of the corpus")),
        "remote": (str | None, setting(None, "remote to take rows from", affects="place")),
    }
    for kind in (ReadOptions, TeacherOptions, EncodeOptions, ViewOptions):
        hints = get_type_hints(kind)
        for one in fields(kind):
            name = renamed.get((kind, one.name), one.name)
            default: Any = ... if one.default is MISSING else one.default
            if one.default_factory is not MISSING:
                default = one.default_factory()
            affects: Literal["machine", "result"] = "machine" if name in machine else "result"
            kind_of_value = "SPEC" if name in models else None
            help_text = f"as of embedcache.build: {name}"
            found[name] = (
                hints[one.name],
                setting(default, help_text, affects=affects, metavar=kind_of_value),
            )
    # A part of a corpus is nothing to train on.
    del found["part"]
    return create_model("BuildSettings", __base__=StrictConfig, **found)


BuildSettings = _build_settings()


class EvalSettings(StrictConfig):
    """Settings of one evaluation: the arguments of :func:`distill.evaluate`."""

    suite: str | list[str] = setting("sts", "suite, several, or all: every one whose files are there")
    data: str | None = setting(None, "data of the suites", metavar="FILE")
    name: str | None = setting(None, "name of the file of results; default: the suites", affects="place")
    models: list[str] = setting(..., "models; default: those trained by the steps before", metavar="SPEC")
    teacher: str | None = setting(None, "teacher; default: that of each model", metavar="SPEC")
    text_column: str | None = setting(None, "column of the texts")
    limit: PositiveInt | None = setting(None, "evaluate on N items")
    seed: Seed = setting(0, "seed of the evaluation")
    device: str = setting("auto", "device", affects="machine")
    compute_dtype: str = setting("float32", "precision")

    @property
    def suites(self) -> list[str] | None:
        """The suites; None for every one whose files are there."""
        named = [self.suite] if isinstance(self.suite, str) else self.suite
        return None if named == ["all"] else named

    @property
    def file_name(self) -> str:
        """The file of the results."""
        return f"eval-{self.name or '-'.join(self.suites or ['all'])}.json"


class ExportSettings(StrictConfig):
    """Settings of an export: the options of ``distill export``."""

    model: str = setting(
        ..., "model; default: the student of the last step that trains", affects="place", metavar="SPEC"
    )
    out: str = setting(..., "folder of the export; default: OUT/export", affects="place", metavar="DIR")
    to: Literal["onnx"] = setting("onnx", "format")
    int8: bool = setting(False, "also write a quantized graph")
    opset: PositiveInt = setting(18, "version of the ONNX operators")
    tolerance: float = setting(1e-4, "largest difference to the model's vectors")
