"""Objects on their way to this machine: their digest is taken as they arrive."""

from __future__ import annotations

import hashlib
from io import FileIO
from pathlib import Path

from embedcache.check.progress import Meter
from embedcache.fsio import explain_os_error
from embedcache.share.remote.documents import missing, unlike
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.retry import retrying
from embedcache.share.transfer import Stopped


def download(remote: Remote, file: SharedFile, place: Path, meter: Meter) -> None:
    """Write an object to the file ``place``, with its digest taken on the way; not a byte more than declared.

    Args:
        remote: where it lies.
        file: what it is.
        place: a temporary file.
        meter: counts what arrives.

    Raises:
        RemoteError: if it is not there, or other bytes came, again and again.
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
                        raise unlike(path, count, file.bytes)
                    digest.update(block)
                    _write(handle, block, place)
                    meter.add(size=len(block))
            if count != file.bytes or digest.hexdigest() != file.sha256:
                raise unlike(path, count, file.bytes)
        except BaseException:
            meter.add(size=-min(count, file.bytes))
            raise

    try:
        retrying(f"read {path}", remote.where, act, remote.stop)
    except FileNotFoundError:
        raise missing(remote, file) from None


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
