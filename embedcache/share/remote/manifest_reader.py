"""Reading the manifests of a remote: in several threads, but with memory for few large ones at once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from embedcache.corpus.description import is_digest
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
        check_size: called with the bytes of all manifests that are fetched, before the first one as far as
            their sizes are known, and as they come; raises if they are too many.
    """

    def __init__(
        self,
        where: str,
        fetch: Callable[[str, int], bytes | None],
        copies: Path | None,
        most: int,
        most_together: int | None,
        check_size: Callable[[int], None] | None = None,
    ) -> None:
        self._where, self._fetch, self._copies = where, fetch, copies
        self._most, self._most_together = most, most_together
        self._check_size = check_size
        self._listed: Mapping[str, int] = {}
        self._taken = self._fetched = 0
        self._known = KnownFiles()
        self._counting, self._reading_large, self._parsing = (threading.Lock() for _ in range(3))

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Look at what is about to be fetched; a copy counts if its size is right.

        Args:
            sizes: of manifests, as they are listed; 0 where the place does not tell.
        """
        self._listed = sizes
        if self._check_size is not None:
            self._check_size(sum(size for name, size in sizes.items() if self._copied_bytes(name) != size))

    def read(self, name: str) -> Manifest | str:
        """Return a manifest, or why it is refused.

        Raises:
            RemoteError: if it cannot be fetched, is gone, or all have too many bytes together.
        """
        small = min(_LARGE_BYTES, self._most)
        # What is known to be large is not fetched until that is noticed.
        if self._listed.get(name, 0) <= small:
            with suppress(TooLargeError):
                return self._read(name, small)
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
        self._count(len(data), is_fetched=copy is None)
        try:
            # Threads do not make it faster.
            with self._parsing:
                manifest = Manifest.from_bytes(data, name, self._known)
        except (ValueError, TypeError) as error:
            return shortened(str(error))
        if copy is None:
            self._keep(name, data)
        return manifest

    def _count(self, size: int, *, is_fetched: bool) -> None:
        with self._counting:
            self._taken += size
            self._fetched += size if is_fetched else 0
            taken, fetched = self._taken, self._fetched
        if self._check_size is not None:
            self._check_size(fetched)
        if self._most_together is not None and taken > self._most_together:
            raise RemoteError(
                f"the manifests of {self._where} have more than {self._most_together:,} bytes together: let "
                "'embedcache remote gc' delete those that others have replaced"
            )

    def _copied_bytes(self, name: str) -> int | None:
        try:
            return None if self._copies is None else (self._copies / f"{name}.json").stat().st_size
        except OSError:
            return None

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

    def drop_copies(self, listed: Collection[str]) -> None:
        """Delete the copies of manifests that are not ``listed`` on the remote any more."""
        for path in () if self._copies is None else self._copies.glob("*.json"):
            if is_digest(path.stem) and path.stem not in listed:
                # In a cache that cannot be written to it stays.
                with suppress(OSError):
                    path.unlink()

    def _keep(self, name: str, data: bytes) -> None:
        if self._copies is not None:
            try:
                write_bytes(self._copies / f"{name}.json", data)
            except StorageError:
                # It is read again the next time.
                return
