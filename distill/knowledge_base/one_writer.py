"""One process at a time changes the knowledge base of a model."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from embedcache.fsio import explain_os_error


@contextlib.contextmanager
def one_writer(model: Path) -> Iterator[None]:
    """Have others that change the base in a model's folder wait until the block ends.

    Nothing is left in the folder: the folder itself is what is locked. It is for the moment of writing, in
    which what is there is looked at once more, not for the minutes before.

    Raises:
        StorageError: if the folder cannot be opened.
    """
    try:
        descriptor = os.open(model, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise explain_os_error(error, model) from error
    try:
        # Not every file system can lock a folder. There the look before writing has to do.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
