"""Workers of a build, and the windows of missing rows handed out to them.

The pool knows nothing of how workers are run: an engine starts them and carries windows to them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

from embedcache.building.encode import BuildCounts
from embedcache.corpus.corpus import Corpus
from embedcache.errors import WorkerError, first_line
from embedcache.missing import MissingRows
from embedcache.parallel.window import Window, Windows
from embedcache.progress import Progress

T = TypeVar("T")

WINDOW_SECONDS = 30.0
"""Time that a window should take: it is lost with its worker, and counted once it is done."""
PUSHED_SECONDS = 300.0
"""Seconds per window where workers push; each push lists the remote."""
MOST_LOSSES = 3
"""Workers that a slot may lose without finishing a window."""
_POLL_SECONDS = 1.0


class Engine(Protocol):
    """Slots, each for one worker at a time.

    Attributes:
        slots: number of slots.
        losses: errors of ``result`` that say that the worker ended.
    """

    slots: int
    losses: tuple[type[Exception], ...]

    def start(self, slot: int) -> Future[None]:
        """Start a worker in a slot, in place of one that ended; done when its teacher is loaded."""
        ...

    def encode(self, slot: int, window: Window) -> Future[BuildCounts]:
        """Have the worker in a slot encode and store a window."""
        ...

    def result(self, future: Future[T]) -> T:
        """Return the result of a future, or raise the worker's error."""
        ...

    def close(self) -> None:
        """End all workers at once."""
        ...


class WorkerPool:
    """Workers of a build; they start with the first rows to encode.

    Args:
        open_engine: opens the engine that runs the workers.
        shard_rows: rows per shard.
        window_seconds: time that a window should take.

    Raises:
        MissingExtraError, InputError, WorkerError: from ``encode``, if the engine cannot be opened.
    """

    def __init__(
        self, open_engine: Callable[[], Engine], shard_rows: int, window_seconds: float = WINDOW_SECONDS
    ) -> None:
        self._open_engine, self._shard_rows, self._window_seconds = open_engine, shard_rows, window_seconds
        self._engine: Engine | None = None
        # A worker without a window is starting.
        self._running: dict[Future[Any], tuple[int, Window | None]] = {}
        self._idle: list[int] = []
        self._losses: Counter[int] = Counter()
        self._rates: dict[int, float] = {}

    def encode(self, texts: Corpus, missing: MissingRows, encoded: BuildCounts, progress: Progress) -> None:
        """Have missing rows encoded and stored; ``encoded`` counts them.

        Raises:
            WorkerError: if no worker is left, or a window ends one worker after the other.
            EmbedCacheError: an error of a worker; see ``embedcache.building.encode.encode_missing``.
        """
        windows = Windows(texts, missing, self._shard_rows)
        progress.phase("encode", windows.left)
        began, tokens = time.perf_counter(), encoded.tokens
        if self._engine is None:
            self._engine = self._open_engine()
            self._running = {self._engine.start(slot): (slot, None) for slot in range(self._engine.slots)}
        engine = self._engine
        while windows.left or self._busy:
            while windows.left and self._idle:
                slot = self._idle.pop()
                taken = windows.take(self._rates.get(slot, 0.0) * self._window_seconds, engine.slots)
                self._running[engine.encode(slot, taken)] = slot, taken
            finished, _ = wait(self._running, _POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                slot, window = self._running.pop(future)
                try:
                    done: BuildCounts | None = engine.result(future)
                except engine.losses as error:
                    if window is not None:
                        windows.give_back(window, error)
                    self._replace(engine, slot, error)
                    continue
                self._idle.append(slot)
                if window is not None and done is not None:
                    self._losses[slot], self._rates[slot] = 0, len(window.rows) / done.seconds
                    _add(done, encoded)
                    progress.advance(len(window.rows))
            rate = (encoded.tokens - tokens) / (time.perf_counter() - began)
            progress.note(f"{rate:,.0f} tokens/s, {self._busy} of {engine.slots} workers")
        encoded.seconds += time.perf_counter() - began

    @property
    def _busy(self) -> int:
        return sum(window is not None for _, window in self._running.values())

    def _replace(self, engine: Engine, slot: int, error: BaseException) -> None:
        """Start another worker in a slot, unless it has lost too many."""
        self._losses[slot] += 1
        if self._losses[slot] < MOST_LOSSES:
            self._running[engine.start(slot)] = slot, None
        elif not (self._running or self._idle):
            raise WorkerError(
                f"no worker is left: each ended {MOST_LOSSES} times ({first_line(error)}). Stored vectors "
                "are intact; look at their memory and logs, and run the same command again"
            ) from error

    def close(self) -> None:
        """End all workers at once."""
        if self._engine is not None:
            self._engine.close()


def _add(done: BuildCounts, encoded: BuildCounts) -> None:
    encoded.rows += done.rows
    encoded.resumed += done.resumed
    encoded.truncated += done.truncated
    encoded.tokens += done.tokens
