"""A disk that is really full, and a build with a real encoder, killed a few times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import building
import full_disk
import numpy as np
import pytest
from building import content, write_lines

from embedcache.testing import sentences

SHARD_ROWS, SHARDS, KILLS = 128, 150, 5
BUILD = f"""
import sys, embedcache
source, teacher, cache, store = sys.argv[1:]
options = embedcache.EncodeOptions(store=store, shard_rows={SHARD_ROWS}, compute_dtype="float32", threads=1)
print(embedcache.build(source, teacher=teacher, cache=cache, encode=options).result.encoded)
"""


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
    source = write_lines(tmp_path / "corpus.txt", sentences(6_000, seed=3))
    full_disk.build_into(tmp_path / "undisturbed", source, store)
    expected = content(tmp_path / "undisturbed")

    words = mounting_allowed(mount_point)
    command = [*words, sys.executable, full_disk.__file__, str(mount_point), str(source), store]
    paths = os.pathsep.join([str(Path(building.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert any("/shards/" in path or "vectors.mdb" in path for path in found["before"])
    assert expected.items() > found["before"].items()
    assert found["leftovers"] == []
    assert found["rows"] < 6_000
    assert found["after"] == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_a_real_encoder_is_killed_and_run_again(tmp_path: Path, tiny_teacher: Path, store: str) -> None:
    source = write_lines(tmp_path / "corpus.txt", sentences(SHARDS * SHARD_ROWS, seed=5))

    def command(cache: Path) -> list[str]:
        return [sys.executable, "-c", BUILD, str(source), str(tiny_teacher), str(cache), store]

    def run(cache: Path) -> int:
        return int(subprocess.run(command(cache), check=True, capture_output=True, text=True).stdout)

    def shards_of(found: dict[str, str]) -> int:
        return sum("/shards/" in path or "#" in path for path in found)

    assert run(tmp_path / "undisturbed") == SHARDS * SHARD_ROWS
    expected = content(tmp_path / "undisturbed")
    cache, generator, stored = tmp_path / "cache", np.random.default_rng(6), 0
    for _ in range(KILLS):
        process = subprocess.Popen(command(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Killing it while it loads would prove nothing.
        while process.poll() is None and shards_of(content(cache)) <= stored:
            time.sleep(0.02)
        time.sleep(generator.uniform(0, 0.3))
        process.kill()
        process.wait()
        found = content(cache)
        assert expected.items() >= found.items()
        assert shards_of(found) >= stored
        stored = shards_of(found)
    assert 0 < stored < SHARDS
    assert run(cache) == (SHARDS - stored) * SHARD_ROWS
    assert content(cache) == expected
