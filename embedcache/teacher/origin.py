"""Where a teacher came from, as a cache notes it."""

from __future__ import annotations

from pathlib import Path

from embedcache.teacher.resolve import ModelSource


def is_local(source: ModelSource) -> bool:
    """Return whether a model was named by its folder on this machine."""
    spec = Path(source.spec).expanduser()
    return source.alias is None and spec.is_dir() and spec.resolve() == source.folder.resolve()


def origin_of(source: ModelSource) -> dict[str, str]:
    """Return what a cache keeps of a model's source: ``spec``, ``revision``, ``model_id``, ``licence``."""
    # A local path says something about somebody's machine and nothing to a teammate; its last part is enough.
    origin = {"spec": source.folder.resolve().name if is_local(source) else source.spec}
    if source.revision:
        origin["revision"] = source.revision
    if source.alias:
        origin |= {"model_id": source.alias.model_id, "licence": source.alias.licence}
    return origin
