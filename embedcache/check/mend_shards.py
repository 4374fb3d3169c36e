"""Mending the vectors of a teacher: exactly the lost shards are encoded again, everything else stays.

A lost shard is replaced once the new one is whole. Interrupted and run again, a repair goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.findings import Kind, reason
from embedcache.check.inventory import QUARANTINE
from embedcache.check.lost_keys import LostShard, keys_by_elimination, keys_by_index, opened
from embedcache.check.mending import IDENTICAL, MOVED, NOT_REPAIRED, RIGHT, TO_ENCODE, Mending
from embedcache.check.reencode import Made, ShardMaker
from embedcache.check.salvage_lmdb import salvage, sealed_sizes, write_store
from embedcache.check.shards import open_without_codebook
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError
from embedcache.fsio import read_sealed_json, remove_file, write_bytes
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.base import is_shard_name

if TYPE_CHECKING:
    import pyarrow as pa

Replace = Callable[[LostShard, Made], None]
"""Puts a shard made anew in the place of a lost one."""

_NOT_TOLD = "which texts it held cannot be told, or no corpus has them: build the corpus it was made of again"


def lost_in_folder(mending: Mending, maker: ShardMaker, damaged: Collection[str]) -> list[LostShard]:
    """Return damaged shards in files with what can still be told of them.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        damaged: the damaged files, relative to the cache.
    """
    noted = _noted_sizes(_index_folder(maker))
    lost = [
        opened(_bytes(mending.folder / path), Path(path).stem, path, noted.get(Path(path).stem, 0))
        for path in sorted(damaged)
    ]
    maker.damaged += [one.shard for one in lost if one.shard is not None]
    return lost


def mend_folder(mending: Mending, maker: ShardMaker, lost: Sequence[LostShard]) -> None:
    """Bring back shards that lie in files: those damaged, and those an index proves to be gone."""
    container = FolderShards(maker.cache.teacher_folder(maker.contract) / "shards")
    there = {*container.names()}
    gone = [
        LostShard(name, mending.inside(container.path(name)), size=size)
        for name, size in _noted_sizes(_index_folder(maker)).items()
        if name not in there
    ]

    def replace(lost: LostShard, made: Made) -> None:
        write_bytes(container.path(made.name), memoryview(made.data))
        if made.name != lost.name:
            remove_file(container.path(lost.name))

    _bring_back(mending, maker, lost, gone, replace)


def mend_lmdb(mending: Mending, maker: ShardMaker, file: Path) -> None:
    """Put a new LMDB store in the place of a damaged one: its sound shards and the lost ones."""
    found, names = salvage(file)
    shards = {shard.name: found[shard.name] for shard in add_salvaged(maker, file)}
    for name in found.keys() - shards.keys():
        # Sound, but another teacher's.
        if not mending.dry_run:
            write_bytes(mending.folder / QUARANTINE / f"{name}.arrow", memoryview(found[name]))
        mending.done(
            f"{mending.inside(file)}#{name}", Kind.SHARD.value, MOVED, f"to {QUARANTINE}/{name}.arrow"
        )
    sizes = sealed_sizes(file)
    lost = [
        opened(None, name, f"{mending.inside(file)}#{name}", (sizes or {}).get(name, 0))
        for name in sorted(names - found.keys())
    ]
    kept = len(shards)

    def replace(lost: LostShard, made: Made) -> None:
        shards[made.name] = made.data

    _bring_back(mending, maker, lost, [], replace)
    if not shards and not mending.dry_run:
        what = "no shard of it could be brought back: delete it, and build again"
        mending.done(mending.inside(file), Kind.STORE.value, NOT_REPAIRED, what)
        return
    if not mending.dry_run:
        write_store(file, shards)
    strangers = found.keys() - shards.keys()
    complete = sizes is not None and sizes.keys() - strangers <= shards.keys()
    told = f"{kept} sound shards of {len(names)} are kept in a new file"
    if sizes is None:
        told += "; its seal, which says whether there were more, is lost: build again to be sure"
    mending.done(
        mending.inside(file), Kind.STORE.value, IDENTICAL if complete or mending.dry_run else RIGHT, told
    )


def add_salvaged(maker: ShardMaker, file: Path) -> list[Shard]:
    """Count the sound shards in an LMDB file as sound, damaged as it may be, and return them."""
    mine = []
    for name, data in salvage(file)[0].items():
        with suppress(CorruptCacheError, CacheFormatError):
            shard = open_without_codebook(data, name, f"{file}#{name}")
            if shard.header.contract == maker.contract:
                maker.add_sound(shard)
                mine.append(shard)
    return mine


def _bring_back(
    mending: Mending,
    maker: ShardMaker,
    lost: Sequence[LostShard],
    gone: Sequence[LostShard],
    replace: Replace,
) -> None:
    """Make lost shards anew.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        lost: shards that are damaged.
        gone: shards that were here once; only those that an index proves to be missing are made anew.
        replace: puts a shard in the place of a lost one.
    """
    folder = _index_folder(maker)
    told = keys_by_index(folder, maker.sound, [*lost, *gone]) if gone else {}
    wanted = [*lost, *(one for one in gone if one.name in told)]
    told = told or keys_by_index(folder, maker.sound, lost)
    jobs = [(one, _candidates(mending, maker, one, told)) for one in wanted]
    maker.meter.begin("encode", total_rows=sum(len(keys[0]) for _, keys in jobs if keys))
    unknown, taken = [], []
    for one, candidates in jobs:
        try:
            keys = _make(mending, maker, one, candidates, replace)
        except EmbedCacheError as error:
            mending.done(one.path, Kind.SHARD.value, NOT_REPAIRED, reason(error))
            continue
        if keys is None:
            unknown.append(one)
        else:
            taken.append(keys)
    if unknown:
        _by_elimination(mending, maker, unknown, taken, replace)


def _candidates(
    mending: Mending, maker: ShardMaker, lost: LostShard, told: dict[str, KeyArray]
) -> list[KeyArray]:
    """Return the rows a lost shard may have had, as far as their texts are there, the likeliest first."""
    found: list[KeyArray] = []
    for keys in (told.get(lost.name), lost.keys):
        known = keys is None or any(keys.tobytes() == other.tobytes() for other in found)
        if keys is not None and not known and (mending.dry_run or maker.has_texts(keys)):
            found.append(keys)
    return found


def _make(
    mending: Mending, maker: ShardMaker, lost: LostShard, candidates: Sequence[KeyArray], replace: Replace
) -> KeyArray | None:
    """Make a lost shard anew of the first candidate that gives its name, else of one that may be right.

    Returns:
        The rows it was made of, None where none of the candidates can be believed.
    """
    if mending.dry_run and candidates:
        mending.done(lost.path, Kind.SHARD.value, TO_ENCODE, "its texts are known", rows=len(candidates[0]))
        return candidates[0]
    right = None
    for keys in candidates:
        made = maker.make(keys, [lost])
        if made.name == lost.name:
            replace(lost, made)
            _tell(mending, lost, made)
            return keys
        # Rows that another shard holds may have come into this one with the damage.
        if right is None and not maker.holds_any(keys):
            right = (keys, made)
    if right is None:
        return None
    replace(lost, right[1])
    _tell(mending, lost, right[1])
    return right[0]


def _by_elimination(
    mending: Mending,
    maker: ShardMaker,
    unknown: Sequence[LostShard],
    taken: Sequence[KeyArray],
    replace: Replace,
) -> None:
    """Make lost shards of unknown rows anew: of the texts that no sound shard holds."""
    if mending.dry_run:
        rows = sum(map(len, keys_by_elimination(maker.corpora, maker.sound, taken)))
        for number, one in enumerate(unknown):
            what = "of the texts that have no vector"
            mending.done(one.path, Kind.SHARD.value, TO_ENCODE, what, 0 if number else rows)
        return
    left = {one.name: one for one in unknown}
    spare: list[Made] = []
    try:
        for made in _cut_as_before(maker, unknown, taken):
            if made.name in left:
                replace(left[made.name], made)
                _tell(mending, left.pop(made.name), made)
            else:
                spare.append(made)
            # More texts may be without a vector than were lost: of a build that did not end.
            if len(spare) >= len(left):
                break
    except EmbedCacheError as error:
        for one in left.values():
            mending.done(one.path, Kind.SHARD.value, NOT_REPAIRED, reason(error))
        return
    if not left:
        return
    if not spare:
        for one in left.values():
            mending.done(one.path, Kind.SHARD.value, NOT_REPAIRED, _NOT_TOLD)
        return
    # Which of them was which cannot be told any more: all rows come back, in shards of other names.
    for number, made in enumerate(spare):
        replace(list(left.values())[min(number, len(left) - 1)], made)
    for number, one in enumerate(left.values()):
        encoded = 0 if number else sum(made.encoded for made in spare)
        mending.done(one.path, Kind.SHARD.value, RIGHT, f"its rows are in {len(spare)} new shards", encoded)


def _cut_as_before(maker: ShardMaker, lost: Sequence[LostShard], taken: Sequence[KeyArray]) -> Iterator[Made]:
    """Yield shards of all texts without a vector, cut as the lost ones seem to have been cut."""
    missing = keys_by_elimination(maker.corpora, maker.sound, taken)
    keys = np.concatenate([np.empty(0, dtype=KEY_DTYPE), *missing])
    if not len(keys):
        return
    names = {one.name for one in lost}
    tried: dict[int, Made] = {}
    guesses = maker.rows_of(lost, len(keys))
    for rows in guesses:
        first = min(rows, len(keys))
        if first not in tried:
            tried[first] = maker.make(keys[:first], lost)
        if tried[first].name in names:
            break
    else:
        rows = guesses[0]
    yield tried[min(rows, len(keys))]
    for start in range(rows, len(keys), rows):
        yield maker.make(keys[start : start + rows], lost)


def _tell(mending: Mending, lost: LostShard, made: Made) -> None:
    if made.name == lost.name:
        how = "encoded again" if made.encoded else "carried over again"
        mending.done(lost.path, Kind.SHARD.value, IDENTICAL, how, made.encoded)
    else:
        mending.done(
            lost.path,
            Kind.SHARD.value,
            RIGHT,
            f"encoded again as {made.name[:12]}…: another library, device or setting than the first time",
            made.encoded,
        )


def _index_folder(maker: ShardMaker) -> Path:
    return maker.cache.derived_folder / "index" / maker.contract.id


def _noted_sizes(folder: Path) -> dict[str, int]:
    """Return the shards that were once found sound in a teacher's folder, and how large they were."""
    try:
        noted = read_sealed_json(folder / "checked.json")
    except (OSError, ValueError):
        return {}
    files = {name.removesuffix(".arrow"): state for name, state in sorted(noted.items())}
    return {
        name: state[0]
        for name, state in files.items()
        if is_shard_name(name) and isinstance(state, list) and state and isinstance(state[0], int)
    }


def _bytes(path: Path) -> pa.Buffer | None:
    import pyarrow as pa

    return pa.py_buffer(path.read_bytes()) if path.is_file() else None
