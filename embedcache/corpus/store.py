"""Storing a corpus: its parts first, its description last, so that it is there as a whole or not at all.

Parts are named by their bytes and are a function of the rows. That makes a build safe to kill (the same
command finds the parts it had written), safe to run twice at once (both write the same files), and cheap to
repeat: an identical corpus writes nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.description import DESCRIPTION, Column, CorpusInfo, read_info
from embedcache.corpus.part import ORIGINAL, TEXT_TYPE, Part, PartCutter, key_column, part_bytes
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import (
    commit_new,
    explain_os_error,
    remove_file,
    sealed,
    sha256_file,
    spelled_json,
    temporary_sibling,
    write_bytes,
    write_sealed_json,
)
from embedcache.keys import KEY_DTYPE, first_occurrences, key_array

if TYPE_CHECKING:
    import pyarrow as pa

_STORED_AS = {str: TEXT_TYPE, int: "int64", float: "double"}


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
        report: counts of the rows that the reader skipped; complete once ``batches`` is exhausted.
        replace: whether a corpus of the same name with other rows may be replaced.

    Returns:
        The corpus, and whether it was already there with the same rows.

    Raises:
        InputError: if the name is taken by other rows and ``replace`` is off, ids are not unique, there are
            no rows, or batches do not fit together.
        CorruptCacheError: if the corpus of that name is damaged; ``replace`` writes it again.
        StorageError: if the cache cannot be written.
    """
    folder = corpora / check_name(name)
    _corpus_there(folder, replace=replace)
    written: list[Path] = []
    try:
        info = _write_parts(folder, name, batches, report, written)
        was_there = _commit(folder, info, replace=replace)
    except (StorageError, KeyboardInterrupt):
        # As after a kill: what is written need not be written again.
        raise
    except BaseException:
        _remove_unnamed(folder, written)
        raise
    if replace:
        _remove_unnamed(folder, folder.glob("*.arrow"))
    return Corpus(folder), was_there


def _corpus_there(folder: Path, *, replace: bool) -> Corpus | None:
    """Return the corpus in ``folder``, or None where there is none, or a damaged one to be replaced."""
    if folder.is_symlink():
        raise CorruptCacheError(f"{folder} is a symbolic link, expected a folder: delete the link")
    if not os.path.lexists(folder / DESCRIPTION):
        return None
    try:
        return Corpus(folder)
    except CorruptCacheError:
        if replace:
            return None
        raise


def _write_parts(
    folder: Path, name: str, batches: Iterable[RowBatch], report: ReadReport, written: list[Path]
) -> CorpusInfo:
    """Write the parts of ``batches`` that are missing or damaged, and return their description.

    Args:
        folder, name, batches, report: as for :func:`store_corpus`.
        written: the files written are added to it.
    """
    columns, cutter, parts = ColumnReader(), PartCutter(), []

    def write(part: dict[str, pa.Array], first_row: int) -> Part:
        data = part_bytes(first_row, part, columns.types)
        found = Part(hashlib.sha256(data).hexdigest(), len(part["key"]))
        path = folder / found.file_name
        if path.is_symlink() or not path.is_file() or sha256_file(path) != found.sha256:
            write_bytes(path, memoryview(data))
            written.append(path)
        return found

    rows = 0
    for batch in batches:
        for part in cutter.add(columns.read(batch)) if batch.texts else ():
            parts.append(write(part, rows))
            rows += parts[-1].rows
    parts += [write(part, rows) for part in cutter.rest()]
    if not parts:
        raise InputError(f"there are no rows for corpus {name!r}; expected at least one")
    return CorpusInfo(name, tuple(parts), columns.described(), dict(report.skipped))


