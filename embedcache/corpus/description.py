"""Descriptions of corpora and views: ``corpus.json`` and ``recipe.json``, sealed and written last.

A view is a corpus in ``corpora/<corpus>/views/<view>``, with one row for each row of its corpus.
Without ``recipe.json`` beside its description there is no view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from embedcache.corpus.part import COLUMN_TYPES, ORIGINAL, STRICT, Count, Digest, Part, damaged
from embedcache.errors import CacheFormatError, UnreadableError
from embedcache.fsio import canonical_json, json_digest, list_folder, read_sealed_json, write_sealed_json
from embedcache.views.recipe import Recipe

T = TypeVar("T")

CORPUS_VERSION = 2
DESCRIPTION = "corpus.json"
VIEWS = "views"
RECIPE = "recipe.json"
RECIPE_VERSION = 1


@dataclass(frozen=True, config=STRICT)
class Column:
    """Column of a corpus: the Arrow type it is stored as, and the sha256 over its values in order."""

    type: str
    digest: Digest


@dataclass(frozen=True, config=STRICT)
class CorpusInfo:
    """Content of ``corpus.json``.

    Attributes:
        name: the corpus's name.
        parts: the files that hold the rows, in order.
        columns: ``original``, and where rows have them ``id`` and ``label``.
        skipped: reason -> number of source rows that were left out.
    """

    name: str
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    columns: dict[str, Column]
    skipped: dict[str, Count]

    @model_validator(mode="after")
    def _check(self) -> CorpusInfo:
        if ORIGINAL not in self.columns:
            raise ValueError("it names no texts")
        for name, column in self.columns.items():
            if column.type not in COLUMN_TYPES.get(name, ()):
                raise ValueError(f"column {name[:80]!r} of type {column.type[:80]!r}")
        # Parts carry the numbers of their rows. A small file named many times would stand for billions.
        if len({part.sha256 for part in self.parts}) < len(self.parts):
            raise ValueError("it names a part twice")
        return self

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def digest(self) -> str:
        """Sha256 over every row's text, id and label, in order: the corpus's identity."""
        digests = {name: column.digest for name, column in self.columns.items()}
        return json_digest(digests)

    @property
    def types(self) -> dict[str, str]:
        """Arrow type of each column."""
        return {name: column.type for name, column in self.columns.items()}

    @property
    def has_ids(self) -> bool:
        """True if rows have ids."""
        return "id" in self.columns

    @property
    def has_labels(self) -> bool:
        """True if rows have labels."""
        return "label" in self.columns

    def describe(self) -> str:
        """Return rows, columns and digest in words."""
        columns = ["text" if column == ORIGINAL else column for column in self.columns]
        return f"{self.rows:,} rows of {', '.join(columns)} (digest {self.digest[:12]})"

    def to_json(self) -> dict[str, object]:
        """Return the content of ``corpus.json``."""
        value = {"version": CORPUS_VERSION, "rows": self.rows, "digest": self.digest, **asdict(self)}
        return {**value, "parts": list(value["parts"])}


def read_info(folder: Path) -> CorpusInfo:
    """Read the description of the corpus in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, a link, or of another name than the folder.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def parse(value: dict[str, Any]) -> CorpusInfo:
        if folder.is_symlink():
            raise ValueError("its folder is a symbolic link; a cache holds its files itself")
        rows, digest = value.pop("rows"), value.pop("digest")
        info = TypeAdapter(CorpusInfo).validate_json(canonical_json(value))
        if (rows, digest) != (info.rows, info.digest):
            raise ValueError("its rows and digest are not those of its parts and columns")
        if info.name != folder.name:
            raise ValueError(f"it describes a corpus called {info.name!r}")
        return info

    return _read(folder / DESCRIPTION, CORPUS_VERSION, parse)


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


def is_described(folder: Path) -> bool:
    """Return whether a corpus in ``folder`` is complete, without reading it."""
    return DESCRIPTION in list_folder(folder)


def is_recorded(folder: Path) -> bool:
    """Return whether a view in ``folder`` is complete, without reading it."""
    return RECIPE in list_folder(folder)


def write_record(folder: Path, record: ViewRecord) -> None:
    """Write ``record``, which completes the view in ``folder``.

    Raises:
        StorageError: if it cannot be written.
    """
    write_sealed_json(folder / RECIPE, record.to_json())


def read_record(folder: Path) -> ViewRecord:
    """Read the record of the view in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, or of another view.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def parse(value: dict[str, Any]) -> ViewRecord:
        record = TypeAdapter(ViewRecord).validate_json(canonical_json(value))
        if record.recipe.name != folder.name:
            raise ValueError(f"it describes a view called {record.recipe.name!r}")
        return record

    return _read(folder / RECIPE, RECIPE_VERSION, parse)


def _read(path: Path, version: int, parse: Callable[[dict[str, Any]], T]) -> T:
    """Read a sealed document, trusting nothing in it; ``parse`` gets its content without the version."""
    try:
        value = read_sealed_json(path)
        found = value.pop("version")
        if type(found) is not int:
            raise ValueError("its version is not a number")
        if found == version:
            return parse(value)
    except UnreadableError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from error
    raise CacheFormatError(
        f"{path} has format version {str(found)[:20]}, this embedcache reads version {version}: "
        "upgrade embedcache"
    )
