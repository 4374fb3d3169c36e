"""Files of a corpus at URLs: buckets, SFTP, the web and the Hugging Face hub; read in pieces, not copied."""

from __future__ import annotations

import hashlib
import io
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from embedcache.errors import EmbedCacheError, InputError, MissingInputError
from embedcache.filesystems import (
    BUCKETS,
    PAUSE,
    RETRIED,
    SCHEMES,
    TRIES,
    open_filesystem,
    scheme_of,
    shortly,
    stat_of,
)

T = TypeVar("T")

_WEB, _SECONDS = ("http", "https"), 30
_TAGS = ("ETag", "etag", "content_md5", "md5Hash", "blob_id", "md5")
"""Names that clients have for a digest of a file."""


@dataclass(frozen=True)
class UrlFile:
    """File at a URL.

    Attributes:
        url: the URL.
    """

    url: str

    def __str__(self) -> str:
        """Return the URL, without what stands behind a question mark: it may hold a key."""
        return self.url.partition("?")[0]

    @property
    def path(self) -> PurePosixPath:
        """Its path, which has the endings."""
        return PurePosixPath(unquote(urlsplit(str(self)).path) or self.url)

    @property
    def name(self) -> str:
        """Its name without folders."""
        return self.path.name

    def open(self, *, ahead: int = 0) -> io.RawIOBase:
        """Open it for reading bytes; the stream is seekable if the server answers range requests.

        Args:
            ahead: bytes that are fetched ahead of a reader who goes from the beginning to the end.

        Raises:
            MissingInputError: if it is missing.
            InputError: if it cannot be read.
            MissingExtraError: if its client is not installed.
        """
        size = self.info().get("size")
        if size is not None and (scheme_of(self.url) not in _WEB or _serves_ranges(self.url)):
            return RangeFile(self, int(size), ahead)
        return _WholeFile(self, _call(self.url, lambda fs, place: fs.open(place, block_size=0)))

    def info(self) -> dict[str, Any]:
        """Return its client's description of it; errors as ``open``."""
        found: dict[str, Any] = _call(self.url, lambda fs, place: fs.info(place))
        return found

    def state(self) -> list[int] | None:
        """Return its size, time and tag as numbers, which change with its content; None where unknown."""
        info = self.info()
        known, tag = stat_of(info), next(filter(None, map(info.get, _TAGS)), None)
        if tag is None and known.time != known.time:
            return None
        whole = hashlib.sha256(f"{known.time} {tag}".encode()).hexdigest()
        return [known.bytes, int(whole[:15], 16)]