def _commit(folder: Path, info: CorpusInfo, *, replace: bool) -> bool:
    """Make ``info`` the description in ``folder``; return whether that of the same rows was there."""
    corpus, path = Corpus(folder, info), folder / DESCRIPTION
    # Another build may write the description at any moment.
    while True:
        there = _corpus_there(folder, replace=replace)
        if there is not None and there.info.digest == info.digest:
            return True
        if there is not None and not replace:
            raise InputError(
                f"the cache holds another corpus called {info.name!r} ({_difference(there.info, info)}): "
                "choose another --name, or replace it with --overwrite (vectors are kept)"
            )
        if info.has_ids:
            _refuse_repeated_ids(corpus)
        if missing := corpus.missing_parts():
            raise StorageError(f"another build has just deleted {missing[0]}: run the same command again")
        if os.path.lexists(path):
            write_sealed_json(path, info.to_json())
            return False
        with temporary_sibling(path) as temporary:
            temporary.write_bytes(spelled_json(sealed(info.to_json())))
            if commit_new(temporary, path):
                return False


def _difference(there: CorpusInfo, new: CorpusInfo) -> str:
    """Return in words how the rows of two corpora differ."""
    if there.rows != new.rows:
        return f"with {there.rows:,} rows, not {new.rows:,}"
    if there.columns.keys() != new.columns.keys():
        return f"with the columns {', '.join(there.columns)}, not {', '.join(new.columns)}"
    other = [f"{name}s" for name in new.columns if there.columns[name] != new.columns[name]]
    return f"with other {' and '.join(other).replace(ORIGINAL, 'text')}"


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


def _remove_unnamed(folder: Path, paths: Iterable[Path]) -> None:
    """Delete those of ``paths`` that the description does not name; leftovers do no harm."""
    named = set()
    if os.path.lexists(folder / DESCRIPTION):
        try:
            named = {part.file_name for part in read_info(folder).parts}
        except (CorruptCacheError, CacheFormatError):
            return
    with suppress(StorageError):
        for path in list(paths):
            if path.name not in named:
                remove_file(path)
    with suppress(OSError):
        folder.rmdir()


class ColumnReader:
    """Turn the batches of one corpus into columns, all of the types that the first batch has.

    Attributes:
        types: column -> Arrow type, once a batch was read.
    """

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self._digests: dict[str, hashlib._Hash] = {}

    def read(self, batch: RowBatch) -> dict[str, pa.Array]:
        """Return ``key`` and the columns of ``batch``, which is not empty.

        Raises:
            InputError: if a column is missing, new, of another length, or of values that cannot be stored.
        """
        import pyarrow as pa

        every: dict[str, Any] = {ORIGINAL: batch.texts, "id": batch.ids, "label": batch.labels}
        given = {name: values for name, values in every.items() if values is not None}
        types = {name: _STORED_AS.get(type(values[0]), "") for name, values in given.items() if values}
        self.types = self.types or types
        self._digests = self._digests or {name: hashlib.sha256() for name in given}
        mixed = [
            name for name, values in given.items() if not types.get(name) or len({*map(type, values)}) > 1
        ]
        if mixed or types != self.types or any(len(v) != len(batch.texts) for v in given.values()):
            found = ", ".join(f"{len(values)} {name}s ({types.get(name)})" for name, values in given.items())
            raise InputError(
                f"a batch of {found}: expected as many of each, of one type: str, int or float "
                f"(before: {self.types})"
            )
        try:
            keys = key_array(batch.texts)
            columns = {name: pa.array(values, self.types[name]) for name, values in given.items()}
        except (UnicodeEncodeError, OverflowError, pa.ArrowException) as error:
            raise InputError(
                f"a value cannot be stored ({error}); expected text that is UTF-8, numbers of 64 bits"
            ) from error
        # Of the values, not of batches: how the reader cut them must not show.
        self._digests[ORIGINAL].update(keys.tobytes())
        for name in given.keys() - {ORIGINAL}:
            self._digests[name].update("".join(f"{value!r}\n" for value in given[name]).encode())
        return {"key": key_column(keys), **columns}

    def described(self) -> dict[str, Column]:
        """Return the columns as the corpus's description names them."""
        return {name: Column(type_, self._digests[name].hexdigest()) for name, type_ in self.types.items()}
