"""Where on this machine the model of a teacher given as a folder lies: a derived note, never shared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from embedcache.errors import StorageError
from embedcache.fsio import read_sealed_json, write_sealed_json


def path(derived: Path, contract_id: str) -> Path:
    """Return the note's file in the cache's folder ``derived``."""
    return derived / "models" / f"{contract_id}.json"


def write(derived: Path, contract_id: str, source: str) -> None:
    """Note that the model lies at ``source``; where nothing can be written, nothing is noted."""
    if read(derived, contract_id) != source:
        with suppress(StorageError):
            write_sealed_json(path(derived, contract_id), {"source": source})


def read(derived: Path, contract_id: str) -> str | None:
    """Return where the model lies, None where no sound note tells."""
    try:
        source = read_sealed_json(path(derived, contract_id))["source"]
    except (OSError, ValueError, KeyError):
        return None
    return source if isinstance(source, str) else None
