"""From the URL of a remote to the place. Credentials come from the environment, never from the URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from embedcache.errors import InputError
from embedcache.share.places.amazon import amazon_place
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
# A folder may have such a name, but a URL with a missing slash or colon is likelier.
_LOOKALIKE = re.compile(rf"({'|'.join(_OPTIONS)})(?::/?|//)(?!/)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
# Characters of a path that have no other meaning in a URL.
_PLAIN = "/!$&'()*+,;=:@~"


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
        # Slashes and colons, as in HOST:PORT, have no other meaning there.
        options = f"?{urlencode(self.options, safe='/:')}" if self.options else ""
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
        if slip := _LOOKALIKE.match(text):
            start = f"{slip[1].lower()}://{'/' if slip[1].lower() == 'file' else ''}"
            # Possible secrets and control codes are not shown.
            is_plain = text.isprintable() and not {"@", "?"} & set(text)
            raise InputError(
                f"a remote that begins with {slip[0]}: did you mean {start}"
                f"{text[slip.end() :] if is_plain else '...'}? A folder of that name is ./{slip[0]}"
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
    if scheme == "sftp" and not path:
        raise InputError("an sftp:// URL needs the path of a folder: sftp://SERVER/FOLDER")
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
        InputError: if an option has a value that cannot be used, or a file is where the folder should be.
        MissingExtraError: if the place needs a package that is not installed; the message names the extra.
    """
    if location.scheme == "file":
        return FolderPlace(_folder(location.path))
    if location.scheme == "s3":
        base = f"{location.host}{location.path}"
        return amazon_place(location.url, base, dict(location.options), anonymous=_is_anonymous(location))
    if location.scheme == "gs":
        return _gs(location)
    if location.scheme == "sftp":
        return SftpPlace(location.url, location.host, location.path, location.user, location.port)
    if location.scheme == "hf":
        return HubPlace(location.url, location.host, location.path.lstrip("/"))
    return WebPlace(location.url)


def _folder(path: str) -> Path:
    """Return the path of a folder, which need not be there yet."""
    folder = Path(path)
    for part in (folder, *folder.parents):
        try:
            if part.is_dir():
                break
            if part.is_file():
                raise InputError(f"{part} is a file, and a remote is a folder: give the folder")
        except OSError as error:
            raise InputError(
                f"{part} cannot be looked at ({error.strerror}): see to the permissions of the folders above "
                "it, or give another folder"
            ) from error
    return folder


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
