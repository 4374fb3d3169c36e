"""Several processes of one machine together build the cache of one process, even if some die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import rows_encoded, write_lines
from flat_build import build
from slow_encoder import TEACHER, Slow

from embedcache.cache import Cache
from embedcache.errors import InputError, NonFiniteVectorError, WorkerError
from embedcache.teacher.load import load_teacher
from embedcache.testing import FakeEncoder, sentences

TEXTS = sentences(1000, seed=5)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "corpus.txt", [*TEXTS, *TEXTS[:100]])


Devices = Callable[..., Cache]


@pytest.fixture
def devices(tmp_path: Path, source: Path) -> Devices:
    """Return a build by two processes."""

    def run(teacher: Any, **settings: Any) -> Cache:
        given = {"cache": tmp_path / "cache", "devices": "cpu,cpu", "shard_rows": 64, **settings}
        return build(source, teacher=teacher, **given)

    return run


EXPECTED = FakeEncoder(TEACHER).encode(TEXTS).vectors.astype(np.float16)


def finished(folder: Path) -> int:
    """Build on with one process, see that all vectors are there, and return how many it encoded."""
    cache = build(folder / "corpus.txt", teacher=FakeEncoder(TEACHER), cache=folder / "cache")
    assert len(cache.store(TEACHER.contract)) == len(TEXTS)
    assert np.array_equal(cache.lookup(TEXTS), EXPECTED)
    return rows_encoded(cache)


def test_two_processes_store_what_one_does(tmp_path: Path, source: Path, devices: Devices) -> None:
    found = devices(Slow(tmp_path, 1e-4))
    assert found.result is not None
    assert (found.result.encoded, found.result.distinct, found.result.cached) == (1000, 1000, 0)
    assert found.result.bytes_written == found.store(TEACHER.contract).bytes_on_disk
    assert found.result.tokens == sum(len(text.split()) for text in TEXTS)
    assert len(list(tmp_path.glob("pid-*"))) == 2
    assert finished(tmp_path) == 0


def test_a_killed_process_is_replaced(tmp_path: Path, devices: Devices) -> None:
    devices(Slow(tmp_path, 1e-4, fatal=TEXTS[500], times=1))
    assert (tmp_path / "ended-0").exists()
    assert finished(tmp_path) == 0


def test_texts_that_end_every_process_are_named_and_the_rest_is_stored(
    tmp_path: Path, devices: Devices
) -> None:
    with pytest.raises(WorkerError, match=r"rows \d+ to \d+ of corpus 'corpus'"):
        devices(Slow(tmp_path, fatal=TEXTS[500]))
    assert Cache(tmp_path / "cache").store(TEACHER.contract).shards
    assert finished(tmp_path) < len(TEXTS)


def test_an_error_of_a_process_is_the_builds_own(tmp_path: Path, source: Path, devices: Devices) -> None:
    with pytest.raises(NonFiniteVectorError) as alone:
        build(source, teacher=Slow(tmp_path, nan=TEXTS[700]), cache=tmp_path / "alone", shard_rows=64)
    with pytest.raises(NonFiniteVectorError, match="row 700 of corpus 'corpus'") as shared:
        devices(Slow(tmp_path, nan=TEXTS[700]))
    assert str(shared.value) == str(alone.value)


def test_settings_that_processes_cannot_share_are_refused(
    tmp_path: Path, devices: Devices, tiny_teacher: Path
) -> None:
    for teacher, settings in (
        (load_teacher(tiny_teacher, device="cpu"), {}),
        (FakeEncoder(TEACHER), {"store": "lmdb"}),
        (FakeEncoder(TEACHER), {"codec": "pq"}),
        (FakeEncoder(TEACHER), {"device": "cpu"}),
        (FakeEncoder(TEACHER), {"devices": "cpu,"}),
        (FakeEncoder(TEACHER), {"devices": "all"}),
    ):
        with pytest.raises(InputError):
            devices(teacher, **settings)
    assert not Cache(tmp_path / "cache").teachers()


PROGRAM = """
import sys
from pathlib import Path
from flat_build import build
from slow_encoder import Slow
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    teacher, rows = Slow(folder, 2e-3, keep=0.0), int(sys.argv[2])
    build(folder / "corpus.txt", teacher=teacher, cache=folder / "cache", devices="cpu,cpu", shard_rows=rows)
"""


def start(folder: Path, shard_rows: int) -> subprocess.Popen[bytes]:
    """Start a build by two processes, in a third."""
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, folder / "program.py", folder, str(shard_rows)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_what_killed_workers_had_encoded_is_not_encoded_again(
    tmp_path: Path, source: Path, devices: Devices
) -> None:
    child = start(tmp_path, 900)
    while not list(tmp_path.glob("cache/derived/pending/*/[!.]*.arrow")):
        time.sleep(0.01)
    child.kill()
    child.wait(30)
    done = devices(Slow(tmp_path), shard_rows=900).result
    assert done is not None
    assert 32 <= done.resumed < 1000
    assert done.resumed + done.encoded == 1000
    assert not list(tmp_path.glob("cache/derived/pending/*/[!.]*"))  # what was half written stays for gc
    assert finished(tmp_path) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_the_build_which_goes_on_later(
    tmp_path: Path, source: Path, number: signal.Signals
) -> None:
    child = start(tmp_path, 64)
    while len(list(tmp_path.glob("cache/teachers/*/shards/[!.]*.arrow"))) < 2:
        time.sleep(0.01)
    os.killpg(child.pid, number) if number == signal.SIGINT else child.kill()
    child.wait(30)
    deadline = time.monotonic() + 20
    pids = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert 0 < finished(tmp_path) < 900
