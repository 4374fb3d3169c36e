"""Pushes, pulls and garbage collections that are killed at any instant, and S3 over a line that breaks."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from remote_servers import BUCKET, Proxy, s3_environment, s3_server
from sharing import DAY, assert_live_whole, assert_objects_whole, content, make_cache, objects_of, start

from embedcache.errors import RemoteError
from embedcache.share import collect, pull, push, verify_remote
from embedcache.testing import sentences
from embedcache.verify import verify

TEXTS = sentences(64 * 16, seed=4)
KILLS = pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("storm") / "cache", TEXTS, shard_rows=64).folder


def _watch(process: BaseProcess, folder: Path, seconds: float = 120.0) -> None:
    """Check what the remote shows until a process ends or the time is over."""
    until = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < until:
        # The S3 server writes a file in its place, and shows it when it is whole.
        assert_live_whole(folder, skip_unfinished=BUCKET in folder.parts)
        process.join(min(0.02, max(0.0, until - time.monotonic())))


def _storm(
    kills: int, begin: Callable[[int], tuple[Callable[[], BaseProcess], Path]], end: Callable[[int], object]
) -> None:
    """Kill a command at instants spread over its duration until it was killed ``kills`` times.

    Args:
        kills: how often.
        begin: prepares a run; gives what starts it, and the folder of its remote.
        end: runs the same command again, and checks what comes out.
    """
    run, folder = begin(0)
    began = time.monotonic()
    whole = run()
    whole.join()
    duration = time.monotonic() - began
    assert whole.exitcode == 0
    end(0)
    chance, killed, number = random.Random(1), 0, 0  # noqa: S311
    while killed < kills:
        number += 1
        assert number < 4 * kills + 10
        run, folder = begin(number)
        process, began = run(), time.monotonic()
        _watch(process, folder, chance.uniform(0, duration))
        if not process.is_alive():
            duration = min(duration, time.monotonic() - began)
        process.kill()
        process.join()
        killed += process.exitcode != 0
        assert process.exitcode in (0, -9)
        time.sleep(0.1)
        assert_live_whole(folder)
        end(number)
        assert_live_whole(folder)
        shutil.rmtree(folder)
    print(f"\n{killed} kills in {number} runs of {duration:.2f} s")  # noqa: T201


@KILLS
def test_killed_pushes(place: tuple[str, Path], kills: int, cache: Path) -> None:
    url, base = place

    def begin(number: int) -> tuple[Callable[[], BaseProcess], Path]:
        return lambda: start("push", cache, f"{url}/{number}"), base / str(number)

    def end(number: int) -> None:
        push(cache, f"{url}/{number}")
        assert assert_objects_whole(base / str(number)) == objects_of(cache)
        assert assert_live_whole(base / str(number)) >= 1
        assert push(cache, f"{url}/{number}").sent == 0

    _storm(kills, begin, end)


@KILLS
def test_killed_pulls(place: tuple[str, Path], kills: int, cache: Path, tmp_path: Path) -> None:
    url, base = place
    push(cache, f"{url}/remote")
    files = content(cache)

    def begin(number: int) -> tuple[Callable[[], BaseProcess], Path]:
        # What is checked and deleted after each run is not the remote.
        return lambda: start(
            "pull", tmp_path / f"cache{number}", f"{url}/remote"
        ), tmp_path / f"cache{number}"

    def end(number: int) -> None:
        mine = tmp_path / f"cache{number}"
        if (mine / "cache.json").exists():
            assert content(mine).items() <= files.items()
            # A teacher may be there whose name was to come next.
            assert {one.kind for one in verify(mine).findings} <= {"teacher name", "unfinished write"}
        pull(mine, f"{url}/remote")
        assert content(mine) == files
        assert not verify(mine).findings
        assert not (mine / "derived" / "incoming").exists()

    _storm(kills, begin, end)
    assert assert_objects_whole(base / "remote") == objects_of(cache)


@KILLS
def test_killed_collections_while_others_push(
    place: tuple[str, Path], kills: int, cache: Path, tmp_path: Path
) -> None:
    url, base = place
    other = make_cache(
        tmp_path / "other", [*TEXTS[:320], *sentences(320, seed=5)], name="other", shard_rows=64
    ).folder
    template = tmp_path / "template"
    push(other, str(template))
    listed = [path.name for path in template.glob("manifests/*")]
    push(cache, str(template))
    (added,) = [path for path in template.glob("manifests/*") if path.name not in listed]
    added.unlink()
    kept = objects_of(other)
    pushes: dict[int, BaseProcess] = {}

    def begin(number: int) -> tuple[Callable[[], BaseProcess], Path]:
        folder = base / str(number)
        shutil.copytree(template, folder)
        long_ago = time.time() - 20 * DAY
        for path in folder.glob("objects/??/*"):
            os.utime(path, (long_ago, long_ago))
        if url.startswith("s3:"):
            time.sleep(1.1)  # until the server has forgotten what it knew of folders

        def run() -> BaseProcess:
            process = start("collect", f"{url}/{number}")
            if number % 2:
                # What is collected is pushed again at the same time.
                pushes[number] = start("push", cache, f"{url}/{number}")
            return process

        return run, folder

    def end(number: int) -> None:
        folder = base / str(number)
        if number in pushes:
            _watch(pushes[number], folder)
            assert pushes[number].exitcode == 0
            assert assert_live_whole(folder) == 2
        collect(f"{url}/{number}")
        assert assert_objects_whole(folder) == (kept | objects_of(cache) if number in pushes else kept)
        assert verify_remote(f"{url}/{number}").is_sound

    _storm(kills, begin, end)


@contextmanager
def _broken_line(folder: Path, drop: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with s3_server(folder) as port:
        proxy = Proxy(port, drop=drop)
        for name, value in s3_environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        try:
            yield proxy
        finally:
            proxy.close()


def _again(act: Callable[[], object]) -> None:
    for _ in range(20):
        with suppress(RemoteError):
            act()
            return
    pytest.fail("it never finished")


def test_a_line_that_breaks(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _broken_line(tmp_path / "buckets", 0.6, monkeypatch) as proxy:
        rounds = 0
        while proxy.cut < 30:
            rounds += 1
            remote, folder = f"s3://{BUCKET}/{rounds}", tmp_path / "buckets" / BUCKET / str(rounds)
            _again(lambda remote=remote: push(cache, remote))
            assert assert_live_whole(folder) >= 1
            assert assert_objects_whole(folder) == objects_of(cache)
            there = tmp_path / f"there{rounds}"
            _again(lambda remote=remote, there=there: pull(there, remote))
            assert content(there) == content(cache)
            for manifest in folder.glob("manifests/*"):
                manifest.unlink()
            time.sleep(1.1)
            _again(lambda remote=remote: collect(remote, clock=lambda: time.time() + 15 * DAY))
            assert assert_objects_whole(folder) == set()
        print(f"\n{proxy.cut} connections cut in {rounds} rounds")  # noqa: T201
