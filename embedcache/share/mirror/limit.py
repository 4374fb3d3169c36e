"""Refuses a limit too small for the vectors of a single row, before anything is fetched.

Which shards a run needs is known once texts and row indexes are here. The bounds given here hold for any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.errors import InputError
from embedcache.share.pulling.wanted import PullPlan
from embedcache.sizes import readable
from embedcache.teacher.outputs import LOGITS


def refuse_small_limit(limit: int, plan: PullPlan, teachers: Collection[str], mirror: Cache | None) -> None:
    """Refuse a limit that is smaller than the smallest shards that a row needs, one of each teacher.

    Args:
        limit: bytes that fetched shards may have together.
        plan: what the remote has.
        teachers: names or contract ids of the teachers that are trained on together; none: one of all.
        mirror: the mirror; None where it is not there yet. Shards that only the mirror has do not count.

    Raises:
        InputError: if the limit is too small; the message names one that is enough for all rows.
    """
    sizes = _shard_sizes(plan, mirror)
    asked = [_named(plan, name) & sizes.keys() for name in teachers] or [set(sizes)]
    if not all(asked):
        # A teacher without shards is refused where its vectors are opened.
        return
    smallest = sum(min(min(sizes[contract_id]) for contract_id in contracts) for contracts in asked)
    largest = sum(max(max(sizes[contract_id]) for contract_id in contracts) for contracts in asked)
    everything = sum(max(sum(sizes[contract_id]) for contract_id in contracts) for contracts in asked)
    if limit < smallest:
        raise InputError(
            f"a limit of {readable(limit)}: a single row needs a shard of each teacher, which takes "
            f"{readable(smallest)} at least, and while one is trained on the next is fetched: give "
            f"--cache-limit {readable(min(2 * largest, everything), up=True)} or more, which is enough "
            "whatever the rows"
        )


def _shard_sizes(plan: PullPlan, mirror: Cache | None) -> dict[str, list[int]]:
    """Return the sizes of each teacher's shards on the remote by contract id, without those of logits.

    A teacher of which the mirror has shards that the remote lacks has one more of size 0.
    """
    listed: dict[str, dict[str, int]] = {}
    for wanted in plan.wanted:
        teacher = wanted.entry.teacher
        if wanted.entry.kind is Kind.SHARD and plan.contracts[teacher].output != LOGITS:
            listed.setdefault(teacher, {})[wanted.file.sha256] = wanted.file.bytes
    sizes = {contract_id: list(shards.values()) for contract_id, shards in listed.items()}
    for contract_id, shards in listed.items():
        if mirror is not None and _has_others(mirror.container(plan.contracts[contract_id]).names(), shards):
            sizes[contract_id].append(0)
    return sizes


def _has_others(names: Iterable[str], shards: Collection[str]) -> bool:
    return any(name not in shards for name in names)


def _named(plan: PullPlan, name: str) -> set[str]:
    """Return the contract ids that a teacher's name, or the beginning of an id, may stand for."""
    entries = [wanted.entry for wanted in plan.wanted if wanted.entry.kind is Kind.NAME]
    ids = {contract_id for contract_id in plan.contracts if contract_id.startswith(name)}
    return ids | {entry.teacher for entry in entries if entry.stem == name}
