"""Storing a corpus: its parts first, its description last, so that it appears whole or not at all.

Parts are named by their bytes and are a function of the rows. That makes a build safe to kill (the same
command finds the parts it had written), safe to run twice at once (both write the same files), and cheap to
repeat: an identical corpus writes nothing. Parts that no description names are left to garbage collection.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.corpus.corpus import Corpus, check_name
from embedcache.corpus.description import DESCRIPTION, Column, CorpusInfo, read_info
from embedcache.corpus.part import (
    ORIGINAL,
    TEXT_TYPE,
    Part,
    PartCutter,
    key_column,
    part_bytes,
    spelled_values,
)
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import (
    commit_new,
    sealed,
    sha256_file,
    spelled_json,
    temporary_sibling,
    write_bytes,
    write_sealed_json,
)
from embedcache.keys import KeyArray, first_occurrences, key_array

if TYPE_CHECKING:
    import pyarrow as pa

_STORED_AS = {str: TEXT_TYPE, int: "int64", float: "double"}


def store_corpus(
    corpora: Path, name: str, batches: Iterable[RowBatch], report: ReadReport, *, replace: bool = False
) -> tuple[Corpus, bool]:
    """Read ``batches`` into ``corpora/<name>``.

    At any instant the old corpus or the new one is there under its name. Killed or out of disk, what is
    written stays and the same call continues from it.

    Args:
        corpora: the cache's folder of corpora.
        name: the corpus's name.
        batches: the rows, in order.
        report: counts of the rows that the reader skipped; complete once ``batches`` is exhausted.
        replace: replace a corpus of the same name with other rows.

    Returns:
        The corpus, and whether it was already there with the same rows.

    Raises:
        InputError: if the name is taken by other rows and ``replace`` is off, ids are not unique, there are
            no rows, or batches do not fit together.
        CorruptCacheError: if the corpus of that name is damaged; ``replace`` writes it again.
        StorageError: if the cache cannot be written.
    """
    folder = corpora / check_name(name)
    info_there(folder, replace=replace)
    info, ids = write_parts(folder, batches, report)
    refuse_repeated(ids, name)
    was_there = _commit(folder, info, replace=replace)
    return Corpus(folder), was_there


def info_there(folder: Path, *, replace: bool = False) -> CorpusInfo | None:
    """Return the description in ``folder``; None if it is missing, or damaged and ``replace`` is set."""
    if folder.is_symlink():
        raise CorruptCacheError(f"{folder} is a symbolic link, expected a folder: delete the link")
    try:
        return read_info(folder) if os.path.lexists(folder / DESCRIPTION) else None
    except CorruptCacheError:
        if replace:
            return None
        raise


def write_parts(
    folder: Path, batches: Iterable[RowBatch], report: ReadReport
) -> tuple[CorpusInfo, list[KeyArray]]:
    """Write the parts that are missing or damaged; return their description, and the keys of ids."""
    columns, cutter = ColumnReader(), PartCutter()
    parts: list[Part] = []
    ids: list[KeyArray] = []

    def write(part: dict[str, pa.Array]) -> None:
        data = part_bytes(sum(one.rows for one in parts), part, columns.types)
        parts.append(Part(hashlib.sha256(data).hexdigest(), len(part["key"])))
        path = folder / parts[-1].file_name
        if path.is_symlink() or not path.is_file() or sha256_file(path) != parts[-1].sha256:
            write_bytes(path, memoryview(data))

    for batch in batches:
        if batch.ids is not None:
            ids.append(key_array(batch.ids))
        for part in cutter.add(columns.read(batch)):
            write(part)
    for part in cutter.rest():
        write(part)
    if not parts:
        raise InputError(f"there are no rows for corpus {folder.name!r}; expected at least one")
    return CorpusInfo(folder.name, tuple(parts), columns.described(), dict(report.skipped)), ids


def refuse_repeated(ids: list[KeyArray], corpus: str) -> None:
    """Raise ``InputError`` if an id of a corpus, by the keys of all of them, occurs twice."""
    repeated = np.flatnonzero(~first_occurrences(ids))
    if len(repeated):
        raise InputError(
            f"{len(repeated)} ids of corpus {corpus!r} occur more than once (first again in row "
            f"{repeated[0]}): ids must be unique; leave --id-column out or correct the data"
        )


def _commit(folder: Path, info: CorpusInfo, *, replace: bool) -> bool:
    """Make ``info`` the description in ``folder``; return whether that of the same rows was there."""
    path = folder / DESCRIPTION
    # Another build may write the description at any moment.
    while True:
        there = info_there(folder, replace=replace)
        if there is not None and there.digest == info.digest:
            return True
        if there is not None and not replace:
            rows, more = sum(part.rows for part in info.parts), sum(part.rows for part in there.parts)
            if rows < more and Corpus(folder, there).digest_of(0, rows) == info.digest:
                raise InputError(
                    f"{info.name!r} has these {rows:,} rows and {more - rows:,} more, such as rows that were "
                    "appended: leave this build out, or replace the corpus with --overwrite"
                )
            raise InputError(
                f"{info.name!r} has other rows in the cache: {there.describe()}, not {info.describe()}. "
                "Choose another --name, add new rows with --append, or replace it with --overwrite (vectors "
                "are kept)"
            )
        if replace and os.path.lexists(path):
            write_sealed_json(path, info.to_json())
            return False
        with temporary_sibling(path) as temporary:
            temporary.write_bytes(spelled_json(sealed(info.to_json())))
            if commit_new(temporary, path):
                return False


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
        self.types = self.types or {name: _STORED_AS[type(values[0])] for name, values in given.items()}
        self._digests = self._digests or {name: hashlib.sha256() for name in given}
        try:
            if given.keys() != self.types.keys() or {*map(len, given.values())} != {len(batch.texts)}:
                raise ValueError(f"columns {', '.join(given)} of one length each")
            keys = key_array(batch.texts)
            for name, values in given.items():
                # Arrow would cut a float to an integer in silence.
                for one in values:
                    if _STORED_AS[type(one)] != self.types[name]:
                        raise ValueError(f"{name} {one!r} is {type(one).__name__}, not {self.types[name]}")
            columns = {name: pa.array(values, self.types[name]) for name, values in given.items()}
        except (ValueError, OverflowError, TypeError) as error:
            raise InputError(
                f"a value cannot be stored ({error}); expected text that is UTF-8, numbers of 64 bits, and "
                "one type a column"
            ) from error
        # Of the values, not of batches: how the reader cut them must not show.
        self._digests[ORIGINAL].update(keys.tobytes())
        for name in given.keys() - {ORIGINAL}:
            self._digests[name].update(spelled_values(given[name]))
        return {"key": key_column(keys), **columns}

    def described(self) -> dict[str, Column]:
        """Return the columns as the corpus's description names them."""
        return {name: Column(type_, self._digests[name].hexdigest()) for name, type_ in self.types.items()}
