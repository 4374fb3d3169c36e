"""Filesystems that remotes lie on; downloads of bounded size, and uploads that appear whole.

Clients try again as their own settings say. Credentials come from the environment, never from the URL.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fsspec.callbacks import Callback
from fsspec.implementations.local import LocalFileSystem

from embedcache.errors import EmbedCacheError, MissingExtraError, RemoteError
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.share.location import scheme_of

READ_ONLY = ("http", "https", "hf")
RENAMING = ("file", "sftp")
"""Schemes whose files appear while they are written, so they are written aside and renamed."""
_EXTRAS = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure"), "sftp": ("sshfs", "sftp")}
_ANONYMOUS: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}, "az": {"anon": True}}
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class Stat:
    """Size in bytes of a file, and the time it was written, in seconds since 1970 (NaN: unknown)."""

    bytes: int
    time: float


class DamagedError(RemoteError):
    """File of a remote that is missing, larger than allowed, or has another digest than its name."""


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL from :func:`checked_url`, and the remote's folder in it.

    Raises:
        MissingExtraError: if the scheme needs a package that is not installed.
        RemoteError: if the client connects at once and cannot.
    """
    module, extra = _EXTRAS.get(scheme_of(url), ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingExtraError(
            f"{scheme_of(url)}:// remotes need {module}: pip install 'embedcache[{extra}]'."
        )
    try:
        return _open(url)
    except EmbedCacheError:
        raise
    except Exception as error:
        raise RemoteError(f"{url}: cannot connect ({shortly(error)}).") from error


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    scheme, (plain, _, query) = scheme_of(url), url.partition("?")
    if scheme == "file":
        return fsspec.filesystem("file", auto_mkdir=True, skip_instance_cache=True), url
    parts = urlsplit(plain)
    if scheme == "sftp":
        # sshfs checks no host keys by default; () stands for the user's known_hosts. It hands on to
        # ssh what it does not know.
        address: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "username": parts.username}
        given = {name: value for name, value in address.items() if value is not None}
        limits = {"login_timeout": 30, "connect_timeout": 30, "keepalive_interval": 15}
        fs = fsspec.filesystem("sftp", known_hosts=(), skip_instance_cache=True, **limits, **given)
        return fs, unquote(parts.path)
    # Others write there at the same time: what was listed before says nothing.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    options |= _ANONYMOUS[scheme] if query else {}
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        # By default a download may take five minutes.
        timeout = ClientTimeout(total=None, sock_connect=10, sock_read=60)
        options |= {"client_kwargs": {"timeout": timeout, "trust_env": True}, "encoded": True}
        return fsspec.filesystem(scheme, **options), plain
    if scheme == "gs":
        from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

        # gcsfs.GCSFileSystem asks another service about every bucket. It logs errors that are raised as well.
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())
        fs = GCSFileSystem(**options)
    else:
        # With more than one request at a time large files are kept in memory.
        fs = fsspec.filesystem(scheme, **options, **({"max_concurrency": 1} if scheme == "s3" else {}))
    return fs, f"{parts.netloc}{unquote(parts.path)}"


def shortly(error: Exception) -> str:
    """Return the class and the first line of a client's error."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:300]}"


def stat_of(info: dict[str, Any]) -> Stat:
    """Return size and time from what a client says of a file; each has its own names for them."""
    value = next(filter(None, map(info.get, _TIMES)), math.nan)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        value = value.timestamp()
    return Stat(int(info.get("size") or 0), float(value))


class Limit(Callback):  # type: ignore[misc]
    """Byte counter of a download that ends one which is too large or stopped.

    Args:
        what: names the file in errors.
        most: bytes that it may have.
        stop: ends the download when it is set.
        on_bytes: called with the number of bytes of each block.
    """

    def __init__(
        self, what: str, most: int, stop: threading.Event, on_bytes: Callable[[int], None] | None
    ) -> None:
        super().__init__()
        self._what, self._most, self._stop, self._on_bytes = what, most, stop, on_bytes
        self._counted = 0

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """Check the count; fsspec calls this for every block."""
        if self._stop.is_set():
            raise RemoteError(f"{self._what}: stopped.")
        if self.value > self._most:
            raise DamagedError(f"{self._what} has more than {self._most:,} bytes.")
        if self._on_bytes is not None:
            self._on_bytes(self.value - self._counted)
        self._counted = self.value


def download(place: str, target: Path, limit: Limit, fs: Any) -> bool:
    """Write a file of a filesystem to ``target``; return True."""
    if isinstance(fs, LocalFileSystem):  # copies without calling back
        limit.absolute_update(fs.info(place)["size"])
    fs.get_file(place, str(target), callback=limit)
    # Folders are skipped silently: this raises FileNotFoundError then.
    limit.absolute_update(target.stat().st_size)
    return True


def upload(place: str, data: bytes, fs: Any, *, aside: bool) -> None:
    """Write a file so that it appears whole; with ``aside``, under a temporary name that is changed then."""
    if not aside:
        fs.pipe_file(place, data)
        return
    folder, _, name = place.rpartition("/")
    temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{name}"
    fs.makedirs(folder, exist_ok=True)
    try:
        fs.pipe_file(temporary, data)
        fs.mv(temporary, place)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise
