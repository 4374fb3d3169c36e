"""Care of a remote: no order of steps lets a listed object go; damage and dropped pushes are deleted."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sharing import (
    DAY,
    HOUR,
    TEXTS,
    digests_of,
    listed_by,
    make_cache,
    make_key,
    manifests_of,
    objects_in,
    put_manifest,
    put_object,
)

from embedcache.errors import RemoteError
from embedcache.share import collect, drop, pull, push, verify_remote
from embedcache.share.remote import Remote

STATES = ("absent", "young", "old", "listed", "young tombstone", "old tombstone", "young cut", "listed cut")


def age(path: Path, seconds: float, now: float | None = None) -> None:
    then = (time.time() if now is None else now) - seconds
    os.utime(path, (then, then))


# The race of a push with a collection


class Race:
    """A push whose every step takes seven hours, and a collection whose steps fall between its steps.

    Args:
        remote: the remote.
        schedule: the step of the push before which each step of the collection falls; those after the last
            one fall with it.
    """

    def __init__(self, remote: Path, schedule: list[int], patch: pytest.MonkeyPatch) -> None:
        self.remote, self.schedule = remote, schedule
        self.now, self.step, self.taken = time.time(), 0, 0
        self.go, self.idle, self.is_done = threading.Semaphore(0), threading.Semaphore(0), False
        self.collector = threading.Thread(target=self._collect, daemon=True)
        for name in ("find", "names_in", "stat", "put", "write"):
            self._hook(name, getattr(Remote, name), patch)
        patch.setattr(Remote, "in_threads", lambda self, act, items: [act(item) for item in items])
        self.collector.start()

    def _collect(self) -> None:
        self.go.acquire()
        collect(str(self.remote), clock=lambda: self.now)
        self.is_done = True
        self.idle.release()

    def _hook(self, name: str, act: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
        def hooked(remote: Remote, *given: Any) -> Any:
            path = str(given[0]) if given else ""
            if threading.current_thread() is self.collector:
                # A stat and the deletion after it are one step.
                if name in ("names_in", "stat"):
                    self.idle.release()
                    self.go.acquire()
            elif not (name == "write" and path.startswith("objects/")):
                self.step += 1
                self.now += 7 * HOUR
                while (
                    not self.is_done and self.schedule[min(self.taken, len(self.schedule) - 1)] <= self.step
                ):
                    self.taken += 1
                    self.advance()
            found = act(remote, *given)
            if name == "write":
                age(self.remote / path, 0, self.now)
            return found

        patch.setattr(Remote, name, hooked)

    def advance(self) -> None:
        self.go.release()
        assert self.idle.acquire(timeout=60)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a cache, a remote that it was pushed to, and a key."""
    folder = tmp_path_factory.mktemp("pushed")
    make_key(folder, "key")
    push(make_cache(folder / "cache", TEXTS[:30]).folder, str(folder / "remote"))
    return folder


def arrange(pushed: Path, remote: Path, states: list[str]) -> None:
    """Make a remote on which each file of the cache is in one of ``STATES``."""
    shutil.copytree(pushed / "remote", remote)
    (value,) = manifests_of(remote)
    shutil.rmtree(remote / "manifests")
    for folder in ("manifests", "dropped"):
        (remote / folder).mkdir()
    objects = objects_in(remote)
    for file, state in zip(value["files"], states, strict=True):
        for path in (objects[sha256] for sha256 in (file["sha256"], file.get("keys")) if sha256):
            if state.endswith("cut"):
                os.truncate(path, path.stat().st_size - 1)
            age(path, 160 * HOUR if state in ("young", "young cut") else 40 * DAY)
            if state == "absent":
                path.unlink()
    for start, days in (("listed", 30.0), ("young tombstone", 0.5), ("old tombstone", 30.0)):
        files = [file for file, state in zip(value["files"], states, strict=True) if state.startswith(start)]
        name = put_manifest(remote, {**value, "files": files, "by": start}, alone=False)
        if start != "listed":
            path = next((remote / "manifests").glob(f"*{name}*"))
            age(path.rename(remote / "dropped" / path.name), days * DAY)


STEPS = 20
"""Of a push. A collection's steps are listing objects, listing manifests, and each deletion."""


