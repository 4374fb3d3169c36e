"""Teachers of a cache: their contracts, origins, and the places of their models on this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedcache.contract import CONTRACT_VERSION, Contract
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.fsio import parsed_json, read_regular, read_sealed_json, spelled_json, write_sealed_json

REMEDY = "'embedcache repair' writes it again; vectors are kept"


@dataclass(frozen=True)
class CachedTeacher:
    """Teacher whose vectors a cache holds.

    Attributes:
        name: the short name it is listed under in this cache.
        contract: what determines its vectors.
        origin: where its model came from: ``spec``, ``model_id``, ``revision``, ``licence``; informative.
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
        as_written = contract.id == path.parent.name and data == spelled_json(contract.to_json())
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({str(error)[:200]}): {REMEDY}") from error
    if not as_written:
        raise CorruptCacheError(
            f"{path} does not match its folder's name: it was changed or copied into the wrong place; "
            f"{REMEDY}"
        )
    if contract.version != CONTRACT_VERSION:
        raise CorruptCacheError(
            f"{path} has version {str(contract.version)[:20]}, this embedcache reads contracts of version "
            f"{CONTRACT_VERSION}: upgrade embedcache, or remove the teacher with 'embedcache rm'"
        )
    return contract


def read_origin(path: Path) -> dict[str, str]:
    """Return where a teacher came from, as one of its names' files says.

    Raises:
        CorruptCacheError: if the file is damaged.
    """
    try:
        origin = read_sealed_json(path)
        if not all(isinstance(text, str) for text in origin.values()):
            raise ValueError("it holds something else than text")
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({error}): {REMEDY}") from error
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
