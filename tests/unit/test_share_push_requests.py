"""What a push asks of a remote: nothing twice without a reason, and it ends when told to."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from share_helpers import TEXTS, claims_left, content, files_of, make_cache, make_key, objects_of

from embedcache.errors import RemoteError
from embedcache.share import PullChoice, collect_remote, list_remote, pull, push
from embedcache.share.places import Stat, parse_location
from embedcache.share.places.base import Data
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import Signer
from embedcache.share.transfer import run_all


class Counting(FolderPlace):
    """A folder that counts what it is asked: ``list manifests``, ``read MARKER`` and so on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def list(self, folder: str) -> dict[str, Stat]:
        self.asked[f"list {folder}"] += 1
        return super().list(folder)

    def stat(self, path: str) -> Stat | None:
        self.asked[f"stat {path}"] += 1
        return super().stat(path)

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        self.asked[f"read {path}"] += 1
        yield from super().blocks(path, size)

    def write(self, path: str, data: Data) -> None:
        self.asked[f"write {path}"] += 1
        super().write(path, data)

    def of(self, begin: str) -> list[int]:
        """Return how often each thing was asked that begins so."""
        return [count for what, count in self.asked.items() if what.startswith(begin)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Return the remote of these tests, which counts what it is asked."""
    found = Counting(tmp_path / "remote")
    monkeypatch.setattr(remote_module, "open_place", lambda location: found)
    return found


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


def test_what_was_never_declared_is_looked_up_once_before_it_is_sent(
    tmp_path: Path, place: Counting, remote: str
) -> None:
    cache = make_cache(tmp_path / "cache")
    assert push(cache, remote).sent == len(objects_of(cache.folder))
    # Once while nobody else plans, and once before it is declared.
    assert set(place.of("stat objects/")) == {2}
    assert len(place.of("stat objects/")) == len(objects_of(cache.folder))
    assert place.of("list objects/") == []


def test_where_nothing_is_new_each_object_is_looked_up_once_and_nothing_is_planned(
    tmp_path: Path, place: Counting, remote: str
) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, remote)
    place.asked.clear()
    assert push(cache, remote).sent == 0
    assert place.of("stat objects/") == [1] * len(objects_of(cache.folder))
    assert place.asked["read embedcache-remote.json"] == 1
    assert sum(place.of("write ")) == 1
    (beat,) = (what for what in place.asked if what.startswith("write "))
    assert beat.endswith(".beat")


@pytest.mark.parametrize("is_signed", [False, True])
def test_one_look_at_the_manifests_serves_all_that_a_push_leaves_out(
    tmp_path: Path, place: Counting, remote: str, is_signed: bool
) -> None:
    key = make_key(tmp_path, "ann")[0] if is_signed else None
    push(make_cache(tmp_path / "theirs", codec="float16"), remote, sign=key)
    push(make_cache(tmp_path / "more", TEXTS[:30], codec="float16", name="more"), remote, sign=key)
    # Copies, and rows that are there in a finer codec, of which no note tells.
    pull(tmp_path / "cache", remote, PullChoice(codec="int8"), sample_check=False)
    make_cache(tmp_path / "cache", ["new to all", *TEXTS[:30]], codec="int8", name="own")
    ids = [one.manifest for one in list_remote(remote).pushes]
    assert len(ids) == 2
    # As if they had never been seen here.
    for path in (tmp_path / "cache" / "derived").glob("remotes/*/*.json"):
        path.unlink()
    place.asked.clear()
    assert push(tmp_path / "cache", remote, sign=key).manifest
    assert {place.asked[f"read manifests/{one}.json"] for one in ids} == {1}
    # Others may have declared the same while this was sent.
    assert place.asked["list manifests"] == 2
    if is_signed:
        assert set(place.of("read signatures/")) == {1}


def test_what_a_stopped_push_has_left_is_there_already(tmp_path: Path, remote: str) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, remote)
    (manifest,) = (tmp_path / "remote" / "manifests").iterdir()
    manifest.unlink()
    sent = sorted((tmp_path / "remote").glob("objects/??/*"))
    sent[0].unlink()
    done = push(cache, remote)
    assert (done.sent, done.present, done.others) == (1, len(sent) - 1, 0)


def test_what_is_taken_back_after_the_first_look_is_pushed_again(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "cache")
    first = push(cache, remote).manifest
    alive = Claims.alive

    def late(claims: Claims, *arguments: Any) -> object:
        # The worst moment: the manifests were read, and no sign of life keeps anybody from deleting.
        monkeypatch.undo()
        collect_remote(remote, hours=0.0, drop=[first], delete=True)
        return alive(claims, *arguments)

    monkeypatch.setattr(Claims, "alive", late)
    done = push(cache, remote)
    assert (done.manifest, done.sent) == (first, len(objects_of(cache.folder)))
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)


def test_what_others_declare_meanwhile_shows_when_looked_at_again(tmp_path: Path, remote: str) -> None:
    private, _ = make_key(tmp_path, "ann")
    place = Counting(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", TEXTS[:80], name="mine")
    there = RemoteState(Remote(parse_location(remote), place), mine)
    signed = RemoteState(Remote(parse_location(remote)), mine, Signer.load(private))
    # There is no remote yet.
    assert (there.survey().manifests, there.objects(), list(there.stock())) == ((), set(), [])
    push(mine, remote)
    assert there.survey().manifests == ()
    assert len(there.look_again().manifests) == 1
    assert there.objects() == objects_of(mine.folder)
    stock = there.stock()
    assert len(list(stock)) == len(content(mine.folder)) - 1
    # Nobody signed it; but what is there is there.
    assert list(signed.stock()) == []
    assert signed.objects() == there.objects()
    there.look_again()
    assert there.stock() is stock
    push(make_cache(tmp_path / "other", TEXTS[80:], name="other"), remote, sign=private)
    assert there.stock() is stock
    assert len(there.look_again().manifests) == 2
    assert len(list(there.stock())) > len(list(stock))
    # What was read is neither read nor understood again.
    assert there.survey().manifests[0] is there.look_again().manifests[0]
    signed.look_again()
    assert 0 < len(list(signed.stock())) < len(list(there.stock()))
    assert set(place.of("read manifests/")) == {1}


# Its end

_STUCK = """
import os, signal, sys, threading, time
from embedcache.cli.main import main
from embedcache.share.places.folder import FolderPlace

write = FolderPlace.write

def stuck(place, path, data):
    if path.startswith("objects/"):
        # In one go, for several threads come here.
        os.write(1, b"stuck\\n")
        time.sleep(300)
    write(place, path, data)

FolderPlace.write = stuck
# Whoever runs the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


class Bucket(FolderPlace):
    """A place of very many objects, which are listed all at once, a thousand with a request."""

    listings = 0

    def below(self, folder: str) -> dict[str, Stat]:
        self.listings += 1
        return {f"{number:064x}"[:2] + f"/{number:064x}": Stat(1) for number in range(100_000)}


def test_a_listing_that_was_longer_than_manifests_tell_is_not_asked_for_again(tmp_path: Path) -> None:
    place = Bucket(tmp_path)
    there = Remote(parse_location("s3://bucket/folder"), place)
    # As pushes that share the work ask, once for each claim, before anything is declared.
    for turn in range(3):
        some = [SharedFile("", f"{turn}{number:063x}", 1) for number in range(64)]
        assert len(there.present(some)) == (64 if turn == 0 else 0)
    assert place.listings == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_push_whose_connection_is_slow(
    tmp_path: Path, remote: str, number: signal.Signals
) -> None:
    cache = make_cache(tmp_path / "cache")
    command = [sys.executable, "-c", _STUCK, "push", remote, "--cache", str(cache.folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "stuck\n"
    child.send_signal(number)
    try:
        # Far shorter than one of those writes takes.
        _, told = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "interrupted; whatever was stored is whole, run the same command again" in told
    assert claims_left(tmp_path / "remote") == []
    assert files_of(tmp_path / "remote", "manifests") == {}
    # Nobody has to wait for it.
    assert push(cache, remote).sent == len(objects_of(cache.folder))


def test_an_interrupt_waits_for_what_ends_soon_and_an_error_for_everything() -> None:
    def ended(error: type[BaseException], patience: float | None, act: Callable[[], None]) -> list[str]:
        done: list[str] = []
        begun = threading.Event()

        def work(item: str) -> None:
            if item == "fails":
                begun.wait()
                raise error
            begun.set()
            act()
            done.append(item)

        with pytest.raises(error):
            run_all(work, ["works", "fails", "late"], jobs=2, stop=threading.Event(), patience=patience)
        return done

    held = threading.Event()
    assert ended(KeyboardInterrupt, 0.1, held.wait) == []
    held.set()
    assert ended(KeyboardInterrupt, 30.0, lambda: time.sleep(0.3)) == ["works"]
    assert ended(KeyboardInterrupt, None, lambda: time.sleep(0.3)) == ["works"]
    assert ended(ValueError, 0.0, lambda: time.sleep(0.3)) == ["works"]


def test_push_that_stands_still_twice_names_the_manifest_and_mends_it_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cache(tmp_path / "ann", TEXTS)
    team = tmp_path / "team"
    push_module = sys.modules["embedcache.share.push"]
    notes = push_module._notes

    def notes_after_sleep(*arguments: Any) -> object:
        # Somebody deletes what no manifest listed while this process stands still.
        for file in (team / "objects").rglob("*"):
            if file.is_file():
                file.unlink()
        return notes(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(push_module, "_notes", notes_after_sleep)
        patch.setattr(Claims, "overslept", True)
        with pytest.raises(
            RemoteError, match=r"manifest [0-9a-f]{12} lists it already; run the same"
        ) as error:
            push(tmp_path / "ann", str(team))
    (manifest,) = (team / "manifests").glob("*.json")
    assert manifest.stem[:12] in str(error.value)
    push(tmp_path / "ann", str(team))
    pull(tmp_path / "bob", str(team))
    assert content(tmp_path / "bob") == content(tmp_path / "ann")
