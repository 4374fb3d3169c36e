"""Base of encoders: texts are processed ahead in batches, and results come in order.

While one window is being encoded, the next is prepared and the one before is written by the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.teacher.batching import EncodeCounts, EncodedTexts

if TYPE_CHECKING:
    from embedcache.teacher.teacher import Teacher
    from embedcache.teacher.tokenize import FastTokenizer

_WINDOW = 16384
_WINDOWS_AHEAD = 2
_POLL_SECONDS = 0.2


class BatchKeeper(Protocol):
    """Keeper of encoded batches, for a build that may be stopped in the middle of a window."""

    def find(self, texts: Sequence[str]) -> Vectors | None:
        """Return the vectors of a batch that was encoded before, float32 of shape (n, d); else None."""

    def add(self, texts: Sequence[str], encoded: EncodedTexts, batch: NDArray[np.int64]) -> None:
        """Take a batch that was encoded: the rows ``batch`` of a window and of its result."""


@dataclass(frozen=True)
class WindowPlan:
    """Window of texts, ready to encode.

    Attributes:
        result: receives the vectors.
        batches: row numbers of each batch.
        forward: encodes the rows of a batch into the result, from any thread; returns their tokens.
    """

    result: EncodedTexts
    batches: Sequence[NDArray[np.int64]]
    forward: Callable[[NDArray[np.int64]], int]


@dataclass(frozen=True)
class _Window:
    """Window in work; batches that are done leave ``running``."""

    texts: Sequence[str]
    result: EncodedTexts
    running: dict[Future[int], NDArray[np.int64]]


class TextEncoder(ABC):
    """Teacher ready to encode.

    Attributes:
        teacher: the teacher.
        counts: work done so far.
        streams: batches that run at once.
        tokenizer: counts a text's tokens; None if they are not known.
        canary: vectors of the canary's texts, float32 of shape (16, d); None for a model in this process.
    """

    canary: Vectors | None = None
    teacher: Teacher
    counts: EncodeCounts
    streams: int
    tokenizer: FastTokenizer | None

    @property
    @abstractmethod
    def provenance(self) -> dict[str, object]:
        """Settings and versions that may change a vector's last bits; recorded with every shard."""

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode texts at once; results in order."""
        starts = range(0, max(1, len(texts)), _WINDOW)
        parts = list(self.encode_windows(texts[start : start + _WINDOW] for start in starts))
        return EncodedTexts(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        on_wait: Callable[[], None] | None = None,
        keeper: BatchKeeper | None = None,
    ) -> Generator[EncodedTexts, None, None]:
        """Encode windows of texts, working ahead.

        Vectors may hold NaN or infinity; the caller checks, because it knows the rows' names.

        Args:
            windows: the texts, a window at a time.
            on_wait: called a few times a second while a window is being encoded.
            keeper: returns batches of an earlier run and receives each new batch; when the generator is
                closed, also the finished batches of unfinished windows.

        Yields:
            The result of each window, in order.

        Raises:
            InputError: if the teacher does not take a text, such as a pair.
            TeacherError: if it cannot encode one.
        """
        source = iter(windows)
        forward_pool = ThreadPoolExecutor(self.streams, "forward", initializer=self.start_stream)
        tokenise_pool = ThreadPoolExecutor(1, "tokenise")
        ahead: deque[Future[_Window]] = deque()
        try:
            while True:
                while len(ahead) < _WINDOWS_AHEAD and (texts := next(source, None)) is not None:
                    ahead.append(tokenise_pool.submit(self._start_window, texts, forward_pool, keeper))
                if not ahead:
                    return
                window = ahead[0].result()
                while window.running:
                    done, _ = wait(window.running, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
                    for future in done:
                        tokens = future.result()
                        batch = window.running.pop(future)
                        self.counts.rows += len(batch)
                        self.counts.tokens += tokens
                        if keeper is not None:
                            keeper.add(window.texts, window.result, batch)
                    if on_wait is not None:
                        on_wait()
                ahead.popleft()
                self.confirm()
                yield window.result
        finally:
            tokenise_pool.shutdown(cancel_futures=True)
            forward_pool.shutdown(cancel_futures=True)
            for started in ahead:
                if keeper is not None and not started.cancelled() and started.exception() is None:
                    _keep_done(started.result(), keeper)

    def start_stream(self) -> None:  # noqa: B027 - most need nothing
        """Prepare the calling thread for batches."""

    def confirm(self, *, retries: int | None = None) -> None:  # noqa: B027 - a model here does not change
        """Raise ``ContractMismatchError`` if the teacher is another one than at the start.

        Args:
            retries: tries after the first to reach a server; default: as for texts.
        """

    @abstractmethod
    def _plan_window(self, texts: Sequence[str]) -> WindowPlan:
        """Prepare a window; the batches depend on its texts alone."""

    def _start_window(
        self, texts: Sequence[str], pool: ThreadPoolExecutor, keeper: BatchKeeper | None
    ) -> _Window:
        """Submit the batches of a window that the keeper does not have."""
        plan, running = self._plan_window(texts), {}
        for batch in plan.batches:
            found = None if keeper is None else keeper.find([texts[row] for row in batch])
            if found is None:
                running[pool.submit(plan.forward, batch)] = batch
            else:
                plan.result.vectors[batch] = found
                self.counts.resumed += len(batch)
        return _Window(texts, plan.result, running)


def _keep_done(window: _Window, keeper: BatchKeeper) -> None:
    """Give the keeper the batches of an unfinished window that are encoded."""
    for future, batch in window.running.items():
        if not future.cancelled() and future.exception() is None:
            keeper.add(window.texts, window.result, batch)
