"""What a process sees of others in ``claims/``."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

_LOGGER = logging.getLogger("embedcache")


def marks_of(names: Iterable[str]) -> set[str]:
    """Return the marks of the processes that files in ``claims/`` are of."""
    return {name.partition(".")[0] for name in names}


@dataclass(frozen=True)
class Seen:
    """The names of the files in ``claims/``.

    Attributes:
        mine: files of this process.
        alive: files of other live processes.
        gone: files of processes that are gone.
        doubtful: marks of those that count as alive only because their beats lie in the future.
        silent: marks of those that delete, and count as alive though they gave no sign of life of late.
    """

    mine: frozenset[str]
    alive: tuple[str, ...]
    gone: tuple[str, ...]
    doubtful: frozenset[str]
    silent: frozenset[str]

    @property
    def deleting(self) -> tuple[str, ...]:
        """The files by which other live processes say that they delete."""
        return tuple(name for name in self.alive if name.endswith(".gc"))


class SilenceTeller:
    """Says of each process that deletes and is silent, once, how it can be done without.

    Args:
        where: the remote.
        folder: where their files lie in it.
        minutes: after so long without a sign of life it counts as gone.
    """

    def __init__(self, where: str, folder: str, minutes: float) -> None:
        self._where, self._folder, self._minutes = where, folder, minutes
        self._told: set[str] = set()

    def look(self, seen: Seen) -> None:
        """Tell of those that were not told of yet, as warnings of the logger ``embedcache``."""
        for name in seen.deleting:
            if marks_of([name]) <= seen.silent and name not in self._told:
                self._told.add(name)
                _LOGGER.warning(
                    "still waiting for %s: whoever has written %s/%s deletes there, and has given no sign of "
                    "life for a while; it counts as gone after %.0f minutes; if that process does not run "
                    "any more, delete this file to go on at once",
                    self._where,
                    self._folder,
                    name,
                    self._minutes,
                )
