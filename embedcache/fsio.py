"""The one way files enter a cache: temporary name, fsync, atomic rename, directory fsync.

A reader never sees half a file, and a crash leaves at most a file whose name starts with ``.tmp-``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from embedcache.errors import MissingInputError, StorageError

TEMPORARY_PREFIX = ".tmp-"


def explain_os_error(error: OSError, path: Path) -> StorageError:
    """Turn an ``OSError`` met while writing ``path`` into an error that says what to do."""
    remedies = {
        errno.ENOSPC: "the disk is full; make room and run the same command again: what is stored stays",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
        errno.EROFS: "the file system is read-only; choose a folder that can be written",
        errno.EACCES: "permission denied; choose a folder that can be written",
        errno.EPERM: "permission denied; choose a folder that can be written",
        errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
    }
    reason = remedies.get(error.errno or 0, f"{error.strerror or error}; nothing stored so far is lost")
    return StorageError(f"cannot write {path}: {reason}")


def fsync_directory(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> Path:
    """Create ``folder`` with its parents where missing, and return it.

    Raises:
        StorageError: if it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StorageError(
            f"cannot write {folder}: it is a file, not a folder; choose another folder"
        ) from error
    except OSError as error:
        raise explain_os_error(error, folder) from error
    return folder


def require_directory(folder: Path, what: str) -> Path:
    """Return ``folder``, or raise :class:`MissingInputError` saying that ``what`` is not there."""
    if not folder.is_dir():
        raise MissingInputError(f"no {what} at {folder}: the folder does not exist")
    return folder


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; it is removed if the block raises."""
    make_directory(target.parent)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
    try:
        yield temporary
    except OSError as error:
        _remove(temporary)
        raise explain_os_error(error, target) from error
    except BaseException:
        _remove(temporary)
        raise


def _remove(temporary: Path) -> None:
    # Where nothing can be written nothing can be removed either; that must not hide the first error.
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def commit(temporary: Path, target: Path) -> None:
    """Make the finished file ``temporary`` appear as ``target``, durably and at once."""
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(target)
    fsync_directory(target.parent)


def write_bytes(target: Path, data: bytes) -> None:
    """Write ``data`` to ``target`` atomically.

    Raises:
        StorageError: if the folder is read-only, full or gone; ``target`` is then as it was before.
    """
    with temporary_sibling(target) as temporary:
        temporary.write_bytes(data)
        commit(temporary, target)


def canonical_json(value: object) -> bytes:
    """Return the one JSON spelling of ``value`` that digests are taken of: sorted keys, no blanks, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def write_json(target: Path, value: Mapping[str, object]) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_bytes(target, (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode())


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
