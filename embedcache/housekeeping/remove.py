"""Remove a corpus, a view or a teacher from a cache: what makes it visible goes first, its bytes after that.

Killed in between, what is left is garbage that nothing reads; ``gc`` takes it away.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.origin import note_path
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.view_record import VIEWS
from embedcache.errors import InputError
from embedcache.fsio import explain_os_error, remove_file


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
    return freed


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
