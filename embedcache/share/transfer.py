"""Several transfers at once. The first that fails ends all of them, and so does Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from embedcache.transfer_defaults import THREADS

T = TypeVar("T")
U = TypeVar("U")

JOBS = 8
"""Transfers at once. Each holds a block, or maps a file, of some megabytes."""

PULL_PATIENCE_SECONDS = 2.0
"""How long an interrupted pull waits for its threads: what they leave behind is deleted by the next pull."""

_GLANCE_SECONDS = 0.2


class Stopped(Exception):  # noqa: N818 - no error: somebody else's error ended this
    """A transfer was given up because another has failed."""


def run_all(
    work: Callable[[T], None],
    items: Iterable[T],
    *,
    jobs: int,
    stop: threading.Event,
    patience: float | None = None,
) -> None:
    """Do ``work`` on every item, ``jobs`` at a time.

    Args:
        work: what to do; called from threads. It looks at ``stop`` now and then and raises :class:`Stopped`.
        items: what to do it on, in the order in which it is begun.
        jobs: how many threads.
        stop: set as soon as one fails, or this thread is interrupted.
        patience: after an interrupt, wait at most so many seconds for transfers that are under way; they end
            in the background. Default: wait until all threads have ended.

    Raises:
        Exception: the first error of ``work``, once all threads have ended.
        Stopped: if somebody else has set ``stop``.
    """
    waiting = list(items)
    if not waiting:
        return

    def act(item: T) -> None:
        if stop.is_set():
            raise Stopped
        work(item)

    pool = ThreadPoolExecutor(min(jobs, len(waiting)), thread_name_prefix=THREADS)
    futures: set[Future[None]] = set()
    try:
        futures = {pool.submit(act, item) for item in waiting}
        left = futures
        while left:
            # Not for ever: a thread that waits without end does not hear Ctrl-C everywhere.
            done, left = wait(left, timeout=_GLANCE_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
    except BaseException as error:
        stop.set()
        is_patient = patience is None or isinstance(error, Exception)
        pool.shutdown(wait=is_patient, cancel_futures=True)
        if not is_patient:
            wait([future for future in futures if not future.cancelled()], timeout=patience)
        if isinstance(error, Stopped):
            _raise_cause(futures)
        raise
    pool.shutdown()


def map_all(
    act: Callable[[T], U],
    items: Iterable[T],
    *,
    jobs: int,
    stop: threading.Event,
    patience: float | None = None,
) -> list[U]:
    """Return what ``act`` returns for each item, in order.

    Args:
        act: called from threads.
        items, jobs, stop, patience: as for :func:`run_all`.

    Raises:
        Exception, Stopped: as :func:`run_all`.
    """
    numbered = list(items)
    results: dict[int, U] = {}

    def keep(number: int) -> None:
        results[number] = act(numbered[number])

    run_all(keep, range(len(numbered)), jobs=jobs, stop=stop, patience=patience)
    return [results[number] for number in range(len(numbered))]


def _raise_cause(futures: Iterable[Future[None]]) -> None:
    """Raise the error that made the others stop, if it is one of these transfers'."""
    for future in futures:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, Stopped):
            raise error
