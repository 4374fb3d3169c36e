"""Token ids of a whole corpus, computed once per (corpus, tokenizer) and memory-mapped ever after."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.errors import StorageError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, fsync_directory, make_directory, write_json
from embedcache.teacher.tokenize import FastTokenizer

TOKENS_VERSION = 1
_UINT16 = 2**16


@dataclass(frozen=True)
class TokenArrays:
    """Token ids of every row of a corpus, flat.

    Attributes:
        ids: uint16 or int32, all rows' ids one after the other.
        offsets: int64, shape (rows + 1,); row i has ``ids[offsets[i]:offsets[i + 1]]``.
        pad_id: the id that fills a batch up.
    """

    ids: NDArray[np.uint16] | NDArray[np.int32]
    offsets: NDArray[np.int64]
    pad_id: int

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each row, int32, shape (rows,)."""
        return np.diff(self.offsets).astype(np.int32)


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
    staging = make_directory(folder.parent) / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    make_directory(staging)
    dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= _UINT16 else np.int32)
    lengths = [np.zeros(1, dtype=np.int64)]
    done = 0
    try:
        with (staging / "ids.bin").open("wb") as sink:
            for texts in corpus.iter_texts():
                tokenized = tokenizer(texts)
                sink.write(tokenized.ids.astype(dtype).tobytes())
                lengths.append(tokenized.lengths)
                done += len(texts)
                if on_progress is not None:
                    on_progress(done)
            _make_durable(sink)
        with (staging / "offsets.npy").open("wb") as sink:
            np.save(sink, np.cumsum(np.concatenate(lengths)))
            _make_durable(sink)
        write_json(staging / "tokens.json", {"dtype": dtype.name, "rows": done})
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


def _make_durable(sink: BinaryIO) -> None:
    # The rename may reach the disk before the data does, and a crash between them would leave empty arrays.
    sink.flush()
    os.fsync(sink.fileno())


def _open(folder: Path, rows: int, pad_id: int) -> TokenArrays | None:
    """Return the arrays in ``folder``; None where there are none or they are damaged."""
    try:
        header = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
        offsets = np.load(folder / "offsets.npy", mmap_mode="r", allow_pickle=False)
        ids = np.memmap(folder / "ids.bin", dtype=header["dtype"], mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(offsets) != rows + 1 or offsets[-1] != len(ids):
        return None
    return TokenArrays(ids, offsets, pad_id)
