"""Arithmetic that gives the same bytes whatever the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numpy and torch compute on one thread inside the block.

    Several threads add up parts of a sum each, so their number decides how it is rounded.
    """
    threads = torch.get_num_threads()
    with threadpool_limits(1):
        # What torch brings along itself the limits do not reach.
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
