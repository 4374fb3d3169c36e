"""Token ids of a whole corpus, computed once per (corpus, tokenizer) and memory-mapped."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.errors import StorageError
from embedcache.folders import folder_that_appears, locked_folder
from embedcache.fsio import make_directory, read_sealed_json, sha256_file, write_sealed_json
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
        pad_id: the padding token's id.
        first: int32, shape (rows,); tokens of each row before a pair's second text, all of them for a single
            text; None if no row is a pair, or the tokenizer's model has no token types.
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
        """Return the occurrences of each id in ``rows``, int64, shape (size,); every id is below ``size``."""
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
    """Token counts of selected rows, looked up on access, so that nothing is kept per row.

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
        """Return the tokens of the rows at ``indices`` of the selection."""
        return self.tokens.lengths(self.rows[indices])


def tokenise_corpus(
    cache: Cache,
    corpus: Corpus,
    tokenizer: FastTokenizer,
    on_progress: Callable[[int], None] | None = None,
) -> TokenArrays:
    """Return the token arrays of ``corpus`` from ``derived/tokens``, after writing them if necessary.

    If the cache cannot be written (a teammate's, say), they are kept in a temporary folder until this process
    ends. Damaged arrays are computed again.

    Args:
        cache: the cache of the corpus.
        corpus: the corpus.
        tokenizer: the student's tokenizer, with its maximal length and prompt.
        on_progress: called with the number of rows done.

    Raises:
        StorageError: if they cannot be written.
    """
    identity = f"{TOKENS_VERSION}:{corpus.info.digest}:{tokenizer.fingerprint}"
    tokens = cache.derived_folder / "tokens"
    folder = tokens / hashlib.sha256(identity.encode()).hexdigest()[:32]
    found = _open(folder, tokenizer.pad_id)
    if found is not None:
        return found
    if not os.access(cache.folder, os.W_OK):
        tokens = Path(tempfile.mkdtemp(prefix="distill-tokens-"))
        atexit.register(shutil.rmtree, tokens, ignore_errors=True)
        folder = tokens / folder.name
    # Another process that writes the same arrays is waited for, and its files are read.
    with locked_folder(make_directory(tokens)):
        found = _open(folder, tokenizer.pad_id)
        if found is None:
            with folder_that_appears(folder, overwrite=True) as staging:
                _write(staging, corpus, tokenizer, on_progress)
            found = _open(folder, tokenizer.pad_id)
    if found is None:
        raise StorageError(f"{folder} was changed while it was written; run again")
    return found


def _write(
    folder: Path, corpus: Corpus, tokenizer: FastTokenizer, on_progress: Callable[[int], None] | None
) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= _UINT16 else np.int32)
    done = written = 0
    has_pairs = False
    paths = [folder / name for name in (_IDS, _OFFSETS, _FIRST)]
    with paths[0].open("wb") as ids, paths[1].open("wb") as offsets, paths[2].open("wb") as first:
        shape = {"descr": np.dtype(np.int64).str, "fortran_order": False, "shape": (len(corpus) + 1,)}
        np.lib.format.write_array_header_1_0(offsets, shape)
        offsets.write(np.zeros(1, dtype=np.int64).tobytes())
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
    if not has_pairs:
        paths.pop().unlink()
    digests = {path.name: sha256_file(path) for path in paths}
    header = {"corpus": corpus.info.digest, "dtype": dtype.name, "rows": done, "files": digests}
    write_sealed_json(folder / _HEADER, header)


def _open(folder: Path, pad_id: int) -> TokenArrays | None:
    """Return the arrays in ``folder``; None if they are missing or damaged."""
    try:
        header = read_sealed_json(folder / _HEADER)
        if any(sha256_file(folder / name) != digest for name, digest in header["files"].items()):
            return None
        # Plain arrays over the mapping: np.memmap is slower on every access.
        offsets = np.asarray(np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False))
        ids = np.asarray(np.memmap(folder / _IDS, dtype=header["dtype"], mode="r"))
        first = None
        if _FIRST in header["files"]:
            first = np.asarray(np.memmap(folder / _FIRST, dtype=np.int32, mode="r"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return TokenArrays(ids, offsets, pad_id, first)
