"""Garbage collection, and removal of corpora, views and teachers.

Another process may still be writing what is young, so only what was not touched for a while is garbage. A
removal first deletes the file that makes a thing visible; killed after that, gc deletes the rest.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.cached_teacher import model_note_path
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import DESCRIPTION, RECIPE, VIEWS, is_recorded, read_info, read_record
from embedcache.corpus.origin import note_path
from embedcache.errors import InputError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, read_sealed_json, remove_file
from embedcache.inventory import QUARANTINE
from embedcache.keys import KeyIndex
from embedcache.store import FolderShards, LmdbShards, Shard, ShardStore
from embedcache.views.recipe import is_view_name

LEFTOVER_HOURS, VECTOR_HOURS = 1.0, 24.0
"""Age of garbage, and of unused vectors: their corpus may arrive later, when files are copied one by one."""

_OTHER_INDEX = "index of other shards"


@dataclass(frozen=True)
class Garbage:
    """Something that nothing needs.

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
    hours: float | None = None,
    unused: bool = False,
    quarantine: bool = False,
    dry_run: bool = False,
) -> list[Garbage]:
    """Delete garbage and return what it was.

    Args:
        cache: the cache.
        hours: keep what was touched within this many hours; default: 1, with ``unused`` 24.
        unused: also delete shards without a text of any corpus or view, and teachers without a name.
        quarantine: also delete what ``repair`` quarantined.
        dry_run: delete nothing.

    Raises:
        StorageError: if the cache cannot be written.
        CorruptCacheError: if the cache is damaged; repair it first.
    """
    if hours is None:
        hours = VECTOR_HOURS if unused else LEFTOVER_HOURS
    before = time.time() - hours * 3600
    # Everything is judged before anything is deleted, which touches the folder above it.
    candidates = _candidates(cache, unused=unused, quarantine=quarantine)
    old = [(path, reason) for path, reason in candidates if _is_old(path, reason, before)]
    found = []
    for path, reason in old:
        size = tree_bytes(path)
        # Another process may have begun to use it.
        if dry_run or _is_old(path, reason, before):
            found.append(Garbage(str(path), reason, size))
            if not dry_run:
                _delete(path)
    if unused:
        found += _collect_vectors(cache, before, dry_run=dry_run)
    return found


def _is_old(path: Path, reason: str, before: float) -> bool:
    # On a network file system, readers may still map an index that was replaced of late.
    others = path.parent.glob("[!.]*.npy") if reason == _OTHER_INDEX else []
    return path.exists() and max(map(_touched, [path, *others])) <= before


def _candidates(cache: Cache, *, unused: bool, quarantine: bool) -> Iterator[tuple[Path, str]]:
    """Yield garbage of any age; a folder stands for everything in it."""
    folders = dict(
        [*_corpus_candidates(cache), *_teacher_candidates(cache, unused), *_derived_candidates(cache)]
    )
    if quarantine:
        folders[cache.folder / QUARANTINE] = "quarantine of repair"
    yield from folders.items()
    for path in cache.folder.rglob(f"{TEMPORARY_PREFIX}*"):
        parents = path.relative_to(cache.folder).parents
        is_inside = any(parent.name.startswith(TEMPORARY_PREFIX) for parent in parents)
        if not is_inside and not any(folder in path.parents for folder in folders):
            yield path, "temporary file of a killed process"


def _corpus_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    names = cache.corpus_names()
    for folder in _folders(cache.corpora_folder):
        if folder.name not in names:
            yield folder, "unfinished corpus"
            continue
        digest = read_info(folder).digest
        for view in filter(lambda view: is_view_name(view.name), _folders(folder / VIEWS)):
            if not is_recorded(view):
                yield view, "unfinished view"
            elif read_record(view).of != digest:
                yield view, "view of a replaced corpus"
    for texts in _all_texts(cache):
        named = {part.file_name for part in texts.parts}
        for path in texts.folder.glob("*.arrow"):
            if path.name not in named:
                yield path, "part of a replaced corpus"


def _derived_candidates(cache: Cache) -> Iterator[tuple[Path, str]]:
    derived, digests = cache.derived_folder, _digests(_all_texts(cache))
    for folder in _folders(derived / "tokens"):
        try:
            digest = read_sealed_json(folder / "tokens.json").get("corpus")
        except (OSError, ValueError):
            digest = None
        if digest not in digests:
            yield folder, "token arrays of a removed corpus"
    yield derived / "incoming", "downloads of a stopped pull"
    yield derived / "remotes", "copies of remote manifests"


def _teacher_candidates(cache: Cache, unused: bool) -> Iterator[tuple[Path, str]]:
    contracts = {teacher.contract.id: teacher.contract for teacher in cache.teachers()}
    for folder in _folders(cache.folder / "teachers"):
        has_vectors = (folder / "vectors.mdb").exists() or FolderShards(folder / "shards").names()
        if folder.name not in contracts and (unused or not has_vectors):
            yield folder, "teacher without a name"
    for folder in _folders(cache.derived_folder / "index"):
        if folder.name not in contracts:
            yield folder, "index of a removed teacher"
    for contract in contracts.values():
        store = cache.store(contract)
        needed = {shard.header.codebook for shard in store.shards}
        for path in (cache.teacher_folder(contract) / "codebooks").glob("*.npy"):
            if path.stem not in needed:
                yield path, "codebook of no shard"
        # Its length reads the index, and makes one if there is none.
        used = store.index_files if len(store) else []
        for path in (cache.derived_folder / "index" / contract.id).glob("[!.]*"):
            if used and path not in used and path.suffix in (".npy", ".mdb"):
                yield path, _OTHER_INDEX


