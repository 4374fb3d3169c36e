"""Documents in the folders of corpora and views: sealed JSON, read without trusting it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import read_sealed_json

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""Configuration of documents: nothing is converted, and unknown fields are refused."""

# Digests become file names: anything else could lead out of the folder.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]

T = TypeVar("T")


def read_document(path: Path, version: int, parse: Callable[[dict[str, Any]], T]) -> T:
    """Read a sealed JSON document in the folder of a corpus or a view.

    Args:
        path: the document.
        version: the format version that is read.
        parse: makes the result of the document's content.

    Raises:
        CorruptCacheError: if it is missing or damaged, or ``parse`` raises ``ValueError``, ``KeyError`` ...
        CacheFormatError: if it has another version.
    """
    try:
        value = read_sealed_json(path)
        found = value["version"]
        if type(found) is not int:
            raise ValueError("its version is no number")
        if found == version:
            return parse(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from error
    raise CacheFormatError(
        f"{path} has format version {str(found)[:20]}, this embedcache reads version {version}: "
        "upgrade embedcache"
    )


def damaged(path: Path, error: BaseException) -> CorruptCacheError:
    """Return the error that a file in the folder of a corpus or a view is damaged."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])).encode("unicode_escape").decode()[:80]
        reason = f"{where}: {first['msg']}".removeprefix(": ")
    folder = path.parent
    cache = folder.parents[3] if folder.parent.name == "views" else folder.parents[1]
    return CorruptCacheError(f"{path} is damaged ({reason}): run 'embedcache repair --cache {cache}'")
