"""One build in a process that can be killed at any instant, and what is known of it afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from embedcache import fsio
from embedcache.builder import build
from embedcache.errors import EmbedCacheError
from embedcache.teacher.encoded import EncodedTexts
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher

# Forked from a server that has everything imported, a child begins to build within milliseconds. Where pandas
# is installed, pyarrow imports it with the first array that it makes of Python values.
_PRELOADED = ["pytest", "embedcache.builder", "embedcache.testing", "pyarrow.compute", "pandas", "lmdb"]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_PRELOADED)

KILL = 0
"""Stands where an errno stands, for a fault that kills the process."""

WriteEvent = tuple[str, str]
"""A named step of a write, and the file it concerns, relative to the cache."""


@dataclass(frozen=True)
class Order:
    """A build to run.

    Attributes:
        source: the file to build from.
        cache: the cache's folder.
        settings: further arguments of :func:`embedcache.build`.
        ledger: file of one counter, the rows encoded by all attempts at this order.
        fault_at: number of the write step to fail at, counted from 0; None lets the build run.
        fault: errno of the error raised there, or ``KILL``.
    """

    source: Path
    cache: Path
    settings: dict[str, Any]
    ledger: Path
    fault_at: int | None = None
    fault: int = KILL

    def failing(self, at: int, fault: int = KILL) -> Order:
        """Return this order with a fault at write step ``at``."""
        return replace(self, fault_at=at, fault=fault)

    @property
    def rows_encoded(self) -> int:
        """Rows that all attempts have encoded so far."""
        return int(_counter(self.ledger)[0])


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        killed: whether it was killed before it ended by itself.
        error: class of the error it ended with, or what else it came to; empty where it succeeded or was
            killed.
        message: what the error says.
        events: the write steps it took, where it ended by itself.
        seconds: from its first line to its end.
    """

    killed: bool = False
    error: str = ""
    message: str = ""
    events: tuple[WriteEvent, ...] = ()
    seconds: float = 0.0


def crash_teacher() -> Teacher:
    """Return the teacher all crash tests build with."""
    return fake_teacher(32)


class Attempt:
    """A running build in a process of its own."""

    def __init__(self, order: Order) -> None:
        _counter(order.ledger)
        self.connection, theirs = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_perform, args=(order, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.connection.recv()

    def end(self, after: float | None = None) -> Outcome:
        """Wait ``after`` seconds (default: for ever), kill what still runs, and return how it ended."""
        with self.connection, suppress(EOFError):
            if self.connection.poll(after):
                outcome: Outcome = self.connection.recv()
                self._process.join()
                return outcome
            self._process.kill()
        self._process.join()
        if self._process.exitcode == -signal.SIGKILL:
            return Outcome(killed=True)
        return Outcome(error=f"the process ended with exit code {self._process.exitcode}")


def attempt(order: Order, after: float | None = None) -> Outcome:
    """Run ``order``; kill it where it still runs ``after`` seconds later."""
    return Attempt(order).end(after)


class _CountingEncoder(FakeEncoder):
    def __init__(self, teacher: Teacher, ledger: Path) -> None:
        super().__init__(teacher)
        self._ledger = _counter(ledger)

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        # Into a shared mapping, before the work: no kill can lose the count.
        self._ledger[0] += len(texts)
        return super().encode(texts)


@dataclass
class _Steps:
    order: Order
    taken: list[WriteEvent] = field(default_factory=list)

    def __call__(self, step: str, path: Path) -> None:
        # An index that has no room in the cache is made in a temporary folder.
        if not path.is_relative_to(self.order.cache):
            return
        self.taken.append((step, path.relative_to(self.order.cache).as_posix()))
        if len(self.taken) - 1 != self.order.fault_at:
            return
        if self.order.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self.order.fault, os.strerror(self.order.fault))


def _perform(order: Order, answer: Connection) -> None:
    teacher = crash_teacher()
    encoder = _CountingEncoder(teacher, order.ledger)
    fsio.on_write_step = steps = _Steps(order)
    answer.send("started")
    began = time.perf_counter()
    error: EmbedCacheError | None = None
    try:
        build(order.source, teacher=teacher, encoder=encoder, cache=order.cache, **order.settings)
    except EmbedCacheError as found:
        error = found
    answer.send(
        Outcome(
            error=type(error).__name__ if error else "",
            message=str(error) if error else "",
            events=tuple(steps.taken),
            seconds=time.perf_counter() - began,
        )
    )


def _counter(ledger: Path) -> np.memmap[Any, np.dtype[np.int64]]:
    if not ledger.exists():
        ledger.write_bytes(bytes(8))
    return np.memmap(ledger, dtype=np.int64, mode="r+", shape=(1,))
