"""Several pulls into one cache: at the same time, and after some that were killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from share_helpers import TEXTS, content, cut_short, make_cache, manifest_bytes

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.findings import Kind
from embedcache.check.progress import CheckProgress
from embedcache.errors import StorageError
from embedcache.share import PullChoice, limits, preview_pull, pull, push, temporaries
from embedcache.share import pull as pull_module_function
from embedcache.share.pulling import arrive
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.temporaries import abandoned_bytes, arriving
from embedcache.testing import sentences
from embedcache.views.plan import ViewOptions

pull_module = sys.modules[pull_module_function.__module__]


def no_wait() -> None:
    raise AssertionError("nobody else writes this file")


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the digest of every object that is downloaded; each download takes a while."""
    digests: list[str] = []
    plain = arrive.download

    def slow(remote: Any, file: Any, place: Path, meter: Any) -> None:
        digests.append(file.sha256)
        time.sleep(0.05)
        plain(remote, file, place, meter)

    monkeypatch.setattr(arrive, "download", slow)
    return digests


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let ``act`` happen once, when the next pull has planned what it fetches and has not begun."""
    plain, waiting = pull_module._plan_pull, [act]

    def plan(*arguments: Any, **more: Any) -> object:
        planned = plain(*arguments, **more)
        if waiting:
            waiting.pop()()
        return planned

    monkeypatch.setattr(pull_module, "_plan_pull", plan)


# Two pulls of one remote


@pytest.mark.parametrize("codec", [None, "int8"])
@pytest.mark.parametrize("jobs", [1, 4])
def test_two_pulls_at_once_fetch_each_object_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[str], codec: str | None, jobs: int
) -> None:
    cache = make_cache(tmp_path / "cache", views=ViewOptions(("crop",)))
    push(cache, str(tmp_path / "remote"))
    both_have_planned = threading.Barrier(2)
    plain = pull_module._plan_pull

    def plan(*arguments: Any, **more: Any) -> object:
        planned = plain(*arguments, **more)
        both_have_planned.wait(timeout=120)
        return planned

    monkeypatch.setattr(pull_module, "_plan_pull", plan)
    with ThreadPoolExecutor(2) as pool:
        pulls = [
            pool.submit(
                pull, tmp_path / "there", str(tmp_path / "remote"), PullChoice(codec=codec), jobs=jobs
            )
            for _ in range(2)
        ]
        results = [each.result() for each in pulls]
    assert len(downloads) == len(set(downloads)) > 5
    assert all(result.fetched + result.present == len(content(cache.folder)) - 1 for result in results)
    assert sum(result.fetched for result in results) == len(content(cache.folder)) - 1
    if codec is None:
        assert content(tmp_path / "there") == content(cache.folder)
    assert not verify(tmp_path / "there").findings


@pytest.mark.parametrize("codec", [None, "int8"])
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_what_another_pull_has_brought_meanwhile_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: list[str], codec: str | None, store: str
) -> None:
    cache = make_cache(tmp_path / "cache")
    remote, there = str(tmp_path / "remote"), tmp_path / "there"
    push(cache, remote)
    make_cache(there, sentences(80, seed=9), name="own", store=store)
    before_stage(monkeypatch, Kind.SHARD, lambda: pull(there, remote, PullChoice(codec=codec)))
    result = pull(there, remote, PullChoice(codec=codec))
    assert (result.fetched, result.fetched_bytes) == (0, 0)
    assert len(downloads) == len(set(downloads))
    assert len(Cache(there).lookup(TEXTS)) == len(TEXTS)
    assert not [finding for finding in verify(there).findings if finding.is_damage]


def test_a_pull_that_waits_for_another_says_so(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    there = tmp_path / "there"
    pull(there, str(tmp_path / "remote"))
    shards = sorted(there.glob("teachers/*/shards/*.arrow"))
    for shard in shards:
        shard.unlink()
    target = shards[0]
    is_waited_for = threading.Event()
    phases: list[str] = []

    def told(progress: CheckProgress) -> None:
        phases.append(progress.phase)
        if "another pull" in progress.phase:
            is_waited_for.set()

    with ThreadPoolExecutor(1) as pool:
        with arriving(target, no_wait):
            done = pool.submit(pull, there, str(tmp_path / "remote"), on_progress=told)
            assert is_waited_for.wait(120)
            # Everything else has come by then.
            assert sorted(there.glob("teachers/*/shards/[!.]*.arrow")) == shards[1:]
        done.result(timeout=120)
    assert content(there) == content(cache.folder)


def test_a_damaged_text_is_fetched_again_though_a_file_of_its_size_is_there(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    remote = str(tmp_path / "remote")
    push(cache, remote)
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="length(text) > 20", alias="part"))
    (part,) = (tmp_path / "there" / "derived" / "remotes").glob("*/parts/**/*.arrow")
    part.write_bytes(bytes(part.stat().st_size))
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="length(text) > 21", alias="other"))
    assert Cache(tmp_path / "there").corpus("other").texts() == [text for text in TEXTS if len(text) > 21]


# Pulls of different versions


def test_another_version_that_came_meanwhile_stays_and_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    for name, texts in (("mine", TEXTS[:80]), ("theirs", TEXTS[80:])):
        push(make_cache(tmp_path / name, texts), str(tmp_path / f"remote-{name}"))
    meanwhile(monkeypatch, lambda: pull(there, str(tmp_path / "remote-theirs")))
    with pytest.raises(
        StorageError, match=r"another corpus 'corpus' than .*--corpus corpus --as NAME"
    ) as caught:
        pull(there, str(tmp_path / "remote-mine"))
    assert caught.value.exit_code == 1
    assert Cache(there).corpus().texts() == TEXTS[80:]
    assert not [finding for finding in verify(there).findings if finding.is_damage]
    pull(there, str(tmp_path / "remote-mine"), PullChoice(corpora=["corpus"], alias="other"))
    assert Cache(there).corpus("other").texts() == TEXTS[:80]


class TwoViews(NamedTuple):
    """Two remotes that have different views of one name, the caches they are of, and where both go."""

    mine: str
    theirs: str
    my_cache: Cache
    their_cache: Cache
    there: Path


@pytest.fixture
def two_views(tmp_path: Path) -> TwoViews:
    caches = []
    for name, seed in (("mine", 1), ("theirs", 2)):
        caches.append(make_cache(tmp_path / name, views=ViewOptions(("crop",), seed=seed)))
        push(caches[-1], str(tmp_path / f"remote-{name}"))
    return TwoViews(
        str(tmp_path / "remote-mine"), str(tmp_path / "remote-theirs"), *caches, tmp_path / "there"
    )


def before_stage(monkeypatch: pytest.MonkeyPatch, kind: Kind, act: Callable[[], object]) -> None:
    """Let ``act`` happen once, before the next pull fetches files of ``kind``."""
    plain, waiting = Arrivals.fetch_all, [act]

    def fetch_all(self: Arrivals, wanted: Sequence[Wanted], jobs: int) -> None:
        if waiting and any(file.entry.kind is kind for file in wanted):
            waiting.pop()()
        plain(self, wanted, jobs)

    monkeypatch.setattr(Arrivals, "fetch_all", fetch_all)


@pytest.mark.parametrize("kind", [Kind.VIEW, Kind.RECIPE])
def test_of_two_views_of_one_name_one_stays_whole(
    two_views: TwoViews, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    before_stage(monkeypatch, kind, lambda: pull(two_views.there, two_views.theirs))
    with pytest.raises(StorageError, match=r"another view 'crop' of corpus 'corpus'.*--as NAME"):
        pull(two_views.there, two_views.mine)
    view = Cache(two_views.there).corpus().view("crop")
    assert view.texts() == two_views.their_cache.corpus().view("crop").texts()
    assert not [finding for finding in verify(two_views.there).findings if finding.is_damage]


def test_a_recipe_never_comes_to_the_description_of_another_view(
    two_views: TwoViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_description() -> None:
        class Killed(BaseException):
            pass

        def kill() -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            before_stage(patch, Kind.RECIPE, kill)
            with pytest.raises(Killed):
                pull(two_views.there, two_views.theirs)

    before_stage(monkeypatch, Kind.RECIPE, others_description)
    with pytest.raises(StorageError, match="another view 'crop'"):
        pull(two_views.there, two_views.mine)
    assert Cache(two_views.there).corpus().view_names() == []
    # Whoever comes next finishes it.
    pull(two_views.there, two_views.mine)
    view = Cache(two_views.there).corpus().view("crop")
    assert view.texts() == two_views.my_cache.corpus().view("crop").texts()


# What killed pulls leave

_KILLED = """
import os, signal, sys
from pathlib import Path
from embedcache.share.temporaries import arriving

