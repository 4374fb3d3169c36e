"""Mending what needs nobody's help: the marker, what is derived, and what lies in the wrong place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embedcache.cache import CACHE_MARKER, CACHE_VERSION
from embedcache.check.findings import Finding, Kind
from embedcache.check.inventory import QUARANTINE, Entry
from embedcache.check.repair.mending import IDENTICAL, MOVED, NOT_REPAIRED, REMOVED, Mending
from embedcache.check.verify.documents import format_version
from embedcache.fsio import (
    explain_os_error,
    fsync_directory,
    make_directory,
    read_regular,
    remove_file,
    write_json,
)
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.lmdb import SEAL


def mend_marker(mending: Mending, findings: Sequence[Finding]) -> None:
    """Write ``cache.json`` anew, unless a newer embedcache wrote the cache."""
    path = mending.folder / "cache.json"
    if _version(path) > CACHE_VERSION and _may_be_newer(mending, findings):
        mending.done(
            "cache.json",
            Kind.MARKER.value,
            NOT_REPAIRED,
            "a newer embedcache may have written this cache: upgrade embedcache",
        )
        return
    if not mending.dry_run:
        write_json(path, CACHE_MARKER)
    mending.done("cache.json", Kind.MARKER.value, IDENTICAL, "written anew")


def _version(path: Path) -> int:
    try:
        return format_version(read_regular(path))
    except (OSError, ValueError):
        return 0


def _may_be_newer(mending: Mending, findings: Sequence[Finding]) -> bool:
    # Something of this version has to be there, and nothing that this version does not know.
    others = [finding for finding in findings if finding.path != "cache.json"]
    strange = any(one.kind == Kind.FOREIGN.value or "format version" in one.found for one in others)
    return strange or not any(mending.bench.shards.values())


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
