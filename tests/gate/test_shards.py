"""Commands on a cache of many small shards: open files and maps stay few, and nothing is called damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from building import build, write_lines
from gate_helpers import benchmark, load_benchmark

from embedcache.cache import Cache
from embedcache.keys import key_array
from embedcache.querying import tables
from embedcache.share.files import Selection, local_teachers
from embedcache.store import store as store_module
from embedcache.testing import FakeEncoder, fake_teacher, sentences

SCRIPT = benchmark("shards")
SHARDS, FILES = 1_500, 128
LONGER = ("copy", "gc of all vectors", "push again", "pull again", "repair")
"""Commands that only the slow test runs."""
FEW = 16
TEXTS = sentences(400)


def test_every_command_with_few_open_files(tmp_path: Path) -> None:
    shards = load_benchmark("shards")
    setting = shards.Setting(str(tmp_path), SHARDS, FILES)
    phases = [name for name in shards.PHASES if name not in LONGER]
    command = [sys.executable, SCRIPT, "--setting", json.dumps(asdict(setting)), "--phase", *phases]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "damaged" not in done.stdout
    for check in shards.CHECKS.values():
        check(setting)
    # The one shard that was damaged on purpose.
    quarantine = setting.path("cache") / "derived" / "quarantine"
    assert len([path for path in quarantine.rglob("*") if path.is_file()]) == 1


@pytest.fixture
def many(tmp_path: Path) -> Cache:
    """A cache of a shard for every two texts."""
    return build(
        write_lines(tmp_path / "texts.txt", TEXTS), tmp_path / "cache", fake_teacher(8), shard_rows=2
    )


@pytest.fixture
def few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MOST_OPEN", FEW)
    monkeypatch.setattr(tables, "_MOST_SMALL", FEW)


def maps_of(cache: Cache) -> int:
    """Number of shards that this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f"{cache.folder / 'teachers'}")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_open_shards_are_no_open_files(many: Cache) -> None:
    before = open_files()
    store = many.store(many.teacher().contract)
    shards = list(store.shards)
    assert len(shards) == len(TEXTS) // 2
    # The index is mapped, and takes no open file either.
    assert open_files() <= before + 1
    assert maps_of(many) == len(shards)


@pytest.mark.usefixtures("few_open")
def test_look_ups_keep_few_shards_mapped(many: Cache) -> None:
    encoder = FakeEncoder(fake_teacher(8))
    generator = np.random.default_rng(0)
    for _ in range(20):
        texts = [TEXTS[row] for row in generator.integers(len(TEXTS), size=50)]
        np.testing.assert_allclose(many.lookup(texts), encoder.encode(texts).vectors, atol=1e-3)
        assert maps_of(many) <= FEW
    store = many.store(many.teacher().contract)
    keys = key_array(TEXTS)
    assert store.keys_at(store.locate(keys)).tobytes() == keys.tobytes()
    assert sum(int(own.sum()) for _, own in store.own_rows()) == len(TEXTS)
    assert maps_of(many) <= 2 * FEW


@pytest.mark.usefixtures("few_open")
def test_a_query_and_a_push_keep_few_shards_mapped(many: Cache) -> None:
    store = many.store(many.teacher().contract)
    ((_, table),) = tables._shard_tables(store)
    assert maps_of(many) <= 2 * FEW
    assert set(table["shard"].to_pylist()) == set(store.shard_names)
    (bundle,) = local_teachers(many, Selection())
    lists = [bundle.sources[file.keys][1]() for file in bundle.shards]
    assert maps_of(many) <= 4 * FEW
    assert sorted(table["key"].to_pylist()) == sorted(
        keys[start : start + 16] for keys in lists for start in range(0, len(keys), 16)
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_shards(tmp_path: Path) -> None:
    shards = load_benchmark("shards")
    small, large = (
        shards.measure_all(shards.Setting(str(tmp_path / str(count)), count, 256)) for count in (100, 10_000)
    )
    assert not shards.broken(small, large)
