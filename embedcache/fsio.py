"""Files of a cache: written atomically, read without following links.

A file is written under a temporary name, synced, renamed, and its folder synced. A reader never sees half a
file, and a crash leaves at most a file whose name starts with ``.tmp-``. JSON files that no name vouches for
are *sealed*: they carry the sha256 of their own content.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from embedcache.errors import CacheFormatError, EmbedCacheError, MissingInputError
from embedcache.os_errors import explain_os_error, reading, writing

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY_PREFIX = ".tmp-"

WRITE_STEPS = ("create", "written", "synced", "renamed", "recorded", "lmdb-put", "lmdb-committed", "remove")
"""Steps of a write, in order; a crash may fall on any of them."""

on_write_step: Callable[[str, Path], None] | None = None
"""Called with each of ``WRITE_STEPS`` and the file it concerns; tests inject failures here."""

# A corpus of a billion rows is described in two megabytes.
_MOST_JSON = 4 << 20
_DEEPEST_JSON = 16


def write_step(step: str, path: Path) -> None:
    """Announce that a write has reached ``step``."""
    if on_write_step is not None:
        on_write_step(step, path)


def fsync_directory(folder: Path) -> None:
    """Make the names inside ``folder`` durable, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder, and need not.
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
        for one in reversed(missing):
            fsync_directory(one.parent)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    return folder


