"""What a command in several steps is doing, each with its rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embedcache.cli.ticker import progress_line, ticker


@contextmanager
def watched() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to be told what is being done, how many rows of it are done and how many there are."""
    with ticker() as show:
        doing, since = "", 0.0

        def on_step(what: str, done: int, total: int) -> None:
            nonlocal doing, since
            if what != doing:
                doing, since = what, time.monotonic()
            show(progress_line(what, done, time.monotonic() - since, total))

        yield on_step
