"""What is written down about a view: its recipe, the corpus it was made of, and what became of the rows.

A view lies in ``corpora/<corpus>/views/<view>`` as a corpus of its own, one row for each row of the corpus,
and ``recipe.json`` beside its description. That is sealed and written last: without it there is no view.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedcache.corpus.description import checked_count, checked_digest
from embedcache.corpus.part import way_out
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.views.recipe import Recipe

VIEWS = "views"
RECIPE = "recipe.json"
RECIPE_VERSION = 1


@dataclass(frozen=True)
class ViewRecord:
    """What ``recipe.json`` says.

    Attributes:
        recipe: how the texts were made.
        of: digest of the corpus they were made of.
        digest: digest of the view's own rows.
        counts: ``changed``, ``unchanged`` (the recipe gave the same text), and reason -> rows that kept their
            text because nothing could be made of it.
    """

    recipe: Recipe
    of: str
    digest: str
    counts: Mapping[str, int]


def is_recorded(folder: Path) -> bool:
    """Return whether a view in ``folder`` is complete, as far as that shows without reading it."""
    return os.path.lexists(folder / RECIPE)


def write_record(folder: Path, record: ViewRecord) -> None:
    """Write ``record`` down, which completes the view in ``folder``.

    Raises:
        StorageError: if it cannot be written.
    """
    value = {
        "version": RECIPE_VERSION,
        "recipe": record.recipe.to_json(),
        "of": record.of,
        "digest": record.digest,
        "counts": dict(record.counts),
    }
    write_sealed_json(folder / RECIPE, value)


def record_from_json(value: Mapping[str, Any], name: str) -> ViewRecord:
    """Return what the content of the ``recipe.json`` of a view called ``name`` says, trusting nothing in it.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: if it is none, or that of another view.
    """
    record = ViewRecord(
        Recipe.from_json(value["recipe"]),
        checked_digest(value["of"]),
        checked_digest(value["digest"]),
        {str(reason): checked_count(count) for reason, count in value["counts"].items()},
    )
    if record.recipe.name != name:
        raise ValueError(f"it describes a view called {record.recipe.name!r}")
    return record


def read_record(folder: Path) -> ViewRecord:
    """Read what is written down about the view in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, or of another view.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    path = folder / RECIPE
    try:
        value = read_sealed_json(path)
        version = value["version"]
        if type(version) is not int:
            raise ValueError("its version is no number")
        if version == RECIPE_VERSION:
            return record_from_json(value, folder.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCacheError(f"recipe {path} is damaged ({reason}): {way_out(folder)}") from error
    raise CacheFormatError(
        f"{path} has format version {str(version)[:20]}, this embedcache reads version {RECIPE_VERSION}: "
        "upgrade embedcache"
    )
