"""Downloads of objects: the digest is taken as the bytes arrive."""

from __future__ import annotations

import hashlib
from io import FileIO
from pathlib import Path

from embedcache.check.progress import Meter
from embedcache.errors import RemoteError
from embedcache.fsio import explain_os_error
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import BLOCK_BYTES, Remote, SharedObject, object_path
from embedcache.share.retry import RefusedError, RemediedError, retrying
from embedcache.share.transfer import Stopped


def download(remote: Remote, file: SharedFile, place: Path, meter: Meter) -> None:
    """Write an object to the file ``place``, with its digest taken on the way; not a byte more than declared.

    Args:
        remote: where it lies.
        file: what it is.
        place: a temporary file.
        meter: counts what arrives.

    Raises:
        RemoteError: if it is missing, or other bytes came, again and again.
        StorageError: if they cannot be written.
    """
    path = object_path(file.sha256)

    def act() -> None:
        digest, count = hashlib.sha256(), 0
        try:
            with _opened(place) as handle:
                for block in remote.place.blocks(path, BLOCK_BYTES):
                    if remote.stop.is_set():
                        raise Stopped
                    count += len(block)
                    if count > file.bytes:
                        raise _not_as_listed(remote, file, count)
                    digest.update(block)
                    _write(handle, block, place)
                    meter.add(size=len(block))
            if count != file.bytes or digest.hexdigest() != file.sha256:
                raise _not_as_listed(remote, file, count, digest.hexdigest())
        except BaseException:
            meter.add(size=-min(count, file.bytes))
            raise

    try:
        retrying(f"read {path}", remote.where, act, remote.stop)
    except FileNotFoundError:
        raise missing(remote, file, file.path) from None


def read_object(remote: Remote, shared: SharedObject, label: str) -> bytes:
    """Return the bytes of an object that fits into memory, once its digest is found right.

    Args:
        remote: where it lies.
        shared: its digest and its size, of which not a byte more is read.
        label: what it is, for messages: its path in a cache.

    Raises:
        RemoteError: if it is missing, or other bytes came, again and again.
    """
    path = object_path(shared.sha256)

    def act() -> bytes:
        data = bytearray()
        for block in remote.place.blocks(path, BLOCK_BYTES):
            data += block
            if len(data) > shared.bytes:
                raise _not_as_listed(remote, shared, len(data))
        digest = hashlib.sha256(data).hexdigest()
        if len(data) != shared.bytes or digest != shared.sha256:
            raise _not_as_listed(remote, shared, len(data), digest)
        return bytes(data)

    try:
        return retrying(f"read {label}", remote.where, act, remote.stop)
    except FileNotFoundError:
        raise missing(remote, shared, label) from None


def _not_as_listed(remote: Remote, shared: SharedObject, arrived: int, digest: str = "") -> RemediedError:
    """Return the error for an object that is not as a manifest lists it.

    Args:
        remote: where it lies.
        shared: what it should be.
        arrived: how many bytes came.
        digest: of these, where they are all; empty where more were to come.
    """
    path, lists = object_path(shared.sha256), remote.listed_so(shared)
    error = unlike(path, arrived, shared.bytes)
    if arrived == shared.bytes:
        return error
    if digest == shared.sha256:
        what = f"it has {arrived:,} bytes, which are right, and not the {shared.bytes:,} that a manifest says"
        return RefusedError(what, lists or "the manifest is damaged or hostile")
    told = f"; or that size is wrong, which 'embedcache remote verify' tells: {lists}" if lists else ""
    return RemediedError(str(error), f"{error.remedy}{told}")


def unlike(path: str, arrived: int, expected: int, what: str = "other bytes arrived") -> RemediedError:
    """Return the error for bytes that are not those that were asked for; they are asked for again.

    Args:
        path: of the object, on the remote.
        arrived: how many bytes came.
        expected: how many were asked for.
        what: what has happened, where so many came.
    """
    again = "push again from a cache that has it"
    if arrived == expected:
        return RemediedError(
            what,
            f"{path} is damaged there: delete that file with the storage's own tools, or all such with "
            f"'embedcache remote verify REMOTE --delete-damaged', then {again}",
        )
    came = f"{arrived:,} of" if arrived < expected else "more than"
    return RemediedError(
        f"{came} {expected:,} bytes arrived",
        f"run the same command again; if that goes on, {path} has another size there than it should: "
        f"{again}, which writes it anew",
    )


def missing(remote: Remote, shared: SharedObject, label: str) -> RemoteError:
    """Return the error for an object that a manifest lists and the remote does not have.

    Args:
        remote: the remote.
        shared: the object.
        label: what it is: its path in a cache.
    """
    return RemoteError(
        f"{object_path(shared.sha256)} of {remote.where}, which is {label}, is not there though a manifest "
        "lists it: push it again from a cache that has it"
    )


def _opened(path: Path) -> FileIO:
    try:
        return path.open("wb", buffering=0)
    except OSError as error:
        raise explain_os_error(error, path) from error


def _write(handle: FileIO, block: memoryview, path: Path) -> None:
    # What goes wrong here is no fault of the network, and trying again does not help.
    try:
        while len(block):
            block = block[handle.write(block) :]
    except OSError as error:
        raise explain_os_error(error, path) from error
