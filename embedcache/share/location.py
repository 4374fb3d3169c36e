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

READ_ONLY = ("http", "https", "hf")
RENAMING = ("file", "sftp")
"""Schemes whose files appear while they are written, so they are written aside and renamed."""
_EXTRAS = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure"), "sftp": ("sshfs", "sftp")}
_ANONYMOUS: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}, "az": {"anon": True}}
_HOST, _FOLDER = r"(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d{1,5})?", r"(?:/[^/?#]+)"
_BUCKET = rf"[\w.-]+{_FOLDER}*(?:\?anonymous=true)?"
# A user or a password has no place in them, but for the user of sftp.
_FORMS = {
    "file": (rf"(?:localhost)?{_FOLDER}+", "file:///FOLDER"),
    "s3": (_BUCKET, "s3://BUCKET/FOLDER"),
    "gs": (_BUCKET, "gs://BUCKET/FOLDER"),
    "az": (_BUCKET, "az://CONTAINER/FOLDER"),
    "sftp": (rf"(?:[^/@:?#]+@)?{_HOST}{_FOLDER}+", "sftp://USER@HOST/FOLDER"),
    "http": (rf"{_HOST}{_FOLDER}*", "http://HOST/FOLDER"),
    "https": (rf"{_HOST}{_FOLDER}*", "https://HOST/FOLDER"),
    "hf": (rf"[\w-]+{_FOLDER}{{2,}}", "hf://datasets/OWNER/NAME"),
}


def checked_url(text: str) -> str:
    """Return the URL of a remote in one spelling; a folder becomes its absolute path.

    Raises:
        InputError: if its scheme is unknown, it names no bucket, server or folder, or it holds credentials.
    """
    scheme, colon, rest = text.partition("://")
    scheme = scheme.lower()
    if not colon:
        if not text.strip() or "\0" in text or text.partition(":")[0] in _FORMS:
            raise InputError(
                f"{text[:80]!r} is no remote: give a folder, or a URL such as s3://BUCKET/FOLDER."
            )
        return str(Path(text).expanduser().absolute())
    if scheme not in _FORMS:
        known = ", ".join(f"{one}://" for one in _FORMS)
        raise InputError(f"unknown kind of remote {scheme[:20]!r}: expected a folder or one of {known}.")
    form, example = _FORMS[scheme]
    rest = rest.rstrip("/")
    plain = unquote(rest)
    is_path = not {"", ".", ".."} & set(plain.split("/")[1:])
    if not (re.fullmatch(form, rest) and is_path and plain.isprintable()):
        # URLs are stored and shown, so this message does not repeat what may be a password.
        raise InputError(
            f"a {scheme}:// URL that names no remote: expected {example}, without a password, '..' or "
            "options but ?anonymous=true of a bucket. Credentials come from the environment."
        )
    # Kept as it was written, and decoded where it is opened.
    return plain.removeprefix("localhost") if scheme == "file" else f"{scheme}://{rest}"


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
        fs = fsspec.filesystem("sftp", known_hosts=(), skip_instance_cache=True, **limits, **given)
        return fs, unquote(parts.path)
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        # By default a download may take five minutes.
        timeout = ClientTimeout(total=None, sock_connect=10, sock_read=60)
        options |= {"client_kwargs": {"timeout": timeout, "trust_env": True}, "encoded": True}
        return fsspec.filesystem(scheme, **options), plain
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
    return fs, f"{parts.netloc}{unquote(parts.path)}"
