"""Pushes of the same objects share the work: who is slow claims little, and leaves the rest to who waits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from share_helpers import claims_left, claims_on, content, make_cache, objects_of

from embedcache.share import pull, push
from embedcache.share.places.base import Data
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pushing import turns as turns_module
from embedcache.share.pushing.selection import LocalObject
from embedcache.share.pushing.turns import Turns
from embedcache.share.remote import claims as claims_module
from embedcache.share.remote import remote as remote_module
from embedcache.testing import sentences


class Slow(FolderPlace):
    """A folder that objects are written to slowly."""

    def write(self, path: str, data: Data) -> None:
        if path.startswith("objects/"):
            time.sleep(0.05)
        super().write(path, data)


def objects(count: int, size: int = 10) -> list[LocalObject]:
    return [LocalObject(f"{n:064x}", size, lambda: pa.py_buffer(b""), "") for n in range(count)]


def test_who_waits_for_a_slow_push_takes_over_what_that_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(claims_module, "_POLL_SECONDS", 0.02)
    cache = make_cache(tmp_path / "cache", sentences(400, seed=3), shard_rows=4)
    push(cache, str(tmp_path / "elsewhere"))
    team = tmp_path / "team"
    places = iter([Slow(team), FolderPlace(team)])
    monkeypatch.setattr(remote_module, "open_place", lambda location: next(places))

    def begin(**settings: Any) -> Any:
        return push(cache.folder, str(team), **settings)

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(begin, jobs=1)
        deadline = time.monotonic() + 60
        while not list(team.glob("objects/??/*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        fast = pool.submit(begin)
        one, two = slow.result(), fast.result()
    wanted = objects_of(cache.folder)
    # Each of them travels once, and most come from the fast one.
    assert one.sent + two.sent == len(wanted)
    assert two.sent > one.sent
    assert (one.sent + one.others, two.sent + two.others + two.present) == (len(wanted), len(wanted))
    assert claims_left(team) == []
    monkeypatch.undo()
    pull(tmp_path / "there", str(team))
    assert content(tmp_path / "there") == content(cache.folder)


def test_who_shares_with_nobody_claims_all() -> None:
    turns = Turns(4)
    assert len(turns.choose(turns.in_order(objects(1000)))) == 1000


def test_who_shares_claims_the_first_and_those_last_that_others_had_claimed() -> None:
    turns = Turns(4)
    several = objects(200)
    turns.see({local.sha256 for local in several[:100]})
    assert turns.choose(turns.in_order(several)) == {local.sha256 for local in several[100:164]}
    # Of large ones as many as there are threads.
    assert len(turns.choose(turns.in_order(objects(200, 1 << 30)))) == 4


def test_claims_grow_while_they_are_sent_quickly_and_shrink_when_others_wait() -> None:
    turns = Turns(4)
    several = objects(1000)
    turns.see({several[0].sha256})
    turns.end(0.1, is_awaited=False)
    assert turns.objects == 128
    turns.end(60.0, is_awaited=False)
    assert turns.objects == 128
    for _ in range(9):
        turns.end(60.0, is_awaited=True)
    assert turns.objects == 4


def test_who_is_awaited_shares_once_and_looks_less_often_where_that_was_for_nothing(tmp_path: Path) -> None:
    turns = Turns(4)
    turns.end(2.0, is_awaited=True)
    assert turns.is_shared
    turns.end(0.5, is_awaited=False)
    assert not turns.is_shared
    with claims_on(tmp_path).alive() as mine, claims_on(tmp_path, elsewhere=True).alive() as other:
        assert mine.is_awaited()
        assert not turns.watch(mine)()
        other.take({"a" * 64})
        assert not mine.is_awaited()
        assert other.is_awaited()
        # Who deletes waits for nobody's claim, and may have been killed.
        other._write("gc", b"gc")
        other.give_up()
        assert not mine.is_awaited()


def test_what_others_sent_unseen_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_OBJECTS", 4)
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "elsewhere"))
    team = tmp_path / "team"
    wanted = sorted(objects_of(cache.folder))
    with claims_on(team, elsewhere=True).alive() as other:
        other.take(wanted[:1])
        take = claims_module.Claims.take

        def after_the_first(claims: claims_module.Claims, digests: set[str]) -> None:
            take(claims, digests)
            if claims.mark != other.mark:
                # All that is not claimed comes and goes between two looks.
                monkeypatch.setattr(claims_module.Claims, "take", take)
                for digest in set(wanted) - digests:
                    data = (tmp_path / "elsewhere" / "objects" / digest[:2] / digest).read_bytes()
                    other.remote.write(f"objects/{digest[:2]}/{digest}", data)
                other.give_up()

        monkeypatch.setattr(claims_module.Claims, "take", after_the_first)
        done = push(cache, str(team), jobs=2)
    assert (done.sent, done.others) == (4, len(wanted) - 4)
