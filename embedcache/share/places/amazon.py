"""S3 and what speaks as S3 does: the address of its server, its time limits, missing credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError
from embedcache.share.places.bucket import BucketPlace
from embedcache.share.retry import RefusedError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

# Time limits are for silence: a slow transfer in which bytes still arrive is never cut off.
# A silent server is asked five times. All of that is to take about a minute.
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 10.0
# A server may be silent for long while it puts the parts of a large object together.
_WRITE_SECONDS = 30.0
_TRIES = 3
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_KEY, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
# Credentials come from elsewhere where one of these is set.
_ELSEWHERE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_NO_CREDENTIALS = frozenset({"region", "output", "endpoint_url"})
_REFUSED = re.compile(r"ACCESS_DENIED|MISSING_AUTHENTICATION_TOKEN|HTTP status 40[013]")
_GIVE = (
    f"set {_KEY} and {_SECRET}, or AWS_PROFILE to a profile of ~/.aws/credentials; a bucket that is open to "
    "all is read with s3://BUCKET/FOLDER?anonymous=true"
)


def amazon_place(where: str, base: str, options: Mapping[str, str], *, anonymous: bool) -> BucketPlace:
    """Return the place in a bucket of S3; nothing is read there yet.

    Args:
        where: its URL.
        base: bucket and prefix, ``bucket/prefix``.
        options: ``endpoint_override``, ``region`` and ``scheme``, as the URL gives them.
        anonymous: whether no credentials are looked for.

    Raises:
        InputError: if the address of the server cannot be used.
    """
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    scheme, endpoint = _endpoint(options)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not endpoint:
        try:
            region = resolve_s3_region(base.partition("/")[0])
        except OSError:
            # The first request tells what is wrong.
            region = None

    def client(tries: int, seconds: float) -> S3FileSystem:
        return S3FileSystem(
            anonymous=anonymous,
            region=region,
            scheme=scheme,
            endpoint_override=endpoint or None,
            request_timeout=seconds,
            connect_timeout=_CONNECT_SECONDS,
            # Small objects are sent in one request instead of three.
            allow_delayed_open=True,
            # Otherwise small objects and deletions wait until all parts of a large one are sent.
            background_writes=False,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=tries),
        )

    return BucketPlace(
        where,
        client(_TRIES, _READ_SECONDS),
        base,
        writing=client(_TRIES, _WRITE_SECONDS),
        once=client(1, _READ_SECONDS),
        errors=partial(amazon_errors, anonymous=anonymous),
    )


def _endpoint(options: Mapping[str, str]) -> tuple[str, str]:
    """Return scheme and address of the server; the address is empty for Amazon's own."""
    variable = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
    endpoint = options.get("endpoint_override") or os.environ.get(variable, "")
    scheme = options.get("scheme")
    if "@" in endpoint:
        raise InputError(
            "the address of an S3 server with a name or password in it: leave that out of "
            f"AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, and give {_KEY} and {_SECRET}"
        )
    if "://" in endpoint:
        named, _, endpoint = endpoint.rstrip("/").partition("://")
        scheme = scheme or named.lower()
    elif endpoint and not scheme and not options.get("endpoint_override"):
        raise InputError(f"{variable} has no scheme: expected http://HOST:PORT or https://HOST:PORT")
    if scheme not in (None, "http", "https"):
        raise InputError("an s3:// URL with another scheme than http or https: give one of them, or none")
    return scheme or "https", endpoint


@contextmanager
def amazon_errors(*, anonymous: bool) -> Iterator[None]:
    """Say that there are no credentials, where the server refuses a request for want of them.

    Args:
        anonymous: whether there need to be none.

    Raises:
        RefusedError: if the request was refused and no credentials were found.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        lack = "" if anonymous or not _REFUSED.search(str(error)) else _lack_of_credentials()
        if not lack:
            raise
        raise RefusedError(f"{lack}: {error}", _GIVE) from error


def _lack_of_credentials() -> str:
    """Return which credentials were looked for and not found; empty where there may be some."""
    if os.environ.get(_KEY):
        return "" if os.environ.get(_SECRET) else f"{_KEY} is set, and {_SECRET} is not"
    if any(os.environ.get(name) for name in _ELSEWHERE):
        return ""
    variable = next((name for name in _PROFILES if os.environ.get(name)), "")
    profile = os.environ.get(variable, "default")
    keys = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    settings = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    section = profile if profile == "default" else f"profile {profile}"
    if _may_have_credentials(keys, profile) or _may_have_credentials(settings, section):
        return ""
    if variable:
        return f"{variable} is {profile!r}, and {keys} and {settings} have no credentials of that profile"
    return f"no credentials were found: {_KEY} is not set, and {keys} and {settings} have none"


def _may_have_credentials(file: str, section: str) -> bool:
    """Return whether a section of a file says more than where the servers are and how answers are shown."""
    parser = ConfigParser(interpolation=None, strict=False, default_section="")
    try:
        parser.read(Path(file).expanduser(), encoding="utf-8")
    except (ConfigError, OSError, RuntimeError, ValueError):
        # There may be credentials in what cannot be read.
        return True
    return parser.has_section(section) and not _NO_CREDENTIALS.issuperset(parser[section])
