"""What the steps of a pipeline read, looked for before the first of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.sources import expand_sources
from embedcache.errors import EmbedCacheError, InputError
from embedcache.views.recipe import parse_views

if TYPE_CHECKING:
    from distill.config.models import RunConfig
    from distill.pipeline.spec import BuildSettings


def find_missing_files(paths: Mapping[str, str | None], made: Sequence[Path]) -> list[str]:
    """Return what to say of files and folders that are not there.

    Args:
        paths: dotted key -> path; None where none is given.
        made: folders that the steps make, in which a file may appear on the way.
    """
    places = {key: Path(path).expanduser() for key, path in paths.items() if path is not None}
    return [
        f"{key}: there is no {place}"
        for key, place in places.items()
        if not place.exists() and not any(folder in (place, *place.parents) for folder in made)
    ]


def find_unusable_sources(build: BuildSettings) -> list[str]:
    """Return what to say of sources that are not there, or that are named twice."""
    try:
        expand_sources([build.sources] if isinstance(build.sources, str) else list(build.sources))
    except InputError as error:
        return [f"build.sources: {error}"]
    return []


def find_unknown_views(build: BuildSettings | None, run: RunConfig | None) -> list[str]:
    """Return what to say of views that are of no known kind, or that nobody makes.

    Args:
        build: the step that makes views; None where the pipeline has none, or it is wrong itself.
        run: the step that trains on them; likewise.
    """
    made = []
    if build is not None:
        try:
            made = [recipe.name for recipe in parse_views(build.views, seed=build.view_seed)]
        except InputError as error:
            return [f"build.views: {error}"]
    return [
        f"{key}: no view {name!r}; there will be {', '.join(known)}: make it with build.views"
        for key, names, known in _used(build, run, made)
        for name in names
        if name not in known
    ]


def _used(
    build: BuildSettings | None, run: RunConfig | None, made: Sequence[str]
) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yield (dotted key, views that it names, views that there will be), as far as that can be told."""
    if build is not None:
        there = _views_there(build.cache, build.name)
        if there is not None:
            yield "build.embed_views", build.embed_views, [ORIGINAL, *made, *there]
    if run is not None:
        corpus = run.corpus or (build.name if build is not None else None)
        there = _views_there(run.cache, corpus)
        # A cache that nobody makes is told of when the step begins.
        if there is not None and (build is not None or Path(run.cache).expanduser().exists()):
            yield "run.training.views", run.training.views or (), [ORIGINAL, *made, *there]


def _views_there(cache: str, corpus: str | None) -> list[str] | None:
    """Return the views that a corpus in a cache has already; None where there may be any."""
    if not Path(cache).expanduser().exists():
        return []
    try:
        return Cache(cache).corpus(corpus).view_names()
    except EmbedCacheError:
        return None
