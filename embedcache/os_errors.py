"""Errors of the operating system as errors that name the file, the cause and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedcache.errors import EmbedCacheError, StorageError, UnreadableError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` raised while ``path`` is written into a ``StorageError``."""
    try:
        yield
    except EmbedCacheError:
        raise
    except OSError as error:
        raise explain_os_error(error, path) from error


def explain_os_error(error: OSError, path: Path) -> StorageError:
    """Return the error for an ``OSError`` raised while writing ``path``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, remedy = "the disk is full", "make room"
    else:
        reason, remedy = (
            error.strerror or str(error),
            "check the disk, or choose a folder that can be written",
        )
    return StorageError(f"cannot write {path}: {reason}; {remedy}, and run it again")


# A file that is gone, or a link in its place, is damage to the cache.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_REMEDIES = {
    errno.EACCES: "ask its owner for permission",
    errno.EPERM: "ask its owner for permission",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOMEM: "free memory, or raise vm.max_map_count",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` that says nothing of a file's content into an ``UnreadableError``.

    A file that is missing keeps its ``FileNotFoundError``.
    """
    try:
        yield
    except EmbedCacheError:
        raise
    except OSError as error:
        if error.errno is None or error.errno in _GONE:
            raise
        remedy = _REMEDIES.get(error.errno, "check the disk, and run it again")
        # pyarrow's messages name the file a second time.
        raise UnreadableError(f"cannot read {path}: {os.strerror(error.errno)}; {remedy}") from error
