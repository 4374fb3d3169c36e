"""Trying again after a network error, and saying so while it takes long; the final error says how often."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from embedcache.check.findings import printable
from embedcache.errors import EmbedCacheError, RemoteError

T = TypeVar("T")
_LOGGER = logging.getLogger("embedcache")

TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
# Waits that are shorter are not told of, nor are those of the same place that follow one soon.
TOLD_AFTER_SECONDS = 3.0
_SELDOM_SECONDS = 5.0

# What a server says where another try would end alike.
_REFUSED = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
    r"|EXPIRED_TOKEN|UNRECOGNIZED_CLIENT|HTTP status 40[013]|uthentication failed|No authentication methods"
    r"|CERTIFICATE_VERIFY_FAILED"
)
# The answer of some servers to an upload that sends its checksum last.
_WANTS_LENGTH = re.compile(r"HTTP status 411|MissingContentLength")
# What clients say where no server listens, or there is none of that name.
_NOBODY = re.compile(
    r"Connection refused|Unable to connect to|Could(?: not|n't) (?:connect to server|resolve host)"
    r"|Failed to connect|No address associated|(?:Name or service|nodename nor servname).* not known"
    r"|All connection attempts failed|name resolution"
)
_NUMBER = re.compile(r"\[Errno [^\]]*\] ?")
_SHOWN, _TOLD = 300, 100


class RemediedError(OSError):
    """An error that is tried again, with what to do if that does not help.

    Args:
        what: what has happened.
        remedy: what to do about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


class RefusedError(RemediedError):
    """An error that is not tried again."""


class LaterError(RemediedError):
    """An error after which the server says how long to wait.

    Args:
        what: what has happened.
        remedy: what to do if it happens again and again.
        seconds: how long to wait before it is tried again.
    """

    def __init__(self, what: str, remedy: str, seconds: float) -> None:
        super().__init__(what, remedy)
        self.seconds = seconds


def shortened(text: str, most: int = _SHOWN) -> str:
    """Return ``text``; one of more than ``most`` letters is cut between words and gets an ellipsis."""
    if len(text) <= most:
        return text
    return f"{text[:most].rpartition(' ')[0] or text[:most]} …"


def retrying(doing: str, where: str, act: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Return what ``act`` returns, trying again with growing pauses where it raises an ``OSError``.

    Once that takes some seconds, a warning says so.

    Args:
        doing: what is being done, for the error: ``read objects/ab/cd…``.
        where: on which remote.
        act: what to do; it is begun anew each time.
        stop: once set, nothing is tried again.

    Raises:
        RemoteError: if it failed every time, or in a way that trying again does not help.
        FileNotFoundError: if what is asked for is not there.
        EmbedCacheError: whatever ``act`` raises of those.
    """
    attempt, began = 1, time.monotonic()
    while True:
        try:
            return act()
        except (EmbedCacheError, FileNotFoundError):
            raise
        except OSError as error:
            # The text comes from a server, which nobody vouches for.
            # Without the number and the file name that Python adds: a name stands in the message already.
            said = " ".join(_NUMBER.sub("", error.strerror or str(error)).split())
            reason = printable(shortened(said)) or type(error).__name__
            final = _final_remedy(error, said, where)
            if final or attempt == TRIES or (stop is not None and stop.is_set()):
                remedy = final or _remedy(error, said, where)
                raise _failed(doing, where, reason, attempt, remedy) from error
            asked = error.seconds if isinstance(error, LaterError) else 0.0
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
        # At random: clients that were dropped together must not come back together.
        pause = asked + pause * (0.5 + random.random())  # noqa: S311 - no secret
        if time.monotonic() - began + pause >= TOLD_AFTER_SECONDS:
            _waits.tell(where, f"try {attempt + 1} of {TRIES} to {doing} ({shortened(reason, _TOLD)})")
        if stop is None:
            time.sleep(pause)
        else:
            stop.wait(pause)
        attempt += 1


class _Waits:
    """Says which places are still waited for, as warnings of the logger ``embedcache``.

    Where nobody has configured logging, Python writes warnings to standard error.
    """

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def tell(self, where: str, what: str) -> None:
        """Say that ``where`` is waited for, unless that was said a moment ago: many threads may wait."""
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(where, -_SELDOM_SECONDS) < _SELDOM_SECONDS:
                return
            self._told[where] = now
        _LOGGER.warning("still waiting for %s: %s", where, what)


_waits = _Waits()


def _final_remedy(error: OSError, said: str, where: str) -> str:
    """Return what to do about an error that another try does not help; empty if it may help."""
    if isinstance(error, RefusedError):
        return error.remedy
    if _WANTS_LENGTH.search(said):
        return (
            "this server does not know AWS's newer checksums: set AWS_REQUEST_CHECKSUM_CALCULATION="
            "when_required and run the same command again"
        )
    if isinstance(error, NotADirectoryError):
        return "a part of the path is a file, not a folder: choose another folder"
    if isinstance(error, PermissionError) and not _has_server(where):
        return "see to the permissions of the folder, or give another one"
    if isinstance(error, PermissionError) or _REFUSED.search(said):
        return "see to the credentials, the permissions and the spelling of the URL"
    return ""


def _remedy(error: OSError, said: str, where: str) -> str:
    if isinstance(error, RemediedError):
        return error.remedy
    culprit = "connection" if _has_server(where) else "disk"
    if _NOBODY.search(said):
        culprit = "connection, to the server's name and port and that it runs,"
    return f"see to the {culprit} and run the same command again: what has arrived stays"


def _has_server(where: str) -> bool:
    """Return whether a place is on a server; one without a scheme is a folder."""
    return "://" in where


def _failed(doing: str, where: str, reason: str, tries: int, remedy: str) -> RemoteError:
    times = "once" if tries == 1 else f"{tries} times"
    return RemoteError(f"cannot {doing} of {where} (tried {times}): {reason}; {remedy}")
