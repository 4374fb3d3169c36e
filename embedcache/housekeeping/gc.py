"""Garbage: what crashes, replaced corpora and old indexes leave behind, and nothing reads.

Something may look like garbage because a build is just writing it. So only what has not been touched for a
while is taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, remove_file
from embedcache.housekeeping.remove import delete_folder, folder_bytes
from embedcache.key_index import KeyIndex
from embedcache.store import ShardStore

DEFAULT_HOURS = 24.0


@dataclass(frozen=True)
class Garbage:
    """Something nobody needs.

    Attributes:
        path: a file, a folder, or a shard inside an LMDB file.
        reason: why it is garbage.
        bytes: its size.
    """

    path: str
    reason: str
    bytes: int


def collect_garbage(
    cache: Cache, *, hours: float = DEFAULT_HOURS, unused_vectors: bool = False, dry_run: bool = False
) -> list[Garbage]:
    """Delete garbage and return what it was.

    Args:
        cache: the cache.
        hours: leave alone what was touched within so many hours.
        unused_vectors: also delete shards none of whose texts is in any corpus of the cache.
        dry_run: only say what would be deleted.

    Raises:
        StorageError: if the cache cannot be written.
        CorruptCacheError: if the cache is damaged; repair it first, damage is not garbage.
    """
    before = time.time() - hours * 3600
    # All is judged before anything is deleted: that touches the folders around it.
    old = {path: reason for path, reason in _candidates(cache) if path.exists() and _touched(path) <= before}
    found = [
        Garbage(str(path), reason, folder_bytes(path) if path.is_dir() else path.stat().st_size)
        for path, reason in old.items()
        if not old.keys() & set(path.parents)
    ]
    if not dry_run:
        for one in map(Path, (garbage.path for garbage in found)):
            delete_folder(one) if one.is_dir() else remove_file(one)
    if unused_vectors:
        found += _collect_unused_vectors(cache, dry_run=dry_run)
    return found


def _candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    # A leftover folder is taken as a whole: what lies in it is not listed again.
    leftovers = [path for path in cache.folder.rglob(f"{TEMPORARY_PREFIX}*") if _is_outermost(path, cache)]
    yield from ((path, "left by a crash") for path in leftovers)
    yield from _corpus_candidates(cache)
    yield from _teacher_candidates(cache)
    yield from _derived_candidates(cache)


def _is_outermost(path: Path, cache: Cache) -> bool:
    parents = path.relative_to(cache.folder).parts[:-1]
    return not any(part.startswith(TEMPORARY_PREFIX) for part in parents)


def _corpus_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    known = {corpus.name: {part.file_name for part in corpus.parts} for corpus in cache.corpora()}
    for folder in _folders(cache.corpora_folder):
        if folder.name not in known:
            yield folder, "a corpus that was never finished"
            continue
        for path in folder.glob("*.arrow"):
            if path.name not in known[folder.name]:
                yield path, "a part of a corpus that was replaced"


def _teacher_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    named = {teacher.contract.id: teacher.contract for teacher in cache.teachers()}
    for folder in _folders(cache.folder / "teachers"):
        if folder.name not in named:
            yield folder, "a teacher without a name"
            continue
        books = {shard.header.codebook for shard in cache.store(named[folder.name]).shards}
        for path in (folder / "codebooks").glob("*.npy"):
            if path.stem not in books:
                yield path, "a codebook that no shard needs"


def _derived_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    contracts = {teacher.contract.id for teacher in cache.teachers()}
    corpora = set(cache.corpus_names())
    derived = cache.derived_folder
    yield from (
        (folder, "an index of a teacher that is gone")
        for folder in _folders(derived / "index")
        if folder.name not in contracts
    )
    yield from (
        (path, "a note on a teacher that is gone")
        for path in (derived / "models").glob("*.json")
        if path.stem not in contracts
    )
    yield from (
        (path, "a note on a corpus that is gone")
        for path in (derived / "sources").glob("*.json")
        if path.stem not in corpora
    )


def _collect_unused_vectors(cache: Cache, *, dry_run: bool) -> list[Garbage]:
    found = []
    contracts = {teacher.contract for teacher in cache.teachers()}
    for contract in sorted(contracts, key=lambda one: one.id):
        store = cache.store(contract)
        for number in np.flatnonzero(~_used(cache, store)).tolist():
            shard = store.shards[number]
            found.append(
                Garbage(shard.where, "none of its texts is in a corpus", store.container.size(shard.name))
            )
            if not dry_run:
                store.container.remove(shard.name)
    return found


def _used(cache: Cache, store: ShardStore) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the shards that hold a text of some corpus."""
    used = np.zeros(len(store.shards), dtype=np.bool_)
    if not len(used):
        return used
    for corpus in cache.corpora():
        for keys in corpus.iter_keys():
            index = KeyIndex(keys)
            # Both ways: of a key in two shards, locate names only the first.
            for number, shard in enumerate(store.shards):
                if not used[number]:
                    used[number] = bool((index.locate(shard.keys) >= 0).any())
    return used


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(
        path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(TEMPORARY_PREFIX)
    )


def _touched(path: Path) -> float:
    """Return when the newest thing at or below ``path`` was changed."""
    times = [path.stat().st_mtime]
    try:
        times += [inner.stat().st_mtime for inner in path.rglob("*")] if path.is_dir() else []
    except FileNotFoundError:
        # Somebody is at work here.
        return time.time()
    except OSError as error:
        raise explain_os_error(error, path) from error
    return max(times)
