"""Actors of a Ray cluster together build the cache of one process, even if they or their machines die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import rows_encoded, write_lines
from flat_build import build
from remote_servers import BUCKET, s3_environment, s3_server
from slow_encoder import TEACHER, Slow

from embedcache.cache import Cache
from embedcache.errors import InputError, NonFiniteVectorError, WorkerError
from embedcache.share.manifest import read_manifests
from embedcache.share.remote import Remote
from embedcache.testing import FakeEncoder, sentences

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

TEXTS = sentences(1500, seed=5)
EXPECTED = FakeEncoder(TEACHER).encode(TEXTS).vectors.astype(np.float16)
SHARD_ROWS = 64


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head without CPUs and two machines of one CPU each, which know of a server of S3."""
    from ray.cluster_utils import Cluster

    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as port, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(port).items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "corpus.txt", TEXTS)


Run = Callable[..., Cache]


@pytest.fixture
def run(tmp_path: Path, source: Path, cluster: Any) -> Run:
    """Return a build by the cluster."""

    def build_there(teacher: Any, **settings: Any) -> Cache:
        given = {"cache": tmp_path / "cache", "shard_rows": SHARD_ROWS, **settings}
        return build(source, teacher=teacher, engine="ray", address=cluster.address, **given)

    return build_there


def finished(folder: Path) -> int:
    """Build on in this process, see that all vectors are there, and return how many it encoded."""
    cache = build(folder / "corpus.txt", teacher=FakeEncoder(TEACHER), cache=folder / "cache")
    assert len(cache.store(TEACHER.contract)) == len(TEXTS)
    assert np.array_equal(cache.lookup(TEXTS), EXPECTED)
    return rows_encoded(cache)


def pids(folder: Path) -> list[int]:
    return [int(path.name[4:]) for path in folder.glob("pid-*")]


def stored(folder: Path) -> int:
    return len(list(folder.glob("cache/teachers/*/shards/[!.]*.arrow")))


def in_the_middle(folder: Path, what: Callable[[], object]) -> threading.Thread:
    """Do something once a few shards are stored."""

    def wait() -> None:
        while stored(folder) < 4 or len(pids(folder)) < 2:
            time.sleep(0.01)
        what()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_two_machines_store_what_one_process_does(tmp_path: Path, run: Run) -> None:
    found = run(Slow(tmp_path, 1e-3))
    assert rows_encoded(found) == len(TEXTS)
    assert len(pids(tmp_path)) == 2
    assert not list(found.folder.glob("derived/seen-*"))
    assert finished(tmp_path) == 0


@pytest.mark.slow
def test_a_killed_actor_is_replaced(tmp_path: Path, run: Run) -> None:
    killing = in_the_middle(tmp_path, lambda: os.kill(pids(tmp_path)[0], signal.SIGKILL))
    run(Slow(tmp_path, 4e-3))
    killing.join(1)
    assert not killing.is_alive()
    assert len(pids(tmp_path)) == 3
    assert finished(tmp_path) == 0


@pytest.mark.slow
def test_what_a_killed_actor_had_encoded_is_not_encoded_again(tmp_path: Path, run: Run) -> None:
    def kill() -> None:
        while len(pids(tmp_path)) < 2 or not list(tmp_path.glob("cache/derived/pending/*/[!.]*")):
            time.sleep(0.01)
        for pid in pids(tmp_path):
            os.kill(pid, signal.SIGKILL)

    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    done = run(Slow(tmp_path, 4e-3, keep=0.0), shard_rows=len(TEXTS)).result
    killing.join(1)
    assert not killing.is_alive()
    assert done is not None
    assert done.resumed >= 32
    assert done.encoded + done.resumed == len(TEXTS)
    assert finished(tmp_path) == 0


@pytest.mark.slow
def test_a_lost_machine_is_done_without(tmp_path: Path, run: Run, cluster: Any) -> None:
    node = cluster.list_all_nodes()[-1]
    removing = in_the_middle(tmp_path, lambda: cluster.remove_node(node, allow_graceful=False))
    run(Slow(tmp_path, 2e-3))
    removing.join(30)
    cluster.add_node(num_cpus=1)
    assert finished(tmp_path) == 0


@pytest.mark.slow
def test_an_error_of_an_actor_is_the_builds_own(tmp_path: Path, run: Run) -> None:
    with pytest.raises(NonFiniteVectorError, match="row 700 of corpus 'corpus'"):
        run(Slow(tmp_path, nan=TEXTS[700]))
    assert finished(tmp_path) < len(TEXTS)


@pytest.mark.slow
def test_texts_that_end_every_actor_are_named(tmp_path: Path, run: Run) -> None:
    with pytest.raises(WorkerError, match=r"rows \d+ to \d+ of corpus 'corpus'"):
        run(Slow(tmp_path, fatal=TEXTS[700]))


@pytest.mark.slow
def test_machines_that_do_not_see_the_cache_go_through_a_remote(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both machines are this one: a marker of another name is one they do not see.
    monkeypatch.setattr("embedcache.parallel.open_pool.write_bytes", lambda path, data: None)
    with pytest.raises(InputError, match="remote"):
        run(Slow(tmp_path))
    assert stored(tmp_path) == 0
    found = run(Slow(tmp_path, 1e-3), remote=f"s3://{BUCKET}/remote")
    assert len(read_manifests(Remote(f"s3://{BUCKET}/remote").open()).manifests) > 2
    assert rows_encoded(found) == len(TEXTS)
    assert finished(tmp_path) == 0


MEMORY = """
import sys, threading, time
from pathlib import Path
from flat_build import build
from embedcache.testing import FakeEncoder, fake_teacher
peak = 0
def watch():
    global peak
    while True:
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]))
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
source = Path(sys.argv[1])
build(source, teacher=FakeEncoder(fake_teacher(128)), cache=sys.argv[2], engine="ray", address=sys.argv[3])
print(peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_memory_of_the_build_does_not_grow_with_the_corpus(tmp_path: Path, cluster: Any) -> None:
    peaks = []
    for rows in (300_000, 1_500_000):
        source = write_lines(
            tmp_path / f"{rows}.txt", [f"a cat sees the dog number {n}" for n in range(rows)]
        )
        words = [sys.executable, "-c", MEMORY, source, tmp_path / f"cache{rows}", cluster.address]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
        peaks.append(int(done.stdout.split()[-1]) * 1024)
    # The index sorts a million keys at a time; the vectors alone would be 300 MB.
    assert peaks[1] - peaks[0] < 100e6


PROGRAM = """
import sys
from pathlib import Path
from flat_build import build
from remote_servers import BUCKET, s3_environment, s3_server
from slow_encoder import Slow
folder = Path(sys.argv[1])
build(folder / "corpus.txt", teacher=Slow(folder, 4e-3), cache=folder / "cache", shard_rows=64,
      engine="ray", address=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_driver_that_ended_goes_on(
    tmp_path: Path, cluster: Any, source: Path, number: signal.Signals
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path, cluster.address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.DEVNULL,
    )
    while stored(tmp_path) < 4:
        time.sleep(0.01)
        assert child.poll() is None
    child.send_signal(number)
    child.wait(60)
    assert 0 < finished(tmp_path) < len(TEXTS) - 3 * SHARD_ROWS
