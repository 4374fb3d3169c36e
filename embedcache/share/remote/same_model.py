"""Notes on a model's other contracts, where a remote lacks the one asked for."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.contract import Contract, describe_differences
from embedcache.errors import RemoteError
from embedcache.share.limits import Allowance
from embedcache.share.remote.documents import Documents
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote


def same_model_notes(
    remote: Remote, stock: Stock, contract: Contract, allowance: Allowance | None = None
) -> list[str]:
    """Say that a remote has no rows of a contract, and which teachers of the same model it has instead.

    Args:
        remote: the remote.
        stock: what it has.
        contract: what was asked for.
        allowance: how much may be fetched; default: any number of bytes.

    Returns:
        Nothing where it has rows of that contract; else a note, and one for each contract that cannot be
        read.

    Raises:
        InputError: if the other contracts are more than may be fetched.
    """
    if stock.shards(contract.id):
        return []
    nothing = f"{remote.where} has no rows of this teacher's contract {contract.id[:12]}, and 0 are taken"
    others, unread = list[str](), list[str]()
    with TemporaryDirectory(prefix="embedcache-same-model-") as folder:
        documents = Documents(remote, Path(folder), allowance)
        for file in stock:
            if file.path != f"teachers/{file.entry.teacher}/contract.json":
                continue
            try:
                other = documents.contract(file)
            except RemoteError as error:
                # Nothing is taken by it, so that it is damaged is no reason to end.
                unread.append(str(error))
                continue
            if other != contract and (other.weights, other.output) == (contract.weights, contract.output):
                names = ", ".join(sorted(stock.teacher_names.get(other.id, ()))) or other.id[:12]
                fields = describe_differences(other.differences(contract))
                others.append(f"{names} ({fields})")
    if not others:
        return [nothing, *unread]
    listed = "; ".join(others)
    told = f"{nothing}; of the same model it has {listed}: a build with those settings takes their rows"
    return [told, *unread]
