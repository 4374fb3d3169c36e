"""Storing a corpus: its parts first, its description last, so that it is there as a whole or not at all.

Parts are named by their bytes and are a function of the rows. That makes a build safe to kill (the same
command finds the parts it had written), safe to run twice at once (both write the same files), and cheap to
repeat: an identical corpus writes nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.corpus.columns import ColumnReader
from embedcache.corpus.corpus import DESCRIPTION, Corpus, CorpusInfo, check_name, read_info
from embedcache.corpus.difference import describe_difference, first_difference
from embedcache.corpus.part import Part, PartCutter, part_bytes
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    commit_new,
    explain_os_error,
    remove_file,
    sealed,
    spelled_json,
    temporary_sibling,
    write_bytes,
    write_sealed_json,
)
from embedcache.key_index import first_occurrences
from embedcache.keys import KEY_DTYPE, key_array

if TYPE_CHECKING:
    import pyarrow as pa

# The description that was replaced; while it is there, parts that it names may still have to go.
_REPLACED = f"{TEMPORARY_PREFIX}replaced-{DESCRIPTION}"


def store_corpus(
    corpora: Path, name: str, batches: Iterable[RowBatch], report: ReadReport, *, replace: bool = False
) -> tuple[Corpus, bool]:
    """Read ``batches`` into ``corpora/<name>``.

    At any instant the old corpus or the new one is there under its name. Killed or out of disk, what is
    written stays and the same call goes on from it; a corpus that is refused takes its files away again.

    Args:
        corpora: the cache's folder of corpora.
        name: the corpus's name.
        batches: the rows, in order.
        report: counts what the reader skipped; complete once ``batches`` is exhausted.
        replace: whether a corpus of the same name with other rows may be replaced.

    Returns:
        The corpus, and whether it was already there with the same rows.

    Raises:
        InputError: if the name is taken by other rows and ``replace`` is off, ids are not unique, there are
            no rows, or batches do not fit together.
        CorruptCacheError: if the corpus of that name is damaged; ``replace`` writes it anew.
        StorageError: if the cache cannot be written.
    """
    check_name(name)
    folder = corpora / name
    there = _corpus_there(folder, replace=replace)
    parts = _PartWriter(folder, there, may_add=there is None or replace)
    try:
        info = parts.write(name, batches, report)
        if there is not None and there.info.digest != info.digest and not replace:
            raise _name_taken(there.info, info, parts.first_difference)
        was_there = there is not None and there.info.digest == info.digest
        if not was_there:
            was_there = _commit(folder, info, replace=replace)
    except (StorageError, KeyboardInterrupt):
        # As after a kill: what is written need not be written again.
        raise
    except BaseException:
        parts.take_back()
        raise
    try:
        _finish_replacing(folder)
    except StorageError:
        # Nothing was to be written; where nothing can be, leftovers may stay.
        if not was_there:
            raise
    return Corpus(folder), was_there


def _corpus_there(folder: Path, *, replace: bool) -> Corpus | None:
    """Return the corpus in ``folder``, or None where there is none, or a damaged one to be replaced."""
    if folder.is_symlink():
        raise CorruptCacheError(
            f"{folder} is a symbolic link; a cache holds its files itself: delete the link, "
            "or choose another --name"
        )
    if not os.path.lexists(folder / DESCRIPTION):
        return None
    try:
        return Corpus(folder)
    except CorruptCacheError:
        if replace:
            return None
        raise


def _name_taken(there: CorpusInfo, new: CorpusInfo, first_row: int | None) -> InputError:
    difference = describe_difference(there, new, first_row)
    return InputError(
        f"the cache holds another corpus called {there.name!r} ({difference}): "
        "choose another --name, or replace it with --replace (vectors are kept)"
    )


class _PartWriter:
    """Writes the parts of a corpus that are not there.

    Args:
        folder: the corpus's folder.
        there: the corpus in it, if any; its missing and damaged parts are written anew.
        may_add: whether parts that ``there`` does not name are written.

    Attributes:
        first_difference: the first row that differs from those of ``there``, where that was found.
    """

    def __init__(self, folder: Path, there: Corpus | None, *, may_add: bool) -> None:
        self.first_difference: int | None = None
        self._folder = folder
        self._there = there
        self._may_add = may_add
        self._parts: list[Part] = []
        self._written: list[Path] = []

    def write(self, name: str, batches: Iterable[RowBatch], report: ReadReport) -> CorpusInfo:
        """Write the parts of ``batches`` and return the description of the corpus they make."""
        columns, cutter = ColumnReader(), PartCutter()
        for batch in batches:
            if batch.texts:
                for part in cutter.add(columns.read(batch)):
                    self._write_part(part, columns.types)
        for part in cutter.rest():
            self._write_part(part, columns.types)
        if not self._parts:
            raise InputError(f"there are no rows for corpus {name!r}; expected at least one")
        return CorpusInfo(name, tuple(self._parts), columns.described(), dict(report.skipped))

    def take_back(self) -> None:
        """Delete the parts written here that no description names."""
        named = set()
        if os.path.lexists(self._folder / DESCRIPTION):
            try:
                named = {part.file_name for part in read_info(self._folder).parts}
            except (CorruptCacheError, CacheFormatError):
                # What it names cannot be told, so nothing can be taken from it.
                return
        with suppress(StorageError):
            for path in self._written:
                if path.name not in named:
                    remove_file(path)
        with suppress(OSError):
            self._folder.rmdir()

    def _write_part(self, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> None:
        data = part_bytes(sum(part.rows for part in self._parts), columns, types)
        part = Part(hashlib.sha256(data).hexdigest(), len(columns["key"]))
        named = self._is_named(part)
        if not named and not self._may_add:
            self._note_difference(columns, types)
        path = self._folder / part.file_name
        if (named or self._may_add) and not _holds(path, data):
            write_bytes(path, memoryview(data))
            self._written.append(path)
        self._parts.append(part)

    def _is_named(self, part: Part) -> bool:
        return self._there is not None and part in self._there.parts

    def _note_difference(self, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> None:
        there = self._there
        if there is None or self.first_difference is not None or there.info.types != types:
            return
        self.first_difference = first_difference(there, len(self._parts), columns)


def _holds(path: Path, data: pa.Buffer) -> bool:
    """Return whether ``path`` is a plain file of just these bytes."""
    import pyarrow as pa

    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != data.size:
            return False
        with pa.memory_map(str(path), "r") as source:
            return bool(source.read_buffer().equals(data))
    except OSError:
        return False


def _commit(folder: Path, info: CorpusInfo, *, replace: bool) -> bool:
    """Make ``info`` the description in ``folder``; return whether another build has just done so."""
    corpus, path = Corpus(folder, info), folder / DESCRIPTION
    if info.has_ids:
        _refuse_repeated_ids(corpus)
    if missing := corpus.missing_parts():
        raise StorageError(
            f"{missing[0]} was deleted by another build at the same moment: run the same command again"
        )
    if not os.path.lexists(path):
        with temporary_sibling(path) as temporary:
            temporary.write_bytes(spelled_json(sealed(info.to_json())))
            if commit_new(temporary, path):
                return False
    there = _corpus_there(folder, replace=replace)
    if there is not None:
        if there.info.digest == info.digest:
            return True
        if not replace:
            raise _name_taken(there.info, info, None)
        write_sealed_json(folder / _REPLACED, there.info.to_json())
    write_sealed_json(path, info.to_json())
    return False


def _finish_replacing(folder: Path) -> None:
    """Delete the parts that a replaced description names and the present one does not."""
    if not os.path.lexists(folder / _REPLACED):
        return
    kept = set(read_info(folder).parts)
    with suppress(CorruptCacheError):
        for part in read_info(folder, _REPLACED).parts:
            if part not in kept:
                remove_file(folder / part.file_name)
    remove_file(folder / _REPLACED)


def _refuse_repeated_ids(corpus: Corpus) -> None:
    try:
        # Keys of ids, in a file that goes when it is closed: 16 bytes a row do not belong in memory.
        with tempfile.TemporaryFile(dir=corpus.folder) as spool:
            for number in range(len(corpus.parts)):
                spool.write(key_array(corpus.column(number, "id").to_pylist()).tobytes())
            spool.flush()
            firsts = first_occurrences([np.asarray(np.memmap(spool, dtype=KEY_DTYPE, mode="r"))])
    except OSError as error:
        raise explain_os_error(error, corpus.folder) from error
    repeated = np.flatnonzero(~firsts)
    if len(repeated):
        again = corpus.ids(repeated[:1])[0]
        raise InputError(
            f"{len(repeated)} of {len(firsts)} ids stand more than once (row {repeated[0]} again has "
            f"{again!r}): ids must be unique; leave --id-column out or mend the data"
        )
