"""What a push waits for: it says so, and it does not wait for a beat that only looks alive."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from share_helpers import (
    ELSEWHERE,
    TEXTS,
    claims_left,
    claims_on,
    content,
    make_cache,
    objects_of,
    put_object,
)

from embedcache.check.progress import CheckProgress
from embedcache.cli.progress import check_line
from embedcache.errors import RemoteError
from embedcache.share import collect_remote, push
from embedcache.share.places import Stat, parse_location
from embedcache.share.places.folder import FolderPlace
from embedcache.share.remote import beats
from embedcache.share.remote import claims as claims_module
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.beats import AheadBeats
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.remote import Remote

DAY = 24 * 3600.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_POLL_SECONDS", 0.02)


def set_ahead(folder: Path, claims: Claims, seconds: float = DAY) -> None:
    """Let the last beat of a process lie in the future, as after a clock was set back."""
    beat = folder / "claims" / f"{claims.mark}.beat"
    os.utime(beat, (time.time() + seconds,) * 2)


def until(is_so: Callable[[], bool], seconds: float = 60) -> Callable[[int], None]:
    """Return a function to be called while something is waited for, which fails after a while."""
    deadline = time.monotonic() + seconds

    def on_wait(others: int) -> None:
        assert is_so() or time.monotonic() < deadline, "waited for ever"

    return on_wait


def test_a_dead_process_whose_beat_lies_in_the_future_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = claims_on(tmp_path, elsewhere=True)
    dead._beat()
    dead.take({"a" * 64})
    dead.remote.write(f"claims/{dead.mark}.7.gc", b"gc")
    set_ahead(tmp_path, dead)
    waits: list[int] = []
    now = 100.0
    monkeypatch.setattr(beats, "time", SimpleNamespace(monotonic=lambda: now))

    def on_wait(others: int) -> None:
        nonlocal now
        now += 0.1
        waits.append(others)
        assert len(waits) < 20, "waited for ever"

    with claims_on(tmp_path, stale_seconds=0.5).alive(on_wait) as mine:
        mine.wait({"a" * 64}, on_wait)
        assert set(waits) == {1}
        with mine.planning():
            assert mine.of_others() == {}


def test_a_beat_in_the_future_is_a_sign_of_life_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(beats.time, "monotonic", lambda: now)
    ahead = AheadBeats()
    assert ahead.lives("one", 5000.0, limit=60)
    now += 59
    assert ahead.lives("one", 5000.0, limit=60)
    assert ahead.lives("two", 5000.0, limit=60)
    now += 1
    assert not ahead.lives("one", 5000.0, limit=60)
    # It writes again: it has only been slow.
    assert ahead.lives("one", 5001.0, limit=60)
    now += 59
    assert ahead.lives("one", 5001.0, limit=60)
    assert not ahead.lives("two", 5000.0, limit=60)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass, for those who watch beats, only while they wait; return the pauses."""
    pauses: list[float] = []

    def pause(claims: Claims, seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 500, "waited for ever"

    monkeypatch.setattr(claims_module, "_POLL_SECONDS", 5.0)
    monkeypatch.setattr(beats, "time", SimpleNamespace(monotonic=lambda: sum(pauses)))
    monkeypatch.setattr(Claims, "_pause", pause)
    return pauses


def test_nothing_has_to_be_pushed_before_a_deletion_ignores_a_dead_beat_of_the_future(
    tmp_path: Path, clock: list[float]
) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    nobody_needs = Path(put_object(tmp_path / "remote", b"nobody needs it"))
    dead = claims_on(tmp_path / "remote", elsewhere=True)
    dead._beat()
    dead.take({"a" * 64})
    set_ahead(tmp_path / "remote", dead)
    shown: list[str] = []
    result = collect_remote(
        str(tmp_path / "remote"),
        hours=0,
        delete=True,
        on_progress=lambda progress: shown.append(check_line(progress)),
    )
    assert [Path(deletion.path).name for deletion in result.found] == [nobody_needs.name]
    assert result.deleted
    # As long as a live process takes to renew its beat, with time to spare.
    assert 60 <= sum(clock) < 100
    assert any(line.startswith("see whether others are at work there (1, by a clock") for line in shown)
    assert claims_left(tmp_path / "remote") == []


def test_nothing_is_deleted_while_a_beat_of_the_future_is_renewed(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    nobody_needs = put_object(tmp_path / "remote", b"nobody needs it")
    alive = claims_on(tmp_path / "remote", elsewhere=True)
    alive._beat()
    set_ahead(tmp_path / "remote", alive)
    wait = Claims._pause

    def pause(claims: Claims, seconds: float) -> None:
        wait(claims, seconds)
        if sum(clock) == 40:
            set_ahead(tmp_path / "remote", alive, DAY + 40)

    monkeypatch.setattr(Claims, "_pause", pause)
    with pytest.raises(RemoteError, match="1 other process is at work"):
        collect_remote(str(tmp_path / "remote"), hours=0, delete=True)
    assert sum(clock) == 40
    assert (tmp_path / "remote" / "objects" / nobody_needs[:2] / nobody_needs).exists()


def test_a_push_says_what_it_waits_for(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    remote = tmp_path / "remote"
    path = "corpora/corpus/corpus.json"
    digest = content(cache.folder)[path]
    shown: list[str] = []
    seen = threading.Condition()
    results = []

    def on_progress(progress: CheckProgress) -> None:
        with seen:
            shown.append(check_line(progress))
            seen.notify_all()

    def wait_for(line: str) -> None:
        with seen:
            assert seen.wait_for(lambda: line in shown, 60), shown

    with claims_on(remote, elsewhere=True).alive() as other:
        other.take([digest])
        name = other._note("gc", b"gc")
        pushing = threading.Thread(
            target=lambda: results.append(push(cache, str(remote), on_progress=on_progress))
        )
        pushing.start()
        wait_for("wait until nobody deletes there (1 now)")
        assert not (remote / "objects").exists()
        other._take_away(name)
        wait_for("wait for 1 other push")
        other.remote.write(f"objects/{digest[:2]}/{digest}", (cache.folder / path).read_bytes())
        other.give_up()
        pushing.join(60)
    assert (results[0].sent, results[0].others) == (len(objects_of(cache.folder)) - 1, 1)
    # What was being done goes on under its own name.
    assert any(line.startswith("send") for line in shown[shown.index("wait for 1 other push") :])


class Untimed(FolderPlace):
    """A folder whose listings tell no times, as those of some servers do for every tenth file."""

    def list(self, folder: str) -> dict[str, Stat]:
        return {name: replace(stat, changed=None) for name, stat in super().list(folder).items()}


@pytest.fixture
def untimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remote_module, "open_place", lambda location: Untimed(tmp_path / "remote"))
    return tmp_path / "remote"


def test_where_a_listing_tells_no_times_files_are_looked_up(untimed: Path, tmp_path: Path) -> None:
    push(make_cache(tmp_path / "cache", TEXTS[:40]), str(untimed))
    first = {path.name for path in (untimed / "manifests").iterdir()}
    push(make_cache(tmp_path / "cache", TEXTS[40:80], name="more"), str(untimed))
    nobody_needs, young = (put_object(untimed, data) for data in (b"nobody needs it", b"nor that"))
    for path in untimed.rglob("*"):
        if path.is_file() and path.name != young:
            os.utime(path, (time.time() - DAY,) * 2)
    result = collect_remote(str(untimed), hours=1, delete=True)
    found = {Path(deletion.path).name for deletion in result.found if "cards/" not in deletion.path}
    assert found == {*first, nobody_needs}
    assert result.young == 1


def test_where_a_listing_tells_no_times_a_dead_process_is_gone_after_a_while(untimed: Path) -> None:
    remote = Remote(parse_location(str(untimed)))
    dead, mine = Claims(remote, mark=f"{ELSEWHERE}-1-{'a' * 12}"), Claims(remote)
    dead._beat()
    dead._write("json", b"[]")
    os.utime(untimed / "claims" / f"{dead.mark}.beat", (time.time() - DAY,) * 2)
    with mine.alive():
        assert mine.of_others() == {}
        assert abs(mine.clock() - time.time()) < 60
    with mine.collecting():
        pass
