"""Many pushes at once, commands that are killed at any instant, and S3 over a line that breaks."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from remote_servers import BUCKET, Proxy, s3_environment, s3_server
from sharing import DAY, assert_live_whole, assert_objects_whole, content, make_cache, objects_of, start

from embedcache.errors import RemoteError
from embedcache.share import collect, list_remote, pull, push, verify_remote
from embedcache.testing import sentences
from embedcache.verify import verify

TEXTS = sentences(64 * 16, seed=4)
KILLS = pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("storm") / "cache", TEXTS, shard_rows=64).folder


def test_eight_push_at_once_and_a_ninth_pulls(place: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = f"{place[0]}/remote", place[1] / "remote"
    # Windows that overlap in whole shards with those of their neighbours.
    windows = [(TEXTS[:768] * 2)[64 * number :][:320] for number in range(8)]
    caches = [
        make_cache(tmp_path / f"c{number}", window, name=f"n{number}", shard_rows=64).folder
        for number, window in enumerate(windows)
    ]
    objects = [objects_of(cache) for cache in caches]
    wanted = set().union(*objects)

    def push_all(number: int) -> int:
        go, reports = tmp_path / f"go{number}", [tmp_path / f"sent{number}-{one}" for one in range(8)]
        pairs = zip(caches, reports, strict=True)
        children = [start("push", cache, url, at=go, report=report) for cache, report in pairs]
        go.touch()
        while any(child.is_alive() for child in children):
            if list(folder.glob("manifests/*.json")):
                # What a reader sees meanwhile is whole.
                pull(tmp_path / "ninth", url)
            children[0].join(0.1)
        for child in children:
            child.join(120)
            assert child.exitcode == 0
        return sum(int(report.read_text()) for report in reports)

    assert len(wanted) <= push_all(1) < sum(map(len, objects))
    assert assert_objects_whole(folder) == wanted
    assert verify_remote(url).is_sound
    assert push_all(2) == 0
    assert len(list_remote(url)) <= 8
    pull(tmp_path / "ninth", url)
    assert content(tmp_path / "ninth") == {
        path: sha256 for cache in caches for path, sha256 in content(cache).items()
    }
    assert not verify(tmp_path / "ninth").findings


# Killed


def _watch(process: BaseProcess, folder: Path, seconds: float) -> None:
    """Check what the remote shows until a process ends or the time is over."""
    until = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < until:
        # The S3 server writes a file in its place, and shows it when it is whole.
        assert_live_whole(folder, skip_unfinished=BUCKET in folder.parts)
        process.join(min(0.02, max(0.0, until - time.monotonic())))


def _storm(kills: int, run: Callable[[int], tuple[BaseProcess, Path]], end: Callable[[int], object]) -> None:
    """Kill a command at instants spread over its duration until it was killed ``kills`` times.

    Args:
        kills: number of kills.
        run: starts a run; gives its process, and the folder of its remote.
        end: runs the same command again, and checks what comes out.
    """
    chance, duration, killed, number = random.Random(1), 120.0, 0, 0  # noqa: S311
    while killed < kills:
        assert number < 4 * kills + 10
        process, folder = run(number)
        began = time.monotonic()
        # The first one is not killed.
        _watch(process, folder, chance.uniform(0, duration) if number else duration)
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
        number += 1


@KILLS
def test_killed_pushes(place: tuple[str, Path], kills: int, cache: Path) -> None:
    url, base = place

    def run(number: int) -> tuple[BaseProcess, Path]:
        return start("push", cache, f"{url}/{number}"), base / str(number)

    def end(number: int) -> None:
        push(cache, f"{url}/{number}")
        assert assert_objects_whole(base / str(number)) == objects_of(cache)
        assert assert_live_whole(base / str(number)) == 1
        assert push(cache, f"{url}/{number}").sent == 0

    _storm(kills, run, end)


@KILLS
def test_killed_pulls(place: tuple[str, Path], kills: int, cache: Path, tmp_path: Path) -> None:
    url, base = place
    push(cache, f"{url}/remote")
    files = content(cache)

    def run(number: int) -> tuple[BaseProcess, Path]:
        return start("pull", tmp_path / f"cache{number}", f"{url}/remote"), base / "remote"

    def end(number: int) -> None:
        mine = tmp_path / f"cache{number}"
        if (mine / "cache.json").exists():
            assert content(mine).items() <= files.items()
            assert not verify(mine).damage
        pull(mine, f"{url}/remote")
        assert content(mine) == files
        assert not verify(mine).findings
        assert not (mine / "derived" / "incoming").exists()

    _storm(kills, run, end)
    assert assert_objects_whole(base / "remote") == objects_of(cache)


@KILLS
def test_killed_collections_while_others_push(
    place: tuple[str, Path], kills: int, cache: Path, tmp_path: Path
) -> None:
    url, base = place
    texts = [*TEXTS[:320], *sentences(320, seed=5)]
    other = make_cache(tmp_path / "other", texts, name="other", shard_rows=64).folder
    template = tmp_path / "template"
    push(cache, str(template))
    shutil.rmtree(template / "manifests")
    push(other, str(template))
    pushes: dict[int, BaseProcess] = {}

    def run(number: int) -> tuple[BaseProcess, Path]:
        folder = base / str(number)
        shutil.copytree(template, folder)
        long_ago = time.time() - 20 * DAY
        for path in folder.glob("objects/??/*"):
            os.utime(path, (long_ago, long_ago))
        if url.startswith("s3:"):
            time.sleep(1.1)  # until the server has forgotten what it knew of folders
        if number % 2:
            # What is collected is pushed again at the same time.
            pushes[number] = start("push", cache, f"{url}/{number}")
        return start("collect", f"{url}/{number}"), folder

    def end(number: int) -> None:
        kept = objects_of(other)
        if number in pushes:
            _watch(pushes[number], base / str(number), 120)
            assert pushes[number].exitcode == 0
            assert assert_live_whole(base / str(number)) == 2
            kept |= objects_of(cache)
        collect(f"{url}/{number}")
        assert assert_objects_whole(base / str(number)) == kept
        assert verify_remote(f"{url}/{number}").is_sound

    _storm(kills, run, end)


# A line that breaks


def _again(act: Callable[[], object]) -> None:
    for _ in range(20):
        with suppress(RemoteError):
            act()
            return
    pytest.fail("it never finished")


@pytest.mark.slow
def test_a_line_that_breaks(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "buckets") as port:
        proxy = Proxy(port, drop=0.6)
        for name, value in s3_environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        remote, folder, there = f"s3://{BUCKET}/x", tmp_path / "buckets" / BUCKET / "x", tmp_path / "there"
        _again(lambda: push(cache, remote))
        assert assert_live_whole(folder) >= 1
        assert assert_objects_whole(folder) == objects_of(cache)
        _again(lambda: pull(there, remote))
        assert content(there) == content(cache)
        shutil.rmtree(folder / "manifests")
        time.sleep(1.1)
        _again(lambda: collect(remote, clock=lambda: time.time() + 15 * DAY))
        assert assert_objects_whole(folder) == set()
        assert proxy.cut > 5
        proxy.close()
