"""Single transfers of a remote: downloads of bounded size, uploads that appear whole."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.callbacks import Callback
from fsspec.implementations.local import LocalFileSystem

from embedcache.errors import RemoteError
from embedcache.fsio import TEMPORARY_PREFIX

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class Stat:
    """Size in bytes of an object, and the time it was written, in seconds since 1970 (0: unknown)."""

    bytes: int
    time: float


class DamagedError(RemoteError):
    """File of a remote whose digest is wrong, or which is larger than allowed."""


class Limit(Callback):  # type: ignore[misc]
    """Byte counter of a download that ends one which is too large or stopped."""

    def __init__(
        self, what: str, most: int, stop: threading.Event, on_bytes: Callable[[int], None] | None
    ) -> None:
        super().__init__()
        self._what, self._most, self._stop, self._on_bytes = what, most, stop, on_bytes
        self._counted = 0

    def check(self, size: int) -> None:
        """Raise :class:`DamagedError` where a file of ``size`` bytes is too large."""
        if size > self._most:
            raise DamagedError(f"{self._what} has more than {self._most:,} bytes.")

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """Check the count; fsspec calls this for every block."""
        if self._stop.is_set():
            raise RemoteError(f"{self._what}: stopped.")
        self.check(self.value)
        if self._on_bytes is not None and self.value > self._counted:
            self._on_bytes(self.value - self._counted)
            self._counted = self.value


def get(fs: Any, place: str, target: Path, limit: Limit) -> None:
    """Download a file to ``target``."""
    if isinstance(fs, LocalFileSystem):  # copies without calling back
        limit.check(fs.info(place)["size"])
    target.write_bytes(b"")
    fs.get_file(place, str(target), callback=limit)
    # Folders are skipped silently.
    limit.absolute_update(target.stat().st_size)


def put_whole(fs: Any, place: str, data: bytes | memoryview | Path) -> None:
    """Upload a file to a place where files appear whole."""
    if isinstance(data, Path):
        fs.put_file(str(data), place)
    else:
        fs.pipe_file(place, bytes(data))


def put_aside(fs: Any, place: str, data: bytes | memoryview | Path) -> None:
    """Upload a file under a temporary name, and rename it."""
    folder, _, name = place.rpartition("/")
    aside = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{name}"
    fs.makedirs(folder, exist_ok=True)
    try:
        put_whole(fs, aside, data)
        fs.mv(aside, place)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(aside)
        raise


def stat_of(info: dict[str, Any]) -> Stat:
    """Return size and time from what a client says of a file; each has its own names for them."""
    size = int(info.get("size") or 0)
    for value in map(info.get, _TIMES):
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return Stat(size, value.timestamp())
        if isinstance(value, (int, float)):
            return Stat(size, float(value))
    return Stat(size, 0.0)
