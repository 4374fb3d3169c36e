"""Processes forked from a server that has everything imported, so they begin to work within milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

FORKS = multiprocessing.get_context("forkserver")
# Where pandas is installed, pyarrow imports it with the first array that it makes of Python values.
_PRELOADED = ["pytest", "pandas", "pyarrow.compute", "duckdb", "rich.table", "everything"]


def preload(*modules: str) -> None:
    """Have the server import ``modules``; to be called where a module of tests is imported."""
    _PRELOADED.extend(modules)
    FORKS.set_forkserver_preload(_PRELOADED)


def start(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """Start a function in a separate process."""
    before = os.environ.get("PYTHONPATH")
    # The server finds modules of tests where this process does; it does not take over sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
