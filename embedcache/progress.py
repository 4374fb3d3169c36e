"""Progress of long work: the one protocol that every long function reports to."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receiver of progress; its methods may be called from several threads."""

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Begin a phase, which ends the one before it.

        Args:
            name: phase as shown, such as ``encode``.
            total: units to do; None where that is not known.
            unit: ``rows``, ``files``, ``bytes`` ...; bytes are shown as sizes.
        """

    def advance(self, count: int = 1) -> None:
        """Count units of the phase that are done."""

    def skip(self, count: int) -> None:
        """Count units that took no work; they do not enter the rate."""

    def note(self, text: str) -> None:
        """Show a short text beside the count, such as a rate of another unit; replaces the last one."""


class NoProgress:
    """Progress that is shown nowhere."""

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Ignore the phase."""

    def advance(self, count: int = 1) -> None:
        """Ignore the count."""

    def skip(self, count: int) -> None:
        """Ignore the count."""

    def note(self, text: str) -> None:
        """Ignore the text."""


NO_PROGRESS = NoProgress()
"""Default of every ``progress`` parameter."""
