"""A teacher loaded anew, exactly as a contract says it was when its vectors were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, TeacherError
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.outputs import LOGITS, PROJECTION, describe_other_classifier, logits_teacher

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
        TeacherError: if it cannot be found or loaded, has no classifier any more, or never was a model.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    if contract.output == PROJECTION:
        raise TeacherError(
            f"teacher {name!r} is a projection of another teacher's vectors, and no model gives them: "
            "'distill project --apply' makes them of those"
        )
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
    if contract.output == LOGITS:
        # Under the name it has in the cache, which is that of the logits already.
        loaded = replace(logits_teacher(loaded), source=loaded.source)
    if loaded.contract != contract:
        differences = contract.differences(loaded.contract)
        told, classifier = differences, describe_other_classifier(contract, loaded.contract)
        if classifier:
            # Said in words, in place of the field that holds it.
            told = {field: values for field, values in differences.items() if field != "modules"}
        what = ", ".join(filter(None, [classifier, describe_differences(told)]))
        raise ContractMismatchError(
            f"the model found for teacher {name!r} is not the one the vectors were made with ({what}): "
            f"{remedy}",
            differences,
        )
    return loaded
