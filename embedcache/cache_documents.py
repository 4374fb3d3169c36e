"""Small files of a cache: its marker, contracts and names of teachers, and notes of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError, StorageError, UnreadableError
from embedcache.fsio import (
    file_state,
    inside,
    parsed_json,
    read_regular,
    read_sealed_json,
    refuse_links,
    spelled_json,
    write_sealed_json,
)

CACHE_VERSION = 2
CACHE_MARKER = {"format": "embedcache", "version": CACHE_VERSION}
"""Content of ``cache.json``, beside its seal."""

REMOTE_MARKER = "embedcache-remote.json"
"""File that makes a folder a remote, not a cache."""

IMPORTED = "imported"
"""Field of a shard's provenance: the format that its vectors were imported from."""

_REMEDY = "'embedcache repair' writes it again; vectors are kept"


def check_marker(folder: Path) -> None:
    """Raise ``CacheFormatError`` unless ``folder`` is a cache of this version."""
    marker = folder / "cache.json"
    try:
        value = read_sealed_json(marker)
    except FileNotFoundError:
        refuse_remote(folder)
        raise CacheFormatError(
            f"{folder} holds no cache.json, so it is not a cache: build one with "
            f"'embedcache build CORPUS --teacher NAME --cache {folder}'"
        ) from None
    except UnreadableError:
        raise
    except (OSError, ValueError) as error:
        raise CacheFormatError(f"{marker} is damaged ({error}): {_REMEDY}") from error
    if value != CACHE_MARKER:
        raise CacheFormatError(
            f"{marker} says {repr(value)[:80]}, this embedcache reads {CACHE_MARKER}: upgrade embedcache, or "
            "build the cache again in a new folder"
        )


def find_derived(folder: Path) -> tuple[Path, TemporaryDirectory[str] | None]:
    """Return the folder of a cache's derived files; a temporary one, with its owner, if it cannot be listed.

    Raises:
        CacheFormatError: if there is a link in it.
    """
    derived = inside(folder, "derived")
    try:
        refuse_links(derived, 2)
    except UnreadableError:
        scratch = TemporaryDirectory(prefix="embedcache-derived-")
        return Path(scratch.name), scratch
    return derived, None


def refuse_remote(folder: Path) -> None:
    """Raise ``CacheFormatError`` for a folder that is a remote."""
    if (folder / REMOTE_MARKER).is_file():
        raise CacheFormatError(
            f"{folder} is a remote, not a cache: pull from it into a cache with "
            f"'embedcache pull {folder} --cache DIR', or list it with 'embedcache remote ls {folder}'"
        )


@dataclass(frozen=True)
class CachedTeacher:
    """Teacher whose vectors a cache holds.

    Attributes:
        name: the short name it is listed under in this cache.
        contract: its contract.
        origin: origin of its model: ``spec``, ``model_id``, ``revision``, ``licence``; informative.
    """

    name: str
    contract: Contract
    origin: dict[str, str]


def read_contract(path: Path) -> Contract:
    """Return the contract in ``contract.json`` of a teacher's folder.

    Raises:
        CorruptCacheError: if a byte of it is not as it was written, or it is another teacher's.
    """
    try:
        data = read_regular(path)
        contract = Contract.from_json(parsed_json(data))
        if contract.id != path.parent.name or data != spelled_json(contract.to_json()):
            raise ValueError("it does not match its folder's name")
    except UnreadableError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({str(error)[:200]}): {_REMEDY}") from error
    return contract


def read_origin(path: Path) -> dict[str, str]:
    """Return the origin of a teacher from the file of one of its names.

    Raises:
        CorruptCacheError: if the file is damaged.
    """
    try:
        origin = read_sealed_json(path)
        if not all(isinstance(text, str) for text in origin.values()):
            raise ValueError("a value is not text")
    except UnreadableError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({error}): {_REMEDY}") from error
    return origin


def model_note_path(derived: Path, contract_id: str) -> Path:
    """Return the file that notes the place of a teacher's model on this machine; it is never shared."""
    return derived / "models" / f"{contract_id}.json"


def note_model(derived: Path, contract_id: str, source: str) -> None:
    """Note the folder of a teacher's model; without permission to write, nothing is noted."""
    if noted_model(derived, contract_id) != source:
        with suppress(StorageError):
            write_sealed_json(model_note_path(derived, contract_id), {"source": source})


def noted_model(derived: Path, contract_id: str) -> str | None:
    """Return the noted folder of a teacher's model; None without a sound note."""
    try:
        source = read_sealed_json(model_note_path(derived, contract_id))["source"]
    except (OSError, ValueError, KeyError):
        return None
    return source if isinstance(source, str) else None


def compared_note_path(cache: Path, contract_id: str) -> Path:
    """Return the file that notes which shards were compared with the live teacher; it is never shared."""
    return cache / "derived" / "compared" / f"{contract_id}.json"


def note_compared(cache: Path, contract_id: str, shards: Iterable[str]) -> None:
    """Note shards, by name, as compared and right; without permission to write, nothing is noted."""
    noted = noted_compared(cache, contract_id)
    if new := noted.union(shards) - noted:
        # No copy of the cache has this state, so that a note counts only where it was written.
        value = {"cache": file_state(cache / "cache.json"), "shards": sorted(noted | new)}
        with suppress(StorageError):
            write_sealed_json(compared_note_path(cache, contract_id), value)


def noted_compared(cache: Path, contract_id: str) -> set[str]:
    """Return the names of the shards noted as compared in this folder; none without a sound note."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = read_sealed_json(compared_note_path(cache, contract_id))
        if note["cache"] == file_state(cache / "cache.json"):
            return set(note["shards"])
    return set()
