"""Garbage collection, and removal of corpora, views and teachers.

Files younger than ``GRACE_HOURS`` are kept: a user may come back to a stopped build or to a view that took
hours to translate, or a copy may be running. A removal first deletes the file that makes a thing visible; if
it is killed after that, gc deletes the rest.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.cache_documents import model_note_path
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import DESCRIPTION, RECIPE, VIEWS, is_recorded, read_info, read_record
from embedcache.corpus.origin import note_path
from embedcache.errors import InputError, UnreadableError
from embedcache.fsio import TEMPORARY_PREFIX, list_folder, read_sealed_json, remove_file
from embedcache.inventory import QUARANTINE
from embedcache.keys import KeyIndex, key_array
from embedcache.os_errors import explain_os_error
from embedcache.store import LmdbShards, Shard, ShardStore
from embedcache.teacher import canary
from embedcache.views.recipe import is_view_name

GRACE_HOURS = 7 * 24.0
"""Minimum age of garbage: a week."""


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
    hours: float = GRACE_HOURS,
    unused: bool = False,
    quarantine: bool = False,
    dry_run: bool = False,
) -> list[Garbage]:
    """Delete garbage and return a list of it.

    Args:
        cache: the cache.
        hours: keep what was touched within this many hours.
        unused: also delete shards of which no corpus and no view reads a row, and teachers without a name.
        quarantine: also delete what ``repair`` quarantined.
        dry_run: delete nothing.

    Raises:
        StorageError: if the cache cannot be written.
        CorruptCacheError: if the cache is damaged; repair it first.
    """
    before = time.time() - hours * 3600
    candidates = dict(
        [*_corpus_candidates(cache), *_teacher_candidates(cache, unused), *_derived_candidates(cache, unused)]
    )
    if quarantine:
        candidates[cache.folder / QUARANTINE] = "quarantine of repair"
    for path in sorted(cache.folder.rglob(f"{TEMPORARY_PREFIX}*")):
        # A folder stands for everything in it.
        if not any(folder in candidates for folder in path.parents):
            candidates[path] = "temporary file of a killed process"
    found = []
    for path, reason in candidates.items():
        if path.exists() and _touched(path) <= before:
            found.append(Garbage(str(path), reason, _tree_bytes(path)))
            if not dry_run:
                _delete(path)
    return [*found, *_unused_vectors(cache, before, dry_run=dry_run)] if unused else found


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


def _teacher_candidates(cache: Cache, unused: bool) -> Iterator[tuple[Path, str]]:
    contracts = {teacher.contract.id: teacher.contract for teacher in cache.teachers()}
    for folder in _folders(cache.folder / "teachers") if unused else ():
        if folder.name not in contracts:
            yield folder, "teacher without a name"
    for folder in _folders(cache.derived_folder / "index"):
        if folder.name not in contracts:
            yield folder, "index of a removed teacher"
    for contract in contracts.values():
        store = cache.store(contract)
        # Its length reads the index, and makes one if there is none.
        used = store.index_files if len(store) else []
        for path in (cache.derived_folder / "index" / contract.id).glob("[!.]*.npy"):
            if used and path not in used:
                yield path, "index of other shards"


def _derived_candidates(cache: Cache, unused: bool) -> Iterator[tuple[Path, str]]:
    for folder in _folders(cache.derived_folder / "pending"):
        yield folder, "unfinished shards of a stopped build"
    for folder in _folders(cache.derived_folder / "waiting") if unused else ():
        yield folder, "vectors of no corpus or view"
    digests = _digests(_all_texts(cache))
    for folder in _folders(cache.derived_folder / "tokens"):
        try:
            digest = read_sealed_json(folder / "tokens.json").get("corpus")
        except UnreadableError:
            continue
        except (OSError, ValueError):
            digest = None
        if digest not in digests:
            yield folder, "token arrays of a removed corpus"
    yield cache.derived_folder / "incoming", "downloads of a stopped pull"
    yield cache.derived_folder / "remotes", "copies of remote manifests"


def _unused_vectors(cache: Cache, before: float, *, dry_run: bool) -> Iterator[Garbage]:
    """Delete shards of which no corpus and no view reads a row."""
    for contract in {teacher.contract for teacher in cache.teachers()}:
        store, corpora = cache.store(contract), _all_texts(cache)
        used, judged = _used_shards(store, corpora), _digests(corpora)
        one_file = store.container.file if isinstance(store.container, LmdbShards) else None
        unused = [name for name in store.shard_names if name not in used]
        old = [name for name in unused if _touched(one_file or Path(store.container.where(name))) <= before]
        places = store.locate(key_array(canary.TEXTS))
        canaries = {store.shard_names[number] for number in store.shards_at(places[places >= 0]).tolist()}
        waiting = cache.waiting(contract)
        waiting.refresh()
        if len(old) < len(store.shard_names) or len(waiting):
            # The canary identifies the model of the vectors that stay.
            old = [name for name in old if name not in canaries]
        for shard in map(store.shard, old):
            if dry_run or _remove_shard(cache, store, shard, judged):
                yield Garbage(shard.where, "vectors of no corpus or view", shard.bytes)
        if not dry_run:
            store.container.finish()


def _used_shards(store: ShardStore, corpora: list[Corpus]) -> set[str]:
    used: set[int] = set()
    for corpus in corpora:
        for keys in corpus.iter_keys():
            positions = store.locate(keys)
            used.update(np.unique(store.shards_at(positions[positions >= 0])).tolist())
    return {store.shard_names[number] for number in used}


def _remove_shard(cache: Cache, store: ShardStore, shard: Shard, judged: set[str]) -> bool:
    """Remove a shard; put it back if a corpus outside ``judged`` has one of its texts."""
    data = store.container.open(shard.name)
    store.container.remove(shard.name)
    # A build describes its corpus, then lists the shards: it does not find this one, or is found here.
    late = [texts for texts in _all_texts(cache) if texts.info.digest not in judged]
    index = KeyIndex(shard.keys)
    if any((index.locate(keys) >= 0).any() for texts in late for keys in texts.iter_keys()):
        store.container.add(shard.name, data)
        return False
    return True


def _all_texts(cache: Cache) -> list[Corpus]:
    return [texts for corpus in cache.corpora() for texts in (corpus, *corpus.views())]


def _digests(corpora: list[Corpus]) -> set[str]:
    return {corpus.info.digest for corpus in corpora}


@dataclass(frozen=True)
class Removal:
    """Corpus, view or teacher that is to be removed.

    Attributes:
        bytes: bytes this frees.
        paths: files and folders in the order they are deleted; without the first, nothing reads the others.
    """

    bytes: int
    paths: tuple[Path, ...]

    def delete(self) -> None:
        """Delete it.

        Raises:
            StorageError: if the cache cannot be written.
        """
        for path in self.paths:
            _delete(path)


def find_removal(cache: Cache, kind: str, name: str) -> Removal:
    """Find what goes with a corpus, view or teacher; it may be damaged.

    Vectors stay when a corpus or view is removed. They go with the last name of their teacher.

    Args:
        cache: the cache.
        kind: ``corpus``, ``view`` or ``teacher``.
        name: its name; CORPUS/VIEW for a view.

    Raises:
        InputError: if there is none, or several teachers of the name.
        CorruptCacheError: if the corpus of the view is damaged.
    """
    if kind == "teacher":
        return _teacher_removal(cache, name)
    corpus, _, view = name.partition("/")
    folder = cache.corpora_folder / corpus
    if kind == "view":
        names = cache.corpus(corpus).view_names()
        if view not in names:
            raise InputError(f"no view {view!r} of corpus {corpus!r}: it has {', '.join(names) or 'none'}")
        folder = folder / VIEWS / view
        return Removal(_tree_bytes(folder), (folder / RECIPE, folder))
    if name not in cache.corpus_names():
        raise InputError(f"no corpus {name!r} in {cache.folder}: {', '.join(cache.corpus_names()) or 'none'}")
    # A build that finds a note takes missing parts for damage.
    return Removal(_tree_bytes(folder), (folder / DESCRIPTION, note_path(cache.derived_folder, name), folder))


def _teacher_removal(cache: Cache, name: str) -> Removal:
    teacher = cache.teacher(name)
    folder, contract = cache.teacher_folder(teacher.contract), teacher.contract.id
    name_file = folder / "names" / f"{teacher.name}.json"
    if any(one.contract == teacher.contract and one.name != teacher.name for one in cache.teachers()):
        return Removal(0, (name_file,))
    # Shards last: they carry the contract, so nothing is lost if this is interrupted.
    derived, note = cache.derived_folder, model_note_path(cache.derived_folder, contract)
    others = [derived / kind / contract for kind in ("index", "pending", "waiting")]
    return Removal(_tree_bytes(folder), (name_file, folder / "contract.json", *others, note, folder))


def _tree_bytes(path: Path) -> int:
    """Return the size of a file, or of all files below a folder.

    Raises:
        UnreadableError: if a folder cannot be listed, and so not be deleted.
    """
    if not path.is_dir():
        return path.stat().st_size if path.is_file() else 0
    return sum(_tree_bytes(path / name) for name in list_folder(path))


def _delete(path: Path) -> None:
    if not path.is_dir():
        remove_file(path)
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        # Another process may write there, or delete.
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
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
