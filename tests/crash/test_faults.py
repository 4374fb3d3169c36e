"""Builds that meet a full disk or an I/O error say what to do, leave nothing half done, and go on later."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import full_disk
import numpy as np
import pytest
from soundness import snapshot
from storm import FEW_ROWS, Report, Storm, one_of_each

from embedcache.testing import sentences

FAULTS = pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (errno.ENOSPC, "make room and run the same command again"),
        (errno.EIO, "see to the disk and run the same command again"),
    ],
    ids=["full-disk", "input-output-error"],
)
STORES = pytest.mark.parametrize("store", ["arrow", "lmdb"])


@FAULTS
@STORES
def test_an_error_at_a_few_write_steps(
    storm_of: Callable[..., Storm], report: Report, store: str, fault: int, advice: str
) -> None:
    storm = storm_of(store, False, FEW_ROWS)
    chosen = one_of_each(storm.events, seed=fault)
    storm.fail_at_steps(np.random.default_rng(fault).choice(chosen, 3, replace=False), fault, advice, report)
    assert report.errors == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@FAULTS
@STORES
@pytest.mark.parametrize("replace", [False, True], ids=["new", "replace"])
def test_an_error_at_every_write_step(
    storm_of: Callable[..., Storm], report: Report, replace: bool, store: str, fault: int, advice: str
) -> None:
    storm = storm_of(store, replace, FEW_ROWS)
    storm.fail_at_steps(range(len(storm.events)), fault, advice, report)
    assert report.errors == len(storm.events)


def mounting_allowed(mount_point: Path) -> list[str]:
    """Return the words that let a command mount over ``mount_point``, or skip the test."""
    for words in (["unshare", "--map-root-user", "--mount"], ["unshare", "--mount"]):
        command = [*words, "mount", "-t", "tmpfs", "tmpfs", str(mount_point)]
        try:
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            pytest.skip("this system has no unshare, which mounting a small file system needs")
    pytest.skip("mounting a small file system is not allowed here")


@pytest.mark.parametrize("store", ["arrow", pytest.param("lmdb", marks=pytest.mark.slow)])
def test_a_small_file_system_that_fills_up(tmp_path: Path, store: str) -> None:
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    texts, source = sentences(6_000, seed=3), tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    full_disk.build_into(tmp_path / "undisturbed", source, store)
    expected = snapshot(tmp_path / "undisturbed")

    words = mounting_allowed(mount_point)
    command = [*words, sys.executable, full_disk.__file__, str(mount_point), str(source), store]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "the disk is full" in found["message"]
    assert "make room and run the same command again" in found["message"]
    assert "\n" not in found["message"]
    assert any("/shards/" in path or "vectors.mdb" in path for path in found["before"])
    assert expected.items() > found["before"].items()
    assert found["half_written"] == 0
    assert found["rows"] < len(texts)
    assert found["after"] == expected
