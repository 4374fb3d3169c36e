"""``distill`` in separate processes: several that train together, and some that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ports import reserved_port

# Forked from a server that has everything imported, a child begins to train at once.
_PRELOADED = ["distill.training.train", "distill.cli.main", "accelerate", "sentence_transformers", "pytest"]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_PRELOADED)
KILLED = -signal.SIGKILL
_SLOW = 1.0
"""Seconds of a write that is slow."""


@dataclass(frozen=True)
class Command:
    """A command line of ``distill``, and when it is killed.

    Attributes:
        arguments: arguments of ``distill``.
        kill_at_step: the first process is killed before it writes the metrics of this step.
        kill_at_write: (file, number): it is killed at that write step, counted from 0, of files so called.
        slow_write: a file that is slow to write, so that others come in between where they do not wait; each
            writing adds a letter to ``PROCESS.txt.wrote`` beside what the process prints.
        lose_remote: (process, number): in this process a remote fails at that window, counted from 0.
    """

    arguments: Sequence[str]
    kill_at_step: int | None = None
    kill_at_write: tuple[str, int] | None = None
    slow_write: str | None = None
    lose_remote: tuple[int, int] | None = None


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _child(command: Command, process: int, processes: int, port: int, output: str) -> None:
    """Run a command as a launcher does."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if processes > 1:
        os.environ |= {
            "RANK": str(process),
            "LOCAL_RANK": str(process),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    os.environ["OMP_NUM_THREADS"] = "1"
    from distill.cli.main import main
    from distill.data.source import DistillSource
    from distill.training.tracking import Tracker
    from embedcache import fsio
    from embedcache.errors import RemoteError

    log, seen = Tracker.log, 0
    fetch, fetched = DistillSource.fetch, 0

    def fetch_or_fail(source: DistillSource, *arguments: Any) -> None:
        nonlocal fetched
        if command.lose_remote == (process, fetched):
            raise RemoteError("the remote is gone")
        fetched += 1
        fetch(source, *arguments)

    def logged(tracker: Tracker, step: int, values: dict[str, float]) -> None:
        if step == command.kill_at_step and process == 0:
            _kill()
        log(tracker, step, values)

    def written(step: str, path: Path) -> None:
        nonlocal seen
        if command.kill_at_write is not None and path.name == command.kill_at_write[0]:
            if seen == command.kill_at_write[1]:
                _kill()
            seen += 1
        if path.name == command.slow_write and step == "create":
            with Path(f"{output}.wrote").open("a") as mark:
                mark.write("x")
            time.sleep(_SLOW)

    fsio.on_write_step = written
    sys.argv = ["distill", *command.arguments]
    with (
        mock.patch.object(Tracker, "log", logged),
        mock.patch.object(DistillSource, "fetch", fetch_or_fail),
    ):
        main()


def launch(command: Command, outputs: Path, processes: int = 1) -> list[int]:
    """Run a command in ``processes`` processes and return their exit codes; their output is in ``outputs``.

    As a launcher does, end the others when one fails.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    with reserved_port() as port:
        children = [
            _FORKS.Process(
                target=_child, args=(command, process, processes, port, str(outputs / f"{process}.txt"))
            )
            for process in range(processes)
        ]
        for child in children:
            child.start()
        try:
            children[0].join(timeout=300)
            for child in children[1:]:
                if children[0].exitcode != 0:
                    child.kill()
                child.join(timeout=60)
        finally:
            for child in children:
                child.kill()
                child.join()
    return [child.exitcode if child.exitcode is not None else -1 for child in children]
