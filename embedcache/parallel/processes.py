"""Engine of one machine: a process a device."""

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

from embedcache.errors import InputError
from embedcache.parallel.window import Window
from embedcache.parallel.worker import Done, Worker, WorkerSetup

T = TypeVar("T")
A = TypeVar("A")

# A forked process cannot use CUDA, nor PyTorch's threads.
_SPAWN = multiprocessing.get_context("spawn")


def parse_devices(text: str) -> list[str]:
    """Parse ``0,1``, ``cpu,cpu`` or ``all`` into names of PyTorch's devices.

    Raises:
        InputError: if a name is empty, or all GPUs are asked for and there are none.
    """
    import torch

    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        names = [str(number) for number in range(torch.cuda.device_count())]
    if not names or not all(names):
        found = "no GPU was found" if not names else "a name is empty"
        raise InputError(f"devices {text!r}: {found}; expected GPUs such as 0,1, or devices such as cpu,cpu")
    return [f"cuda:{name}" if name.isdigit() else name for name in names]


class Processes:
    """Processes of this machine; see :class:`embedcache.parallel.crew.Engine`.

    Each is the only one of a pool of its own: a pool that loses a process breaks.

    Args:
        setups: setup of each worker.
    """

    losses: tuple[type[Exception], ...] = (BrokenProcessPool,)

    def __init__(self, setups: Sequence[WorkerSetup]) -> None:
        self.seats, self._setups = len(setups), setups
        self._pools: dict[int, tuple[ProcessPoolExecutor, Connection]] = {}

    def start(self, seat: int) -> Future[None]:
        """Start a process in a seat."""
        self._end(seat)
        theirs, ours = _SPAWN.Pipe(duplex=False)
        self._pools[seat] = ProcessPoolExecutor(1, _SPAWN, _end_with, (theirs,)), ours
        future = self._submit(seat, _load, self._setups[seat])
        theirs.close()
        return future

    def encode(self, seat: int, window: Window) -> Future[Done]:
        """Have a process encode a window."""
        return self._submit(seat, _encode, window)

    def _submit(self, seat: int, function: Callable[[A], T], argument: A) -> Future[T]:
        try:
            return self._pools[seat][0].submit(function, argument)
        except BrokenProcessPool as error:  # it ended since its last window
            future: Future[T] = Future()
            future.set_exception(error)
            return future

    def result(self, future: Future[T]) -> T:
        """Return the result of a future, or raise the worker's error."""
        return future.result()

    def _end(self, seat: int) -> None:
        if seat in self._pools:
            pool, connection = self._pools.pop(seat)
            connection.close()
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """End all processes at once."""
        for _, connection in self._pools.values():
            connection.close()
        for seat in list(self._pools):
            self._end(seat)


def _end_with(connection: Connection) -> None:
    """End this process as soon as the other end of a pipe is closed, if only because its owner is gone."""

    def watch() -> None:
        connection.poll(None)
        os._exit(1)

    # Ctrl-C reaches every process of the terminal; the build decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


_loaded: list[Worker] = []


def _load(setup: WorkerSetup) -> None:
    _loaded.append(Worker(setup))


def _encode(window: Window) -> Done:
    return _loaded[0].encode(window)
