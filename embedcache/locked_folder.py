"""One process at a time: locks of folders, which leave nothing behind, and of files."""

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


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Have others that lock the same file wait until the block ends; the file is made where it is missing.

    Args:
        path: the file, which stays when the block ends. Its folder has to be there.

    Raises:
        StorageError: if the file cannot be opened or locked.
    """
    try:
        descriptor = open_locked(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError as error:
        raise explain_os_error(error, path) from error
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of a file inside the block, unless somebody else holds it: nobody is waited for.

    Args:
        path: the file.

    Yields:
        Whether the lock is held. It is not where somebody else holds it, or where there is no such file.

    Raises:
        StorageError: if the file cannot be opened or locked.
    """
    try:
        descriptor = open_locked(path, os.O_RDWR, wait=False)
    except (FileNotFoundError, BlockingIOError):
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def open_locked(path: Path, flags: int, *, wait: bool = True) -> int:
    """Open a file and lock it; the lock ends when the descriptor is closed, or its process ends.

    Args:
        path: the file.
        flags: as for ``os.open``.
        wait: whether to wait until others that lock the file have ended.

    Returns:
        The descriptor, which the caller closes.

    Raises:
        FileNotFoundError: if there is no such file, and the flags do not ask to make it.
        BlockingIOError: if somebody else holds the lock, and is not waited for.
        StorageError: if the file cannot be opened or locked for another reason.
    """
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain_os_error(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
            raise explain_os_error(error, path) from error
        raise
    return descriptor
