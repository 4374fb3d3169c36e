"""Locks of folders: one process at a time, and no file stays behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedcache.fsio import explain_os_error


@contextmanager
def locked_folder(folder: Path, *, or_unlocked: bool = False) -> Iterator[None]:
    """Have others that lock the same folder wait until the block ends.

    Args:
        folder: the folder; it has to be there.
        or_unlocked: run the block though the file system cannot lock folders, as not every one can.

    Raises:
        StorageError: if the folder cannot be opened or locked.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if not or_unlocked:
                raise explain_os_error(error, folder) from error
        yield
    finally:
        os.close(descriptor)
