"""A limit in which a mirror could not even hold one row's vectors: refused before anything is fetched.

Which shards a run needs shows once texts and row indexes are here; what is said here holds for any of them.
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
        mirror: the mirror; None where it is not there yet. Rows of shards that it alone has take no room.

    Raises:
        InputError: saying how much is enough whichever rows are trained on.
    """
    sizes = _shard_sizes(plan, mirror)
    asked = [_named(plan, name) & sizes.keys() for name in teachers] or [set(sizes)]
    if not all(asked):
        # Without shards of a teacher there is nothing to train on, which is told of elsewhere.
        return
    smallest = sum(min(min(sizes[one]) for one in contracts) for contracts in asked)
    largest = sum(max(max(sizes[one]) for one in contracts) for contracts in asked)
    everything = sum(max(sum(sizes[one]) for one in contracts) for contracts in asked)
    if limit < smallest:
        raise InputError(
            f"a limit of {readable(limit)}: a single row needs a shard of each teacher, which takes "
            f"{readable(smallest)} at least, and while one is trained on the next is fetched: give "
            f"--cache-limit {readable(min(2 * largest, everything), up=True)} or more, which is enough "
            "whatever the rows"
        )


def _shard_sizes(plan: PullPlan, mirror: Cache | None) -> dict[str, list[int]]:
    """Return the sizes of each teacher's shards on the remote, by contract id; of logits, none."""
    found: dict[str, dict[str, int]] = {}
    for one in plan.wanted:
        if one.entry.kind is Kind.SHARD and plan.contracts[one.entry.teacher].output != LOGITS:
            found.setdefault(one.entry.teacher, {})[one.file.sha256] = one.file.bytes
    sizes = {contract_id: list(shards.values()) for contract_id, shards in found.items()}
    for contract_id, shards in found.items():
        if mirror is not None and _has_others(mirror.container(plan.contracts[contract_id]).names(), shards):
            sizes[contract_id].append(0)
    return sizes


def _has_others(names: Iterable[str], shards: Collection[str]) -> bool:
    return any(name not in shards for name in names)


def _named(plan: PullPlan, name: str) -> set[str]:
    """Return the contract ids that a teacher's name, or the begin of an id, may mean."""
    names = [one.entry for one in plan.wanted if one.entry.kind is Kind.NAME]
    ids = {one for one in plan.contracts if one.startswith(name)}
    return ids | {one.teacher for one in names if one.stem == name}
