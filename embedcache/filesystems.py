"""Filesystems of URLs, by fsspec: buckets, SFTP, the web and the Hugging Face hub.

Credentials come from the environment, never from the URL.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from embedcache.errors import EmbedCacheError, MissingExtraError, RemoteError

BUCKETS = ("s3", "gs", "az")
_EXTRAS = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure"), "sftp": ("sshfs", "sftp")}
_ANONYMOUS: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}, "az": {"anon": True}}
SCHEMES = (*BUCKETS, "sftp", "http", "https", "hf")
RETRIED = ("http", "https", "sftp")
"""Schemes whose clients do not try again."""
TRIES, PAUSE = 3, 3.0
"""Tries of a call to such a client, and seconds between them."""
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class Stat:
    """Size in bytes of a file, and the time it was written, in seconds since 1970 (NaN: unknown)."""

    bytes: int
    time: float


def scheme_of(url: str) -> str:
    """Return the scheme of a URL from ``checked_url``."""
    return url.partition("://")[0] if "://" in url else "file"


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL from ``checked_url``, and the remote's folder in it.

    Raises:
        MissingExtraError: if the scheme needs a package that is not installed.
        RemoteError: if the client connects at once and cannot.
    """
    module, extra = _EXTRAS.get(scheme_of(url), ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingExtraError(
            f"{scheme_of(url)}:// needs {module}: pip install 'embedcache-distill[{extra}]'."
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
        # sshfs checks no host keys by default; () means the user's known_hosts. The other options go to
        # asyncssh.
        address: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "username": parts.username}
        given = {name: value for name, value in address.items() if value is not None}
        limits = {"login_timeout": 30, "connect_timeout": 30, "keepalive_interval": 15}
        fs = fsspec.filesystem("sftp", known_hosts=(), skip_instance_cache=True, **limits, **given)
        return fs, unquote(parts.path)
    # Other processes write there, so listings are not cached.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    options |= _ANONYMOUS[scheme] if query else {}
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        # The default ends a download after five minutes.
        timeout = ClientTimeout(total=None, sock_connect=10, sock_read=60)
        options |= {"client_kwargs": {"timeout": timeout, "trust_env": True}, "encoded": True}
        return fsspec.filesystem(scheme, **options), plain
    if scheme == "gs":
        from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

        # gcsfs.GCSFileSystem asks another service about every bucket. It also logs the errors that it raises.
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
    """Return size and time from a client's description of a file; clients name them differently."""
    value = next(filter(None, map(info.get, _TIMES)), math.nan)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        value = value.timestamp()
    return Stat(int(info.get("size") or 0), float(value))
