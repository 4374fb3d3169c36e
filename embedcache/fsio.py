"""The one way files enter a cache: temporary name, fsync, atomic rename, directory fsync.

A reader never sees half a file, and a crash leaves at most a file whose name starts with ``.tmp-``.

JSON files that nothing else vouches for are *sealed*: they carry the sha256 of their own content.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from embedcache.errors import CacheFormatError, EmbedCacheError, MissingInputError, StorageError

TEMPORARY_PREFIX = ".tmp-"

WRITE_STEPS = ("create", "written", "synced", "renamed", "recorded", "lmdb-put", "lmdb-committed", "remove")
"""The named moments of a write, in order; a crash may fall on any of them."""

# What a few megabytes of JSON unpack to is hundreds; a corpus of a billion rows is described in two.
_LARGEST_READ = 4 << 20
_DEEPEST_JSON = 16

on_write_step: Callable[[str, Path], None] | None = None
"""Called with each of :data:`WRITE_STEPS` and the file it concerns; tests inject failures here."""


def write_step(step: str, path: Path) -> None:
    """Announce that a write has reached ``step``."""
    if on_write_step is not None:
        on_write_step(step, path)


def explain_os_error(error: OSError, path: Path) -> StorageError:
    """Turn an ``OSError`` met while writing ``path`` into an error that says what to do."""
    remedies = {
        errno.ENOSPC: "the disk is full; make room and run the same command again: what is stored stays",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
        errno.EROFS: "the file system is read-only; choose a folder that can be written",
        errno.EACCES: "permission denied; choose a folder that can be written",
        errno.EPERM: "permission denied; choose a folder that can be written",
        errno.ENOENT: "there is no such folder, and it cannot be made; choose a folder that can be written",
        errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
    }
    other = f"{error.strerror or error}; see to the disk and run the same command again: what is stored stays"
    reason = remedies.get(error.errno or 0, other)
    return StorageError(f"cannot write {path}: {reason}")


def fsync_directory(folder: Path) -> None:
    """Make the names inside ``folder`` durable, where its file system lets a folder be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no such thing, and need none.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> Path:
    """Create ``folder`` with its parents where missing, durably, and return it.

    Raises:
        StorageError: if it cannot be created.
    """
    try:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # A file is only as durable as the names of the folders above it.
        for one in reversed(missing):
            fsync_directory(one.parent)
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
        write_step("create", target)
        yield temporary
    except OSError as error:
        _remove(temporary)
        if isinstance(error, EmbedCacheError):
            # It says already what went wrong, perhaps not here at all.
            raise
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
    _sync(temporary, target)
    temporary.replace(target)
    _record(target)


