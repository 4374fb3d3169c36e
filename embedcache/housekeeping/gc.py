"""Garbage: what crashes, replaced corpora and old indexes leave behind, and nothing reads.

Something may look like garbage because a build is just writing it. So only what has not been touched for a
while is taken. And a build may begin to count on old vectors just as they are judged to be of no use: they
are judged once more when they are gone, and put back where they are of use by now. A build lists the shards
again when its corpus is described and its teacher has a name, so it finds them gone, or keeps them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus, read_info
from embedcache.corpus.view_record import RECIPE, VIEWS, is_recorded, read_record
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, read_sealed_json, remove_file
from embedcache.housekeeping.remove import delete_folder, folder_bytes
from embedcache.inventory import QUARANTINE
from embedcache.key_index import KeyIndex
from embedcache.reuse import shard_places
from embedcache.store import FolderShards, LmdbShards, Shard, ShardStore
from embedcache.views.recipe import is_view_name

DEFAULT_HOURS = 24.0
_NAMELESS = "a teacher without a name"
_UNFINISHED = "a view that was never finished"
_STALE = "a view of rows that its corpus has no longer"
_SUPERSEDED = "an index of other shards than are there"


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


@dataclass(frozen=True)
class Sweep:
    """What was found to be garbage.

    Attributes:
        found: what was deleted, or would be.
        young: how many more files and folders were left alone, because they were touched of late.
    """

    found: list[Garbage]
    young: int


def collect_garbage(
    cache: Cache,
    *,
    hours: float = DEFAULT_HOURS,
    unused_vectors: bool = False,
    quarantine: bool = False,
    dry_run: bool = False,
) -> list[Garbage]:
    """Delete garbage and return what it was: arguments and errors as :func:`sweep`."""
    return sweep(
        cache, hours=hours, unused_vectors=unused_vectors, quarantine=quarantine, dry_run=dry_run
    ).found


def sweep(
    cache: Cache,
    *,
    hours: float = DEFAULT_HOURS,
    unused_vectors: bool = False,
    quarantine: bool = False,
    dry_run: bool = False,
) -> Sweep:
    """Delete garbage; return what it was, and how much was too young.

    Args:
        cache: the cache.
        hours: leave alone what was touched within so many hours.
        unused_vectors: also delete vectors that nothing finds: shards none of whose texts is in any corpus or
            view of the cache, and teachers without a name.
        quarantine: also delete what ``repair`` moved aside.
        dry_run: only say what would be deleted.

    Raises:
        StorageError: if the cache cannot be written.
        CorruptCacheError: if the cache is damaged; repair it first, damage is not garbage.
    """
    before = time.time() - hours * 3600
    # All is judged before anything is deleted: that touches the folders around it.
    candidates = {
        path: reason
        for path, reason in _candidates(cache, unused_vectors=unused_vectors, quarantine=quarantine)
        if path.exists()
    }
    old = {path: reason for path, reason in candidates.items() if _since(path, candidates) <= before}
    young = [path for path in candidates.keys() - old.keys() if not candidates.keys() & set(path.parents)]
    found = [
        Garbage(str(path), reason, folder_bytes(path) if path.is_dir() else path.stat().st_size)
        for path, reason in old.items()
        if not old.keys() & set(path.parents)
    ]
    if not dry_run:
        found = [garbage for garbage in found if _delete(Path(garbage.path), garbage.reason, before)]
    if unused_vectors:
        found += _collect_unused_vectors(cache, before, dry_run=dry_run)
    return Sweep(found, len(young))


def _delete(path: Path, reason: str, before: float) -> bool:
    """Delete a file or a folder; return whether that was done."""
    if reason in (_UNFINISHED, _STALE) and _touched(path) > before:
        # Somebody has begun to make it since it was judged.
        return False
    if not path.is_dir():
        remove_file(path)
        return True
    if reason != _NAMELESS:
        if is_recorded(path):
            # Without its recipe, what is left of a view is read by nobody.
            remove_file(path / RECIPE)
        delete_folder(path)
        return True
    # A name given to it since it was judged lies in what was moved aside.
    aside = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{path.name}")
    try:
        path.rename(aside)
        if any((aside / "names").glob("*.json")):
            aside.rename(path)
            return False
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, path) from error
    delete_folder(aside)
    return True


def _candidates(cache: Cache, *, unused_vectors: bool, quarantine: bool) -> Iterator[tuple[Path, str]]:
    views = dict(_view_candidates(cache))
    yield from views.items()
    # A leftover folder is taken as a whole: what lies in it is not listed again. Neither are the drafts of a
    # view that is not finished: as long as any of them is young, somebody may be at work on it.
    leftovers = [path for path in cache.folder.rglob(f"{TEMPORARY_PREFIX}*") if _is_outermost(path, cache)]
    yield from ((path, "left by a crash") for path in leftovers if path.parent not in views)
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


def _view_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    for corpus in cache.corpora():
        for folder in _folders(corpus.folder / VIEWS):
            if not is_view_name(folder.name):
                # Not embedcache's; verify tells of it.
                continue
            if not is_recorded(folder):
                yield folder, _UNFINISHED
            elif read_record(folder).of != corpus.info.digest:
                yield folder, _STALE
            else:
                yield from _unnamed_parts(folder, {part.file_name for part in read_info(folder).parts})


def _unnamed_parts(folder: Path, named: Collection[str]) -> Iterator[tuple[Path, str]]:
    for path in folder.glob("*.arrow"):
        if path.name not in named:
            yield path, "a part of a view that was replaced"


def _teacher_candidates(cache: Cache, *, unused_vectors: bool) -> Iterator[tuple[Path, str]]:
    named = {teacher.contract.id: teacher.contract for teacher in cache.teachers()}
    for folder in _folders(cache.folder / "teachers"):
        if folder.name not in named:
            # Its vectors may be worth a lot, and a name is soon given back: not without being asked.
            if unused_vectors or not _holds_vectors(folder):
                yield folder, _NAMELESS
            continue
        store = cache.store(named[folder.name])
        len(store)  # which indexes the keys, where no index does
        used = store.index_files
        for path in sorted((cache.derived_folder / "index" / folder.name).glob("[!.]*")):
            if used and path not in used and path.suffix in (".npy", ".mdb"):
                yield path, _SUPERSEDED
        books = {shard.header.codebook for shard in store.shards}
        for path in (folder / "codebooks").glob("*.npy"):
            if path.stem not in books:
                yield path, "a codebook that no shard needs"


def _since(path: Path, candidates: Mapping[Path, str]) -> float:
    """Return since when something has been garbage: since it was touched, an index since it was replaced.

    Until then a reader may have opened the index, and where that is on another machine of a network file
    system, it needs the file.
    """
    if candidates[path] != _SUPERSEDED:
        return _touched(path)
    current = [one for one in path.parent.glob("[!.]*.npy") if one not in candidates]
    return max(_touched(path), min(map(_touched, current), default=time.time()))


def _derived_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    contracts = {teacher.contract.id for teacher in cache.teachers()}
    corpora = set(cache.corpus_names())
    digests = {texts.info.digest for texts in _corpora_and_views(cache)}
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
    yield derived / "incoming", "downloads of a pull that was stopped"
    yield derived / "remotes", "copies of manifests of remotes"
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


def _collect_unused_vectors(cache: Cache, before: float, *, dry_run: bool) -> list[Garbage]:
    found = []
    contracts = {teacher.contract for teacher in cache.teachers()}
    for contract in sorted(contracts, key=lambda one: one.id):
        store = cache.store(contract)
        # Their corpus may be still to come: a merged cache is copied file by file.
        old = [shard for shard in store.shards if _touched(_file_of(store, shard)) <= before]
        corpora = _corpora_and_views(cache)
        unused = _unused(store, old, corpora)
        if not dry_run:
            unused = _remove(cache, store, unused, corpora)
        found += [
            Garbage(shard.where, "none of its texts is in a corpus or a view", shard.bytes)
            for shard in unused
        ]
    return found


def _corpora_and_views(cache: Cache) -> list[Corpus]:
    return [texts for corpus in cache.corpora() for texts in (corpus, *corpus.views())]


def _file_of(store: ShardStore, shard: Shard) -> Path:
    container = store.container
    return container.file if isinstance(container, LmdbShards) else Path(shard.where)


def _remove(
    cache: Cache, store: ShardStore, unused: Sequence[Shard], corpora: Sequence[Corpus]
) -> list[Shard]:
    """Remove shards that none of ``corpora`` uses, and return them.

    Those that a corpus or a view uses which was not yet among ``corpora`` are put back.
    """
    # What is open of a shard stays readable when it is removed.
    bytes_of = {shard.name: store.container.open(shard.name) for shard in unused}
    for shard in unused:
        store.container.remove(shard.name)
    judged = {corpus.info.digest for corpus in corpora}
    fresh = [corpus for corpus in _corpora_and_views(cache) if corpus.info.digest not in judged]
    gone = _unused(store, unused, fresh)
    for name in bytes_of.keys() - {shard.name for shard in gone}:
        store.container.add(name, bytes_of[name])
    store.container.finish()
    return gone


def _unused(store: ShardStore, shards: Sequence[Shard], corpora: Sequence[Corpus]) -> list[Shard]:
    """Return those of ``shards`` that hold no text of any of ``corpora``."""
    if not shards or not corpora:
        return list(shards)
    used = np.zeros(len(store.shards), dtype=np.bool_)
    for corpus in corpora:
        for keys in corpus.iter_keys():
            positions = store.locate(keys)
            used[shard_places(store, positions[positions >= 0])[0]] = True
    found = {store.shards[number].name for number in np.flatnonzero(used).tolist()}
    # Of a key in two shards only one was found so: the few that are left are looked at themselves.
    return [shard for shard in shards if shard.name not in found and not _holds_any(shard, corpora)]


def _holds_any(shard: Shard, corpora: Sequence[Corpus]) -> bool:
    index = KeyIndex(shard.keys)
    return any((index.locate(keys) >= 0).any() for corpus in corpora for keys in corpus.iter_keys())


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
