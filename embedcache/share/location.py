"""The fsspec filesystem of a remote's URL. Credentials come from the environment, never from the URL."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from embedcache.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_EXTRAS = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure"), "sftp": ("sshfs", "sftp")}
_SCHEMES = ("file", "s3", "gs", "az", "sftp", "http", "https", "hf")
READ_ONLY = ("http", "https", "hf")
RENAMING = ("file", "sftp")
"""Schemes whose files appear while they are written, so they are written aside and renamed."""
_ANONYMOUS: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}, "az": {"anon": True}}


def checked_url(text: str) -> str:
    """Return the URL of a remote in one spelling; a folder becomes its absolute path.

    Raises:
        InputError: if its scheme is unknown, it names no bucket, server or folder, or it holds credentials.
    """
    if "://" not in text:
        if not text.strip() or "\0" in text or re.match(rf"({'|'.join(_SCHEMES)}):", text):
            raise InputError(
                f"{text[:80]!r} is no remote: give a folder, or a URL such as s3://BUCKET/FOLDER."
            )
        return str(Path(text).expanduser().absolute())
    scheme = text.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in _SCHEMES)
        raise InputError(f"unknown kind of remote {scheme[:20]!r}: expected a folder or {known}.")
    try:
        parts = urlsplit(text)
        user, password, host, port = parts.username, parts.password, parts.hostname or "", parts.port
    except ValueError:
        raise InputError(
            f"a {scheme}:// URL that cannot be parsed: check its brackets and its port."
        ) from None
    # URLs are stored and shown, so this message does not repeat the URL.
    if password is not None or (user is not None and scheme != "sftp"):
        raise InputError(
            f"a {scheme}:// URL with a user or password in it: leave them out and give credentials through "
            "the environment (docs/sharing.md)."
        )
    if parts.fragment or (parts.query and not (scheme in _ANONYMOUS and parts.query == "anonymous=true")):
        raise InputError(f"a {scheme}:// URL with a '#' or an unknown option: only ?anonymous=true is known.")
    # Kept as it was written, and decoded where it is opened.
    path = parts.path.rstrip("/")
    if not unquote(path).isprintable() or any(one in ("", ".", "..") for one in unquote(path).split("/")[1:]):
        raise InputError(f"a {scheme}:// URL with an empty part, '.', '..' or control codes in its path.")
    if scheme == "file":
        if host not in ("", "localhost") or not path:
            raise InputError("a file:// URL needs an absolute path: file:///FOLDER.")
        return unquote(path)
    needs_path = scheme in ("sftp", "hf")
    if not host or (needs_path and not path) or (scheme == "hf" and path.count("/") < 2):
        example = {"hf": "hf://datasets/OWNER/NAME", "sftp": "sftp://USER@HOST/FOLDER"}.get(
            scheme, f"{scheme}://{'HOST' if scheme in READ_ONLY else 'BUCKET'}/FOLDER"
        )
        raise InputError(f"an incomplete {scheme}:// URL: expected {example}.")
    # Buckets keep their capitals, so the host is taken as it was written.
    place = parts.netloc if scheme == "sftp" or port else parts.netloc.rpartition("@")[2]
    return f"{scheme}://{place}{path}" + (f"?{parts.query}" if parts.query else "")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL from :func:`checked_url`."""
    return url.partition("://")[0] if "://" in url else "file"


def open_filesystem(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem of a URL from :func:`checked_url`, and the remote's folder in it.

    Raises:
        MissingExtraError: if the scheme needs a package that is not installed.
        Exception: what the client raises where it connects at once.
    """
    scheme = scheme_of(url)
    module, extra = _EXTRAS.get(scheme, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{scheme}:// remotes need {module}: pip install 'embedcache[{extra}]'.")
    import fsspec

    if scheme == "file":
        return fsspec.filesystem("file", auto_mkdir=True, skip_instance_cache=True), url
    plain, _, query = url.partition("?")
    parts = urlsplit(plain)
    # Others write there at the same time: what was listed before says nothing.
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    options |= _ANONYMOUS[scheme] if query else {}
    if scheme == "sftp":
        # sshfs checks no host keys by default; () stands for the user's known_hosts. It hands on to
        # ssh what it does not know.
        address: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "username": parts.username}
        given = {name: value for name, value in address.items() if value is not None}
        limits = {"login_timeout": 30, "connect_timeout": 30, "keepalive_interval": 15}
        return fsspec.filesystem(
            "sftp", known_hosts=(), skip_instance_cache=True, **limits, **given
        ), unquote(parts.path)
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        # By default a download may take five minutes.
        timeout = ClientTimeout(total=None, sock_connect=10, sock_read=60)
        options |= {"client_kwargs": {"timeout": timeout, "trust_env": True}, "encoded": True}
        return fsspec.filesystem(scheme, **options), plain
    path = f"{parts.netloc}{unquote(parts.path)}"
    # Remote tries again itself, so clients do little of that.
    if scheme == "s3":
        config = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 1}}
        # With more than one request at a time large files are kept in memory.
        fs = fsspec.filesystem("s3", max_concurrency=1, config_kwargs=config, **options)
        fs.retries = 2
    elif scheme == "gs":
        from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

        # gcsfs.GCSFileSystem asks another service about every bucket. It logs errors that are raised as well.
        logging.getLogger("gcsfs").addHandler(logging.NullHandler())
        fs = GCSFileSystem(**options)
    else:
        fs = fsspec.filesystem(scheme, **options)
        if scheme == "az":
            # There is no option for it.
            for policy in fs.service_client._pipeline._impl_policies:
                if hasattr(policy, "total_retries"):
                    policy.total_retries = 1
    return fs, path
