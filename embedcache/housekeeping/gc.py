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
from embedcache.check.inventory import QUARANTINE
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, read_sealed_json, remove_file
from embedcache.housekeeping.remove import delete_folder, folder_bytes
from embedcache.key_index import KeyIndex
from embedcache.reuse import shard_places
from embedcache.store import FolderShards, ShardStore

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
    cache: Cache,
    *,
    hours: float = DEFAULT_HOURS,
    unused_vectors: bool = False,
    quarantine: bool = False,
    dry_run: bool = False,
) -> list[Garbage]:
    """Delete garbage and return what it was.

    Args:
        cache: the cache.
        hours: leave alone what was touched within so many hours.
        unused_vectors: also delete vectors that nothing finds: shards none of whose texts is in any corpus of
            the cache, and teachers without a name.
        quarantine: also delete what ``repair`` moved aside.
        dry_run: only say what would be deleted.

    Raises:
        StorageError: if the cache cannot be written.
        CorruptCacheError: if the cache is damaged; repair it first, damage is not garbage.
    """
    before = time.time() - hours * 3600
    # All is judged before anything is deleted: that touches the folders around it.
    candidates = dict(_candidates(cache, unused_vectors=unused_vectors, quarantine=quarantine))
    old = {path: reason for path, reason in candidates.items() if path.exists() and _touched(path) <= before}
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


def _candidates(cache: Cache, *, unused_vectors: bool, quarantine: bool) -> Iterator[tuple[Path, str]]:
    # A leftover folder is taken as a whole: what lies in it is not listed again.
    leftovers = [path for path in cache.folder.rglob(f"{TEMPORARY_PREFIX}*") if _is_outermost(path, cache)]
    yield from ((path, "left by a crash") for path in leftovers)
    yield from _corpus_candidates(cache)
    yield from _teacher_candidates(cache, unused_vectors=unused_vectors)
    yield from _derived_candidates(cache)
    if quarantine and (cache.folder / QUARANTINE).is_dir():
        yield cache.folder / QUARANTINE, "moved aside by repair"


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


def _teacher_candidates(cache: Cache, *, unused_vectors: bool) -> Iterator[tuple[Path, str]]:
    named = {teacher.contract.id: teacher.contract for teacher in cache.teachers()}
    for folder in _folders(cache.folder / "teachers"):
        if folder.name not in named:
            # Its vectors may be worth a lot, and a name is soon given back: not without being asked.
            if unused_vectors or not _holds_vectors(folder):
                yield folder, "a teacher without a name"
            continue
        books = {shard.header.codebook for shard in cache.store(named[folder.name]).shards}
        for path in (folder / "codebooks").glob("*.npy"):
            if path.stem not in books:
                yield path, "a codebook that no shard needs"


def _derived_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    contracts = {teacher.contract.id for teacher in cache.teachers()}
    corpora = set(cache.corpus_names())
    digests = {corpus.info.digest for corpus in cache.corpora()}
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
    yield from (
        (folder, "token arrays of a corpus that is gone")
        for folder in _folders(derived / "tokens")
        if _tokenized(folder) not in digests
    )


def _tokenized(folder: Path) -> object:
    """Return the digest of the corpus whose token arrays lie in ``folder``, None where nothing tells it."""
    try:
        return read_sealed_json(folder / "tokens.json").get("corpus")
    except (OSError, ValueError):
        return None


def _holds_vectors(folder: Path) -> bool:
    return (folder / "vectors.mdb").exists() or bool(FolderShards(folder / "shards").names())


def _collect_unused_vectors(cache: Cache, *, dry_run: bool) -> list[Garbage]:
    found = []
    contracts = {teacher.contract for teacher in cache.teachers()}
    for contract in sorted(contracts, key=lambda one: one.id):
        store = cache.store(contract)
        for number in np.flatnonzero(~_used(cache, store)).tolist():
            shard = store.shards[number]
            found.append(Garbage(shard.where, "none of its texts is in a corpus", shard.bytes))
            if not dry_run:
                store.container.remove(shard.name)
        if not dry_run:
            store.container.finish()
    return found


def _used(cache: Cache, store: ShardStore) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the shards that hold a text of some corpus."""
    used = np.zeros(len(store.shards), dtype=np.bool_)
    if not len(used):
        return used
    corpora = cache.corpora()
    for corpus in corpora:
        for keys in corpus.iter_keys():
            positions = store.locate(keys)
            used[shard_places(store, positions[positions >= 0])[0]] = True
    # Of a key in two shards only one was found so: the few that are left are looked at themselves.
    for number in np.flatnonzero(~used).tolist():
        shard = KeyIndex(store.shards[number].keys)
        used[number] = any((shard.locate(keys) >= 0).any() for one in corpora for keys in one.iter_keys())
    return used


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(
        path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(TEMPORARY_PREFIX)
    )


def _touched(path: Path) -> float:
    """Return when the newest thing at or below ``path`` was changed."""
    try:
        times = [path.stat().st_mtime]
        times += [inner.stat().st_mtime for inner in path.rglob("*")] if path.is_dir() else []
    except FileNotFoundError:
        # Somebody is at work here.
        return time.time()
    except OSError as error:
        raise explain_os_error(error, path) from error
    return max(times)
