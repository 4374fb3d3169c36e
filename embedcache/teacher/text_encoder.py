"""Base of encoders: texts are processed ahead in batches, and results come in order.

While one window is being encoded, the next is prepared and the one before is written by the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from embedcache.teacher.batching import EncodeCounts, EncodedTexts

if TYPE_CHECKING:
    from embedcache.teacher.teacher import Teacher
    from embedcache.teacher.tokenize import FastTokenizer

_WINDOW = 16384
_WINDOWS_AHEAD = 2
_POLL_SECONDS = 0.2


class TextEncoder(ABC):
    """Teacher ready to encode.

    Attributes:
        teacher: the first teacher.
        teachers: the teacher of each output, from left to right.
        counts: work done so far.
        streams: batches that run at once.
        tokenizer: counts a text's tokens; None if they are not known.
    """

    teacher: Teacher
    teachers: tuple[Teacher, ...]
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
        self, windows: Iterable[Sequence[str]], on_wait: Callable[[], None] | None = None
    ) -> Generator[EncodedTexts, None, None]:
        """Encode windows of texts, working ahead.

        Vectors may hold NaN or infinity; the caller checks, because it knows the rows' names.

        Args:
            windows: the texts, a window at a time.
            on_wait: called a few times a second while a window is being encoded.

        Yields:
            The result of each window, in order.

        Raises:
            InputError: if the teacher does not take a text, such as a pair.
            TeacherError: if it cannot encode one.
        """
        source = iter(windows)
        forward_pool = ThreadPoolExecutor(self.streams, "forward", initializer=self.start_stream)
        tokenise_pool = ThreadPoolExecutor(1, "tokenise")
        ahead: deque[Future[tuple[EncodedTexts, set[Future[tuple[int, int]]]]]] = deque()
        try:
            while True:
                while len(ahead) < _WINDOWS_AHEAD and (texts := next(source, None)) is not None:
                    ahead.append(tokenise_pool.submit(self._start_window, texts, forward_pool))
                if not ahead:
                    return
                result, pending = ahead.popleft().result()
                while pending:
                    done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
                    for future in done:
                        rows, tokens = future.result()
                        self.counts.rows += rows
                        self.counts.tokens += tokens
                    if on_wait is not None:
                        on_wait()
                yield self._finish_window(result)
        finally:
            tokenise_pool.shutdown(cancel_futures=True)
            forward_pool.shutdown(cancel_futures=True)

    def start_stream(self) -> None:  # noqa: B027 - most need nothing
        """Prepare the calling thread for batches."""

    @abstractmethod
    def _start_window(
        self, texts: Sequence[str], pool: ThreadPoolExecutor
    ) -> tuple[EncodedTexts, set[Future[tuple[int, int]]]]:
        """Submit a window's batches, which write into its result and return their rows and tokens."""

    def _finish_window(self, result: EncodedTexts) -> EncodedTexts:
        """Return the result of a window whose batches are done."""
        return result
