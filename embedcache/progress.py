"""Progress of long work: the protocol that every long function reports to, and a line that shows it.

The line is on standard error: kept up to date on a terminal and in a notebook, a new one every half minute
in a log.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from embedcache.sizes import size

LOG_SECONDS = 30.0
_RATED_SECONDS, _NOTEBOOK_SECONDS = 0.1, 0.2
"""A rate over less time means nothing."""


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
            if name and total is None:  # nothing may be counted for minutes, as while a teacher is loaded
                self._show(self._line())

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

    if _is_notebook():
        with _rewritten() as rewrite:
            yield rewrite
        return
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
def _rewritten() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line over the last one; a cell needs no widgets for that."""
    width, last = 0, 0.0

    def show(line: str) -> None:
        nonlocal width, last
        if time.monotonic() - last >= _NOTEBOOK_SECONDS:
            last = time.monotonic()
            sys.stderr.write(f"\r{line[:150].ljust(width)}")
            sys.stderr.flush()
            width = max(width, len(line[:150]))

    try:
        yield show
    finally:
        sys.stderr.write(f"\r{' ' * width}\r")


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a progress that is shown on standard error while the block lasts."""
    with show_lines() as show:
        yield LineProgress(show)


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield the progress that a caller of the Python interface means.

    Args:
        progress: a progress; True: a line on standard error; False: none; None: a line on a terminal and in a
            notebook, where somebody watches.
    """
    if progress is None:
        progress = is_watched()
    if progress is False:
        yield NO_PROGRESS
    elif progress is True:
        with show_progress() as line:
            yield line
    else:
        yield progress


def is_watched() -> bool:
    """Return True where standard error is a terminal or the output of a notebook's cell."""
    return _is_notebook() or sys.stderr.isatty()


def _is_notebook() -> bool:
    # The kernel's own stream; a process that only imports IPython has another.
    return type(sys.stderr).__module__.startswith("ipykernel.")
