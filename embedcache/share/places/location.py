"""From the URL of a remote to the place it means. Credentials come from the environment, never from it."""

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
# Folders of these names are possible, and slips of the pen likelier.
_ONE_SLASH = re.compile(rf"({'|'.join(_OPTIONS)}):/(?!/)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
# Letters of a path that mean nothing else in a URL.
_PLAIN = "/!$&'()*+,;=:@~"
_REQUEST_SECONDS, _CONNECT_SECONDS = 30.0, 10.0


@dataclass(frozen=True)
class Location:
    """What the URL of a remote says.

    Attributes:
        scheme: ``file``, ``s3``, ``gs``, ``sftp``, ``http``, ``https`` or ``hf``.
        host: bucket or server; for ``hf`` the kind of repository; empty for ``file``.
        path: the folder on it, without a slash at its end.
        user: whom to be on it, for ``sftp``.
        port: of the server, where it is given.
        options: what stands behind the question mark.
    """

    scheme: str
    host: str
    path: str
    user: str | None = None
    port: int | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """The URL, always spelled the same way; a plain path for ``file``."""
        if self.scheme == "file":
            return self.path
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{user}{self.host}{port}{quote(self.path, safe=_PLAIN)}{options}"


def parse_location(text: str) -> Location:
    """Return what ``text`` means: a URL, or the path of a folder.

    Raises:
        InputError: if it is of a kind that is not known, carries credentials, which must not be written down
            anywhere, or names no bucket or server.
    """
    if "://" not in text:
        if not text or "\0" in text:
            raise InputError("a remote needs a place: give a folder or a URL like s3://BUCKET/FOLDER")
        if slip := _ONE_SLASH.match(text):
            start = f"{slip[1].lower()}://{'/' if slip[1].lower() == 'file' else ''}"
            # What may be a secret is not repeated, nor what a terminal would obey.
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
            f"with {', '.join(f'{one}://' for one in _OPTIONS)}"
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
    # Nothing of what is refused may be repeated: it goes to terminals and logs.
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
            f"a {scheme}:// URL with other options behind the '?' than are known ({expected}), or with "
            f"a name and '@' in one: credentials come from {remedy}"
        )


def open_place(location: Location) -> Place:
    """Return the place at ``location``; nothing is looked up there yet.

    Raises:
        InputError: if an option has a value that cannot be used.
        MissingExtraError: if it needs a package that is not installed; it names the extra.
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
            f"{location.scheme}:// with another value of anonymous than true: give that, or leave it out"
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
            # Whatever is wrong shows at the first request.
            region = None

    def client(tries: int) -> S3FileSystem:
        return S3FileSystem(
            anonymous=anonymous,
            region=region,
            scheme=scheme or "https",
            endpoint_override=endpoint or None,
            request_timeout=_REQUEST_SECONDS,
            connect_timeout=_CONNECT_SECONDS,
            # What is small travels in one request instead of three.
            allow_delayed_open=True,
            # Else whatever is small, and deletions, wait behind all parts of what is large.
            background_writes=False,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=tries),
        )

    return BucketPlace(location.url, client(3), f"{location.host}{location.path}", deleting=client(1))