def commit_new(temporary: Path, target: Path) -> bool:
    """Make ``temporary`` appear as ``target`` unless something is there; return whether it did.

    Of several processes that do this at once exactly one succeeds, on network file systems too.
    """
    _sync(temporary, target)
    try:
        # Unlike a rename, a link is refused where the name is taken.
        os.link(temporary, target, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():
            return False
        temporary.replace(target)
    finally:
        _remove(temporary)
    _record(target)
    return True


# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def _sync(temporary: Path, target: Path) -> None:
    write_step("written", target)
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    write_step("synced", target)


def _record(target: Path) -> None:
    write_step("renamed", target)
    fsync_directory(target.parent)
    write_step("recorded", target)


def write_bytes(target: Path, *pieces: bytes | memoryview) -> None:
    """Write ``pieces``, one after the other, to ``target`` atomically.

    Raises:
        StorageError: if the folder is read-only, full or gone; ``target`` is then as it was before.
    """
    with temporary_sibling(target) as temporary:
        with temporary.open("wb") as handle:
            handle.writelines(pieces)
        commit(temporary, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` atomically; one that is there with the same size is taken as the same.

    Raises:
        StorageError: if it cannot be written.
    """
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return
    with temporary_sibling(target) as temporary:
        shutil.copyfile(source, temporary)
        commit(temporary, target)


def remove_file(path: Path) -> None:
    """Delete ``path`` durably; harmless where it is gone already.

    Raises:
        StorageError: if it cannot be deleted.
    """
    try:
        write_step("remove", path)
        path.unlink(missing_ok=True)
        fsync_directory(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, path) from error


def canonical_json(value: object) -> bytes:
    """Return the one JSON spelling of ``value`` that digests are taken of: sorted keys, no blanks, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def spelled_json(value: Mapping[str, object]) -> bytes:
    """Return the spelling of ``value`` that JSON files of a cache have: indented, sorted, with a newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def write_json(target: Path, value: Mapping[str, object]) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_bytes(target, spelled_json(value))


def sealed(value: Mapping[str, object]) -> dict[str, object]:
    """Return ``value`` with the field ``sha256`` over everything else in it."""
    return {**value, "sha256": hashlib.sha256(canonical_json(value)).hexdigest()}


def write_sealed_json(target: Path, value: Mapping[str, object]) -> None:
    """Write ``value`` as JSON that carries its own digest, atomically."""
    write_bytes(target, spelled_json(sealed(value)))


def read_sealed_json(path: Path, most: int = _LARGEST_READ) -> dict[str, Any]:
    """Read what :func:`write_sealed_json` wrote, without the seal; it may have up to ``most`` bytes.

    Raises:
        ValueError: if a byte of the file is not as it was written, or it is too large.
        OSError: if the file cannot be read.
    """
    data = read_regular(path, most)
    value = parsed_json(data)
    if not isinstance(value, dict) or "sha256" not in value:
        raise ValueError("it carries no digest of itself")
    seal = value.pop("sha256")
    if spelled_json(sealed(value)) != data:
        raise ValueError(f"its content is not what its digest {str(seal)[:12]} was taken of")
    return value


def parsed_json(data: bytes) -> object:
    """Return what JSON of unknown origin says.

    Raises:
        ValueError: if it is no JSON, or nested deeper than anything that a cache holds.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its content is nested too deep") from None
    # What was just shallow enough to be read might not be so to be compared or printed.
    open_containers: list[Iterator[object]] = [iter((value,))]
    while open_containers:
        for inner in open_containers[-1]:
            if isinstance(inner, (dict, list)):
                if len(open_containers) > _DEEPEST_JSON:
                    raise ValueError("its content is nested too deep")
                open_containers.append(iter(inner.values() if isinstance(inner, dict) else inner))
                break
        else:
            open_containers.pop()
    return value


def _refuse_constant(name: str) -> None:
    # Python reads NaN and infinities, which JSON does not have and canonical_json does not write.
    raise ValueError(f"{name} is no JSON")


def read_regular(path: Path, most: int = _LARGEST_READ) -> bytes:
    """Return the bytes of a small file, which may be neither a symbolic link nor a device nor a pipe.

    Args:
        path: the file.
        most: bytes it may have.

    Raises:
        ValueError: if it is one: what lies outside a cache must not be read as part of it. Also if it is
            larger than ``most``.
        OSError: if it cannot be read.
    """
    size = regular_size(path)
    if size > most:
        raise ValueError(f"it has {size:,} bytes, more than such a file may have")
    return path.read_bytes()


def regular_size(path: Path) -> int:
    """Return the bytes of a file, which may be neither a symbolic link nor a device nor a pipe.

    Raises:
        ValueError, OSError: as :func:`read_regular`.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise ValueError(f"it is {kind}; a cache holds its files itself")
    return found.st_size


def refuse_specials(folder: Path) -> None:
    """See that everything below ``folder`` is a plain file or a folder.

    Raises:
        CacheFormatError: if a link, a pipe or a device is among it, or a folder that cannot be read.
    """
    # A link could make us read, or worse write, outside the cache on somebody else's behalf; reading a pipe
    # would wait for ever.
    # Not os.walk, which gives up where folders lie a thousand deep.
    folders = [folder]
    while folders:
        for path in _entries(folders.pop()):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a temporary file of another process
                continue
            if stat.S_ISDIR(mode):
                folders.append(path)
            elif stat.S_ISLNK(mode):
                raise CacheFormatError(
                    f"{str(path)!r} is a symbolic link to {str(path.readlink())!r}: a cache holds its files "
                    "itself; delete the link, or put the files in its place"
                )
            elif not stat.S_ISREG(mode):
                raise CacheFormatError(f"{str(path)!r} is neither a file nor a folder: delete it")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CacheFormatError(
            f"the folder {str(folder)[:200]!r} cannot be looked into ({error.strerror}): delete it, or make "
            "it readable"
        ) from error


def file_state(path: Path) -> list[int]:
    """Return what tells whether a file has changed: size, times, device, inode; nobody can set all of it."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino]


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
