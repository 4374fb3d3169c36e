"""Mending what needs nobody's help: the marker, what is derived, and what lies in the wrong place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from embedcache.cache import CACHE_MARKER
from embedcache.check.findings import Kind
from embedcache.check.inventory import QUARANTINE, Entry
from embedcache.check.repair.mending import IDENTICAL, MOVED, REMOVED, Mending
from embedcache.fsio import (
    explain_os_error,
    fsync_directory,
    make_directory,
    remove_file,
    write_sealed_json,
)
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.lmdb import SEAL


def mend_marker(mending: Mending) -> None:
    """Write ``cache.json`` anew."""
    if not mending.dry_run:
        write_sealed_json(mending.folder / "cache.json", CACHE_MARKER)
    mending.done("cache.json", Kind.MARKER.value, IDENTICAL, "written anew")


def remove_derived(mending: Mending, path: str, kind: str) -> None:
    """Remove a damaged derived file; token arrays go together."""
    target = mending.folder / path
    others = sorted(target.parent.iterdir()) if kind == Kind.TOKENS.value and target.parent.is_dir() else []
    if not mending.dry_run:
        for file in others or [target]:
            remove_file(file)
    mending.done(path, kind, REMOVED, "it is made anew when it is needed")


def move_misplaced_shard(mending: Mending, path: str, shard: Shard) -> None:
    """Move a shard to the teacher it belongs to, or aside where that teacher is not in the cache.

    Args:
        mending: the repair.
        path: where it lies, relative to the cache.
        shard: the shard.
    """
    owner = shard.header.contract.id
    home = mending.folder / "teachers" / owner
    in_lmdb = any((home / name).exists() for name in ("vectors.mdb", SEAL))
    if (home / "contract.json").is_file() and not in_lmdb:
        target = FolderShards(home / "shards").path(shard.name)
        mending.bench.shards[owner].append(replace(shard, where=mending.inside(target)))
    else:
        target = _aside(mending, path)
    _move(mending, mending.folder / path, target)
    mending.done(path, Kind.SHARD.value, MOVED, f"to {mending.inside(target)}")


def move_aside(mending: Mending, entry: Entry) -> None:
    """Move a file that embedcache does not know into ``quarantine``."""
    target = _aside(mending, entry.path)
    _move(mending, mending.folder / entry.path, target)
    mending.done(entry.path, entry.kind.value, MOVED, f"to {mending.inside(target)}")


def _aside(mending: Mending, path: str) -> Path:
    target = mending.folder / QUARANTINE / path
    number = 1
    while target.exists():
        number += 1
        target = mending.folder / QUARANTINE / f"{path}.{number}"
    return target


def _move(mending: Mending, source: Path, target: Path) -> None:
    if mending.dry_run:
        return
    make_directory(target.parent)
    try:
        os.replace(source, target)  # noqa: PTH105 - what is moved may be of any kind
        fsync_directory(target.parent)
        fsync_directory(source.parent)
    except OSError as error:
        raise explain_os_error(error, target) from error
