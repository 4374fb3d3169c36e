"""Several transfers at once; the first that fails, or a Ctrl-C, ends them all without a trace of the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

JOBS = 8
"""Transfers at once. Each holds a block, or maps a file, of some megabytes."""

THREADS = "share"
"""What the names of the threads begin with: the command line waits for none of them after Ctrl-C."""

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
        patience: an interrupt waits for so many seconds at most for what is under way, which then goes on to
            its end behind everybody's back; default: until all threads have come to rest.

    Raises:
        The first error of ``work``, once all threads have come to rest.
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
            for one in done:
                one.result()
    except BaseException as error:
        stop.set()
        is_patient = patience is None or isinstance(error, Exception)
        pool.shutdown(wait=is_patient, cancel_futures=True)
        if not is_patient:
            wait([one for one in futures if not one.cancelled()], timeout=patience)
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
    """Return what ``act`` returns for each item, in order; otherwise as :func:`run_all`."""
    wanted = list(items)
    found: dict[int, U] = {}

    def keep(number: int) -> None:
        found[number] = act(wanted[number])

    run_all(keep, range(len(wanted)), jobs=jobs, stop=stop, patience=patience)
    return [found[number] for number in range(len(wanted))]


def _raise_cause(futures: Iterable[Future[None]]) -> None:
    """Raise the error on whose account others were given up."""
    for one in futures:
        found = None if one.cancelled() else one.exception()
        if found is not None and not isinstance(found, Stopped):
            raise found
