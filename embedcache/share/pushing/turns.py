"""How much of what is missing a push claims at once, and when it gives up some of that to others.

A push that nobody else needs anything of claims all, for planning takes time. If others want the same, each
claims a few seconds' work at a time, so that nobody waits for what somebody slow has claimed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from embedcache.share.pushing.selection import LocalObject
from embedcache.share.remote.claims import Claims

LOOK_SECONDS = 2.0
"""So often a push looks whether others wait; about as long is to be sent between two claims."""

_OBJECTS = 64
# A claim of 64 objects has 256 MiB at most.
_BYTES_AN_OBJECT = 4 << 20


class Turns:
    """The size of the claims of a push.

    Args:
        jobs: transfers at once; as many objects are claimed at least.
    """

    def __init__(self, jobs: int) -> None:
        self._least, self._objects = jobs, max(_OBJECTS, jobs)
        self._pause = LOOK_SECONDS
        self._seen: set[str] = set()
        self._is_awaited = False

    @property
    def is_shared(self) -> bool:
        """Whether others want some of the same objects, or may."""
        return bool(self._seen) or self._is_awaited

    @property
    def objects(self) -> int:
        """How many objects are claimed at most where others want some of them."""
        return self._objects

    def see(self, taken: Collection[str]) -> None:
        """Take in which of the missing objects others have claimed."""
        self._seen.update(taken)

    def in_order(self, objects: Iterable[LocalObject]) -> list[LocalObject]:
        """Return objects in the order in which all claim them: the largest first.

        Those that others had claimed come last: as a rule these have arrived.
        """
        return sorted(objects, key=lambda local: (local.sha256 in self._seen, -local.bytes, local.sha256))

    def choose(self, ordered: Iterable[LocalObject]) -> set[str]:
        """Return the digests of those that are to be claimed now, of objects that nobody has claimed."""
        chosen: set[str] = set()
        size = 0
        for local in ordered:
            size += local.bytes
            is_much = len(chosen) >= self._objects or size > self._objects * _BYTES_AN_OBJECT
            if self.is_shared and is_much and len(chosen) >= self._least:
                break
            chosen.add(local.sha256)
        return chosen

    def watch(self, claims: Claims) -> Callable[[], bool]:
        """Return what tells, asked before each object, whether the rest is to be left to others that wait."""
        looking = threading.Lock()
        next_look = time.monotonic() + (LOOK_SECONDS if self.is_shared else self._pause)
        is_awaited = False

        def ask() -> bool:
            nonlocal is_awaited, next_look
            with looking:
                if not is_awaited and time.monotonic() > next_look:
                    is_awaited = claims.is_awaited()
                    next_look = time.monotonic() + LOOK_SECONDS
                return is_awaited

        return ask

    def end(self, seconds: float, *, is_awaited: bool) -> None:
        """Take in how long it took to send what was claimed.

        Args:
            seconds: so long.
            is_awaited: whether a rest was left to others.
        """
        if not is_awaited and self.is_shared and seconds < LOOK_SECONDS:
            self._objects *= 2
        elif is_awaited and self.is_shared:
            self._objects = max(self._objects // 2, self._least)
        elif is_awaited:
            # Who waits may want something else, or be about to end.
            self._pause *= 2
        self._is_awaited = is_awaited
