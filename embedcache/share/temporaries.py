"""The temporary files of pulls: one for each file that is written, locked for as long as that takes.

The name of the temporary of a file that arrives follows from the file, so pulls of one machine into one cache
meet at it: the second waits, and then finds the file in its place. A shard that a pull makes itself, of rows
or in another codec, has a temporary of its own. A killed process holds no lock, which tells what it has left.

A lock may tell nothing of other machines, on network file systems. So the name also says on which machine the
temporary is written, and no machine touches those of another; 'embedcache gc' deletes them once they are old.
"""

from __future__ import annotations

import fcntl
import os
import platform
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from embedcache.errors import EmbedCacheError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, make_directory, temporary_sibling, write_step

# Others may take the place a few times; more often than that, the file system cannot tell what lies there.
_MOST_ATTEMPTS = 100
# Where pulls write inside a cache, and where inside it lie the caches that texts of parts are staged in.
_FOLDERS = (
    "teachers/*",
    "teachers/*/codebooks",
    "teachers/*/names",
    "teachers/*/shards",
    "corpora/*",
    "corpora/*/views/*",
    "derived/remotes/*",
)
_STAGED_CACHES = "derived/remotes/*/parts/*"


@contextmanager
def arriving(target: Path, wait: Callable[[], None]) -> Iterator[Path]:
    """Yield the temporary file of ``target``, empty and locked; at the end it is gone, renamed or deleted.

    Args:
        target: the file that is to be written.
        wait: called again and again as long as another process or thread of this machine writes the file. It
            sleeps for a moment, or raises an error.

    Raises:
        StorageError: if the file cannot be written.
    """
    with _locked_file(target, target.with_name(f"{_prefix()}{target.name}"), wait) as temporary:
        yield temporary


@contextmanager
def being_made(target: Path) -> Iterator[Path]:
    """Yield a temporary file for ``target`` that is this caller's alone, empty and locked.

    At the end it is gone, renamed or deleted. Nobody waits for it: a caller may hold other temporaries.

    Args:
        target: the file that is to be written.

    Raises:
        StorageError: if the file cannot be written.
    """
    own = target.with_name(f"{_prefix()}{uuid.uuid4().hex}-{target.name}")
    with _locked_file(target, own, lambda: None) as temporary:
        yield temporary


@contextmanager
def _locked_file(target: Path, temporary: Path, wait: Callable[[], None]) -> Iterator[Path]:
    make_directory(target.parent)
    try:
        descriptor = _locked(temporary, wait)
    except OSError as error:
        raise explain_os_error(error, target) from error
    if descriptor is None:
        # Without locks every process has a temporary of its own; only 'embedcache gc' knows what is left.
        with temporary_sibling(target) as unlocked:
            yield unlocked
            unlocked.unlink(missing_ok=True)
        return
    try:
        write_step("create", target)
        yield temporary
    except OSError as error:
        if isinstance(error, EmbedCacheError):
            # It says already what went wrong, perhaps not here at all.
            raise
        raise explain_os_error(error, target) from error
    finally:
        # Where nothing can be written nothing can be removed either; that must not hide the first error.
        with suppress(OSError):
            if _is_at(descriptor, temporary):
                temporary.unlink()
        os.close(descriptor)


def abandoned_bytes(folder: Path, *, delete: bool) -> int:
    """Return the bytes of what killed pulls of this machine have left of unfinished files.

    Args:
        folder: the cache.
        delete: whether to delete these files; what cannot be deleted stays.
    """
    inside = folder.resolve()
    places = [
        path
        for cache in (folder, *folder.glob(_STAGED_CACHES))
        for pattern in _FOLDERS
        for path in cache.glob(f"{pattern}/{_prefix()}*")
        # Somebody's cache may have come with links to other folders.
        if path.parent.resolve().is_relative_to(inside)
    ]
    return sum(abandoned_bytes_of(path, delete=delete) for path in places)


def abandoned_bytes_of(path: Path, *, delete: bool) -> int:
    """Return the bytes of a temporary that nobody writes, and delete it if asked to; 0 of any other."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(descriptor, path):
            return 0
        if delete:
            path.unlink()
        return os.fstat(descriptor).st_size
    except OSError:
        # Somebody is writing it, or there are no locks here to tell.
        return 0
    finally:
        os.close(descriptor)


def _locked(temporary: Path, wait: Callable[[], None]) -> int | None:
    """Return a descriptor of ``temporary``, made anew and locked; None where the file system has no locks."""
    attempts = 0
    while attempts < _MOST_ATTEMPTS:
        try:
            descriptor = os.open(
                temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
        except OSError:
            if not temporary.is_symlink():
                raise
            # Somebody's cache came with a link of that name.
            temporary.unlink(missing_ok=True)
            attempts += 1
            continue
        is_taken = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_taken = _is_fresh(descriptor, temporary)
            attempts += 1
        except BlockingIOError:
            wait()
        except OSError:
            if os.fstat(descriptor).st_size == 0:
                temporary.unlink(missing_ok=True)
            return None
        finally:
            if not is_taken:
                os.close(descriptor)
        if is_taken:
            return descriptor
    return None


def _is_fresh(descriptor: int, temporary: Path) -> bool:
    """Return whether a locked file is an empty one at its place; what a killed pull has left is deleted."""
    if not _is_at(descriptor, temporary):
        # Its writer has renamed or deleted it since it was opened.
        return False
    status = os.fstat(descriptor)
    # It is not written over: killed at the wrong moment, a pull leaves a second name of a finished file.
    if stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_nlink <= 1:
        return True
    temporary.unlink()
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _prefix() -> str:
    return f"{TEMPORARY_PREFIX}pull-{_machine()}-"


@cache
def _machine() -> str:
    """Return 12 digits that stand for this machine since it was started; containers on it share them."""
    name = platform.node()
    # The containers of a machine have different names, and the same locks.
    with suppress(OSError):
        name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    return blake2b(name.encode(), digest_size=6).hexdigest()
