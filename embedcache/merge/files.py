"""Carrying files, corpora and views from one cache into another; every digest is taken on the way."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from embedcache.corpus.corpus import DESCRIPTION, Corpus, View
from embedcache.corpus.view_record import VIEWS, is_recorded, read_record, write_record
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import (
    commit,
    explain_os_error,
    sealed,
    sha256_file,
    spelled_json,
    temporary_sibling,
    write_bytes,
)


@dataclass
class Carrier:
    """Carries files, and counts what it did.

    Attributes:
        link: whether files get another name on the same disk instead of being copied.
        files: files carried.
        bytes: bytes of these, of all of which the digest was taken.
        there: files that were there already.
    """

    link: bool = False
    files: int = 0
    bytes: int = 0
    there: int = 0

    def carry(self, source: Path, target: Path, sha256: str) -> None:
        """Make ``source`` appear as ``target``, unless a file of its size is there.

        Raises:
            CorruptCacheError: if its bytes have not the digest ``sha256``.
            InputError: if it was to be linked, and ``target`` is on another file system.
            StorageError: if it cannot be written.
        """
        size = source.stat().st_size
        if target.is_file() and target.stat().st_size == size:
            self.there += 1
            return
        with temporary_sibling(target) as temporary:
            self._bring(source, temporary)
            if sha256_file(temporary) != sha256:
                raise CorruptCacheError(
                    f"{source} is damaged (its bytes are not those its name is the sha256 of): mend its "
                    "cache with 'embedcache repair', and run the same command again"
                )
            commit(temporary, target)
        self.count(size)

    def count(self, size: int) -> None:
        """Count a file of ``size`` bytes as carried."""
        self.files += 1
        self.bytes += size

    def _bring(self, source: Path, temporary: Path) -> None:
        if not self.link:
            shutil.copyfile(source, temporary)
            return
        try:
            os.link(source, temporary, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise InputError(
                    f"{source} cannot be linked to {temporary.parent} ({error.strerror}): both have to be on "
                    "one file system that knows hard links; leave --link out to copy"
                ) from error
            raise explain_os_error(error, temporary) from error

    def corpus(self, corpus: Corpus, corpora: Path, name: str) -> Corpus:
        """Carry a corpus, without views, to ``corpora/<name>``, where there is none of other rows.

        Raises:
            CorruptCacheError, InputError, StorageError: as :meth:`carry`.
        """
        place = corpora / name
        self._parts(corpus, place)
        # Last: it says that the corpus is there.
        _describe(replace_name(corpus, name), place)
        return Corpus(place)

    def view(self, view: View, corpus: Corpus, name: str) -> None:
        """Carry a view to a corpus of the same rows, which has none of that name by another recipe.

        Raises:
            CorruptCacheError, InputError, StorageError: as :meth:`carry`.
        """
        place = corpus.folder / VIEWS / name
        record = replace(view.record, recipe=replace(view.recipe, name=name))
        self._parts(view, place)
        _describe(replace_name(view, name), place)
        if not is_recorded(place) or read_record(place) != record:
            write_record(place, record)

    def _parts(self, corpus: Corpus, place: Path) -> None:
        for part in corpus.parts:
            self.carry(corpus.folder / part.file_name, place / part.file_name, part.sha256)


def replace_name(corpus: Corpus, name: str) -> bytes:
    """Return the description of a corpus that is called ``name``."""
    return spelled_json(sealed(replace(corpus.info, name=name).to_json()))


def _describe(description: bytes, place: Path) -> None:
    path = place / DESCRIPTION
    # What is there stays: it may have been reached along another way, with other rows skipped.
    if not path.exists():
        write_bytes(path, description)
