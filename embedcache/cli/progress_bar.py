"""Progress on standard error: a bar on a terminal, a line every half minute in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from embedcache.cli.tables import size
from embedcache.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

LOG_SECONDS = 30.0
_RATED_SECONDS = 0.1
"""A rate over less time means nothing."""
_MOST_SECONDS_LEFT = 100 * 24 * 3600.0
"""A longer forecast is none."""


class Meter:
    """Count of one phase, and the line that describes it."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Begin a phase; see :meth:`Progress.phase`."""
        self.name, self.total, self.unit, self.done, self.text = name, total, unit, 0, ""
        self._began = time.monotonic()

    def figures(self) -> str:
        """Return count, rate and time left as text."""
        if not self.done and not self.total:
            return self.text
        seconds = time.monotonic() - self._began
        whole = f"/{self._count(self.total)}" if self.total else ""
        parts = [f"{self._count(self.done)}{whole}{'' if self.unit == 'bytes' else ' ' + self.unit}"]
        if seconds >= _RATED_SECONDS and self.done:
            rate = self.done / seconds
            parts.append(f"{self._count(rate)}/s")
            if self.total and self.total >= self.done and self.total - self.done < rate * _MOST_SECONDS_LEFT:
                parts.append(f"{timedelta(seconds=round((self.total - self.done) / rate))} left")
        return ", ".join([*parts, *([self.text] if self.text else [])])

    def _count(self, count: float) -> str:
        return size(count) if self.unit == "bytes" else f"{count:,.0f}"


class BarProgress:
    """Progress as a bar of ``rich.progress``; a finished phase disappears.

    Args:
        bars: the bars shown on the terminal, started by the caller.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars, self._meter, self._lock = bars, Meter(), threading.Lock()
        self._task = bars.add_task("", visible=False, figures="")

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Begin a phase."""
        with self._lock:
            self._meter.begin(name, total, unit)
            self._bars.reset(self._task, description=name, total=total, visible=True, figures="")

    def advance(self, count: int = 1) -> None:
        """Count units that are done."""
        with self._lock:
            self._meter.done += count
            self._bars.update(self._task, completed=self._meter.done, figures=self._meter.figures())

    def note(self, text: str) -> None:
        """Show a text beside the count."""
        with self._lock:
            self._meter.text = text
            self._bars.update(self._task, figures=self._meter.figures())


class LineProgress:
    """Progress as a line of text.

    Args:
        show: receives the line whenever it has changed.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._meter, self._lock, self._show = Meter(), threading.Lock(), show

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        """Begin a phase."""
        with self._lock:
            self._meter.begin(name, total, unit)

    def advance(self, count: int = 1) -> None:
        """Count units that are done."""
        with self._lock:
            self._meter.done += count
            self._show(f"{self._meter.name} {self._meter.figures()}")

    def note(self, text: str) -> None:
        """Show a text beside the count."""
        with self._lock:
            self._meter.text = text


def _logged() -> Callable[[str], None]:
    """Return a function that prints at most a line every half minute."""
    last = time.monotonic()

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the log of a batch job

    return show


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a progress that is shown on standard error while the block lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield LineProgress(_logged())
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[figures]}"))
    with Bars(*columns, console=console, transient=True, refresh_per_second=5) as bars:
        yield BarProgress(bars)
