"""Progress of work that reports a step, units done and units in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embedcache.cli.progress import show_progress
from embedcache.progress import Progress


def steps(progress: Progress, unit: str = "rows") -> Callable[[str, int, int], None]:
    """Return a function of a step's name, units done and units in all (or 0) that reports to ``progress``."""
    step: tuple[str, int] | None = None
    before = 0

    def on_step(name: str, done: int, total: int) -> None:
        nonlocal step, before
        if step != (name, total):
            step, before = (name, total), 0
            progress.phase(name, total, unit)
        progress.advance(done - before)
        before = done

    return on_step


@contextmanager
def watched(unit: str = "rows") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function as of :func:`steps`, shown on standard error; ``unit`` is empty where units differ."""
    with show_progress() as progress:
        yield steps(progress, unit)
