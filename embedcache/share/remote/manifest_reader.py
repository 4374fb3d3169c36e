"""Reading the manifests of a remote: in several threads, but with memory for few large ones at once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from embedcache.errors import RemoteError, StorageError
from embedcache.fsio import write_bytes
from embedcache.share.remote.manifest import Manifest
from embedcache.share.remote.shared_file import KnownFiles
from embedcache.share.retry import shortened

# That of twenty thousand files.
_LARGE_BYTES = 8 << 20


class TooLargeError(RemoteError):
    """A small file of a remote is too large to be one."""


class ManifestReader:
    """Reads manifests that share most of their files; safe from several threads.

    Args:
        where: the remote, for messages.
        fetch: returns the file at a path of the remote, or None where there is none; raises
            :class:`TooLargeError` where it has more bytes than its second argument says.
        copies: a folder of copies of manifests, read and added to; default: there are none.
        most: bytes that a manifest may have.
        most_together: bytes that all manifests may have together; default: any number.
    """

    def __init__(
        self,
        where: str,
        fetch: Callable[[str, int], bytes | None],
        copies: Path | None,
        most: int,
        most_together: int | None,
    ) -> None:
        self._where, self._fetch, self._copies = where, fetch, copies
        self._most, self._most_together = most, most_together
        self._taken = 0
        self._known = KnownFiles()
        self._counting, self._reading_large, self._parsing = (threading.Lock() for _ in range(3))

    def read(self, name: str) -> Manifest | str:
        """Return a manifest, or why it is refused.

        Raises:
            RemoteError: if it cannot be fetched, is gone, or all have too many bytes together.
        """
        try:
            return self._read(name, min(_LARGE_BYTES, self._most))
        except TooLargeError:
            pass
        # Of large ones each thread would hold one, while all but one of them wait to parse theirs.
        with self._reading_large:
            try:
                return self._read(name, self._most)
            except TooLargeError as error:
                return str(error)

    def _read(self, name: str, most: int) -> Manifest | str:
        copy = self._copy(name, most)
        data = self._fetch(f"manifests/{name}.json", most) if copy is None else copy
        if data is None:
            raise RemoteError(f"manifests/{name}.json of {self._where} is gone: run the same command again")
        self._count(len(data))
        try:
            # Threads do not make it faster.
            with self._parsing:
                manifest = Manifest.from_bytes(data, name, self._known)
        except (ValueError, TypeError) as error:
            return shortened(str(error))
        if copy is None:
            self._keep(name, data)
        return manifest

    def _count(self, size: int) -> None:
        with self._counting:
            self._taken += size
            taken = self._taken
        if self._most_together is not None and taken > self._most_together:
            raise RemoteError(
                f"the manifests of {self._where} have more than {self._most_together:,} bytes together: let "
                "'embedcache remote gc' delete those that others have replaced"
            )

    def _copy(self, name: str, most: int) -> bytes | None:
        """Return the copy of a manifest, where there is one and it is right."""
        if self._copies is None:
            return None
        path = self._copies / f"{name}.json"
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= most else b""
        except OSError:
            return None
        if most < size <= self._most:
            raise TooLargeError(f"{path} has more than {most:,} bytes")
        # It may have come with somebody else's cache.
        return data if hashlib.sha256(data).hexdigest() == name else None

    def _keep(self, name: str, data: bytes) -> None:
        if self._copies is not None:
            try:
                write_bytes(self._copies / f"{name}.json", data)
            except StorageError:
                # It is read again the next time.
                return
