"""How much a command may fetch: the bytes that it is allowed, and the room on the disk."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

from embedcache.errors import InputError, StorageError
from embedcache.fsio import explain_os_error

RESERVE_BYTES = 64 << 20
"""Room on the disk that is left for what other processes write meanwhile."""

PULL_LESS = "pull less, with --teacher, --corpus, --rows or --no-text of 'embedcache pull'"
"""How to fetch fewer bytes, for refusals."""


class Allowance:
    """The bytes that a command may fetch in all; safe from several threads.

    What it reads of a remote to find out what to fetch, manifests and descriptions, counts from the start.

    Args:
        most: how many bytes are allowed; None: as many as the disk has room for.
        less: for refusals, how to fetch fewer.
    """

    def __init__(self, most: int | None = None, less: str = PULL_LESS) -> None:
        self.most, self._less = most, less
        self._manifests = self._documents = self._taken = 0
        self._lock = threading.Lock()

    @property
    def read(self) -> int:
        """Bytes of manifests and descriptions that were fetched so far, and all that was taken."""
        return self._manifests + self._documents + self._taken

    def read_manifests(self, total: int) -> None:
        """Count the manifests: all together, before any is fetched as listed, then as they come.

        Raises:
            InputError: if they are more than is allowed.
        """
        with self._lock:
            self._manifests = max(self._manifests, total)
        self.refuse_more(0, "let 'embedcache remote gc' delete manifests that others have replaced")

    def read_documents(self, size: int) -> None:
        """Count descriptions of ``size`` bytes that are about to be fetched.

        Raises:
            InputError: if that is more than is allowed.
        """
        with self._lock:
            self._documents += size
        try:
            self.refuse_more(0)
        except InputError:
            # They are not fetched, and fewer may be.
            with self._lock:
                self._documents -= size
            raise

    def take(self, size: int) -> None:
        """Count ``size`` bytes of anything else that are about to be fetched.

        Raises:
            InputError: if that is more than is allowed.
        """
        self.refuse_more(size)
        with self._lock:
            self._taken += size

    def refuse_more(self, size: int, less: str = "") -> None:
        """Refuse to fetch more bytes than are allowed.

        Args:
            size: how many bytes beside manifests and descriptions, with those that were fetched before.
            less: how to fetch fewer; default: as this allowance says.

        Raises:
            InputError: if they are too many.
        """
        total = self.read + size
        if self.most is None or total <= self.most:
            return
        parts = (("manifests", self._manifests), ("descriptions", self._documents))
        shown = " and ".join(f"{count:,} of {what}" for what, count in parts if count)
        raise InputError(
            f"{total:,} bytes would have to be fetched{shown and f' ({shown})'}, more than the "
            f"{self.most:,} of --max-bytes: allow more, or {less or self._less}"
        )

    def refuse_too_much(
        self, folder: Path, size: int, less: str = "", *, fetched: int = 0, freed: int = 0
    ) -> None:
        """Refuse to fetch more bytes than are allowed, or than the disk has room for.

        Args:
            folder: where they go.
            size: how many bytes.
            less: as for :meth:`refuse_more`.
            fetched: bytes that were fetched before, beside manifests and descriptions.
            freed: bytes that will be deleted before.

        Raises:
            InputError: if they are too many.
            StorageError: if the disk that ``folder`` lies on, or will, has no room for them.
        """
        self.refuse_more(fetched + size, less)
        refuse_without_room(folder, size, less or self._less, freed=freed)


def refuse_without_room(folder: Path, size: int, less: str, *, freed: int = 0) -> None:
    """Refuse to fetch more bytes than the disk has room for.

    Args:
        folder: where they go.
        size: how many bytes.
        less: for messages, how to fetch fewer.
        freed: bytes that will be deleted before.

    Raises:
        StorageError: if the disk that ``folder`` lies on, or will, has no room for them.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free + freed
    if size + RESERVE_BYTES <= free:
        return
    if _is_read_only(existing):
        # Many such file systems have no free byte, and making room there is no help.
        raise explain_os_error(OSError(errno.EROFS, os.strerror(errno.EROFS)), folder)
    raise StorageError(
        f"cannot write {folder}: {size:,} bytes would have to be fetched, and {free:,} are free, of which "
        f"{RESERVE_BYTES:,} are left to other processes; make room, or {less}"
    )


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
