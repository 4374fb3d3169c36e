"""Teachers that a cache holds vectors of, as their files describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embedcache.contract import CONTRACT_VERSION, Contract
from embedcache.errors import CorruptCacheError
from embedcache.fsio import parsed_json, read_regular, read_sealed_json, spelled_json

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
