"""Remove a corpus, a view or a teacher from a cache: what makes it visible goes first, its bytes after that.

Killed in between, what is left is garbage that nothing reads; ``gc`` takes it away.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache
from embedcache.check.verify.shards import open_without_codebook
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import begins_digest
from embedcache.corpus.origin import note_path
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.view_record import VIEWS
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import explain_os_error, remove_file
from embedcache.sample_notes import bad_shards, forget_removed
from embedcache.sizes import counted
from embedcache.store.containers import ShardContainer


def remove_corpus(cache: Cache, name: str) -> int:
    """Remove the corpus called ``name`` with its views, and return how many bytes that freed.

    Vectors are kept.

    A damaged corpus can be removed as well.

    Raises:
        InputError: if there is none of that name.
        StorageError: if the cache cannot be written.
    """
    require_corpus(cache, name)
    folder = cache.corpora_folder / name
    freed = folder_bytes(folder)
    remove_file(folder / "corpus.json")
    # Before the parts: those of a corpus that is noted would count as damage to it.
    remove_file(note_path(cache.derived_folder, name))
    delete_folder(folder)
    return freed


def remove_view(cache: Cache, name: str, corpus: str | None = None) -> int:
    """Remove the view called ``name`` of a corpus, and return how many bytes that freed; vectors are kept.

    A damaged view, or one of other rows than its corpus has now, can be removed as well.

    Args:
        cache: the cache.
        name: the view.
        corpus: whose view; may be left out where the cache holds one corpus.

    Raises:
        InputError: if there is no such corpus or view.
        CorruptCacheError: if the corpus is damaged.
        StorageError: if the cache cannot be written.
    """
    of = require_view(cache, name, corpus)
    freed = folder_bytes(of.folder / VIEWS / name)
    view_store.remove_view(of, name)
    return freed


def require_corpus(cache: Cache, name: str) -> None:
    """See that there is a corpus called ``name``, damaged or not.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in cache.corpus_names():
        raise InputError(
            f"no corpus {name!r} in {cache.folder}: it holds {', '.join(cache.corpus_names()) or 'none'}"
        )


def require_view(cache: Cache, name: str, corpus: str | None = None) -> Corpus:
    """Return the corpus that has a view called ``name``, damaged or not.

    Args:
        cache: the cache.
        name: the view.
        corpus: whose view; may be left out where the cache holds one corpus.

    Raises:
        InputError: if there is no such corpus or view.
        CorruptCacheError: if the corpus is damaged.
    """
    of = cache.corpus(corpus)
    names = of.view_names()
    if name == ORIGINAL:
        raise InputError(
            f"{ORIGINAL!r} are the texts of corpus {of.name!r} themselves, which stay while the corpus does: "
            f"'embedcache rm corpus {of.name}' removes it as a whole; its views are "
            f"{', '.join(names) or 'none'}"
        )
    if name not in names:
        raise InputError(f"no view {name!r} of corpus {of.name!r}: it has {', '.join(names) or 'none'}")
    return of


def remove_teacher(cache: Cache, name: str) -> int:
    """Remove the teacher called ``name`` and return how many bytes that freed.

    Its vectors go with the last name they are listed under; damaged ones as well.

    Raises:
        InputError: if there is none of that name, or it is not one alone.
        StorageError: if the cache cannot be written.
    """
    teacher = cache.teacher(name)
    folder = cache.teacher_folder(teacher.contract)
    others = [t for t in cache.teachers() if t.contract == teacher.contract and t.name != teacher.name]
    freed = 0 if others else folder_bytes(folder)
    remove_file(folder / "names" / f"{teacher.name}.json")
    if not others:
        # The shards last: should this be cut off, they carry the contract and nothing is lost for good.
        remove_file(folder / "contract.json")
        delete_folder(folder)
        delete_folder(cache.derived_folder / "index" / teacher.contract.id)
        remove_file(model_note.path(cache.derived_folder, teacher.contract.id))
        forget_removed(cache, teacher.contract.id, tuple)
    return freed


@dataclass(frozen=True)
class ChosenShards:
    """Some shards of a teacher.

    Attributes:
        names: of those that are in the cache.
        rows: how many they have, as far as they can be read.
        bytes: their size.
    """

    names: frozenset[str]
    rows: int
    bytes: int


