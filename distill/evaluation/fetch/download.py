"""Downloading one file: with retries, checked for being whole, by way of the environment's proxies."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distill.errors import FetchError
from embedcache import __version__
from embedcache.errors import StorageError
from embedcache.fsio import explain_os_error

ATTEMPTS = 4
SECONDS_WITHOUT_AN_ANSWER = 30.0

OnBytes = Callable[[int, int], None]
"""Called with the bytes that have come and all that will, 0 where the server does not say."""

_BLOCK = 1 << 16
# Everything else that a server refuses, it will refuse again.
_WORTH_ANOTHER_TRY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Download:
    """What came: sha256 and number of its bytes."""

    sha256: str
    size: int


class UnreachableError(FetchError):
    """No server answered: most often there is no network, or a proxy is needed."""


def download(
    url: str,
    target: Path,
    on_bytes: OnBytes = lambda done, total: None,
    attempts: int = ATTEMPTS,
    wait: Callable[[float], None] = time.sleep,
) -> Download:
    """Write what ``url`` answers to ``target``, which need not be whole if this fails.

    Proxies are those of the environment (``HTTPS_PROXY``, ``HTTP_PROXY``, ``NO_PROXY``).

    Args:
        url: an HTTP or HTTPS address.
        target: where to write; replaced if it is there.
        on_bytes: told how far it is.
        attempts: how often to try; the waits between are 1, 2, 4 ... seconds.
        wait: waits so many seconds.

    Raises:
        UnreachableError: if no server answered.
        FetchError: if the server refuses, or the transfer breaks off each time.
        StorageError: if ``target`` cannot be written.
    """
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"{url} is no HTTP address; correct the list of sources")
    for attempt in range(1, attempts + 1):
        try:
            return _try(url, target, on_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _WORTH_ANOTHER_TRY:
                raise FetchError(f"{url}: the server answered {error.code} {error.reason}") from error
            failure: Exception = FetchError(f"{url}: the server answered {error.code} {error.reason}")
        except urllib.error.URLError as error:
            failure = UnreachableError(f"{url}: no answer ({error.reason})")
        except StorageError:
            raise
        except (OSError, http.client.HTTPException) as error:
            # A transfer that was broken off: a reset, a timeout, fewer bytes than were promised.
            failure = FetchError(f"{url}: the transfer broke off ({error or type(error).__name__})")
        if attempt < attempts:
            wait(2.0 ** (attempt - 1))
    times = "once" if attempts == 1 else f"{attempts} times"
    raise type(failure)(f"{failure}, tried {times}") from failure


def _try(url: str, target: Path, on_bytes: OnBytes) -> Download:
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at above
        url, headers={"User-Agent": f"embedcache/{__version__}", "Accept-Encoding": "identity"}
    )
    digest, done = hashlib.sha256(), 0
    # Not urlopen, which goes on with the proxies of its first call.
    opener = urllib.request.build_opener()
    with (
        opener.open(request, timeout=SECONDS_WITHOUT_AN_ANSWER) as response,
        _written(target) as write,
    ):
        total = int(response.headers.get("Content-Length") or 0)
        on_bytes(0, total)
        while block := response.read(_BLOCK):
            write(block)
            digest.update(block)
            done += len(block)
            on_bytes(done, total)
    if total and done != total:
        raise http.client.HTTPException(f"{done:,} of {total:,} bytes came")
    return Download(digest.hexdigest(), done)


@contextmanager
def _written(target: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes to ``target``; that this fails must not look like a transfer that does."""
    try:
        handle = target.open("wb")
    except OSError as error:
        raise explain_os_error(error, target) from error

    def write(block: bytes) -> None:
        try:
            handle.write(block)
        except OSError as error:
            raise explain_os_error(error, target) from error

    with handle:
        yield write
