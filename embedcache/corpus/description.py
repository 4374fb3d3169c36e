"""The description of a corpus, ``corpus.json``: sealed, and written last."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from embedcache.corpus.part import COLUMN_TYPES, ORIGINAL, PART_ROWS, Part, way_out
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import canonical_json, read_sealed_json

CORPUS_VERSION = 2
DESCRIPTION = "corpus.json"


def check_name(name: str, option: str = "--name") -> str:
    """Return ``name`` if it can name a corpus, else raise :class:`InputError` about ``option``."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot name a corpus: use up to 100 letters, digits, '.', '_' and '-'; "
            f"choose one with {option}"
        )
    return name


@dataclass(frozen=True)
class Column:
    """A column of a corpus: the Arrow type it is stored as, and the sha256 over its values in order."""

    type: str
    digest: str


@dataclass(frozen=True)
class CorpusInfo:
    """What ``corpus.json`` says.

    Attributes:
        name: the corpus's name.
        parts: the files that hold the rows, in order.
        columns: ``original``, and where rows carry them ``id`` and ``label``.
        skipped: reason -> number of source rows that were left out.
    """

    name: str
    parts: tuple[Part, ...]
    columns: Mapping[str, Column]
    skipped: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def digest(self) -> str:
        """Sha256 over every row's text, id and label, in order: the corpus's identity."""
        digests = {name: column.digest for name, column in self.columns.items()}
        return hashlib.sha256(canonical_json(digests)).hexdigest()

    @property
    def types(self) -> dict[str, str]:
        """The Arrow type of each column."""
        return {name: column.type for name, column in self.columns.items()}

    @property
    def has_ids(self) -> bool:
        """Whether rows carry ids."""
        return "id" in self.columns

    @property
    def has_labels(self) -> bool:
        """Whether rows carry labels."""
        return "label" in self.columns

    def to_json(self) -> dict[str, object]:
        """Return the content of ``corpus.json``."""
        return {
            "version": CORPUS_VERSION,
            "name": self.name,
            "rows": self.rows,
            "digest": self.digest,
            "parts": [{"sha256": part.sha256, "rows": part.rows} for part in self.parts],
            "columns": {
                name: {"type": column.type, "digest": column.digest} for name, column in self.columns.items()
            },
            "skipped": dict(self.skipped),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CorpusInfo:
        """Return the description that ``value`` holds, trusting nothing in it.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if it is none.
        """
        info = cls(
            name=str(value["name"]),
            parts=tuple(
                Part(checked_digest(part["sha256"]), checked_count(part["rows"], least=1, most=PART_ROWS))
                for part in value["parts"]
            ),
            columns={
                name: Column(_type(name, column["type"]), checked_digest(column["digest"]))
                for name, column in value["columns"].items()
            },
            skipped={str(reason): checked_count(count) for reason, count in value["skipped"].items()},
        )
        if ORIGINAL not in info.columns or not info.parts:
            raise ValueError("it names no texts")
        # Parts carry the numbers of their rows. A small file named many times would stand for billions.
        if len({part.sha256 for part in info.parts}) < len(info.parts):
            raise ValueError("it names a part twice")
        if value["rows"] != info.rows or value["digest"] != info.digest:
            raise ValueError("its rows and digest are not those of its parts and columns")
        return info


def is_digest(value: object) -> TypeGuard[str]:
    """Return whether something is a sha256 in hexadecimal."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def begins_digest(digits: str) -> bool:
    """Return whether somebody may mean a sha256 by its first digits: six or more, in hexadecimal."""
    return re.fullmatch(r"[0-9a-f]{6,64}", digits) is not None


def checked_digest(value: object) -> str:
    """Return a sha256 out of somebody's JSON; raise ``ValueError`` where it is none."""
    # These become file names: anything else could lead out of the folder.
    if not is_digest(value):
        raise ValueError(f"{str(value)[:80]!r} is no sha256")
    return value


def checked_count(value: object, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Return a number of rows out of somebody's JSON; raise ``ValueError`` where it is none."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:80]!r} is no count of rows")
    return value


def _type(name: str, value: object) -> str:
    if value not in COLUMN_TYPES[name]:
        raise ValueError(f"column {name!r} of type {str(value)[:80]!r}")
    return str(value)


def read_info(folder: Path, file_name: str = DESCRIPTION) -> CorpusInfo:
    """Read the description of the corpus in ``folder``.

    Raises:
        CorruptCacheError: if it is missing, damaged, a link, or of another name than the folder.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    path = folder / file_name
    try:
        if folder.is_symlink():
            raise ValueError("its folder is a symbolic link; a cache holds its files itself")
        value = read_sealed_json(path)
        version = value["version"]
        if type(version) is not int:
            raise ValueError("its version is no number")
        if version == CORPUS_VERSION:
            info = CorpusInfo.from_json(value)
            if info.name != folder.name:
                raise ValueError(f"it describes a corpus called {info.name!r}")
            return info
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptCacheError(
            f"corpus description {path} is damaged ({reason}): {way_out(folder)}"
        ) from error
    raise CacheFormatError(
        f"{path} has format version {str(version)[:20]}, this embedcache reads version {CORPUS_VERSION}: "
        "upgrade embedcache"
    )
