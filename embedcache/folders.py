"""Folders: several files that appear at once, and locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embedcache.fsio import TEMPORARY_PREFIX, fsync_directory, make_directory
from embedcache.os_errors import explain_os_error


@contextmanager
def folder_that_appears(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder that becomes ``target`` at the end; it is removed if the block raises.

    Args:
        target: the folder; one that is empty is replaced in any case.
        overwrite: replace one that holds files too, at the end; until then it stays.

    Raises:
        StorageError: if it cannot be written.
    """
    make_directory(target.parent)
    mark = uuid.uuid4().hex
    folder = target.with_name(f"{TEMPORARY_PREFIX}{mark}-{target.name}")
    old = target.with_name(f"{TEMPORARY_PREFIX}{mark}-old-{target.name}")
    try:
        folder.mkdir()
        yield folder
        for path in (path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        fsync_directory(folder)
        if overwrite and target.exists():
            target.rename(old)
        # A folder that came meanwhile and holds anything is not replaced by a rename.
        folder.rename(target)
        fsync_directory(target.parent)
    except OSError as error:
        raise explain_os_error(error, target) from error
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Have others that lock the same folder wait until the block ends.

    Where the file system cannot lock folders, the others do not wait.

    Raises:
        StorageError: if the folder cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
