"""Builds that are killed, at any instant and at every step of every write, end as if they had not been."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from storm import FEW_ROWS, Report, Storm, one_of_each

from embedcache.fsio import WRITE_STEPS

STORES = ("arrow", "lmdb")
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]

StormOf = Callable[..., Storm]


@pytest.mark.parametrize(
    ("store", "replace", "kills"),
    [
        ("arrow", False, 5),
        ("lmdb", False, 3),
        ("arrow", True, 2),
        pytest.param("arrow", False, 90, marks=LONG),
        pytest.param("lmdb", False, 60, marks=LONG),
        pytest.param("arrow", True, 30, marks=LONG),
        pytest.param("lmdb", True, 20, marks=LONG),
    ],
)
def test_killed_at_random_instants(
    storm_of: StormOf, report: Report, store: str, replace: bool, kills: int
) -> None:
    storm_of(store, replace).kill_at_random(kills, seed=kills, report=report)
    assert report.kills == kills


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
    ("store", "kills"),
    [
        ("arrow", 2),
        pytest.param("arrow", 30, marks=LONG),
        pytest.param("lmdb", 20, marks=LONG),
    ],
)
def test_killed_while_the_index_is_deleted_or_damaged(
    storm_of: StormOf, report: Report, store: str, kills: int
) -> None:
    storm_of(store).kill_at_random(kills, seed=kills, report=report, meddle=break_the_index)
    assert report.kills == kills


@pytest.mark.parametrize("store", STORES)
def test_every_named_step_is_on_the_way_of_a_build(storm_of: StormOf, store: str) -> None:
    # Otherwise killing at each of them proves nothing about the others.
    taken = {step for step, _ in storm_of(store, False, FEW_ROWS).events}
    expected = set(WRITE_STEPS) - {"remove"}
    assert taken - {"remove"} == {step for step in expected if store == "lmdb" or "lmdb" not in step}
    assert "remove" in {step for step, _ in storm_of(store, True, FEW_ROWS).events}


@pytest.mark.parametrize(("store", "replace"), [("arrow", False), ("lmdb", False), ("arrow", True)])
def test_killed_at_a_few_write_steps(storm_of: StormOf, report: Report, store: str, replace: bool) -> None:
    storm = storm_of(store, replace, FEW_ROWS)
    chosen = one_of_each(storm.events, seed=1)
    storm.kill_at_steps(np.random.default_rng(2).choice(chosen, 3, replace=False), report)
    assert report.kills == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("replace", [False, True], ids=["new", "replace"])
@pytest.mark.parametrize("store", STORES)
def test_killed_at_every_write_step(storm_of: StormOf, report: Report, store: str, replace: bool) -> None:
    storm = storm_of(store, replace, FEW_ROWS)
    storm.kill_at_steps(range(len(storm.events)), report)
    assert report.kills == len(storm.events)


@pytest.mark.parametrize(
    ("store", "kills"),
    [
        ("arrow", 2),
        pytest.param("arrow", 40, marks=LONG),
        pytest.param("lmdb", 40, marks=LONG),
    ],
)
def test_four_builders_of_one_cache_killed_in_turn(
    storm_of: StormOf, report: Report, store: str, kills: int
) -> None:
    storm_of(store).kill_some_of(4, kills, seed=kills, report=report)
    assert report.kills == kills