def require_directory(folder: Path, what: str) -> Path:
    """Return ``folder``.

    Raises:
        MissingInputError: if it does not exist; the message names ``what``.
        UnreadableError: if that cannot be seen.
    """
    found = "the folder does not exist"
    # is_dir() raises PermissionError, and from Python 3.14 on returns False.
    with reading(folder), suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISDIR(folder.stat().st_mode):
            return folder
        found = "it is a file, expected a folder"
    raise MissingInputError(f"no {what} at {folder}: {found}")


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; it is removed if the block raises."""
    make_directory(target.parent)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
    try:
        write_step("create", target)
        yield temporary
    except BaseException as error:
        # A full or read-only disk must not hide the first error.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, EmbedCacheError):
            raise explain_os_error(error, target) from error
        raise


def commit(temporary: Path, target: Path) -> None:
    """Give the finished file ``temporary`` the name ``target``, durably.

    Raises:
        StorageError: if it cannot be written.
    """
    with writing(target):
        _sync(temporary, target)
        temporary.replace(target)
        _record(target)


def commit_new(temporary: Path, target: Path) -> bool:
    """Give ``temporary`` the name ``target`` unless it is taken; return whether it was free.

    Of several processes that do this at once exactly one succeeds, on network file systems too.

    Raises:
        StorageError: if it cannot be written.
    """
    with writing(target):
        _sync(temporary, target)
        try:
            # A link is refused where the name is taken, a rename is not.
            os.link(temporary, target, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if target.exists():
                return False
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        _record(target)
    return True


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
        StorageError: if it cannot be written; ``target`` is then as it was before.
    """
    with temporary_sibling(target) as temporary:
        with temporary.open("wb") as handle:
            handle.writelines(pieces)
        commit(temporary, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` atomically; a file of the same size is taken as the same.

    Raises:
        StorageError: if it cannot be written.
        UnreadableError: if ``source`` cannot be read.
    """
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return
    with temporary_sibling(target) as temporary:
        with temporary.open("wb") as handle:
            handle.writelines(read_blocks(source))
        commit(temporary, target)


def remove_file(path: Path) -> None:
    """Delete ``path`` durably; harmless where it is missing.

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
    """Return the one spelling of ``value`` that digests are taken of: sorted keys, no blanks, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def json_digest(value: object) -> str:
    """Return the sha256 of a JSON value, in its canonical spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def spelled_json(value: Mapping[str, object]) -> bytes:
    """Return the spelling of ``value`` in JSON files: indented, sorted keys, a final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def write_json(target: Path, value: Mapping[str, object]) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_bytes(target, spelled_json(value))


def sealed(value: Mapping[str, object]) -> dict[str, object]:
    """Return ``value`` with the field ``sha256`` over everything else in it."""
    return {**value, "sha256": json_digest(value)}


def write_sealed_json(target: Path, value: Mapping[str, object]) -> None:
    """Write ``value`` as JSON that carries its own digest, atomically."""
    write_bytes(target, spelled_json(sealed(value)))


def read_sealed_json(path: Path, most: int = _MOST_JSON) -> dict[str, Any]:
    """Read what ``write_sealed_json`` wrote, without the seal; at most ``most`` bytes.

    Raises:
        ValueError: if a byte of the file has changed, it is too large, or a link.
        FileNotFoundError: if the file is missing.
        UnreadableError: if it cannot be read.
    """
    data = read_regular(path, most)
    value = parsed_json(data)
    if not isinstance(value, dict) or "sha256" not in value:
        raise ValueError("it carries no digest of itself")
    seal = value.pop("sha256")
    if spelled_json(sealed(value)) != data:
        raise ValueError(f"its content does not match its digest {str(seal)[:12]}")
    return value


def parsed_json(data: bytes) -> object:
    """Parse JSON of unknown origin.

    Raises:
        ValueError: if it is not JSON, or nested deeper than any file of a cache.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        is_deep = _depth(value) > _DEEPEST_JSON
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError("its content is nested too deep")
    return value


def _depth(value: object) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a cache for reading.

    Raises:
        ValueError: if it is a symbolic link, a folder, a pipe or a device: those lead outside, or block.
        FileNotFoundError: if it is missing.
        UnreadableError: if it cannot be opened.
    """
    with reading(path):
        if not stat.S_ISREG(path.lstat().st_mode):
            kind = "a symbolic link" if path.is_symlink() else "not a regular file"
            raise ValueError(f"it is {kind}; a cache holds its files itself")
        # Another process may have put something else there.
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def read_regular(path: Path, most: int = _MOST_JSON) -> bytes:
    """Return the bytes of a small file of a cache, at most ``most``; errors as ``open_regular``."""
    with open_regular(path) as handle, reading(path):
        data = handle.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def map_regular(path: Path) -> pa.Buffer:
    """Return a file of a cache, mapped into memory; errors as ``open_regular``, ValueError if empty.

    The buffer keeps the mapping and no open file, which Python's ``mmap`` does.
    """
    import pyarrow as pa

    with open_regular(path) as handle, reading(path):
        if not os.fstat(handle.fileno()).st_size:
            raise ValueError("it is empty")
        # By its descriptor: pyarrow would follow a link that another process has put in its place.
        with pa.memory_map(f"/dev/fd/{handle.fileno()}", "r") as source:
            return source.read_buffer()


def list_folder(folder: Path) -> list[str]:
    """Return the names in a folder of a cache, sorted; none if it is missing.

    Raises:
        UnreadableError: if it cannot be listed. ``Path.glob`` would find nothing, without a word.
    """
    with reading(folder), suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)
    return []


def regular_size(path: Path) -> int:
    """Return the bytes of a file of a cache; errors as ``open_regular``."""
    with open_regular(path) as handle, reading(path):
        return os.fstat(handle.fileno()).st_size


def inside(folder: Path, *names: str) -> Path:
    """Return a path below ``folder``.

    Raises:
        CacheFormatError: if one of ``names`` is a symbolic link, which could lead outside.
        UnreadableError: if that cannot be seen.
    """
    for name in names:
        folder /= name
        with reading(folder):
            is_link = folder.is_symlink()
        if is_link:
            raise CacheFormatError(
                f"{str(folder)!r} is a symbolic link, and a cache holds its files itself: copy them there"
            )
    return folder


def refuse_links(folder: Path, depth: int = 1) -> None:
    """Raise ``CacheFormatError`` if a path in ``folder``, up to ``depth`` levels down, is a link."""
    for name in list_folder(folder):
        path = inside(folder, name)
        if depth > 1:
            refuse_links(path, depth - 1)


def file_state(path: Path) -> list[int]:
    """Return size, mtime, ctime, device and inode of a file; no user can set all of them."""
    with reading(path):
        status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino]


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, a block at a time; errors as ``reading`` gives them.

    The file is read, not mapped: a disk that fails would end the process while it reads a mapped page.
    """
    with reading(path), path.open("rb") as handle:
        while block := handle.read(1 << 20):
            yield block


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal; errors as ``read_blocks``."""
    digest = hashlib.sha256()
    for block in read_blocks(path):
        digest.update(block)
    return digest.hexdigest()