@pytest.mark.parametrize("seed", range(2))
def test_no_order_of_steps_lets_a_listed_object_go(pushed: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    every = itertools.combinations_with_replacement(range(1, STEPS), 2)
    schedules = [[listing, listing, deleting] for listing, deleting in every]
    schedules = rng.sample(schedules, 20) + [sorted(rng.choices(range(1, STEPS), k=8)) for _ in range(15)]
    for number, schedule in enumerate(schedules):
        remote = tmp_path / str(number)
        states = rng.choices(STATES, k=len(manifests_of(pushed / "remote")[0]["files"]))
        arrange(pushed, remote, states)
        with pytest.MonkeyPatch.context() as patch:
            race = Race(remote, schedule, patch)
            push(pushed / "cache", str(remote), sign=pushed / "key", clock=lambda race=race: race.now)  # type: ignore[misc]
            while not race.is_done:
                race.advance()
        sizes = {sha256: path.stat().st_size for sha256, path in objects_in(remote).items()}
        holes = [sha256 for sha256, size in listed_by(remote).items() if sizes.get(sha256) != size]
        assert holes == [], f"listed and gone: {schedule}, {states}"


def test_the_race_finds_a_push_that_trusts_too_long(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    monkeypatch.setattr(import_module("embedcache.share.push"), "TRUSTED", float("inf"))
    with pytest.raises(AssertionError, match="listed"):
        test_no_order_of_steps_lets_a_listed_object_go(pushed, tmp_path, 0)


# Collecting and taking back


@pytest.fixture
def remote(pushed: Path, tmp_path: Path) -> Path:
    """Return a remote with two old pushes that share a shard."""
    make_cache(pushed / "first", name="first")
    make_cache(pushed / "second", [*TEXTS[:40], *TEXTS[200:]], name="second")
    for name in ("first", "second"):
        push(pushed / name, str(tmp_path / "remote"))
    for path in sorted((tmp_path / "remote").rglob("*"), key=lambda path: path.stat().st_mtime_ns):
        age(path, 40 * DAY)  # in the order they were written, which tells the two pushes apart
    return tmp_path / "remote"


def test_old_unlisted_objects_and_leftovers_go_and_all_else_stays(remote: Path) -> None:
    listed = set(objects_in(remote))
    young, old = put_object(remote, b"young"), put_object(remote, b"old")
    leftovers = [remote / "objects" / "ab" / name for name in (".tmp-1-x", ".tmp-2-x")]
    leftovers[0].parent.mkdir(exist_ok=True)
    for path, days in zip((objects_in(remote)[young], *leftovers), (13, 13, 15), strict=True):
        path.write_bytes(b"young")
        age(path, days * DAY)
    age(objects_in(remote)[old], 15 * DAY)
    planned = collect(str(remote), dry_run=True)
    assert set(objects_in(remote)) == {*listed, young, old}
    assert collect(str(remote)) == planned
    assert (planned.files, planned.bytes) == (2, 8)
    assert set(objects_in(remote)) == {*listed, young}
    assert [path.exists() for path in leftovers] == [True, False]


def test_nothing_is_collected_beside_a_manifest_that_cannot_be_read_and_it_can_be_dropped(
    remote: Path,
) -> None:
    before, bad = set(objects_in(remote)), put_manifest(remote, b"nonsense", alone=False)
    with pytest.raises(RemoteError, match="manifest"):
        collect(str(remote))
    assert set(objects_in(remote)) == before
    drop(str(remote), [bad[:12]])
    assert verify_remote(str(remote)).is_sound


def test_no_manifest_is_written_where_clocks_differ_by_days(pushed: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    with pytest.raises(RemoteError, match="clocks"):
        push(pushed / "cache", str(remote), clock=lambda: time.time() + 8 * DAY)
    assert not (remote / "manifests").exists()
    assert push(pushed / "cache", str(remote)).sent == 0


def test_dropped_objects_stay_until_the_grace_period_is_over(remote: Path, tmp_path: Path) -> None:
    first, before = digests_of(remote)[0], set(objects_in(remote))
    drop(str(remote), [first[:12]])
    # New pulls leave it out, but a running pull still finds its objects.
    assert pull(tmp_path / "mine", str(remote)).corpora == ["second"]
    assert collect(str(remote)).files == 0
    assert set(objects_in(remote)) == before
    assert collect(str(remote), clock=lambda: time.time() + 15 * DAY).files > 0
    assert set(objects_in(remote)) == set(listed_by(remote))
    assert list((remote / "dropped").iterdir()) == []


def test_drop_now_deletes_the_texts_and_keeps_files_of_other_manifests(remote: Path) -> None:
    assert drop(str(remote), [digests_of(remote)[0]], now=True).files > 0
    assert set(objects_in(remote)) == set(listed_by(remote))
    assert verify_remote(str(remote)).is_sound
    assert not any((remote / "dropped").iterdir())


def test_a_short_read_deletes_nothing(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, download, cut = set(objects_in(remote)), Remote._download, set[str]()

    def once(self: Remote, path: str, target: Path, *given: Any) -> bool:
        found = download(self, path, target, *given)
        if path.startswith("objects/") and path not in cut:
            cut.add(path)
            os.truncate(target, 3)
        return found

    monkeypatch.setattr(Remote, "_download", once)
    found = verify_remote(str(remote), delete_damaged=True)
    assert (len(found.damaged), found.deleted) == (len(before), 0)
    assert set(objects_in(remote)) == before
