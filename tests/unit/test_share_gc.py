"""Garbage collection and taking back: no order of steps lets a listed object go."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sharing import (
    DAY,
    HOUR,
    TEXTS,
    content,
    digests_of,
    listed_by,
    make_cache,
    make_key,
    manifests_of,
    objects_in,
    put_manifest,
    put_object,
)

from embedcache.errors import InputError, RemoteError
from embedcache.share import collect, drop, pull, push, transfer, verify_remote
from embedcache.share.remote import Remote

STATES = ("absent", "young", "old", "listed", "young tombstone", "old tombstone", "young cut", "listed cut")


def age(path: Path, seconds: float, now: float | None = None) -> None:
    then = (time.time() if now is None else now) - seconds
    os.utime(path, (then, then))


def age_all(remote: str | Path, seconds: float) -> None:
    for path in Path(remote).rglob("*"):
        age(path, seconds)


def holes(remote: Path) -> list[str]:
    """Return the listed objects that are missing or cut."""
    objects = objects_in(remote)
    return [
        sha256
        for sha256, size in listed_by(remote).items()
        if sha256 not in objects or objects[sha256].stat().st_size != size
    ]


# The race


class Collector(threading.Thread):
    """A garbage collection that stops before each of its steps until it is told to go on."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._act, self._go, self._idle = act, threading.Semaphore(0), threading.Semaphore(0)
        self.is_done = False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error
        self.is_done = True
        self._idle.release()

    def gate(self) -> None:
        self._idle.release()
        self._go.acquire()

    def advance(self) -> None:
        if not self.is_done:
            self._go.release()
            self._idle.acquire()


