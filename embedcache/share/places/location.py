"""From the URL of a remote to the place. Credentials come from the environment, never from the URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from embedcache.errors import InputError
from embedcache.share.places.base import Place
from embedcache.share.places.bucket import BucketPlace
from embedcache.share.places.folder import FolderPlace
from embedcache.share.places.google import GoogleErrors, google_files
from embedcache.share.places.hub import HubPlace
from embedcache.share.places.sftp import SftpPlace
from embedcache.share.places.web import WebPlace

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "file": (),
    "s3": ("anonymous", "endpoint_override", "region", "scheme"),
    "gs": ("anonymous",),
    "sftp": (),
    "http": (),
    "https": (),
    "hf": (),
}
# A folder may have such a name, but a URL with a missing slash is likelier.
_ONE_SLASH = re.compile(rf"({'|'.join(_OPTIONS)}):/(?!/)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
# Characters of a path that have no other meaning in a URL.
_PLAIN = "/!$&'()*+,;=:@~"
_REQUEST_SECONDS, _CONNECT_SECONDS = 30.0, 10.0


@dataclass(frozen=True)
class Location:
    """The parts of the URL of a remote.

    Attributes:
        scheme: ``file``, ``s3``, ``gs``, ``sftp``, ``http``, ``https`` or ``hf``.
        host: bucket or server; for ``hf`` the kind of repository; empty for ``file``.
        path: the folder on it, without a slash at its end.
        user: name of the account on the server, for ``sftp``.
        port: of the server, where it is given.
        options: names and values after the question mark.
    """

    scheme: str
    host: str
    path: str
    user: str | None = None
    port: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """The URL in its one spelling; a plain path for ``file``."""
        if self.scheme == "file":
            return self.path
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{user}{self.host}{port}{quote(self.path, safe=_PLAIN)}{options}"


def parse_location(text: str) -> Location:
    """Return the parts of a URL, or of the path of a folder.

    Raises:
        InputError: if its kind is not known, if it names no bucket or server, or if it has credentials in it:
            URLs are stored and shown.
    """
    if "://" not in text:
        if not text or "\0" in text:
            raise InputError("a remote needs a place: give a folder or a URL like s3://BUCKET/FOLDER")
        if slip := _ONE_SLASH.match(text):
            start = f"{slip[1].lower()}://{'/' if slip[1].lower() == 'file' else ''}"
            # Possible secrets and control codes are not shown.
            is_plain = text.isprintable() and not {"@", "?"} & set(text)
            raise InputError(
                f"a remote that begins with {slip[1]}:/: did you mean {start}"
                f"{text[slip.end() :] if is_plain else '...'}? A folder of that name is ./{slip[1]}:"
            )
        return Location("file", "", str(Path(text).expanduser().absolute()))
    scheme = text.partition("://")[0].lower()
    if scheme not in _OPTIONS:
        raise InputError(
            f"remotes of the kind {scheme[:20]!r} are not known: expected a folder, or a URL that begins "
            f"with {', '.join(f'{known}://' for known in _OPTIONS)}"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InputError(f"a {scheme}:// URL that cannot be read: see to its brackets and its port") from None
    _refuse_secrets(scheme, parts.password is not None, parts.username, parts.query)
    if parts.fragment:
        raise InputError(f"a {scheme}:// URL with a '#': write %23 where it belongs to a name")
    path = unquote(parts.path).rstrip("/")
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise InputError(f"a {scheme}:// URL with an empty part, '.' or '..' in its path: leave it out")
    if not path.isprintable():
        raise InputError(f"a {scheme}:// URL with control codes in its path: leave them out")
    host = parts.hostname or ""
    if scheme == "file":
        if host not in ("", "localhost") or not path:
            raise InputError("a file:// URL needs a whole path and no server: file:///FOLDER")
        return Location("file", "", path)
    if scheme in ("s3", "gs"):
        # Unlike host names, names of buckets keep their capitals.
        host = parts.netloc.rpartition("@")[2]
        if not _BUCKET.fullmatch(host):
            raise InputError(f"a {scheme}:// URL needs the name of a bucket: {scheme}://BUCKET/FOLDER")
        port = None
    if not host:
        raise InputError(f"a {scheme}:// URL needs a server: {scheme}://SERVER/FOLDER")
    if scheme == "hf" and (host not in ("datasets", "models") or path.count("/") < 2):
        raise InputError("an hf:// URL needs a repository: hf://datasets/OWNER/NAME/FOLDER")
    return Location(scheme, host, path, parts.username, port, tuple(sorted(parse_qsl(parts.query))))


def _refuse_secrets(scheme: str, has_password: bool, user: str | None, query: str) -> None:
    # No part of the URL is shown: messages go to terminals and logs.
    remedy = {
        "s3": "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS or 'gcloud auth application-default login'",
        "sftp": "the ssh agent or ~/.ssh",
        "hf": "HF_TOKEN",
    }.get(scheme, "the environment")
    if has_password or (user is not None and scheme != "sftp"):
        raise InputError(
            f"a {scheme}:// URL with a name or password in it: URLs are stored and shown, so leave that out "
            f"and give it through {remedy}"
        )
    known = _OPTIONS[scheme]
    given = parse_qsl(query, keep_blank_values=True)
    if any(name not in known or "@" in value for name, value in given):
        expected = f"expected {', '.join(known)}" if known else "expected none"
        raise InputError(
            f"a {scheme}:// URL with an unknown option after the '?' ({expected}), or with '@' in the value "
            f"of one: credentials come from {remedy}"
        )


def open_place(location: Location) -> Place:
    """Return the place at ``location``; nothing is read there yet.

    Raises:
        InputError: if an option has a value that cannot be used.
        MissingExtraError: if the place needs a package that is not installed; the message names the extra.
    """
    if location.scheme == "file":
        return FolderPlace(Path(location.path))
    if location.scheme == "s3":
        return _s3(location)
    if location.scheme == "gs":
        return _gs(location)
    if location.scheme == "sftp":
        return SftpPlace(location.url, location.host, location.path, location.user, location.port)
    if location.scheme == "hf":
        return HubPlace(location.url, location.host, location.path.lstrip("/"))
    return WebPlace(location.url)


def _gs(location: Location) -> BucketPlace:
    anonymous = _is_anonymous(location)
    files, once = google_files(anonymous=anonymous), google_files(anonymous=anonymous, once=True)
    base = f"{location.host}{location.path}"
    return BucketPlace(location.url, files, base, deleting=once, errors=GoogleErrors())


def _is_anonymous(location: Location) -> bool:
    value = dict(location.options).get("anonymous")
    if value not in (None, "true"):
        raise InputError(
            f"{location.scheme}:// with another value of anonymous than true: give anonymous=true, or leave "
            "it out"
        )
    return value is not None


def _s3(location: Location) -> BucketPlace:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options, anonymous = dict(location.options), _is_anonymous(location)
    endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    scheme = options.get("scheme")
    if endpoint and "://" in endpoint:
        named, _, endpoint = endpoint.rstrip("/").partition("://")
        scheme = scheme or named.lower()
    if endpoint and "@" in endpoint:
        raise InputError(
            "the address of an S3 server with a name or password in it: leave that out of "
            "AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, and give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if scheme not in (None, "http", "https"):
        raise InputError("an s3:// URL with another scheme than http or https: give one of them, or none")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not endpoint:
        try:
            region = resolve_s3_region(location.host)
        except OSError:
            # The first request tells what is wrong.
            region = None

    def client(tries: int) -> S3FileSystem:
        return S3FileSystem(
            anonymous=anonymous,
            region=region,
            scheme=scheme or "https",
            endpoint_override=endpoint or None,
            request_timeout=_REQUEST_SECONDS,
            connect_timeout=_CONNECT_SECONDS,
            # Small objects are sent in one request instead of three.
            allow_delayed_open=True,
            # Otherwise small objects and deletions wait until all parts of a large one are sent.
            background_writes=False,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=tries),
        )

    return BucketPlace(location.url, client(3), f"{location.host}{location.path}", deleting=client(1))
