"""A folder of a web server, read by its listing: the pages with links that servers make of folders."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from embedcache.share.places.base import Data, Stat

_TIMEOUT_SECONDS = 60
_LARGEST_LISTING = 64 << 20
_GONE = (404, 410)


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
        """Return the files that the page of ``folder`` links to; their sizes are not told there."""
        url = f"{self._of(folder)}/"
        try:
            with _opened(url) as answer:
                page = answer.read(_LARGEST_LISTING)
        except FileNotFoundError:
            return {}
        except HTTPException as error:
            raise OSError(f"the connection broke off ({type(error).__name__})") from error
        links = _Links()
        links.feed(page.decode("utf-8", "replace"))
        names = set()
        for link in links.found:
            # Servers link by name, by path or by whole URL; other pages are linked to as well.
            target = urljoin(url, link).partition("?")[0].partition("#")[0]
            rest = unquote(target.removeprefix(url)) if target.startswith(url) else ""
            if rest and "/" not in rest:
                names.add(rest)
        return {name: Stat(None) for name in names}

    def stat(self, path: str) -> Stat | None:
        """Return the size of a file."""
        try:
            with _opened(self._of(path), method="HEAD") as answer:
                length = answer.headers.get("Content-Length", "")
        except FileNotFoundError:
            return None
        return Stat(int(length) if length.isdecimal() else None)

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file."""
        try:
            with _opened(self._of(path)) as answer:
                while block := answer.read(size):
                    yield memoryview(block)
        except HTTPException as error:
            raise OSError(f"the connection broke off ({type(error).__name__})") from error

    def write(self, path: str, data: Data) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def remove(self, path: str) -> None:
        """Refuse."""
        raise PermissionError(f"{self.where} can only be read")

    def _of(self, path: str) -> str:
        return f"{self._url}/{quote(path)}" if path else self._url


def _opened(url: str, method: str = "GET") -> HTTPResponse:
    if urlsplit(url).scheme not in ("http", "https"):
        raise OSError("it is no web address")
    request = Request(url, method=method, headers={"Accept-Encoding": "identity"})  # noqa: S310 - see above
    try:
        answer: HTTPResponse | IO[bytes] = urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
    except HTTPError as error:
        error.close()
        if error.code in _GONE:
            raise FileNotFoundError(f"HTTP status {error.code}") from None
        raise OSError(f"HTTP status {error.code}") from None
    except HTTPException as error:
        raise OSError(f"the connection broke off ({type(error).__name__})") from error
    assert isinstance(answer, HTTPResponse)  # noqa: S101 - of these schemes it is nothing else
    return answer


class _Links(HTMLParser):
    """Collects where a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the target of a link."""
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