class Race:
    """A push whose every step takes half an hour, and a collection whose steps fall between its steps.

    Args:
        schedule: the number of the push's step before which each step of the collection falls; those after
            the last one fall with it.
    """

    def __init__(self, remote: Path, schedule: list[int], patch: pytest.MonkeyPatch) -> None:
        self.remote, self.schedule = remote, schedule
        self.now, self.step = time.time(), 0
        self.taken = 0
        self.collector = Collector(lambda: collect(str(remote), grace_days=1, clock=lambda: self.now))
        for name in ("objects", "manifest_names", "stat", "put", "write"):
            self._hook(name, getattr(Remote, name), patch)
        patch.setattr(Remote, "in_threads", lambda self, act, items: [act(item) for item in items])

    def _hook(self, name: str, act: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
        def hooked(remote: Remote, *given: Any) -> Any:
            path = str(given[0]) if given else ""
            if threading.current_thread() is self.collector:
                # A stat and the deletion after it are one step.
                if name == "manifest_names" or (name == "stat" and path.startswith("objects/")):
                    self.collector.gate()
            elif not (name == "write" and path.startswith("objects/")):
                self.before_step()
            found = act(remote, *given)
            if name == "write" and (self.remote / path).exists():
                age(self.remote / path, 0, self.now)
            return found

        patch.setattr(Remote, name, hooked)

    def before_step(self) -> None:
        self.step += 1
        self.now += HOUR / 2
        while not self.collector.is_done and self._next() <= self.step:
            self.taken += 1
            self.collector.advance()

    def _next(self) -> int:
        return self.schedule[min(self.taken, len(self.schedule) - 1)]

    def finish(self) -> None:
        while not self.collector.is_done:
            self.collector.advance()
        if self.collector.error is not None:
            raise self.collector.error


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a cache, a remote that it was pushed to, and a key."""
    folder = tmp_path_factory.mktemp("pushed")
    make_key(folder, "key")
    push(make_cache(folder / "cache", TEXTS[:30]).folder, str(folder / "remote"))
    return folder


def arrange(pushed: Path, remote: Path, states: Iterator[str]) -> None:
    """Make a remote on which each object is in one of :data:`STATES`."""
    shutil.copytree(pushed / "remote", remote)
    (value,) = manifests_of(remote)
    for path in (remote / "manifests").iterdir():
        path.unlink()
    listed: dict[str, list[Any]] = {"live": [], "young": [], "old": []}
    objects = objects_in(remote)
    for file in value["files"]:
        state = next(states)
        place = {"listed": "live", "listed cut": "live", "young tombstone": "young", "old tombstone": "old"}
        if state in place:
            listed[place[state]].append(file)
        for path in (objects[sha256] for sha256 in (file["sha256"], file.get("keys")) if sha256):
            if state == "absent":
                path.unlink()
                continue
            if state.endswith("cut"):
                os.truncate(path, path.stat().st_size - 1)
            age(path, 11.5 * HOUR if state.startswith("young") and "tomb" not in state else 40 * DAY)
    (remote / "dropped").mkdir()
    for kind, files in listed.items():
        name = put_manifest(remote, {**value, "files": files, "by": kind}, alone=False)
        if kind != "live":
            path = next((remote / "manifests").glob(f"*{name}*"))
            path = path.rename(remote / "dropped" / path.name)
            age(path, HOUR if kind == "young" else 3 * DAY)


STEPS = 17


def schedules(seed: int) -> Iterator[list[int]]:
    """Yield schedules: listing at a step and deleting at a later one, a quarter of all, and finer ones."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    # The steps of the collection: objects, then manifests, then each deletion.
    every = itertools.combinations_with_replacement(range(1, STEPS), 2)
    yield from ([first, first, second] for first, second in every if (first + second) % 4 == seed % 4)
    for _ in range(40):
        yield sorted(rng.randrange(1, STEPS) for _ in range(8))


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_steps_lets_a_listed_object_go(pushed: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    steps = 0
    for number, schedule in enumerate(schedules(seed)):
        remote = tmp_path / str(number)
        states = [rng.choice(STATES) for _ in range(9)]
        arrange(pushed, remote, iter(states))
        with pytest.MonkeyPatch.context() as patch:
            race = Race(remote, schedule, patch)
            push(pushed / "cache", str(remote), sign=pushed / "key", clock=lambda race=race: race.now)  # type: ignore[misc]
            race.finish()
        steps = max(steps, race.step)
        assert holes(remote) == [], (schedule, states)
        shutil.rmtree(remote)
    assert steps >= STEPS - 3


def test_the_race_finds_a_push_that_trusts_too_long(
    pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    module = sys.modules["embedcache.share.push"]
    monkeypatch.setattr(module, "_is_safe", lambda found, size, *_: found is not None and found.bytes == size)
    with pytest.raises(AssertionError):
        test_no_order_of_steps_lets_a_listed_object_go(pushed, tmp_path, 0)


# Collecting


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    push(make_cache(tmp_path / "cache").folder, str(tmp_path / "remote"))
    return tmp_path / "remote"


@pytest.mark.parametrize("days", [0.0, 0.99, -1.0, float("nan")])
def test_a_grace_below_a_day_is_refused(remote: Path, days: float) -> None:
    with pytest.raises(InputError, match="1d"):
        collect(str(remote), grace_days=days)


def test_old_unlisted_objects_go_and_all_else_stays(remote: Path) -> None:
    listed = set(objects_in(remote))
    age_all(remote, 40 * DAY)
    young, old = put_object(remote, b"young"), put_object(remote, b"old")
    age(objects_in(remote)[young], 13 * DAY)
    age(objects_in(remote)[old], 15 * DAY)
    (remote / "objects" / "notes.txt").write_text("mine")
    told = collect(str(remote), dry_run=True)
    assert set(objects_in(remote)) >= {*listed, young, old}
    done = collect(str(remote))
    assert (told.files, told.bytes, told.kept) == (done.files, done.bytes, done.kept) == (1, 3, 1)
    assert set(objects_in(remote)) == {*listed, young}
    assert (remote / "objects" / "notes.txt").exists()
    assert collect(str(remote), grace_days=1).files == 1


def test_what_a_killed_push_left_unfinished_goes(remote: Path) -> None:
    folder = next((remote / "objects").iterdir())
    old, young = folder / ".tmp-1-x", remote / "manifests" / ".tmp-2-x"
    for path, days in ((old, 15), (young, 1)):
        path.write_bytes(b"half")
        age(path, days * DAY)
    assert collect(str(remote)).files == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_nothing_is_collected_beside_a_manifest_that_cannot_be_read(remote: Path) -> None:
    put_manifest(remote, b"{}")
    age_all(remote, 40 * DAY)
    before = set(objects_in(remote))
    with pytest.raises(RemoteError, match="manifest"):
        collect(str(remote))
    assert set(objects_in(remote)) == before


# Taking back


@pytest.fixture
def two(tmp_path: Path, remote: Path) -> Path:
    """Return the remote with a second push that shares the first shard with the first one."""
    more = make_cache(tmp_path / "more", [*TEXTS[:40], *TEXTS[200:]], name="more")
    push(more.folder, str(remote))
    return remote


def test_dropped_objects_stay_until_the_grace_period_is_over(two: Path, tmp_path: Path) -> None:
    first = digests_of(two)[0]
    age_all(two, 40 * DAY)
    before = set(objects_in(two))
    assert drop(str(two), [first[:12]]).manifests == [first]
    assert first not in digests_of(two)
    # Nobody pulls it any more, but a pull that runs still finds its objects.
    pull(tmp_path / "mine", str(two))
    assert not [path for path in content(tmp_path / "mine") if path.startswith("corpora/corpus/")]
    assert collect(str(two)).files == 0
    assert set(objects_in(two)) == before
    done = collect(str(two), clock=lambda: time.time() + 15 * DAY)
    assert done.files > 0
    assert set(objects_in(two)) == set(listed_by(two))
    assert list((two / "dropped").iterdir()) == []


def test_drop_now_deletes_the_texts_and_keeps_what_others_list(two: Path) -> None:
    first = digests_of(two)[0]
    part = next(f for f in manifests_of(two)[0]["files"] if f["path"].startswith("corpora/"))["sha256"]
    done = drop(str(two), [first], now=True)
    assert done.files > 0
    assert part not in objects_in(two)
    assert set(objects_in(two)) == set(listed_by(two))
    assert verify_remote(str(two)).is_sound
    assert not any((two / "dropped").iterdir())


def test_a_manifest_that_cannot_be_used_can_be_dropped(two: Path) -> None:
    bad = put_manifest(two, b"nonsense", alone=False)
    drop(str(two), [bad[:12]])
    assert bad not in digests_of(two)
    assert verify_remote(str(two)).is_sound


def test_a_drop_that_cannot_read_drops_nothing(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = {path.name for path in two.glob("manifests/*")}, Remote.read

    def broken(self: Remote, path: str, most: int) -> bytes | None:
        if path.startswith("manifests/"):
            raise RemoteError("no route")
        return read(self, path, most)

    monkeypatch.setattr(Remote, "read", broken)
    with pytest.raises(RemoteError):
        drop(str(two), [digests_of(two)[0]])
    assert {path.name for path in two.glob("manifests/*")} == before


def test_a_short_read_deletes_nothing(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, get, cut = set(objects_in(remote)), transfer.get, list[str]()

    def once(fs: Any, place: str, target: Path, limit: Any) -> None:
        get(fs, place, target, limit)
        if "objects/" in place and place not in cut:
            cut.append(place)
            target.write_bytes(target.read_bytes()[:-1])

    monkeypatch.setattr("embedcache.share.remote.get", once)
    assert verify_remote(str(remote), delete_damaged=True).deleted == 0
    assert set(objects_in(remote)) == before


# Slow pushes


def test_a_slow_push_writes_several_manifests_each_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, now = tmp_path / "remote", [time.time()]
    put, write = Remote.put, Remote.write
    found: list[list[str]] = []

    def slow(self: Remote, sha256: str, data: Any) -> None:
        put(self, sha256, data)
        size = data.stat().st_size if isinstance(data, Path) else data.nbytes
        now[0] += 7 * HOUR if size > 3000 else 0

    def checked(self: Remote, path: str, data: Any) -> None:
        write(self, path, data)
        if path.startswith("manifests/"):
            found.append(holes(remote))

    monkeypatch.setattr(Remote, "put", slow)
    monkeypatch.setattr(Remote, "write", checked)
    monkeypatch.setattr(Remote, "in_threads", lambda self, act, items: [act(item) for item in items])
    cache = make_cache(tmp_path / "cache", TEXTS[:160])
    done = push(cache.folder, str(remote), clock=lambda: now[0])
    assert len(done.manifests) == len(found) >= 4
    assert found == [[]] * len(found)
    rows = [manifest["teachers"][0].get("rows", 0) for manifest in manifests_of(remote)]
    assert sum(rows) == 160
    pull(tmp_path / "mine", str(remote))
    assert content(tmp_path / "mine") == content(cache.folder)
