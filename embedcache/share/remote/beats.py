"""Signs of life whose age cannot be told."""

from __future__ import annotations

import time


class AheadBeats:
    """The beats of other processes that are later than the last beat of this one.

    A clock that was set back leaves beats in the future, and the age of these tells nothing. Such a beat is a
    sign of life only as long as it changes: a process that runs writes it anew.
    """

    def __init__(self) -> None:
        # Mark -> the time of its beat, and when this was first seen by the clock of this process.
        self._seen: dict[str, tuple[float, float]] = {}
        self._changed: set[str] = set()

    def lives(self, mark: str, changed: float, limit: float) -> bool:
        """Return whether a process counts as alive.

        Args:
            mark: of the process.
            changed: when its beat was written, by the clock of the place.
            limit: so many seconds may pass until the beat changes.
        """
        now = time.monotonic()
        before, first_seen = self._seen.get(mark, (changed, now))
        if before != changed:
            first_seen = now
            self._changed.add(mark)
        self._seen[mark] = (changed, first_seen)
        return now - first_seen < limit

    def has_changed(self, mark: str) -> bool:
        """Return whether the beat of a process has changed since it was first seen: it was alive then."""
        return mark in self._changed
