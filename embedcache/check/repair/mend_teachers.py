"""Mending the small files of a teacher: its contract and the names it is listed under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from embedcache.cache import read_origin
from embedcache.check.findings import Kind, reason
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, RIGHT, Mending, proves
from embedcache.check.repair.salvage_lmdb import salvage
from embedcache.check.verify.shards import open_without_codebook
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError, TeacherError
from embedcache.fsio import (
    parsed_json,
    read_regular,
    read_sealed_json,
    write_json,
    write_sealed_json,
)
from embedcache.store import FolderShards
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.resolve import ModelSource, origin_of, resolve

NEEDS_MODEL = "give the teacher's model with --teacher-model"


def mend_contract(mending: Mending, contract_id: str) -> Contract | None:
    """Bring back the ``contract.json`` of a teacher, whose digest is its folder's name.

    Returns:
        The contract, None where nothing tells what it was.
    """
    path = mending.folder / "teachers" / contract_id / "contract.json"
    for contract, where in _contracts(mending, contract_id, path):
        if contract.id == contract_id:
            if not mending.dry_run:
                write_json(path, contract.to_json())
            mending.done(mending.inside(path), Kind.CONTRACT.value, IDENTICAL, f"made anew of {where}")
            return contract
    mending.done(
        mending.inside(path), Kind.CONTRACT.value, NOT_REPAIRED, f"no sound shard carries it: {NEEDS_MODEL}"
    )
    return None


def _contracts(mending: Mending, contract_id: str, path: Path) -> Iterator[tuple[Contract, str]]:
    for shard in mending.bench.shards[contract_id][:1]:
        yield shard.header.contract, "a shard's header"
    # A damaged shard may still say it: that it is right is told by its digest, the folder's name.
    folder = FolderShards(path.with_name("shards"))
    for name in folder.names():
        with suppress(CorruptCacheError, CacheFormatError):
            yield open_without_codebook(folder.open(name), name, name).header.contract, "a shard's header"
    for name, data in salvage(path.with_name("vectors.mdb"))[0].items():
        with suppress(CorruptCacheError, CacheFormatError):
            yield open_without_codebook(data, name, name).header.contract, "a shard's header"
    with suppress(OSError, ValueError):
        yield Contract.from_json(parsed_json(read_regular(path))), "what is left of it"
    source = mending.computing.teacher_model or _noted_model(mending, contract_id)
    if source is not None and not mending.dry_run:
        from embedcache.teacher.load import load_teacher

        try:
            yield load_teacher(source, device="cpu").contract, f"the model {source}"
        except EmbedCacheError:
            return


def _noted_model(mending: Mending, contract_id: str) -> str | None:
    try:
        note = read_sealed_json(mending.folder / "derived" / "models" / f"{contract_id}.json")
        return str(note["source"])
    except (OSError, ValueError, KeyError):
        return None


def mend_name(mending: Mending, contract_id: str, path: Path) -> None:
    """Bring back the file of a name that a teacher is listed under."""
    data, rest = _damaged_origin(path)
    of_models = [*_origins_beside(path), *_origins_of_models(mending, contract_id, path.stem, rest)]
    proven = [origin for origin in (rest, {"spec": path.stem}, *of_models) if proves(data, origin)]
    found = proven or of_models
    if not found:
        mending.done(mending.inside(path), Kind.NAME.value, NOT_REPAIRED, NEEDS_MODEL)
        return
    if not mending.dry_run:
        write_sealed_json(path, found[0])
    detail = "made anew" if proven else "made anew of the model; what else it said cannot be told"
    mending.done(mending.inside(path), Kind.NAME.value, IDENTICAL if proven else RIGHT, detail)


def give_name(mending: Mending, contract_id: str, contract: Contract | None) -> None:
    """List a teacher that lost all its names under that of its model, or under its contract id.

    Args:
        mending: the repair.
        contract_id: the teacher.
        contract: its contract, None where that is lost: then a model that is given cannot be judged.
    """
    names = mending.folder / "teachers" / contract_id / "names"
    place = mending.inside(names)
    try:
        source = _model_of(mending, contract_id, contract)
    except EmbedCacheError as error:
        mending.done(place, Kind.NAME.value, NOT_REPAIRED, reason(error))
        return
    name = source.name if source is not None else contract_id[:12]
    how = "as its model" if source is not None else f"as its contract; {NEEDS_MODEL} for the name of that"
    if not mending.dry_run:
        origin = origin_of(source) if source is not None else {"spec": name}
        write_sealed_json(names / f"{name}.json", origin)
    mending.done(place, Kind.NAME.value, RIGHT, f"named {name}, {how}")


def _model_of(mending: Mending, contract_id: str, contract: Contract | None) -> ModelSource | None:
    """Return the model given or else noted as the teacher's, None where there is none.

    Raises:
        EmbedCacheError: if the model given cannot be found, or is another teacher.
    """
    model = mending.computing.teacher_model
    if model is None:
        with suppress(TeacherError):
            noted = _noted_model(mending, contract_id)
            return resolve(noted) if noted is not None else None
        return None
    source = resolve(model)
    if contract is None:
        raise TeacherError("its contract is lost, so whether the model given is the right one cannot be told")
    if not mending.dry_run:
        from embedcache.teacher.load import load_by_contract

        load_by_contract(model, contract, name=source.name, remedy=NEEDS_MODEL)
    return source


def _damaged_origin(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return the content of a damaged file of a name, and the fields that can be read in it."""
    data, value = b"", None
    with suppress(OSError, ValueError):
        data = read_regular(path)
        value = parsed_json(data)
    fields = value if isinstance(value, dict) else {}
    return data, {name: text for name, text in fields.items() if name != "sha256" and isinstance(text, str)}


def _origins_beside(path: Path) -> Iterator[dict[str, str]]:
    """Yield what the other names of the teacher say."""
    for other in sorted(path.parent.glob("[!.]*.json")):
        with suppress(CorruptCacheError):
            yield read_origin(other)


def _origins_of_models(
    mending: Mending, contract_id: str, name: str, rest: dict[str, str]
) -> Iterator[dict[str, str]]:
    """Yield what the file would say of the models it may be of."""
    known = [spec for spec in (name, rest.get("spec", "")) if spec in ALIASES]
    for spec in (mending.computing.teacher_model, _noted_model(mending, contract_id), *known):
        if spec is not None:
            with suppress(TeacherError):
                yield origin_of(resolve(spec))