def require_bad(cache: Cache, name: str) -> ChosenShards:
    """Return the shards here of the teacher called ``name`` that a pull or a run found bad.

    Raises:
        InputError: if there is no teacher of that name, it is not one alone, or none of its shards, here or
            gone, is marked as bad.
        CorruptCacheError: if an LMDB store is damaged, or the file of the marks.
    """
    teacher = cache.teacher(name)
    marked = bad_shards(cache, teacher.contract.id)
    if not marked:
        raise InputError(
            f"{cache.folder}: no shard of teacher {teacher.name!r} is marked as bad, so nothing is to be "
            "deleted; without --bad the teacher goes with all of its vectors"
        )
    container = cache.container(teacher.contract)
    return _measured(container, marked & frozenset(container.names()))


def require_shards(cache: Cache, name: str, digits: Collection[str]) -> ChosenShards:
    """Return those shards of the teacher called ``name`` whose names begin with ``digits``.

    Args:
        cache: the cache.
        name: the teacher.
        digits: for each shard six or more that its name alone begins with.

    Raises:
        InputError: if there is no teacher of that name, it is not one alone, or some digits name no shard
            or several.
        CorruptCacheError: if an LMDB store is damaged.
    """
    container = cache.container(cache.teacher(name).contract)
    names = container.names()
    return _measured(container, frozenset(_shard_named(some, names, name) for some in digits))


def _shard_named(digits: str, names: Collection[str], teacher: str) -> str:
    if not begins_digest(digits):
        raise InputError(
            f"{digits[:64]!r} names no shard: expected six or more hexadecimal digits that its name begins "
            "with"
        )
    named = [name for name in names if name.startswith(digits)]
    if len(named) != 1:
        raise InputError(
            f"{len(named):,} of the {counted(len(names), 'shard')} of teacher {teacher!r} begin with "
            f"{digits!r}, expected one: 'embedcache verify --deep' names those that show wrong vectors"
        )
    return named[0]


def remove_bad(cache: Cache, name: str) -> ChosenShards:
    """Delete the shards of the teacher called ``name`` that are marked as bad, and return what they were.

    Killed anywhere and run again, it goes on: the marks go last.

    Raises:
        InputError, CorruptCacheError: as :func:`require_bad`.
        StorageError: if the cache cannot be written.
    """
    bad = require_bad(cache, name)
    _remove_shards(cache, name, bad.names)
    return bad


def remove_shards(cache: Cache, name: str, digits: Collection[str]) -> ChosenShards:
    """Delete shards of the teacher called ``name``, and return what they were; a build encodes them anew.

    Args:
        cache: the cache.
        name: the teacher.
        digits: as for :func:`require_shards`.

    Raises:
        InputError, CorruptCacheError: as :func:`require_shards`.
        StorageError: if the cache cannot be written.
    """
    chosen = require_shards(cache, name, digits)
    _remove_shards(cache, name, chosen.names)
    return chosen


def _remove_shards(cache: Cache, name: str, shards: Collection[str]) -> None:
    contract = cache.teacher(name).contract
    container = cache.container(contract)
    # Before they go, or verify would miss them if this is killed.
    container.disown(shards)
    for one in sorted(shards):
        container.remove(one)
    container.finish()
    # Whoever opened the cache meanwhile may have noted them again.
    container = cache.container(contract)
    container.disown(shards)
    forget_removed(cache, contract.id, container.names)


def _measured(container: ShardContainer, names: frozenset[str]) -> ChosenShards:
    sizes = [_size_of(container, one) for one in sorted(names)]
    return ChosenShards(names, sum(rows for rows, _ in sizes), sum(size for _, size in sizes))


def _size_of(container: ShardContainer, name: str) -> tuple[int, int]:
    """Return the rows and the bytes of a shard, 0 rows where it cannot be read."""
    data = container.open(name)
    try:
        return len(open_without_codebook(data, name, container.where(name))), data.size
    except (CorruptCacheError, CacheFormatError):
        return 0, data.size


def folder_bytes(folder: Path) -> int:
    """Return the size of everything below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def delete_folder(folder: Path) -> None:
    """Delete a folder with all that is in it; harmless where it is gone.

    Raises:
        StorageError: if it cannot be deleted.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, folder) from error