class _WholeFile(io.RawIOBase):
    """Stream of a file whose server does not support range requests: it is read once."""

    def __init__(self, file: UrlFile, stream: Any) -> None:
        self._file, self._stream = file, stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number.

        Raises:
            InputError: if the connection ends before the file does.
        """
        try:
            found = self._stream.read(len(buffer))
        except Exception as error:
            raise InputError(
                f"{self._file}: the connection ended before the file did ({shortly(error)}), and its server "
                "does not support range requests; run it again, or download the file and give that"
            ) from error
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        super().close()


class RangeFile(io.RawIOBase):
    """Seekable stream of a file at a URL; each read is one range request.

    Args:
        file: the file.
        size: its size in bytes.
        ahead: bytes to fetch ahead; 0 where ``fetch_ahead`` says which.
    """

    def __init__(self, file: UrlFile, size: int, ahead: int = 0) -> None:
        self._file, self._size, self._at, self._ahead = file, size, 0, ahead
        self._coming: dict[tuple[int, int], Future[bytes]] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the place on; return the number of bytes.

        Raises:
            InputError: if they cannot be read, or the server gives others.
        """
        first, last = self._at, min(self._at + len(buffer), self._size)
        if last <= first:
            return 0
        found = self._come(first, last)
        if found is None:
            found = self._fetch(first, last)
        buffer[: len(found)] = found
        self._at = last
        if self._ahead and last < self._size and not any(here <= last < end for here, end in self._coming):
            self.fetch_ahead([(last, min(last + self._ahead, self._size))])
        return len(found)

    def fetch_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch what is read next, in threads, and forget all else that was fetched.

        Args:
            ranges: first byte of each piece, and the one after its last.
        """
        old, pool = self._coming, _threads()
        self._coming = {one: old.get(one) or pool.submit(self._fetch, *one) for one in ranges}

    def _come(self, first: int, last: int) -> bytes | None:
        """Return bytes that were fetched ahead; None where they were not."""
        for (start, end), future in self._coming.items():
            if start <= first and last <= end:
                return future.result()[first - start : last - start]
        return None

    def _fetch(self, first: int, last: int) -> bytes:
        found: bytes = _call(self._file.url, partial(self._part_of, first=first, last=last))
        if len(found) != last - first:
            raise InputError(
                f"{self._file}: {len(found):,} bytes came where {last - first:,} were asked for: the file "
                "changed while it was read, or its server does not support range requests; download it, and "
                "give that"
            )
        return found

    def _part_of(self, fs: Any, place: str, first: int, last: int) -> bytes:
        found: bytes
        if scheme_of(self._file.url) != "sftp":
            found = fs.cat_file(place, start=first, end=last)
            return found
        with fs.open(place) as file:  # its client gives whole files otherwise
            file.seek(first)
            found = file.read(last - first)
            return found


def _serves_ranges(url: str) -> bool:
    """Return whether a web server answers a range request; a URL may be signed for GET alone."""
    request = urllib.request.Request(url, headers={"Range": "bytes=0-0"})  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return bool(answer.status == HTTPStatus.PARTIAL_CONTENT)
    except (OSError, ValueError):
        return False


def is_url(text: str) -> bool:
    """Return whether a source is named by a URL of a kind that can be read."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def find_files(url: str) -> list[UrlFile]:
    """Return the files that a URL names: itself, or those that match ``*``, ``**`` and ``[...]``, sorted.

    Raises:
        MissingInputError: if there is none.
        InputError: if it is a folder, holds a password, or cannot be read.
        MissingExtraError: if its client is not installed.
    """
    shown = url.partition("?")[0]
    scheme, parts = scheme_of(url), urlsplit(url)
    if parts.password is not None or (scheme != "sftp" and "@" in parts.netloc):
        raise InputError(f"a {scheme}:// URL with a password: credentials come from the environment")
    if parts.query and scheme not in _WEB and (scheme not in BUCKETS or parts.query != "anonymous=true"):
        raise InputError(f"{shown}: options behind a question mark, expected ?anonymous=true of a bucket")
    if not re.search(r"[*\[]", shown):
        if UrlFile(url).info().get("type") == "directory":
            raise InputError(f"{shown} is a folder; name its files, say '{shown.rstrip('/')}/**/*.parquet'")
        return [UrlFile(url)]
    found = _call(url, lambda fs, place: fs.glob(place, detail=True))
    names = sorted(name for name, info in found.items() if info.get("type") != "directory")
    if not names:
        raise MissingInputError(f"{shown} matches no file; check the URL")
    query = url[len(shown) :]
    return [UrlFile(f"{_url_of(name, url)}{query}") for name in names]


def _url_of(name: str, url: str) -> str:
    """Return the URL of a file that a filesystem names, beside the URL that it was found by."""
    scheme = scheme_of(url)
    if name.startswith(f"{scheme}://"):
        return name
    place = f"{urlsplit(url).netloc}/" if scheme == "sftp" else ""
    return f"{scheme}://{place}{name.lstrip('/')}"


def _call(url: str, act: Callable[[Any, str], T]) -> T:
    """Call a function with the filesystem of a URL and the place in it; try again where its client does not.

    Raises:
        MissingInputError, InputError: instead of the client's errors.
    """
    scheme = scheme_of(url)
    tries = TRIES if scheme in RETRIED else 1
    while True:
        tries -= 1
        try:
            fs, place = _opened(url)
            return act(fs, place)
        except EmbedCacheError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError):
                # The client of the web says so of a server that does not answer, too.
                if not isinstance(error.__cause__, OSError):
                    raise MissingInputError(
                        f"{url.partition('?')[0]} does not exist; check the URL"
                    ) from error
                error = error.__cause__
            if not tries:
                raise InputError(
                    f"{url.partition('?')[0]} cannot be read ({shortly(error)}); check the URL, the network, "
                    "and the credentials in the environment"
                ) from error
            _filesystem.cache_clear()
            time.sleep(PAUSE)


def _opened(url: str) -> tuple[Any, str]:
    """Return the filesystem of a URL, and the place of the file in it."""
    scheme = scheme_of(url)
    if scheme in _WEB:
        # The server reads what stands behind a question mark.
        parts = urlsplit(url)
        return _filesystem(f"{scheme}://{parts.netloc}")[0], url
    plain, _, query = url.partition("?")
    parts = urlsplit(plain)
    fs, _ = _filesystem(f"{scheme}://{parts.netloc}{'?' + query if query else ''}")
    path = unquote(plain.partition("://")[2])
    return fs, f"/{path.partition('/')[2]}" if scheme == "sftp" else path


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="source")


@lru_cache(maxsize=16)
def _filesystem(root: str) -> tuple[Any, str]:
    return open_filesystem(root)
