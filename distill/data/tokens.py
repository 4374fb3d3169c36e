"""Token ids of a whole corpus, computed once per (corpus, tokenizer) and memory-mapped ever after."""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.errors import StorageError
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    explain_os_error,
    fsync_directory,
    make_directory,
    read_sealed_json,
    sha256_file,
    write_sealed_json,
)
from embedcache.teacher.tokenize import FastTokenizer

TOKENS_VERSION = 2
_HEADER, _IDS, _OFFSETS, _FIRST = "tokens.json", "ids.bin", "offsets.npy", "first.bin"
_UINT16 = 2**16
_COUNTED_AT_ONCE = 100_000


@dataclass(frozen=True)
class TokenArrays:
    """Token ids of every row of a corpus, flat.

    Attributes:
        ids: uint16 or int32, all rows' ids one after the other.
        offsets: int64, shape (rows + 1,); row i has ``ids[offsets[i]:offsets[i + 1]]``.
        pad_id: the id that fills a batch up.
        first: int32, shape (rows,); tokens of each row before those of a pair's second text, all of them for
            a single text; None where no row is a pair, or the tokenizer's model has no token types.
    """

    ids: NDArray[np.uint16] | NDArray[np.int32]
    offsets: NDArray[np.int64]
    pad_id: int
    first: NDArray[np.int32] | None = None

    def lengths(self, rows: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the tokens of each of ``rows``, int32, in the order asked."""
        lengths: NDArray[np.int32] = (self.offsets[rows + 1] - self.offsets[rows]).astype(np.int32)
        return lengths

    def counts(self, rows: NDArray[np.integer], size: int) -> NDArray[np.int64]:
        """Return how often each id comes in ``rows``, each row once, int64, shape (size,).

        Args:
            rows: the rows, in any order.
            size: a number that every id is below.
        """
        total = np.zeros(size, dtype=np.int64)
        wanted = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        wanted[rows] = True
        for start in range(0, len(wanted), _COUNTED_AT_ONCE):
            offsets = self.offsets[start : start + _COUNTED_AT_ONCE + 1]
            inside = np.repeat(wanted[start : start + _COUNTED_AT_ONCE], np.diff(offsets))
            total += np.bincount(self.ids[offsets[0] : offsets[-1]][inside], minlength=size)
        return total


@dataclass(frozen=True)
class RowLengths:
    """Tokens of the rows of a selection, looked up where they are asked for: nothing is held for each row.

    Attributes:
        tokens: the token arrays of the corpus.
        rows: uint32, shape (n,); the selection.
    """

    tokens: TokenArrays
    rows: NDArray[np.uint32]

    def __len__(self) -> int:
        """Return the number of rows in the selection."""
        return len(self.rows)

    def __getitem__(self, indices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the tokens of the rows that stand at ``indices`` of the selection."""
        return self.tokens.lengths(self.rows[indices])


def tokenise_corpus(
    cache: Cache,
    corpus: Corpus,
    tokenizer: FastTokenizer,
    on_progress: Callable[[int], None] | None = None,
) -> TokenArrays:
    """Return the token arrays of ``corpus``: those in ``derived/tokens``, else computed and kept there.

    Where the cache cannot be written (somebody else's, say), they are kept in a temporary folder until this
    process ends. Damaged arrays are computed anew.

    Args:
        cache: the cache the corpus is in.
        corpus: the corpus.
        tokenizer: the student's tokenizer, with its maximal length and prompt.
        on_progress: called with the number of rows done.

    Raises:
        StorageError: if they cannot be written.
    """
    identity = f"{TOKENS_VERSION}:{corpus.info.digest}:{tokenizer.fingerprint}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    folder = cache.derived_folder / "tokens" / name
    found = _open(folder, len(corpus), tokenizer.pad_id)
    if found is not None:
        return found
    if not os.access(cache.folder, os.W_OK):
        temporary = tempfile.mkdtemp(prefix="distill-tokens-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        folder = Path(temporary) / name
    _write(folder, corpus, tokenizer, on_progress)
    written = _open(folder, len(corpus), tokenizer.pad_id)
    if written is None:
        raise StorageError(f"{folder} is not as it was just written: another program changed it; run again")
    return written


def _write(
    folder: Path, corpus: Corpus, tokenizer: FastTokenizer, on_progress: Callable[[int], None] | None
) -> None:
    _remove_leftovers(folder)
    staging, ids = _make_staging(folder)
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= _UINT16 else np.int32)
    done = written = 0
    has_pairs = False
    try:
        with ids:
            with (staging / _OFFSETS).open("wb") as offsets, (staging / _FIRST).open("wb") as first:
                _begin_offsets(offsets, len(corpus))
                for texts in corpus.iter_texts():
                    tokenized = tokenizer(texts)
                    ids.write(tokenized.ids.astype(dtype).tobytes())
                    ends = written + np.cumsum(tokenized.lengths, dtype=np.int64)
                    offsets.write(ends.tobytes())
                    has_pairs = has_pairs or (tokenized.first is not None and tokenizer.uses_token_types)
                    first.write(tokenized.first_tokens.tobytes())
                    written = int(ends[-1]) if len(ends) else written
                    done += len(texts)
                    if on_progress is not None:
                        on_progress(done)
                for sink in (ids, offsets, first):
                    _make_durable(sink)
            if not has_pairs:
                (staging / _FIRST).unlink()
            names = (_IDS, _OFFSETS, _FIRST) if has_pairs else (_IDS, _OFFSETS)
            digests = {name: sha256_file(staging / name) for name in names}
            header = {"corpus": corpus.info.digest, "dtype": dtype.name, "rows": done, "files": digests}
            write_sealed_json(staging / _HEADER, header)
            if _open(folder, done, tokenizer.pad_id) is None:
                shutil.rmtree(folder, ignore_errors=True)
                staging.rename(folder)
                fsync_directory(folder.parent)
    except OSError as error:
        # Another process that was faster wrote the same arrays.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise explain_os_error(error, folder) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make_staging(folder: Path) -> tuple[Path, BinaryIO]:
    """Return a new folder to write the arrays in, and its file of ids, locked until it is closed."""
    make_directory(folder.parent)
    while True:
        staging = folder.with_name(f"{_staging_prefix(folder)}{uuid.uuid4().hex}")
        try:
            staging.mkdir()
            ids = (staging / _IDS).open("wb")
        except OSError as error:
            raise explain_os_error(error, folder) from error
        # Some network file systems have no locks; there, what is left of killed processes stays.
        with suppress(OSError):
            fcntl.flock(ids, fcntl.LOCK_EX)
        # Before it was locked, another process may have taken it for a leftover.
        if os.fstat(ids.fileno()).st_nlink:
            return staging, ids
        ids.close()


def _staging_prefix(folder: Path) -> str:
    return f"{TEMPORARY_PREFIX}{folder.name}-"


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left of the same arrays, and nothing that one still writes."""
    for staging in folder.parent.glob(f"{_staging_prefix(folder)}*"):
        # Of a folder without the file a process may be about to make it.
        with suppress(OSError), (staging / _IDS).open("rb") as ids:
            fcntl.flock(ids, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(staging, ignore_errors=True)


def _begin_offsets(sink: BinaryIO, rows: int) -> None:
    """Write what an ``.npy`` file of ``rows + 1`` int64 begins with, and the first of them, which is zero."""
    header = {"descr": np.dtype(np.int64).str, "fortran_order": False, "shape": (rows + 1,)}
    np.lib.format.write_array_header_1_0(sink, header)
    sink.write(np.zeros(1, dtype=np.int64).tobytes())


def _make_durable(sink: BinaryIO) -> None:
    # The rename may reach the disk before the data does, and a crash between them would leave empty arrays.
    sink.flush()
    os.fsync(sink.fileno())


def _open(folder: Path, rows: int, pad_id: int) -> TokenArrays | None:
    """Return the arrays in ``folder``; None where there are none or they are damaged."""
    try:
        header = read_sealed_json(folder / _HEADER)
        # As plain arrays over the mapping: numpy's own class of mapped arrays costs time at every access.
        offsets = np.asarray(np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False))
        ids = np.asarray(np.memmap(folder / _IDS, dtype=header["dtype"], mode="r"))
        first = None
        if _FIRST in header["files"]:
            first = np.asarray(np.memmap(folder / _FIRST, dtype=np.int32, mode="r"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(offsets) != rows + 1 or offsets[-1] != len(ids) or (first is not None and len(first) != rows):
        return None
    return TokenArrays(ids, offsets, pad_id, first)
