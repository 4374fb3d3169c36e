"""Mending the vectors of a teacher: exactly the lost shards are encoded again, everything else stays.

A lost shard is replaced once the new one is whole. Interrupted and run again, a repair goes on where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.check.findings import Kind
from embedcache.check.inventory import QUARANTINE
from embedcache.check.noted import noted_sizes
from embedcache.check.repair.bring_back import bring_back
from embedcache.check.repair.lost_keys import LostShard, opened
from embedcache.check.repair.mending import IDENTICAL, MOVED, NOT_REPAIRED, REMOVED, RIGHT, Mending
from embedcache.check.repair.reencode import Made, ShardMaker
from embedcache.check.repair.salvage_lmdb import salvage, sealed_sizes, write_store
from embedcache.check.verify.shards import is_newer_shard, open_without_codebook
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import remove_file, write_bytes
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.lmdb import SEAL

if TYPE_CHECKING:
    import pyarrow as pa


def lost_in_folder(mending: Mending, maker: ShardMaker, damaged: Collection[str]) -> list[LostShard]:
    """Return damaged shards in files with what can still be told of them.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        damaged: the damaged files, relative to the cache.
    """
    noted = noted_sizes(maker.index_folder)
    lost = [
        opened(_bytes(mending.folder / path), Path(path).stem, path, noted.get(Path(path).stem, 0))
        for path in sorted(damaged)
    ]
    maker.damaged += [one.shard for one in lost if one.shard is not None]
    return lost


def lost_with_the_store(mending: Mending, file: Path) -> list[LostShard]:
    """Return, as shards to be put into ``shards/``, those of a missing LMDB file that are not there."""
    container = FolderShards(file.with_name("shards"))
    return [
        LostShard(name, mending.inside(container.path(name)), size=size)
        for name, size in (sealed_sizes(file) or {}).items()
        if not container.path(name).exists()
    ]


def drop_seal(mending: Mending, file: Path, lost: Sequence[LostShard]) -> None:
    """Remove the seal of a missing LMDB file once all that it tells of lies in ``shards/``."""
    places = {one.path for one in lost}
    left = [mend for mend in mending.mends if mend.path in places and mend.outcome == NOT_REPAIRED]
    if left:
        what = f"{len(left)} of its shards could not be brought back"
        mending.done(mending.inside(file), Kind.STORE.value, NOT_REPAIRED, what)
        return
    if not mending.dry_run:
        remove_file(file.with_name(SEAL))
    what = "its seal is removed: all that it tells of lies in shards/"
    mending.done(mending.inside(file), Kind.STORE.value, REMOVED, what)


def mend_folder(mending: Mending, maker: ShardMaker, lost: Sequence[LostShard]) -> None:
    """Bring back shards that lie in files.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        lost: those damaged, and those known to be missing.
    """
    container = maker.folder_shards()

    def replace(lost: LostShard, made: Made) -> None:
        write_bytes(container.path(made.name), memoryview(made.data))
        if made.name != lost.name:
            container.remove(lost.name)

    bring_back(mending, maker, lost, replace)
    container.finish()


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

    bring_back(mending, maker, lost, replace)
    if not shards and not (mending.dry_run and names):
        what = "no shard of it could be brought back: delete it, and build again"
        mending.done(mending.inside(file), Kind.STORE.value, NOT_REPAIRED, what)
        return
    if not mending.dry_run:
        write_store(file, shards)
    strangers = found.keys() - shards.keys()
    complete = sizes is not None and sizes.keys() - strangers <= shards.keys()
    told = f"made anew; {kept} of its {len(names)} shards were sound"
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


def holds_newer_shard(file: Path) -> bool:
    """Return whether there is a shard of a newer version in an LMDB file, damaged as that may be."""
    return any(is_newer_shard(data) for data in salvage(file)[0].values())


def _bytes(path: Path) -> pa.Buffer | None:
    import pyarrow as pa

    return pa.py_buffer(path.read_bytes()) if path.is_file() else None
