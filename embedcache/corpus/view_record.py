"""Recipe of a stored view, ``recipe.json``: sealed, and written last.

A view is a corpus in ``corpora/<corpus>/views/<view>``, with one row for each row of its corpus.
Without ``recipe.json`` beside its description there is no view.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from embedcache.corpus.documents import STRICT, Count, Digest, read_document
from embedcache.fsio import canonical_json, write_sealed_json
from embedcache.views.recipe import Recipe

VIEWS = "views"
RECIPE = "recipe.json"
RECIPE_VERSION = 1


@dataclass(frozen=True, config=STRICT)
class ViewRecord:
    """Content of ``recipe.json``.

    Attributes:
        recipe: recipe of the texts.
        of: digest of the corpus they were made of.
        digest: digest of the view's own rows.
        counts: ``changed``, ``unchanged`` (the recipe gave the same text), and reason -> rows that kept their
            text because nothing could be made of it.
    """

    recipe: Recipe
    of: Digest
    digest: Digest
    counts: dict[str, Count]

    def to_json(self) -> dict[str, object]:
        """Return the content of ``recipe.json``."""
        return {"version": RECIPE_VERSION, **asdict(self)}


def is_recorded(folder: Path) -> bool:
    """Return whether a view in ``folder`` is complete, without reading it."""
    return os.path.lexists(folder / RECIPE)


def write_record(folder: Path, record: ViewRecord) -> None:
    """Write ``record``, which completes the view in ``folder``.

    Raises:
        StorageError: if it cannot be written.
    """
    write_sealed_json(folder / RECIPE, record.to_json())


def record_from_json(value: Mapping[str, Any], name: str) -> ViewRecord:
    """Return the content of the ``recipe.json`` of a view called ``name``, trusting nothing in it.

    Raises:
        ValueError: if it is none, or that of another view.
    """
    own = {key: item for key, item in value.items() if key != "version"}
    record = TypeAdapter(ViewRecord).validate_json(canonical_json(own))
    if record.recipe.name != name:
        raise ValueError(f"it describes a view called {record.recipe.name!r}")
    return record


def read_record(folder: Path) -> ViewRecord:
    """Read the record of the view in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, or of another view.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    return read_document(folder / RECIPE, RECIPE_VERSION, lambda value: record_from_json(value, folder.name))
