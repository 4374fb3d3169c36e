"""Progress of a command as one line: live on a terminal, every half minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from embedcache.cli.tables import size

_LINE_SECONDS = 30.0
_RATED_SECONDS = 0.1
"""A rate over less time means nothing."""
_MOST_SECONDS_LEFT = 100 * 24 * 3600.0
"""A longer forecast is none."""


@contextmanager
def ticker() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on standard error."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stderr)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=5, transient=True) as live:
            yield lambda line: live.update(Text(line, overflow="ellipsis", no_wrap=True))
        return
    last = time.monotonic()

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the log of a batch job

    yield show


@contextmanager
def watched(unit: str = "rows") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to be told what is being done, how many units are done and how many there are."""
    with ticker() as show:
        doing, since = "", 0.0

        def on_step(what: str, done: int, total: int) -> None:
            nonlocal doing, since
            if what != doing:
                doing, since = what, time.monotonic()
            show(progress_line(what, done, time.monotonic() - since, total, unit))

        yield on_step


def progress_line(what: str, done: int, seconds: float, total: int = 0, unit: str = "rows") -> str:
    """Return ``what done/total, rate, time left``; without a total there is no time left to tell.

    Of what has only just begun there is no rate yet.

    Where several things are done whose units differ, ``unit`` is empty.
    """
    unit = f" {unit}" if unit else ""
    whole = f"/{total:,}" if total else ""
    if seconds < _RATED_SECONDS:
        return f"{what} {done:,}{whole}{unit}"
    rate = done / seconds
    left = seconds_left(total - done, rate) if total else None
    shown = "" if left is None else f", {timedelta(seconds=round(left))} left"
    return f"{what} {done:,}{whole}{unit}, {rate:,.0f}{unit}/s{shown}"


def seconds_left(count: float, rate: float) -> float | None:
    """Return how long ``count`` more units take; None where the rate is too low to tell.

    Args:
        count: units that are left.
        rate: units a second.
    """
    return count / rate if count < rate * _MOST_SECONDS_LEFT else None


def bytes_line(what: str, done: int, total: int, seconds: float) -> str:
    """Return ``what done of total, rate, time left`` for numbers of bytes."""
    rate = done / max(seconds, 1e-9)
    left = seconds_left(max(total - done, 0), rate)
    shown = "" if left is None else f", {left:,.0f} s left"
    return f"{what} {size(done)} of {size(total)}, {size(rate)}/s{shown}"
