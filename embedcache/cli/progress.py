"""Progress on standard error: a line kept up to date on a terminal, one every half minute in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from embedcache.cli.tables import size
from embedcache.progress import Progress

LOG_SECONDS = 30.0
_RATED_SECONDS = 0.1
"""A rate over less time means nothing."""


class LineProgress:
    """Progress as a line of text: phase, count, rate and time left.

    Args:
        show: receives the line whenever it has changed.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._lock, self._show = threading.Lock(), show
        self.phase("")

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Begin a phase."""
        with self._lock:
            self._name, self._total, self._unit, self._text = name, total, unit, ""
            self._done = self._skipped = 0
            self._began = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count units that are done."""
        with self._lock:
            self._done += count
            self._show(self._line())

    def skip(self, count: int) -> None:
        """Count units that took no work."""
        with self._lock:
            self._done += count
            self._skipped += count
            self._show(self._line())

    def note(self, text: str) -> None:
        """Show a text beside the count."""
        with self._lock:
            self._text = text
            self._show(self._line())

    def _line(self) -> str:
        seconds, parts = time.monotonic() - self._began, []
        if self._done or self._total:
            whole = f"/{self._count(self._total)}" if self._total else ""
            parts.append(f"{self._count(self._done)}{whole} {'' if self._unit == 'bytes' else self._unit}")
        worked = self._done - self._skipped
        if seconds >= _RATED_SECONDS and worked:
            rate, left = worked / seconds, (self._total or 0) - self._done
            parts.append(f"{self._count(rate)}/s")
            if self._total and left >= 0:
                parts.append(f"{timedelta(seconds=round(left / rate))} left")
        return f"{self._name} {', '.join(part.strip() for part in [*parts, self._text] if part)}"

    def _count(self, count: float) -> str:
        return size(count) if self._unit == "bytes" else f"{count:,.0f}"


@contextmanager
def show_lines() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on standard error, replacing the last one."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stderr)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=5, transient=True) as live:
            yield lambda line: live.update(Text(line, overflow="ellipsis", no_wrap=True))
        return
    last = time.monotonic()

    def log(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the log of a batch job

    yield log


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a progress that is shown on standard error while the block lasts."""
    with show_lines() as show:
        yield LineProgress(show)
