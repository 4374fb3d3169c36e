"""What a push waits for: it says so, and it does not wait for a beat that only looks alive."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from share_helpers import claims_on, content, make_cache, objects_of

from embedcache.check.progress import CheckProgress
from embedcache.cli.progress import check_line
from embedcache.share import push
from embedcache.share.remote import beats
from embedcache.share.remote import claims as claims_module
from embedcache.share.remote.beats import AheadBeats
from embedcache.share.remote.claims import Claims

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
