"""How far an examination has come, for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Called with the phase (``coverage``, ``vectors``, ``evaluation sets`` or ``overlap``), the rows of it that
were looked at so far, and the rows there are, 0 where nobody knows."""


class Meter:
    """Counts the rows of one phase and reports them, and that it begins.

    Args:
        phase: the phase's name.
        total: rows there are; 0 where nobody knows.
        on_progress: called at the beginning and at every step; None for nobody.
    """

    def __init__(self, phase: str, total: int, on_progress: OnProgress | None) -> None:
        self._phase, self._total, self._on_progress = phase, total, on_progress
        self._done = 0
        self.step(0)

    def step(self, rows: int) -> None:
        """Count ``rows`` more."""
        self._done += rows
        if self._on_progress is not None:
            self._on_progress(self._phase, self._done, self._total)
