"""Engine of one machine: one process per device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from embedcache.building.encode import BuildCounts
from embedcache.parallel.window import Window
from embedcache.parallel.worker import Worker, WorkerSetup

T = TypeVar("T")
A = TypeVar("A")

# A forked process cannot use CUDA, nor PyTorch's threads.
_SPAWN = multiprocessing.get_context("spawn")


class ProcessEngine:
    """Processes of this machine; see ``embedcache.parallel.pool.Engine``.

    Each has an executor to itself, because an executor that loses a process is broken.

    Args:
        setups: setup of each worker.
    """

    losses: tuple[type[Exception], ...] = (BrokenProcessPool,)

    def __init__(self, setups: Sequence[WorkerSetup]) -> None:
        self.slots, self._setups = len(setups), setups
        self._pools: dict[int, tuple[ProcessPoolExecutor, Connection]] = {}

    def start(self, slot: int) -> Future[None]:
        """Start a process in a slot."""
        self._end(slot)
        theirs, ours = _SPAWN.Pipe(duplex=False)
        self._pools[slot] = ProcessPoolExecutor(1, _SPAWN, _end_with, (theirs,)), ours
        future = self._submit(slot, _load, self._setups[slot])
        theirs.close()
        return future

    def encode(self, slot: int, window: Window) -> Future[BuildCounts]:
        """Have a process encode a window."""
        return self._submit(slot, _encode, window)

    def _submit(self, slot: int, function: Callable[[A], T], argument: A) -> Future[T]:
        try:
            return self._pools[slot][0].submit(function, argument)
        except BrokenProcessPool as error:  # it ended since its last window
            future: Future[T] = Future()
            future.set_exception(error)
            return future

    def result(self, future: Future[T]) -> T:
        """Return the result of a future, or raise the worker's error."""
        return future.result()

    def _end(self, slot: int) -> None:
        if slot in self._pools:
            pool, connection = self._pools.pop(slot)
            connection.close()
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End all processes at once."""
        for _, connection in self._pools.values():
            connection.close()
        for slot in list(self._pools):
            self._end(slot)


def _end_with(connection: Connection) -> None:
    """End this process as soon as the other end of a pipe is closed, if only because its owner is gone."""

    def watch() -> None:
        connection.poll(None)
        os._exit(1)

    # Ctrl-C reaches every process of the terminal; the build handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


_loaded: list[Worker] = []


def _load(setup: WorkerSetup) -> None:
    _loaded.append(Worker(setup))


def _encode(window: Window) -> BuildCounts:
    return _loaded[0].encode(window)
