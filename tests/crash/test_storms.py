"""Storms: builds that are killed or fail again and again, each compared with an undisturbed build.

A short form runs always; ``--slow`` runs them in full.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from crashing import KILL, Storm, memory_folder

from embedcache.testing import sentences

MANY, FEW = 3000, 500
LONG = (pytest.mark.slow, pytest.mark.timeout(3600))

StormOf = Callable[..., Storm]


def cases(*short: tuple[object, ...], long: list[tuple[object, ...]]) -> list[object]:
    """Return parameters of a test, those of ``long`` for ``--slow`` only."""
    return [*short, *(pytest.param(*case, marks=LONG) for case in long)]


@pytest.fixture(scope="module")
def storm_of() -> Iterator[StormOf]:
    """Return a function that gives the storm over builds into a kind of store, one of each for all tests."""
    with memory_folder() as folder:

        @cache
        def make(store: str, overwrite: bool, rows: int) -> Storm:
            place, texts = folder / f"{store}-{overwrite}-{rows}", sentences(MANY, seed=11)[:rows]
            if not overwrite:
                # Duplicates among the rows: a build must not count them as lost.
                return Storm(place, [*texts, *texts[:100]], settings={"store": store})
            others = [*texts[: rows // 3], *sentences(rows // 3, seed=12, longest=5)]
            old = Storm(place.with_name(f"{place.name}-old"), others, settings={"store": store})
            return Storm(place, texts, old.cache, {"store": store, "overwrite": True})

        yield lambda store, overwrite=False, rows=MANY: make(store, overwrite, rows)


def break_the_index(cache: Path, generator: np.random.Generator) -> None:
    """Delete the derived index, cut it off, or change a byte of it."""
    folder = cache / "derived" / "index"
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if generator.random() < 0.3 or not files:
        shutil.rmtree(folder, ignore_errors=True)
        return
    victim = files[int(generator.integers(len(files)))]
    data = bytearray(victim.read_bytes())
    if generator.random() < 0.5:
        del data[len(data) // 2 :]
    elif data:
        data[int(generator.integers(len(data)))] ^= 0xFF
    victim.write_bytes(data)


@pytest.mark.parametrize(
    ("store", "overwrite", "kills"),
    cases(
        ("arrow", False, 5),
        ("lmdb", False, 3),
        ("arrow", True, 2),
        long=[("arrow", False, 90), ("lmdb", False, 60), ("arrow", True, 30), ("lmdb", True, 20)],
    ),
)
def test_killed_at_random_instants(storm_of: StormOf, store: str, overwrite: bool, kills: int) -> None:
    storm_of(store, overwrite).kill_at_random(kills)


@pytest.mark.parametrize(("store", "kills"), cases(("arrow", 2), long=[("arrow", 30), ("lmdb", 20)]))
def test_killed_while_the_index_is_deleted_or_damaged(storm_of: StormOf, store: str, kills: int) -> None:
    storm_of(store).kill_at_random(kills, meddle=break_the_index)


@pytest.mark.parametrize(("store", "kills"), cases(("arrow", 2), long=[("arrow", 40), ("lmdb", 40)]))
def test_four_builders_of_one_cache_killed_in_turn(storm_of: StormOf, store: str, kills: int) -> None:
    storm_of(store).kill_some_of(4, kills)


# Kills at write steps are in the gate, too.
@pytest.mark.parametrize(
    "fault",
    [pytest.param(KILL, marks=LONG), errno.ENOSPC, errno.EIO],
    ids=["kill", "full-disk", "io-error"],
)
@pytest.mark.parametrize(
    ("store", "overwrite", "every"),
    cases(
        ("arrow", False, False),
        ("lmdb", False, False),
        ("arrow", True, False),
        long=[(store, overwrite, True) for store in ("arrow", "lmdb") for overwrite in (False, True)],
    ),
)
def test_killed_or_failing_at_write_steps(
    storm_of: StormOf, store: str, overwrite: bool, every: bool, fault: int
) -> None:
    storm = storm_of(store, overwrite, FEW)
    some = np.random.default_rng(fault).choice(storm.one_of_each(seed=fault), 3, replace=False)
    storm.fail_at_steps(range(len(storm.steps)) if every else some.tolist(), fault)
