"""Which teachers and vectors several caches make together, and where they do not agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embedcache.cache import CachedTeacher
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.texts import find_texts
from embedcache.derived import PROJECTION, is_derived, read_projection
from embedcache.errors import InputError
from embedcache.fsio import sha256_file
from embedcache.merge.conflicts import NAME, TABLE, VECTORS, Conflict, Side
from embedcache.merge.sources import Ruling, Source, label
from embedcache.merge.weigh import Dispute, Weighed, keys_of, weigh
from embedcache.store import ShardStore
from embedcache.teacher.outputs import modules_of
from embedcache.token_table import TokenTable, table_path

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""

_DIGITS = 8


@dataclass(frozen=True)
class TakenTeacher:
    """A contract that is taken.

    Attributes:
        contract: the contract.
        names: the names it has then, and where its model comes from.
        holders: the caches that have vectors of it, the winner first, and their stores.
        weighed: which of their rows are taken.
        files: other files of its folder, by name, with the digests of their bytes.
    """

    contract: Contract
    names: Mapping[str, dict[str, str]]
    holders: tuple[tuple[Source, ShardStore], ...]
    weighed: Weighed
    files: Mapping[str, tuple[Path, str]]


@dataclass
class TeacherPlan:
    """Teachers to take; what else there is to know, ``told`` says a line each."""

    taken: list[TakenTeacher] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def plan_teachers(
    sources: Sequence[Source], ruling: Ruling, noise: float | None, on_step: OnStep
) -> TeacherPlan:
    """Return the teachers that ``sources`` make together; an earlier source wins.

    Raises:
        CorruptCacheError: if a file of a teacher is damaged.
        InputError: if ``noise`` cannot be, or a cache keeps vectors of one contract in two stores.
    """
    plan = TeacherPlan()
    names = _names(sources, ruling, plan)
    contracts = dict.fromkeys(contract for contract, _ in names)
    for contract in contracts:
        own = {name: origin for (one, name), origin in names.items() if one == contract}
        holders = [
            (source, source.cache.store(contract))
            for source in sources
            if source.cache.teacher_folder(contract).exists()
        ]
        title = next(iter(own))

        def report(done: int, total: int, title: str = title) -> None:
            on_step(f"compare vectors of {title}", done, total)

        weighed = weigh([store for _, store in holders], noise, report)
        plan.conflicts += _vector_conflicts(title, holders, weighed.disputes, sources, ruling)
        files = _files(title, contract, sources, ruling, plan)
        plan.taken.append(TakenTeacher(contract, own, tuple(holders), weighed, files))
    held = {contract.id for contract in contracts}
    for source in sources:
        found = {path.parent.name for path in (source.cache.folder / "teachers").glob("*/contract.json")}
        plan.told += [
            f"teacher {one[:12]} of {source.label} is left out: it has no name there"
            for one in sorted(found - held)
        ]
    for contract in contracts:
        base = base_id(contract)
        if base is not None and base not in held:
            title = next(name for one, name in names if one == contract)
            plan.told.append(
                f"teacher {title!r} is a projection of {base[:12]}, which is in none of the caches: its "
                "vectors can be read, but not made for other texts"
            )
    return plan


def base_id(contract: Contract) -> str | None:
    """Return the contract id of what a projection is made of; None for any other teacher."""
    return str(modules_of(contract)[-1]["of"]) if is_derived(contract) else None


def _names(
    sources: Sequence[Source], ruling: Ruling, plan: TeacherPlan
) -> dict[tuple[Contract, str], dict[str, str]]:
    """Return (contract, name) -> origin, for every name that a teacher has then."""
    found: dict[str, dict[Contract, list[tuple[Source, CachedTeacher]]]] = {}
    for source in sources:
        for teacher in source.cache.teachers():
            found.setdefault(teacher.name, {}).setdefault(teacher.contract, []).append((source, teacher))
    names: dict[tuple[Contract, str], dict[str, str]] = {}
    for name, contracts in found.items():
        first, *others = contracts
        for contract, holders in contracts.items():
            kept = name if contract == first else f"{name}-{contract.id[:_DIGITS]}"
            names.setdefault((contract, kept), holders[0][1].origin)
            plan.told += [
                f"teacher {name!r} comes from {one.origin.get('spec', name)!r} by {source.label}, and from "
                f"{holders[0][1].origin.get('spec', name)!r} by {holders[0][0].label}: the latter is kept"
                for source, one in holders[1:]
                if one.origin != holders[0][1].origin
            ]
        if others:
            plan.conflicts.append(_name_conflict(name, contracts, ruling))
    owners: dict[str, Contract] = {}
    for contract, name in names:
        if owners.setdefault(name, contract) != contract:
            raise InputError(
                f"two teachers would be called {name!r}: contracts {owners[name].id[:12]} and "
                f"{contract.id[:12]}; take the name away from one with 'embedcache rm teacher' in a copy"
            )
    return names


def _name_conflict(
    name: str, contracts: Mapping[Contract, Sequence[tuple[Source, CachedTeacher]]], ruling: Ruling
) -> Conflict:
    first, *others = contracts
    sides = [Side(label(contracts[first]), f"contract {first.id[:12]}")]
    for contract in others:
        differences = describe_differences(first.differences(contract))
        sides.append(Side(label(contracts[contract]), f"contract {contract.id[:12]} ({differences})"))
    answer = ""
    if ruling.decides:
        kept = ", ".join(f"{name}-{contract.id[:_DIGITS]}" for contract in others)
        answer = (
            f"that of {sides[0].cache} has the name ({ruling.verdict}), the other is called {kept}; "
            "all vectors of both are kept"
        )
    return Conflict(NAME, name, tuple(sides), answer)


def _files(
    title: str, contract: Contract, sources: Sequence[Source], ruling: Ruling, plan: TeacherPlan
) -> dict[str, tuple[Path, str]]:
    """Return the files of a teacher beside its vectors: table of token embeddings, projection."""
    files = {}
    tables: dict[str, list[tuple[Source, Path]]] = {}
    for source in sources:
        path = table_path(source.cache.folder, contract)
        if path.exists():
            TokenTable.read(path, contract)
            tables.setdefault(sha256_file(path), []).append((source, path))
    if tables:
        digest = next(iter(tables))
        _, path = tables[digest][0]
        files[path.name] = (path, digest)
    if len(tables) > 1:
        sides = tuple(Side(label(same), f"digest {digest[:12]}") for digest, same in tables.items())
        answer = f"that of {sides[0].cache} is taken ({ruling.verdict})" if ruling.preferred else ""
        plan.conflicts.append(Conflict(TABLE, title, sides, answer))
    if is_derived(contract):
        folders = [(one, one.cache.teacher_folder(contract)) for one in sources]
        # A merge that was killed may have made the folder and nothing in it.
        having = [(one, folder) for one, folder in folders if (folder / PROJECTION).exists()]
        holder, folder = (having or [one for one in folders if one[1].exists()])[0]
        read_projection(holder.cache, CachedTeacher(title, contract, {}))
        path = folder / PROJECTION
        files[PROJECTION] = (path, sha256_file(path))
    return files


def _vector_conflicts(
    title: str,
    holders: Sequence[tuple[Source, ShardStore]],
    disputes: Sequence[Dispute],
    sources: Sequence[Source],
    ruling: Ruling,
) -> list[Conflict]:
    if not disputes:
        return []
    keys = keys_of(disputes)
    corpora = [one for s in sources for corpus in s.cache.corpora() for one in (corpus, *corpus.views())]
    texts = dict(zip(map(bytes, keys), find_texts(keys, corpora), strict=True))
    conflicts = []
    for one in sorted(disputes, key=lambda dispute: dispute.worst_cosine):
        sides = tuple(
            Side(holders[number][0].label, ", ".join(f"{k} {v}" for k, v in way.items()), way)
            for number, way in zip((one.winner, one.loser), one.ways, strict=True)
        )
        answer = ""
        if ruling.preferred:
            answer = (
                f"those of {sides[0].cache} are taken ({ruling.verdict}), those of {sides[1].cache} left out"
            )
        examples = tuple(texts[key] or key.hex() for key in one.examples)
        conflicts.append(
            Conflict(VECTORS, title, sides, answer, one.keys, one.worst_cosine, one.expected_cosine, examples)
        )
    return conflicts
