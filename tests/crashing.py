"""Builds in separate processes, killed or failing at any write step, and the caches they must leave."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from building import build, content, leftovers, write_lines
from forks import FORKS, preload, start

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import EmbedCacheError
from embedcache.keys import key_array
from embedcache.probes import COUNT
from embedcache.teacher.batching import EncodedTexts
from embedcache.testing import FakeEncoder, fake_teacher

preload("crashing")

SHARD_ROWS = 128
KILL = 0
"""Stands where an errno stands, for a fault that kills the process."""

WriteStep = tuple[str, str]
"""A named step of a write, and the file it concerns, relative to the cache."""

Meddle = Callable[[Path, np.random.Generator], None]
"""Does something to a cache's derived files between two attempts."""


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield a folder for thousands of small files, in memory where there is such a place.

    A killed process loses nothing that it had handed to the system, so the disk would only slow this down.
    """
    memory = "/dev/shm"  # noqa: S108 - a new folder is made below it
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="storms-", dir=place) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Order:
    """A build to run.

    Attributes:
        source: the file to build from.
        cache: the cache's folder.
        settings: further arguments of the build.
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

    @property
    def rows_encoded(self) -> int:
        """Rows that all attempts have encoded so far."""
        return int(_counter(self.ledger)[0])


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt.

    Attributes:
        killed: True if it was killed before it ended by itself.
        error: class of the error it ended with; empty where it succeeded or was killed.
        message: message of the error.
        steps: the write steps it took, where it ended by itself.
        seconds: from its first line to its end.
    """

    killed: bool = False
    error: str = ""
    message: str = ""
    steps: tuple[WriteStep, ...] = ()
    seconds: float = 0.0


class Attempt:
    """A running build in a separate process."""

    def __init__(self, order: Order) -> None:
        self.connection, theirs = FORKS.Pipe(duplex=False)
        self._process = start(_perform, order, theirs)
        theirs.close()
        self.connection.recv()

    def end(self, after: float | None = None) -> Outcome:
        """Wait ``after`` seconds (default: for ever), kill what still runs, and return how it ended."""
        outcome = None
        with self.connection, suppress(EOFError):
            if self.connection.poll(after):
                outcome = self.connection.recv()
            else:
                self._process.kill()
        self._process.join()
        if outcome is None:
            assert self._process.exitcode == -signal.SIGKILL
            return Outcome(killed=True)
        assert isinstance(outcome, Outcome)
        return outcome


class _CountingEncoder(FakeEncoder):
    def __init__(self, ledger: Path) -> None:
        super().__init__(fake_teacher(32))
        self._ledger = _counter(ledger)

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        # Into a shared mapping, before the work: no kill can lose the count.
        self._ledger[0] += len(texts)
        return super().encode(texts)


def _perform(order: Order, answer: Connection) -> None:
    encoder, steps = _CountingEncoder(order.ledger), list[WriteStep]()

    def at_write_step(step: str, path: Path) -> None:
        # An index that has no room in the cache is made in a temporary folder.
        if not path.is_relative_to(order.cache):
            return
        steps.append((step, path.relative_to(order.cache).as_posix()))
        if len(steps) - 1 == order.fault_at:
            if order.fault == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(order.fault, os.strerror(order.fault))

    fsio.on_write_step = at_write_step
    answer.send("started")
    began, error, message = time.perf_counter(), "", ""
    try:
        build(order.source, order.cache, encoder.teacher, encoder=encoder, **order.settings)
    except EmbedCacheError as found:
        error, message = type(found).__name__, str(found)
    answer.send(Outcome(False, error, message, tuple(steps), time.perf_counter() - began))


def _counter(ledger: Path) -> np.memmap[Any, np.dtype[np.int64]]:
    if not ledger.exists():
        ledger.write_bytes(bytes(8))
    return np.memmap(ledger, dtype=np.int64, mode="r+", shape=(1,))


@dataclass
class Storm:
    """A build to disturb, and what has to come out of it all the same.

    Attributes:
        folder: folder of all files.
        texts: the rows to build.
        begin_with: a cache to begin with, whose corpus is replaced; None begins with nothing.
        settings: further arguments of the build.
        again: rows encoded more than once so far.
        steps: the write steps of the build that nothing disturbed.
        seconds: time of that build.
    """

    folder: Path
    texts: Sequence[str]
    begin_with: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    again: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        write_lines(self.folder / "source.txt", self.texts)
        order = self.order()
        outcome = Attempt(order).end()
        assert not outcome.error, outcome
        self.steps, self.seconds, self.cache = outcome.steps, outcome.seconds, order.cache
        self.expected, self._rows = content(order.cache), order.rows_encoded
        self._old = {} if self.begin_with is None else content(self.begin_with)
        assert self._vectors_of(order.cache) == len(self.texts)

    def order(self) -> Order:
        """Return an order to build into a cache that no attempt has touched yet."""
        number = next(n for n in count() if not (self.folder / f"ledger-{n}").exists())
        cache, ledger = self.folder / f"cache-{number}", self.folder / f"ledger-{number}"
        if self.begin_with is not None:
            shutil.copytree(self.begin_with, cache)
        settings = {"shard_rows": SHARD_ROWS, "name": "corpus", **self.settings}
        order = Order(self.folder / "source.txt", cache, settings, ledger)
        assert order.rows_encoded == 0
        return order

    def check(self, order: Order, before: dict[str, str]) -> dict[str, str]:
        """Assert that the cache is sound and has lost nothing of ``before``; return what it holds."""
        found = content(order.cache)
        for path, digest in before.items():
            # A corpus that is being replaced goes; a vector never does.
            if not path.startswith("corpora/") or self.begin_with is None:
                assert found.get(path) == digest, f"{path} was committed, and is gone or changed"
        for path, digest in found.items():
            kept_aside = path.replace(f"{fsio.TEMPORARY_PREFIX}replaced-", "")
            allowed = {self.expected.get(path), self._old.get(path), self._old.get(kept_aside)}
            assert digest in allowed, f"{path} is neither as it was nor as it has to be"
        if (order.cache / "cache.json").exists():
            opened = Cache(order.cache)
            assert len(opened.corpora()) == 1 or self.begin_with is None
            assert all(len(corpus.texts()) == len(corpus) for corpus in opened.corpora())
            if opened.teachers():
                self._vectors_of(order.cache)
        return found

    def finish(self, order: Order, blows: int | None = None) -> None:
        """Assert that the cache came out as if nothing had happened, and remove it.

        Where one builder was at work, it has encoded at most a shard again for each of the ``blows`` it got.
        """
        assert content(order.cache) == self.expected
        assert Cache(order.cache).corpus().texts() == list(self.texts)
        assert self._vectors_of(order.cache) == len(self.texts)
        again = order.rows_encoded - self._rows
        assert again >= 0
        assert blows is None or again <= blows * (SHARD_ROWS + 2 * COUNT)  # with probes of stored rows
        self.again += again
        shutil.rmtree(order.cache)  # hundreds of caches would fill the disk

    def kill_at_random(self, kills: int, meddle: Meddle | None = None) -> None:
        """Kill at instants drawn evenly over the time an undisturbed build takes, ``kills`` times in all."""
        generator, killed = np.random.default_rng(kills), 0
        while killed < kills:
            order, found, before, outcome = self.order(), dict[str, str](), killed, Outcome(killed=True)
            while outcome.killed:
                patience = generator.uniform(0, self.seconds) if killed < kills else None
                outcome = Attempt(order).end(patience)
                assert not outcome.error, outcome
                found = self.check(order, found)
                killed += outcome.killed
                if outcome.killed and meddle is not None:
                    meddle(order.cache, generator)
            self.finish(order, killed - before)

    def fail_at_steps(self, numbers: Iterable[int], fault: int = KILL) -> None:
        """Kill at each of the write steps, or raise an ``OSError`` there; every time in a new cache.

        A build that met an error leaves nothing half-written behind. Run again, a build ends as if nothing
        had happened.
        """
        for number in numbers:
            order, step = self.order(), self.steps[number]
            outcome = Attempt(replace(order, fault_at=number, fault=fault)).end()
            if fault == KILL:
                assert outcome.killed, f"nothing was killed at {step}: {outcome}"
            else:
                # A build may continue without a derived file and beside a file that nothing names any more.
                needless = not outcome.error and (step[1].startswith("derived/") or step[0] == "remove")
                assert needless or outcome.error == "StorageError", f"{step}: {outcome}"
                assert "\n" not in outcome.message
                assert leftovers(order.cache) == []
            found = self.check(order, {})
            outcome = Attempt(order).end()
            assert not outcome.error, outcome
            self.check(order, found)
            self.finish(order, 1)

    def kill_some_of(self, builders: int, kills: int) -> None:
        """Let ``builders`` work on one cache at once and kill one or the other, ``kills`` times in all."""
        generator, killed = np.random.default_rng(kills), 0
        while killed < kills:
            order, found = self.order(), dict[str, str]()
            running = [Attempt(order) for _ in range(builders)]
            while running:
                patience = generator.uniform(0, self.seconds / 2) if killed < kills else None
                ready = wait([one.connection for one in running], patience)
                done = [one for one in running if one.connection in ready]
                running = [one for one in running if one not in done]
                for one in done:
                    outcome = one.end()
                    assert not outcome.error, outcome
                    assert not outcome.killed
                if running and not done:
                    victim = running.pop(int(generator.integers(len(running))))
                    killed += victim.end(after=0).killed
                    found = self.check(order, found)
                    running.append(Attempt(order))
            self.check(order, found)
            self.finish(order)

    def one_of_each(self, seed: int) -> list[int]:
        """Return numbers of write steps, drawn by ``seed``: one of each step on each kind of file."""
        generator, kinds = np.random.default_rng(seed), dict[tuple[str, ...], list[int]]()
        for number, (step, path) in enumerate(self.steps):
            # Names differ from file to file; folders and endings tell what a file is.
            folders = [part for part in Path(path).parts[:-1] if len(part) < 32]
            kinds.setdefault((step, *folders, Path(path).suffix), []).append(number)
        return [int(generator.choice(numbers)) for numbers in kinds.values()]

    def _vectors_of(self, cache: Path) -> int:
        """Assert that the vectors of the texts are the teacher's, and return how many are there."""
        encoder = FakeEncoder(fake_teacher(32))
        store = Cache(cache).store(encoder.teacher.contract)
        positions = store.locate(key_array(self.texts))
        there = np.flatnonzero(positions >= 0)
        expected = encoder.encode(self.texts).vectors[there].astype(np.float16)
        np.testing.assert_array_equal(store.vectors(positions[there]), expected.astype(np.float32))
        return len(there)