with arriving(Path(sys.argv[1]), lambda: None) as temporary:
    temporary.write_bytes(bytes(1000))
    print(temporary, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_killed(target: Path) -> Path:
    """Return the temporary that a process has left which was killed as it wrote ``target``."""
    child = subprocess.run([sys.executable, "-c", _KILLED, str(target)], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    temporary = Path(child.stdout.strip())
    assert temporary.stat().st_size == 1000
    return temporary


def test_a_pull_deletes_what_killed_ones_have_left_and_nothing_else(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    there = tmp_path / "there"
    pull(there, str(tmp_path / "remote"))
    shards = next(there.glob("teachers/*/shards"))
    killed = left_by_killed(shards / f"{'0' * 64}.arrow")
    elsewhere = killed.with_name(f".tmp-pull-{'0' * 12}-{'0' * 64}.arrow")
    elsewhere.write_bytes(bytes(1000))
    with arriving(shards / f"{'1' * 64}.arrow", no_wait) as alive:
        alive.write_bytes(bytes(1000))
        preview_pull(there, str(tmp_path / "remote"))
        assert killed.exists()
        assert pull(there, str(tmp_path / "remote")).fetched == 0
        assert not killed.exists()
        assert alive.exists()
    assert not alive.exists()
    assert elsewhere.exists()


_KILLED_PULL = """
import json, os, signal, sys
from pathlib import Path
from embedcache import fsio
from embedcache.share import PullChoice, pull

sync = fsio._sync

def sync_or_die(temporary, target):
    if target.parent.name == "shards":
        os.kill(os.getpid(), signal.SIGKILL)
    sync(temporary, target)

fsio._sync = sync_or_die
pull(sys.argv[1], sys.argv[2], PullChoice(**json.loads(sys.argv[3])), jobs=1)
"""


@pytest.mark.parametrize("choice", [{"corpora": ["corpus"], "rows": 10}, {"codec": "int8"}])
def test_a_pull_deletes_what_killed_ones_have_left_of_shards_that_they_made(
    tmp_path: Path, choice: dict[str, Any]
) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    there, remote = tmp_path / "there", str(tmp_path / "remote")
    words = [sys.executable, "-c", _KILLED_PULL, str(there), remote, json.dumps(choice)]
    child = subprocess.run(words, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    left = [path for path in there.rglob(".tmp-*") if path.stat().st_size]
    assert any(path.parent.name == "shards" for path in left)
    pull(there, remote, PullChoice(**choice))
    assert not list(there.rglob(".tmp-*"))
    pull(tmp_path / "whole", remote, PullChoice(**choice))
    assert content(there) == content(tmp_path / "whole")


def test_what_pulls_leave_is_looked_for_wherever_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, there = str(tmp_path / "remote"), tmp_path / "there"
    texts = sentences(600, seed=1)
    views = ViewOptions(("crop",), embed=("crop",))
    push(make_cache(tmp_path / "cache", texts, codec="pq", shard_rows=300, views=views), remote)
    written: set[Path] = set()
    locked = temporaries._locked

    def note(temporary: Path, wait: Callable[[], None]) -> int | None:
        written.add(temporary)
        return locked(temporary, wait)

    monkeypatch.setattr(temporaries, "_locked", note)
    pull(there, remote, PullChoice(corpora=["corpus"], rows=10))
    pull(there, remote)
    inside = {path.relative_to(there).parts[0] for path in written}
    assert inside == {"corpora", "derived", "teachers"}
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
    assert abandoned_bytes(there, delete=True) == 4 * len(written) > 40
    assert not list(there.rglob(".tmp-*"))


def test_what_killed_pulls_have_left_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(tmp_path / "cache")
    remote, there = str(tmp_path / "remote"), tmp_path / "there"
    push(cache, remote)
    with cut_short():
        pull(there, remote, PullChoice(text=False))
    killed = left_by_killed(there / "corpora" / "corpus" / "corpus.json")
    estimate = preview_pull(there, remote)
    needed = estimate.counted_bytes - manifest_bytes(remote)

    class Usage:
        """A disk on which there is room once the temporary of 1,000 bytes is gone."""

        @property
        def free(self) -> int:
            return needed + limits.RESERVE_BYTES - (500 if killed.exists() else -500)

    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: Usage())
    assert preview_pull(there, remote).bytes == estimate.bytes
    assert killed.exists()
    pull(there, remote)
    assert content(there) == content(cache.folder)


def test_a_temporary_that_is_another_name_of_a_finished_file_is_not_written_over(tmp_path: Path) -> None:
    target = tmp_path / "corpus.json"
    left_by_killed(target).replace(target)
    with arriving(target, no_wait) as temporary:
        name = temporary
    os.link(target, name)
    with arriving(target, no_wait) as temporary:
        temporary.write_bytes(b"other")
    assert target.read_bytes() == bytes(1000)
    assert not name.exists()


def test_a_link_in_the_place_of_a_temporary_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    target = tmp_path / "cache" / "teachers" / "id" / "file"
    with arriving(target, no_wait) as temporary:
        pass
    temporary.symlink_to(outside)
    (tmp_path / "cache" / "corpora").mkdir()
    killed = left_by_killed(tmp_path / "others" / "corpus.json")
    (tmp_path / "cache" / "corpora" / "corpus").symlink_to(killed.parent)
    assert abandoned_bytes(tmp_path / "cache", delete=True) == 0
    with arriving(target, no_wait) as temporary:
        temporary.write_bytes(b"other")
    assert outside.read_text() == "untouched"
    assert killed.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_pulled_into_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))

    class WithoutLocks:
        LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB

        @staticmethod
        def flock(*_: object) -> None:
            raise OSError(code, "no locks")

    monkeypatch.setattr(temporaries, "fcntl", WithoutLocks)
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)
    assert not list((tmp_path / "there").rglob(".tmp-*"))


def test_who_waits_comes_next_and_many_threads_each_have_the_file_alone(tmp_path: Path) -> None:
    target, inside = tmp_path / "file", []

    def write(number: int) -> None:
        with arriving(target, lambda: time.sleep(0.001)) as temporary:
            inside.append(number)
            assert temporary.read_bytes() == b""
            temporary.write_bytes(b"x" * (number + 1))
            assert inside.pop() == number
            if number % 2:
                temporary.replace(target)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(60)))
    assert target.exists()
    assert not list(tmp_path.glob(".tmp-*"))
