"""Mending views: out of the damaged files themselves, else made again of the corpus by their recipes.

The recipe says which digest the rows have, so what is made anew is known to be what it was. What a model
made is not made again here: that may take hours, and another machine may break a near-tie another way.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from embedcache.check.findings import Kind, reason
from embedcache.check.repair.mend_corpora import (
    described,
    kind_of,
    mend_parts,
    sources_of,
    staging_beside,
)
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, Mending
from embedcache.check.repair.one_byte import undo_one_byte
from embedcache.check.repair.salvage_corpus import describe_by_parts
from embedcache.corpus.column_view import ColumnCells
from embedcache.corpus.corpus import DESCRIPTION, Corpus
from embedcache.corpus.readers import ReadOptions, ReadReport, expand_sources
from embedcache.corpus.sources import FileSource
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_record import RECIPE, RECIPE_VERSION, ViewRecord, read_record, record_from_json
from embedcache.corpus.view_store import MakeRows, rows_of_view
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError
from embedcache.fsio import commit, read_regular, write_sealed_json
from embedcache.views.plan import PlannedView
from embedcache.views.recipe import Recipe

_NOT_KNOWN = (
    "how it was made is not known any more: 'embedcache build' with its --view and --overwrite makes it anew"
)


def mend_view(mending: Mending, folder: Path, damaged: Collection[str]) -> None:
    """Bring back the files of a view, whose corpus is mended by now.

    Args:
        mending: the repair.
        folder: ``corpora/<corpus>/views/<view>``.
        damaged: its damaged or missing files, relative to the cache.
    """
    left = {mending.folder / path for path in damaged}
    record = _recipe(mending, folder, left)
    info = described(folder)
    if info is not None:
        left -= mend_parts(mending, folder, info, left)
    if left == {folder / DESCRIPTION} and _mend_description(mending, folder, record):
        return
    problem = _make_again(mending, folder, record, left) if record is not None and left else _NOT_KNOWN
    for path in sorted(left):
        kind = Kind.RECIPE.value if path.name == RECIPE else kind_of(path)
        mending.done(mending.inside(path), kind, NOT_REPAIRED, problem)


def _recipe(mending: Mending, folder: Path, left: set[Path]) -> ViewRecord | None:
    """Return what is written down about a view; where that is damaged it is mended, and no more ``left``."""
    path = folder / RECIPE
    if path not in left:
        try:
            return read_record(folder)
        except (CorruptCacheError, CacheFormatError):
            return None
    try:
        value = undo_one_byte(read_regular(path))
        if value is None or value["version"] != RECIPE_VERSION:
            return None
        record = record_from_json(value, folder.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not mending.dry_run:
        write_sealed_json(path, value)
    mending.done(
        mending.inside(path), Kind.RECIPE.value, IDENTICAL, "its seal says which byte had been changed"
    )
    left.remove(path)
    return record


def _mend_description(mending: Mending, folder: Path, record: ViewRecord | None) -> bool:
    """Describe a view by its parts; return whether that could be done, and proven."""
    found = describe_by_parts(folder)
    if found is None or not (found.is_proven or (record is not None and found.info.digest == record.digest)):
        return False
    path = folder / DESCRIPTION
    if not mending.dry_run:
        write_sealed_json(path, found.info.to_json())
    mending.done(mending.inside(path), kind_of(path), IDENTICAL, "made anew of its parts")
    return True


def _make_again(mending: Mending, folder: Path, record: ViewRecord, left: set[Path]) -> str:
    """Make the rows of a view again and take from them what is damaged, which then is no more ``left``.

    Returns:
        Why that could not be done; empty where it was.
    """
    recipe = record.recipe
    try:
        corpus = Corpus(folder.parent.parent)
        if missing := corpus.missing_parts():
            return f"not looked at before its corpus is whole: {missing[0].name} is missing"
    except (CorruptCacheError, CacheFormatError) as error:
        return f"not looked at before its corpus is whole: {reason(error)}"
    if record.of != corpus.info.digest:
        return (
            "it was made of other rows than the corpus has now, and nothing reads it: 'embedcache gc' takes "
            "it away"
        )
    problem = _needed(corpus, recipe)
    for how, make in _makers(mending, corpus, recipe):
        with staging_beside(mending, folder.parent) as place:
            try:
                rows = rows_of_view(corpus, make(), Counter())
                fresh, _ = store_corpus(place, folder.name, rows, ReadReport())
            # A recipe from a stranger may be sealed and make no sense.
            except (EmbedCacheError, ValueError, TypeError, KeyError, OverflowError) as error:
                problem = f"it cannot be {how}: {reason(error)}"
                continue
            if fresh.info.digest != record.digest:
                problem = f"{how} it would have other texts: run {build_command(corpus.name, recipe)}"
                continue
            _take(mending, folder, fresh, left, how)
            return "no description names it: 'embedcache gc' takes it away"
    return problem


def _take(mending: Mending, folder: Path, fresh: Corpus, left: set[Path], how: str) -> None:
    """Put the files of a view made anew in the place of those damaged and missing, the description last."""
    files = [*(part.file_name for part in fresh.parts), DESCRIPTION]
    for target in [folder / name for name in files]:
        if target in left or not target.exists():
            if not mending.dry_run:
                commit(fresh.folder / target.name, target)
            mending.done(mending.inside(target), kind_of(target), IDENTICAL, how)
            left.discard(target)


def _makers(mending: Mending, corpus: Corpus, recipe: Recipe) -> Iterator[tuple[str, Callable[[], MakeRows]]]:
    """Yield the ways to make a view again: what they are called, and what gives the maker."""
    if recipe.reads_source:
        for sources, options in sources_of(mending, corpus.name):
            shown = ", ".join(map(str, sources))
            yield f"read again from {shown}", partial(_by_source, recipe, sources, options)
    elif not recipe.models:
        yield "made again by its recipe", partial(_by_itself, recipe)


def _by_source(recipe: Recipe, sources: Sequence[FileSource], options: ReadOptions) -> MakeRows:
    return ColumnCells(expand_sources(sources), options, str(recipe.parameters["column"])).make


def _by_itself(recipe: Recipe) -> MakeRows:
    make = PlannedView(recipe, {}, "cpu").maker
    return lambda first_row, texts: make(texts)


def _needed(corpus: Corpus, recipe: Recipe) -> str:
    """Return what is needed where repair can make nothing of a recipe."""
    command = build_command(corpus.name, recipe)
    if recipe.reads_source:
        return f"give the file its corpus was built from with --source, or run {command}"
    models = ", ".join(f"{role} {digest[:12]}" for role, digest in recipe.models.items())
    return f"its texts were made by models ({models}), which repair does not run: run {command}"


def build_command(corpus: str, recipe: Recipe) -> str:
    """Return what to type to make a view anew, but for the source and the teacher of its corpus."""
    given = ",".join(f"{name}={value}" for name, value in recipe.parameters.items())
    name, times = recipe.name, ""
    if recipe.sample:
        name, times = name.removesuffix(f"-{recipe.sample}"), f"*{recipe.sample}"
    arguments = str(recipe.parameters["column"]) if recipe.reads_source else given
    spec = f"{name}={recipe.kind}{f':{arguments}' if arguments else ''}{times}"
    seed = f" --view-seed {recipe.seed}" if recipe.seed else ""
    return f"'embedcache build' of corpus {corpus} with --view {shlex.quote(spec)}{seed} --overwrite"
