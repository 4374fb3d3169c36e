"""Trying again what a network has dropped, and saying so in the end."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from embedcache.check.findings import printable
from embedcache.errors import EmbedCacheError, RemoteError

T = TypeVar("T")

TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0

# Trying again would change nothing.
_REFUSED = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
    r"|EXPIRED_TOKEN|UNRECOGNIZED_CLIENT|HTTP status 40[013]|uthentication failed|not found in known_hosts"
    r"|No authentication methods|does not match: got|CERTIFICATE_VERIFY_FAILED"
)
_SHOWN = 300


def retrying(doing: str, where: str, act: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Return what ``act`` returns, trying again with growing pauses where it raises an ``OSError``.

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
    attempt = 1
    while True:
        try:
            return act()
        except (EmbedCacheError, FileNotFoundError):
            raise
        except OSError as error:
            # Much of it is what a server says, which may be anybody's.
            reason = printable(" ".join(str(error).split())[:_SHOWN]) or type(error).__name__
            refused = isinstance(error, PermissionError) or _REFUSED.search(reason) is not None
            if refused or attempt == TRIES or (stop is not None and stop.is_set()):
                raise _failed(doing, where, reason, attempt, refused=refused) from error
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
        # Many clients that were dropped at once must not all come back at once.
        pause *= 0.5 + random.random()  # noqa: S311 - no secret
        if stop is None:
            time.sleep(pause)
        else:
            stop.wait(pause)
        attempt += 1


def _failed(doing: str, where: str, reason: str, tries: int, *, refused: bool) -> RemoteError:
    # A place without a scheme is a folder, which no connection leads to.
    is_folder = "://" not in where
    culprit = "disk" if is_folder else "connection"
    remedy = (
        "see to the credentials, the permissions and the spelling of the URL"
        if refused
        else f"see to the {culprit} and run the same command again: what has arrived stays"
    )
    times = "once" if tries == 1 else f"{tries} times"
    return RemoteError(f"cannot {doing} of {where} (tried {times}): {reason}; {remedy}")
