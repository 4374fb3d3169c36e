"""A teacher loaded anew, exactly as a contract says it was when its vectors were made."""

from __future__ import annotations

from pathlib import Path

from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError
from embedcache.teacher.load import Teacher, load_teacher

# How contracts and overrides spell a pooling; any other stays what the model itself says.
_POOLINGS = {"mean": "mean", "cls": "cls", "pooler": "pooler", "lasttoken": "last"}


def load_by_contract(
    spec: str | Path,
    contract: Contract,
    *,
    name: str,
    remedy: str,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Teacher:
    """Load the teacher of ``contract``, with the settings it was built with.

    Args:
        spec: alias, hub id or folder to load from.
        contract: what the teacher has to be; its settings override the model's own.
        name: the teacher's name.
        remedy: what to do about another teacher, for the message.
        device: ``auto``, ``cpu``, ``cuda`` ...
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if it cannot be found or loaded.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    loaded = load_teacher(
        spec,
        pooling=_POOLINGS.get(contract.pooling),
        prompt=contract.prompt,
        max_length=contract.max_length or None,
        truncate_dim=contract.truncate_dim,
        normalize=contract.normalize,
        name=name,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    if loaded.contract != contract:
        differences = contract.differences(loaded.contract)
        raise ContractMismatchError(
            f"the model found for teacher {name!r} is not the one the vectors were made with "
            f"({describe_differences(differences)}): {remedy}",
            differences,
        )
    return loaded
