"""Sharing by way of a server that speaks as Google Cloud Storage does: kills, broken connections, parts."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import pytest
from place_servers import GoogleServer
from share_server import (
    BUCKET,
    Proxy,
    assert_drops_do_no_harm,
    content,
    make_cache,
    objects_of,
)

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.errors import RemoteError
from embedcache.share import PullChoice, compare_with_remote, list_remote, pull, push, retry
from embedcache.share.places import google, open_place, parse_location
from embedcache.share.places.base import Data
from embedcache.share.places.bucket import BucketPlace
from embedcache.testing import FakeEncoder, fake_teacher, sentences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("gcp_storage_emulator") is None,
        reason="no emulator: pip install gcp-storage-emulator",
    ),
]
TEXTS = sentences(64 * 8, seed=4)
# Children begin without the threads of Google's client, which no fork survives.
_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer]:
    emulator = GoogleServer(tmp_path_factory.mktemp("gcs") / "data")
    emulator.start()
    yield emulator
    emulator.close()


@pytest.fixture
def server(shared: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> GoogleServer:
    """Let this process find the server that all tests share."""
    monkeypatch.delenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{shared.port}")
    return shared


def assert_objects_right(remote: str) -> int:
    """Assert that every object that can be seen has the digest it is called by; return how many there are."""
    place = open_place(parse_location(remote))
    count = 0
    for number in range(256):
        for name in place.list(f"objects/{number:02x}"):
            data = b"".join(place.blocks(f"objects/{number:02x}/{name}", 1 << 20))
            assert hashlib.sha256(data).hexdigest() == name
            count += 1
    return count


def test_what_is_pushed_is_pulled(server: GoogleServer, tmp_path: Path) -> None:
    remote = f"gs://{BUCKET}/a team/one"
    cache = make_cache(tmp_path / "cache", TEXTS, name="one")
    with pytest.raises(RemoteError, match="no remote at gs://"):
        pull(tmp_path / "there", remote)
    first = push(cache, remote, by="Ann")
    assert first.sent == len(objects_of(cache.folder)) == assert_objects_right(remote)
    again_pushed = push(cache, remote)
    assert (again_pushed.sent, again_pushed.sent_bytes) == (0, 0)
    assert not compare_with_remote(tmp_path / "nothing", remote).is_same
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)
    assert compare_with_remote(tmp_path / "there", remote).is_same
    assert not verify(tmp_path / "there").findings
    (listed,) = list_remote(remote).pushes
    assert listed.by == "Ann"
    # The same, by the other name that clients look for, and without a scheme.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("STORAGE_EMULATOR_HOST")
        patch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"127.0.0.1:{server.port}")
        assert pull(tmp_path / "there", remote).fetched == 0


def test_rows_are_read_by_range(server: GoogleServer, tmp_path: Path) -> None:
    remote = f"gs://{BUCKET}/rows"
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384, shard_rows=512)
    push(cache, remote)
    (shard,) = (cache.folder / "teachers").glob("*/shards/*.arrow")
    part = pull(tmp_path / "part", remote, PullChoice(corpora=["one"], rows=20)).part
    assert part is not None
    assert (part.rows, part.of) == (20, len(TEXTS))
    source = tmp_path / "mine.txt"
    source.write_text("".join(f"{text}\n" for text in [*TEXTS[:10], "new to all"]), encoding="utf-8")
    teacher = fake_teacher(384)
    mine = build(
        source,
        teacher=teacher,
        encoder=FakeEncoder(teacher),  # type: ignore[arg-type]  # a fake one does as well
        cache=tmp_path / "mine",
        name="mine",
        remote=remote,
    )
    assert mine.last_build is not None
    assert [(one.taken, one.stored) for one in mine.last_build.outputs] == [(10, 1)]
    for folder in ("part", "mine"):
        taken = Cache(tmp_path / folder)
        assert (taken.lookup(TEXTS[:10]) == cache.lookup(TEXTS[:10])).all()
        # The shard itself came in neither.
        assert not list(taken.folder.glob(f"teachers/*/shards/{shard.name}"))


def _push(cache: Path, remote: str, start: Path, results: SimpleQueue[int]) -> None:
    while not start.exists():
        time.sleep(0.01)
    results.put(push(cache, remote, jobs=2).sent)


def test_two_push_at_once_and_a_third_pulls(server: GoogleServer, tmp_path: Path) -> None:
    remote = f"gs://{BUCKET}/two"
    caches = [make_cache(tmp_path / f"c{n}", TEXTS[128 * n :][:384], name=f"n{n}") for n in range(2)]
    union = content(caches[0].folder) | content(caches[1].folder)
    wanted = objects_of(caches[0].folder) | objects_of(caches[1].folder)
    results: SimpleQueue[int] = _SPAWN.SimpleQueue()
    start = tmp_path / "start"
    children = [_SPAWN.Process(target=_push, args=(one.folder, remote, start, results)) for one in caches]
    for child in children:
        child.start()
    start.touch()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0, 0]
    assert sum(results.get() for _ in children) == len(wanted) == assert_objects_right(remote)
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == union
    assert len(list_remote(remote).pushes) == 2


def test_connections_that_drop_delay_and_damage_nothing(
    server: GoogleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = f"gs://{BUCKET}/dropped"
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384)
    proxy = Proxy(server.port, drop=0.25)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{proxy.port}")
    folder = server.folder / ".cloudstorage" / BUCKET / "dropped"
    assert_drops_do_no_harm(cache, remote, folder, tmp_path, proxy)


def _push_in_vain(cache: Path, remote: str, most: int, stopped: Path, results: SimpleQueue[str]) -> None:
    """Push ``most`` objects, say so, and go on once the file ``stopped`` is there."""
    retry.TRIES = 2
    google._RETRY_SECONDS = 1
    write, objects = BucketPlace.write, itertools.count(1)

    def limited(place: BucketPlace, path: str, data: Data) -> None:
        if path.startswith("objects/") and (number := next(objects)) > most:
            if number == most + 1:
                results.put("as many as may be")
            while not stopped.exists():
                time.sleep(0.01)
        write(place, path, data)

    BucketPlace.write = limited  # type: ignore[method-assign]
    try:
        push(cache, remote, jobs=2)
    except RemoteError as error:
        results.put(str(error))


def test_a_server_that_goes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = GoogleServer(tmp_path / "data")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{server.port}")
    remote = f"gs://{BUCKET}/back"
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384, shard_rows=16)
    wanted = objects_of(cache.folder)
    results: SimpleQueue[str] = _SPAWN.SimpleQueue()
    stopped = tmp_path / "stopped"
    child = _SPAWN.Process(
        target=_push_in_vain, args=(cache.folder, remote, len(wanted) // 3, stopped, results)
    )
    server.start()
    child.start()
    assert results.get() == "as many as may be"
    server.stop()
    stopped.touch()
    child.join(300)
    assert child.exitcode == 0
    assert "see to the connection, to the server" in results.get()
    server.start()
    try:
        assert 0 < assert_objects_right(remote) < len(wanted)
        done = push(cache, remote)
        assert 0 < done.sent < len(wanted)
        pull(tmp_path / "there", remote)
        assert content(tmp_path / "there") == content(cache.folder)
    finally:
        server.close()


def _run(cache: Path, remote: str, ready: SimpleQueue[str]) -> None:
    # A kill is to come in the middle of the work, not of imports.
    import pyarrow.fs  # noqa: F401

    ready.put("ready")
    push(cache, remote, jobs=4)


def _begin(cache: Path, remote: str) -> SpawnProcess:
    ready: SimpleQueue[str] = _SPAWN.SimpleQueue()
    child = _SPAWN.Process(target=_run, args=(cache, remote, ready))
    child.start()
    ready.get()
    return child


def test_a_push_that_is_killed_leaves_nothing_half_written(server: GoogleServer, tmp_path: Path) -> None:
    remote = f"gs://{BUCKET}/killed"
    # Large enough for several requests an object.
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=16384, shard_rows=256)
    shards = [path.stat().st_size for path in cache.folder.glob("teachers/*/shards/*.arrow")]
    assert max(shards) > 8 << 20
    objects = objects_of(cache.folder)
    resumable = server.folder / ".cloudstorage" / "_resumable"
    generator = np.random.default_rng(7)
    seen = []
    for _ in range(3):
        child = _begin(cache.folder, remote)
        while child.is_alive() and not any(resumable.glob("*")):
            time.sleep(0.002)
        child.join(generator.uniform(0, 0.1))
        if child.exitcode is None and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        seen.append(assert_objects_right(remote))
    assert min(seen) < len(objects)
    push(cache, remote)
    assert assert_objects_right(remote) == len(objects)
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_bucket_that_is_not_there_is_told_of(server: GoogleServer, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:64], name="one")
    with pytest.raises(RemoteError, match=r"tried once\): there is no bucket nothing; see to the spelling"):
        push(cache, "gs://nothing/x")
    with pytest.raises(RemoteError, match=r"tried once\): there is no bucket nothing; see to the spelling"):
        pull(tmp_path / "there", "gs://nothing/x")
