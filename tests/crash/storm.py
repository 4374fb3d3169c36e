"""Storms: builds that are killed or fail again and again, each compared with one that nothing disturbed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import click
import numpy as np
from builds import Attempt, Order, WriteEvent, attempt
from soundness import Snapshot, assert_complete, assert_sound, leftovers, snapshot

from embedcache.cache import Cache

SHARD_ROWS = 128
FEW_ROWS = 500
"""Enough for several shards where a storm passes over every step: all shards are written alike."""

Meddle = Callable[[Path, np.random.Generator], None]
"""Does something to a cache's derived files between two attempts."""


@dataclass
class Report:
    """What a storm did.

    Attributes:
        what: its name.
        kills: processes killed.
        errors: attempts that failed with an error.
        builds: caches brought to their end.
        again: rows encoded more than once.
    """

    what: str
    kills: int = 0
    errors: int = 0
    builds: int = 0
    again: int = 0
    _began: float = field(default_factory=time.perf_counter)

    def show(self) -> None:
        """Print the storm's summary line."""
        click.echo(
            f"\n{self.what}: {self.kills} kills, {self.errors} errors, {self.builds} builds finished, "
            f"{self.again} rows encoded again, {time.perf_counter() - self._began:.1f} s"
        )


class Storm:
    """A build to disturb, and what has to come out of it all the same.

    Args:
        folder: where everything is written.
        texts: the rows to build.
        begin_with: a cache to begin with, whose corpus is replaced; None begins with nothing.
        settings: further arguments of :func:`embedcache.build`.

    Attributes:
        events: the write steps of the build that nothing disturbed.
        seconds: how long that build took.
    """

    def __init__(
        self, folder: Path, texts: Sequence[str], *, begin_with: Path | None = None, **settings: Any
    ) -> None:
        self.texts = texts
        self._folder, self._begin_with = folder, begin_with
        self._settings = {"shard_rows": SHARD_ROWS, "name": "corpus", **settings}
        folder.mkdir(parents=True)
        self._source = folder / "source.txt"
        self._source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        # What a file looks like that has just been written no build notes; all builds have to do the same.
        os.utime(self._source, (1, 1))
        order = self.order()
        outcome = attempt(order)
        assert not outcome.error, outcome
        assert_complete(order.cache, texts)
        self.events: tuple[WriteEvent, ...] = outcome.events
        self.seconds = outcome.seconds
        self.cache = order.cache
        self._reference, self._rows = snapshot(order.cache), order.rows_encoded
        self._old = {} if begin_with is None else snapshot(begin_with)

    def order(self) -> Order:
        """Return an order to build into a cache that no attempt has touched yet."""
        number = next(n for n in count() if not (self._folder / f"ledger-{n}").exists())
        cache = self._folder / f"cache-{number}"
        if self._begin_with is not None:
            shutil.copytree(self._begin_with, cache)
        order = Order(self._source, cache, self._settings, self._folder / f"ledger-{number}")
        assert order.rows_encoded == 0
        return order

    def check(self, order: Order, before: Snapshot) -> Snapshot:
        """Assert that the cache is sound and has lost nothing of ``before``; return what it holds."""
        found = snapshot(order.cache)
        for path, digest in before.items():
            # A corpus that is being replaced goes; a vector never does.
            if not path.startswith("corpora/") or self._begin_with is None:
                assert found.get(path) == digest, f"{path} was committed, and is gone or changed"
        for path, digest in found.items():
            allowed = {self._reference.get(path), self._old.get(path), self._old.get(_as_it_was(path))}
            assert digest in allowed, f"{path} is neither as it was nor as it has to be"
        if self._begin_with is not None:
            # One of the two, whole: what it is made of has just been checked.
            assert len(Cache(order.cache).corpora()) == 1
        assert_sound(order.cache, self.texts)
        return found

    def finish(self, order: Order, report: Report, blows: int | None = None) -> None:
        """Assert that the cache came out as if nothing had happened.

        Where one builder was at work, it has encoded at most a shard again for each of the ``blows`` it got.
        """
        assert snapshot(order.cache) == self._reference
        assert_complete(order.cache, self.texts)
        again = order.rows_encoded - self._rows
        assert again >= 0
        assert blows is None or again <= blows * SHARD_ROWS
        report.builds += 1
        report.again += again
        # Hundreds of caches would fill the disk.
        shutil.rmtree(order.cache)

    def kill_at_random(self, kills: int, seed: int, report: Report, meddle: Meddle | None = None) -> None:
        """Kill at instants drawn evenly over the time an undisturbed build takes, ``kills`` times in all."""
        generator = np.random.default_rng(seed)
        while report.kills < kills:
            order, found, killed_before = self.order(), Snapshot(), report.kills
            while True:
                enough = report.kills >= kills
                outcome = attempt(order, None if enough else generator.uniform(0, self.seconds))
                assert not outcome.error, outcome
                found = self.check(order, found)
                if not outcome.killed:
                    break
                report.kills += 1
                if meddle is not None:
                    meddle(order.cache, generator)
            self.finish(order, report, report.kills - killed_before)

    def kill_at_steps(self, steps: Iterable[int], report: Report) -> None:
        """Kill at each of the write steps with the given numbers, every time in a cache of its own."""
        for step in steps:
            order = self.order()
            outcome = attempt(order.failing(step))
            assert outcome.killed, f"nothing was killed at {self.events[step]}: {outcome}"
            found = self.check(order, {})
            outcome = attempt(order)
            assert not outcome.error, outcome
            self.check(order, found)
            report.kills += 1
            self.finish(order, report, 1)

    def fail_at_steps(self, steps: Iterable[int], fault: int, advice: str, report: Report) -> None:
        """Raise an ``OSError`` at each of the write steps: the build says ``advice``, and is run again."""
        for step in steps:
            order = self.order()
            outcome = attempt(order.failing(step, fault))
            derived = self.events[step][1].startswith("derived/")
            # A build may go on without a file that can be made again at any time, and without no other.
            assert derived or outcome.error == "StorageError", f"{self.events[step]}: {outcome}"
            if outcome.error:
                assert advice in outcome.message, f"{self.events[step]}: {outcome.message}"
            assert leftovers(order.cache) == []
            found = self.check(order, {})
            outcome = attempt(order)
            assert not outcome.error, outcome
            self.check(order, found)
            report.errors += 1
            self.finish(order, report, 1)

    def kill_some_of(self, builders: int, kills: int, seed: int, report: Report) -> None:
        """Let ``builders`` work on one cache at once and kill one or the other, ``kills`` times in all."""
        generator = np.random.default_rng(seed)
        while report.kills < kills:
            order, found = self.order(), Snapshot()
            running = [Attempt(order) for _ in range(builders)]
            while running:
                patience = None if report.kills >= kills else generator.uniform(0, self.seconds / 2)
                ready = wait([one.connection for one in running], patience)
                done = [one for one in running if one.connection in ready]
                running = [one for one in running if one not in done]
                for one in done:
                    outcome = one.end()
                    assert not outcome.error, outcome
                    assert not outcome.killed
                if running and not done:
                    victim = running.pop(int(generator.integers(len(running))))
                    report.kills += victim.end(after=0).killed
                    found = self.check(order, found)
                    running.append(Attempt(order))
            self.check(order, found)
            self.finish(order, report)


def _as_it_was(path: str) -> str:
    """Return the name that a file kept aside had before."""
    return path.replace(".tmp-replaced-", "")


def one_of_each(events: Sequence[WriteEvent], seed: int) -> list[int]:
    """Return the numbers of some write steps, drawn by ``seed``: one of each step on each kind of file."""
    generator = np.random.default_rng(seed)
    kinds: dict[tuple[str, ...], list[int]] = {}
    for number, (step, path) in enumerate(events):
        kinds.setdefault((step, *_kind(path)), []).append(number)
    return [int(generator.choice(numbers)) for numbers in kinds.values()]


def _kind(path: str) -> tuple[str, ...]:
    # Names differ from file to file; folders and endings tell what a file is.
    parts = Path(path).parts
    return (*(part for part in parts[:-1] if len(part) < 32), Path(path).suffix)