def _collect_vectors(cache: Cache, before: float, *, dry_run: bool) -> list[Garbage]:
    """Delete shards without a text of any corpus or view."""
    found = []
    for contract in {teacher.contract for teacher in cache.teachers()}:
        store, corpora = cache.store(contract), _all_texts(cache)
        one_file = store.container.file if isinstance(store.container, LmdbShards) else None
        old = [shard for shard in store.shards if _touched(one_file or Path(shard.where)) <= before]
        unused = _without_texts(store, old, corpora)
        judged = _digests(corpora)
        gone = [shard for shard in unused if dry_run or _remove_shard(cache, store, shard, judged)]
        found += [Garbage(shard.where, "vectors of no corpus or view", shard.bytes) for shard in gone]
        if unused and not dry_run:
            store.container.finish()
    return found


def _remove_shard(cache: Cache, store: ShardStore, shard: Shard, judged: set[str]) -> bool:
    """Remove a shard, unless a corpus that came after the ones that were ``judged`` has a text of it."""
    data = store.container.open(shard.name)
    store.container.remove(shard.name)
    # A build describes its corpus, then lists the shards: it does not find this one, or is found here.
    late = [texts for texts in _all_texts(cache) if texts.info.digest not in judged]
    if _holds_any(shard, late):
        store.container.add(shard.name, data)
        return False
    return True


def _without_texts(store: ShardStore, shards: list[Shard], corpora: list[Corpus]) -> list[Shard]:
    starts = np.cumsum([0, *map(len, store.shards)])
    used: set[str] = set()
    for corpus in corpora if shards else []:
        for keys in corpus.iter_keys():
            positions = store.locate(keys)
            numbers = np.unique(np.searchsorted(starts, positions[positions >= 0], side="right") - 1)
            used |= {store.shards[number].name for number in numbers.tolist()}
    # Of a key in two shards only one is located, so the rest are looked at themselves.
    return [shard for shard in shards if shard.name not in used and not _holds_any(shard, corpora)]


def _holds_any(shard: Shard, corpora: list[Corpus]) -> bool:
    index = KeyIndex(shard.keys)
    return any((index.locate(keys) >= 0).any() for corpus in corpora for keys in corpus.iter_keys())


def _all_texts(cache: Cache) -> list[Corpus]:
    return [texts for corpus in cache.corpora() for texts in (corpus, *corpus.views())]


def _digests(corpora: list[Corpus]) -> set[str]:
    return {corpus.info.digest for corpus in corpora}


def remove_corpus(cache: Cache, name: str) -> int:
    """Remove a corpus, also a damaged one, with its views; vectors are kept. Return the bytes freed.

    Raises:
        InputError: if there is no such corpus.
        StorageError: if the cache cannot be written.
    """
    if name not in cache.corpus_names():
        raise InputError(f"no corpus {name!r} in {cache.folder}: {', '.join(cache.corpus_names()) or 'none'}")
    folder = cache.corpora_folder / name
    freed = tree_bytes(folder)
    remove_file(folder / DESCRIPTION)
    # A build that finds a note takes missing parts for damage.
    remove_file(note_path(cache.derived_folder, name))
    _delete(folder)
    return freed


def remove_view(cache: Cache, corpus: str, name: str) -> int:
    """Remove a view of a corpus, also a damaged one; vectors are kept. Return the bytes freed.

    Raises:
        InputError: if there is no such corpus or view.
        CorruptCacheError: if the corpus is damaged.
        StorageError: if the cache cannot be written.
    """
    of = cache.corpus(corpus)
    if name not in of.view_names():
        raise InputError(f"no view {name!r} of {of.title}: it has {', '.join(of.view_names()) or 'none'}")
    freed = tree_bytes(of.folder / VIEWS / name)
    view_store.remove_view(of, name)
    return freed


def remove_teacher(cache: Cache, name: str) -> int:
    """Remove a name of a teacher, and with its last name its vectors. Return the bytes freed.

    Raises:
        InputError: if there is no such teacher, or several.
        StorageError: if the cache cannot be written.
    """
    teacher = cache.teacher(name)
    folder = cache.teacher_folder(teacher.contract)
    names = {one.name for one in cache.teachers() if one.contract == teacher.contract}
    freed = tree_bytes(folder) if names == {teacher.name} else 0
    remove_file(folder / "names" / f"{teacher.name}.json")
    if names == {teacher.name}:
        # Shards last: they carry the contract, so nothing is lost if this is interrupted.
        remove_file(folder / "contract.json")
        _delete(folder)
        _delete(cache.derived_folder / "index" / teacher.contract.id)
        remove_file(model_note_path(cache.derived_folder, teacher.contract.id))
    return freed


def tree_bytes(path: Path) -> int:
    """Return the size of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _delete(path: Path) -> None:
    if not path.is_dir():
        remove_file(path)
        return
    # Without its recipe nothing reads a view that is half deleted.
    remove_file(path / RECIPE)
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise explain_os_error(error, path) from error


def _folders(parent: Path) -> list[Path]:
    found = sorted(parent.iterdir()) if parent.is_dir() else []
    return [path for path in found if path.is_dir() and not path.name.startswith(TEMPORARY_PREFIX)]


def _touched(path: Path) -> float:
    """Return when anything at or below ``path`` was last changed, in seconds since the epoch."""
    try:
        inner = path.rglob("*") if path.is_dir() else []
        return max(one.stat().st_mtime for one in [path, *inner])
    except FileNotFoundError:
        # Another process is at work here.
        return time.time()
