"""The command itself, with a real encoder, killed a handful of times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from soundness import snapshot

from embedcache.store.containers import LmdbShards
from embedcache.testing import sentences

SHARD_ROWS, SHARDS = 128, 150
KILLS = 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_the_command_is_killed_and_run_again(tmp_path: Path, tiny_teacher: Path, store: str) -> None:
    texts, source = sentences(SHARDS * SHARD_ROWS, seed=5), tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")

    def command(cache: Path) -> list[str]:
        words = f"build {source} --cache {cache} --teacher {tiny_teacher} --store {store} --threads 1"
        settings = f"--compute-dtype float32 --shard-rows {SHARD_ROWS} --json"
        start = "from embedcache.cli.main import main; main()"
        return [sys.executable, "-c", start, *words.split(), *settings.split()]

    def run(cache: Path) -> dict[str, int]:
        done = subprocess.run(command(cache), check=True, capture_output=True, text=True)
        summary: dict[str, int] = json.loads(done.stdout)
        return summary

    assert run(tmp_path / "undisturbed")["encoded"] == len(texts)
    expected = snapshot(tmp_path / "undisturbed")

    cache, generator = tmp_path / "cache", np.random.default_rng(6)
    stored = 0
    for _ in range(KILLS):
        process = subprocess.Popen(command(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # Killing it while it loads would prove nothing.
            while process.poll() is None and shards_in(cache) <= stored:
                time.sleep(0.02)
            time.sleep(generator.uniform(0, 0.3))
        finally:
            process.kill()
            process.wait()
        found = snapshot(cache) if cache.exists() else {}
        assert expected.items() >= found.items()
        assert shards_in(cache) >= stored
        stored = shards_in(cache)
    summary = run(cache)
    assert 0 < stored < SHARDS
    assert summary["encoded"] == len(texts) - stored * SHARD_ROWS
    assert snapshot(cache) == expected


def shards_in(cache: Path) -> int:
    """Return how many shards have been committed."""
    inside = sum(len(LmdbShards(file).names()) for file in cache.glob("teachers/*/vectors.mdb"))
    return inside + len(list(cache.glob("teachers/*/shards/[0-9a-f]*.arrow")))
