"""Engine of many machines: actors of a Ray cluster, one per GPU, or one per machine without GPUs."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from embedcache.building.encode import BuildCounts
from embedcache.errors import InputError, MissingExtraError, WorkerError, first_line
from embedcache.parallel.window import Window
from embedcache.parallel.worker import Worker, WorkerSetup

T = TypeVar("T")

_CONNECT_SECONDS = 10.0


class RayEngine:
    """Actors of a Ray cluster; see ``embedcache.parallel.pool.Engine``.

    There are as many slots as the cluster has room for workers when the build begins. The actor of a lost
    machine waits until there is room for it again.

    Args:
        setup: setup of all workers.
        address: address of the cluster; default: ``RAY_ADDRESS``, else this machine alone.

    Raises:
        MissingExtraError: if Ray is not installed.
        WorkerError: if the cluster cannot be reached.
        InputError: if it has no room for a single worker.
    """

    def __init__(self, setup: WorkerSetup, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("engine ray needs Ray: pip install 'embedcache-distill[ray]'") from error
        self._ray, self._owns = ray, not ray.is_initialized()
        if self._owns:
            # By default Ray joins any cluster that runs on this machine, even that of another user.
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            try:
                host, _, port = address.rpartition("://")[2].rpartition(":")
                if host:  # Ray itself tries for minutes
                    socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise WorkerError(
                    f"cannot reach the Ray cluster {address} ({first_line(error)}): "
                    "start it, or give its address"
                ) from error
        self.losses: tuple[type[Exception], ...] = (
            ray.exceptions.RayActorError,
            ray.exceptions.OutOfMemoryError,
            ray.exceptions.ObjectLostError,
        )
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._places = _places(machines, setup)
        self.slots = len(self._places)
        self._class = ray.remote(_Actor)
        self._actors: dict[int, Any] = {}
        if not self._places:
            self.close()
            raise InputError("the Ray cluster has no room for a worker: give its nodes CPUs or GPUs")

    def start(self, slot: int) -> Future[None]:
        """Start an actor in a slot."""
        self._end(slot)
        needs, setup = self._places[slot]
        self._actors[slot] = self._class.options(**needs).remote()
        return self._future(self._actors[slot].load.remote(setup))

    def encode(self, slot: int, window: Window) -> Future[BuildCounts]:
        """Have an actor encode a window."""
        return self._future(self._actors[slot].encode.remote(window))

    def _future(self, reference: Any) -> Future[Any]:
        future: Future[Any] = reference.future()
        return future

    def result(self, future: Future[T]) -> T:
        """Return the result of a future, or raise the worker's error."""
        try:
            return future.result()
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def _end(self, slot: int) -> None:
        if slot in self._actors:
            self._ray.kill(self._actors.pop(slot))

    def close(self) -> None:
        """End all actors at once."""
        for slot in list(self._actors):
            self._end(slot)
        if self._owns:
            self._ray.shutdown()


def _places(
    machines: list[Mapping[str, float]], setup: WorkerSetup
) -> list[tuple[dict[str, float], WorkerSetup]]:
    """Return the resources of the cluster that each worker needs, and its setup."""
    encode = setup.encode
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    if gpus and encode.device != "cpu":
        # Ray shows an actor only the GPU that it was given.
        return [({"num_gpus": 1}, replace(setup, encode=replace(encode, device="cuda")))] * gpus
    places: list[tuple[dict[str, float], WorkerSetup]] = []
    for machine in machines:
        cores = int(machine.get("CPU", 0))
        threads = min(encode.threads or cores, cores)
        own = replace(setup, encode=replace(encode, device="cpu", threads=threads))
        places += [({"num_cpus": threads}, own)] * (cores // threads if threads else 0)
    return places


class _Actor:
    """Worker in an actor; it loads its teacher in a method, whose errors are passed on as they are."""

    def load(self, setup: WorkerSetup) -> None:
        self._worker = Worker(setup)

    def encode(self, window: Window) -> BuildCounts:
        return self._worker.encode(window)
