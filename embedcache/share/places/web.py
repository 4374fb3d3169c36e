"""A folder of a web server, read by its listing: the pages with links that servers make of folders."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from embedcache.share.places.base import Data, RangesNotServedError, Stat

# A silent server is asked five times. All of that is to take about a minute.
_TIMEOUT_SECONDS = 10
# A server that sends a byte now and then never runs into the time limit of a connection.
SLOWEST_BYTES_A_SECOND, SLOW_SECONDS = 1000, 60.0
LARGEST_LISTING = 32 << 20
_READ_BYTES = 1 << 20
_GONE = (404, 410)
_PARTIAL = 206
# Only between two angle brackets and of limited length: a hostile page must not take long.
_LINK = re.compile(
    r"<a\b[^<>]{0,2000}?\bhref\s*=\s*(?:\"(?P<double>[^\"<>]*)\"|'(?P<single>[^'<>]*)'|(?P<bare>[^\s\"'<>]+))",
    re.IGNORECASE,
)


class WebPlace:
    """The files below ``url``, which cannot be written."""

    read_only = True

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    @property
    def where(self) -> str:
        """The URL."""
        return self._url

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the files that the page of ``folder`` links to; its links tell no sizes."""
        url = f"{self._of(folder)}/"
        page = bytearray()
        try:
            for block in _body(url, _READ_BYTES):
                page += block
                if len(page) > LARGEST_LISTING:
                    raise OSError(f"its listing has more than {LARGEST_LISTING:,} bytes")
        except FileNotFoundError:
            return {}
        names = {_name(url, link) for link in _links(page.decode("utf-8", "replace"))}
        return {name: Stat(None) for name in names if name}

    def below(self, folder: str) -> None:
        """Return None: folders are listed one by one."""

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return nothing: nothing is written there."""
        return {}

    def stat(self, path: str) -> Stat | None:
        """Return the size of a file."""
        try:
            with _opened(self._of(path), method="HEAD") as answer:
                return Stat(_length(answer))
        except FileNotFoundError:
            return None

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file."""
        yield from _body(self._of(path), min(size, _READ_BYTES))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file; the server has to give parts."""
        span = f"bytes={start}-{start + length - 1}"
        data = bytearray()
        for block in _body(self._of(path), _READ_BYTES, span) if length else ():
            data += block
            if len(data) > length:
                raise OSError(f"more than {length:,} bytes arrived")
        return bytes(data)

    def write(self, path: str, data: Data) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def remove(self, path: str) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def _of(self, path: str) -> str:
        return f"{self._url}/{quote(path)}" if path else self._url


def _body(url: str, size: int, span: str = "") -> Iterator[memoryview]:
    """Yield the content of a URL, at most ``size`` bytes at a time, as soon as they arrive.

    Args:
        url: the URL.
        size: bytes at a time.
        span: the part to ask for, as the header ``Range`` spells it; default: the whole.

    Raises:
        OSError: if less arrives than the server has promised, or it arrives too slowly.
        RangesNotServedError: if a part was asked for, and the server answers with the whole.
    """
    with _opened(url, span=span) as answer:
        if span and answer.status != _PARTIAL:
            raise RangesNotServedError(f"the server of {url} gives whole files alone")
        wanted, count = _length(answer), 0
        seconds, slow_bytes = 0.0, 0
        while True:
            began = time.monotonic()
            block = answer.read1(size)
            seconds += time.monotonic() - began
            if not block:
                break
            count += len(block)
            slow_bytes += len(block)
            if seconds > SLOW_SECONDS:
                if slow_bytes < seconds * SLOWEST_BYTES_A_SECOND:
                    raise OSError(f"too slow: {slow_bytes:,} bytes in {seconds:.0f} s")
                seconds, slow_bytes = 0.0, 0
            yield memoryview(block)
        if wanted is not None and count < wanted:
            raise OSError(f"the connection broke off ({count:,} of {wanted:,} bytes arrived)")


def _length(answer: HTTPResponse) -> int | None:
    """Return how many bytes an answer says that it has."""
    text = answer.headers.get("Content-Length", "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _links(page: str) -> Iterator[str]:
    for match in _LINK.finditer(page):
        yield html.unescape(next(link for link in match.groups() if link is not None))


def _name(url: str, link: str) -> str:
    """Return the name of the file directly below ``url`` that ``link`` leads to; empty without any."""
    try:
        # Servers link by name, by path or by whole URL.
        target = urljoin(url, link).partition("?")[0].partition("#")[0]
    except ValueError:
        return ""
    name = unquote(target.removeprefix(url)) if target.startswith(url) else ""
    return "" if "/" in name else name


class _Redirects(HTTPRedirectHandler):
    """Follows redirections to web addresses; from an encrypted address only to another encrypted one."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Return the request that follows a redirection."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new != "https" and (old, new) != ("http", "http"):
            # The rest of the address is not shown: there may be a key in it.
            raise PermissionError(f"it redirects from {old} to {new[:10]!r}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> IO[bytes] | None:
        """Follow a redirection without reading the rest of its answer, which may have no end."""
        fp.close()
        answer: IO[bytes] | None = super().http_error_302(req, fp, code, msg, headers)
        return answer

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


@contextmanager
def _opened(url: str, method: str = "GET", span: str = "") -> Iterator[HTTPResponse]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise OSError("it is no web address")
    headers = {"Accept-Encoding": "identity", **({"Range": span} if span else {})}
    request = Request(url, method=method, headers=headers)  # noqa: S310 - see above
    try:
        with build_opener(_Redirects).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            yield answer
    except HTTPError as error:
        error.close()
        if error.code in _GONE:
            raise FileNotFoundError(f"HTTP status {error.code}") from None
        raise OSError(f"HTTP status {error.code}") from None
    except URLError as error:
        cause = error.reason
        said = (isinstance(cause, OSError) and cause.strerror) or str(cause)
        raise OSError(f"the connection failed: {said}") from error
    except HTTPException as error:
        raise OSError(f"the connection broke off ({type(error).__name__})") from error
    except ValueError as error:
        # The address that it redirects to cannot be read.
        raise OSError("it redirects to what is no web address") from error
