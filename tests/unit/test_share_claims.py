"""Claims: whoever pushes at once, no object travels twice, and nobody waits for the dead."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
from share_helpers import TEXTS, claims_left, claims_on, content, files_of, make_cache, objects_of

from embedcache.cache import Cache
from embedcache.errors import RemoteError
from embedcache.share import pull, push, retry
from embedcache.share.places import Stat, parse_location
from embedcache.share.places.base import Data
from embedcache.share.places.folder import FolderPlace
from embedcache.share.remote import claims as claims_module
from embedcache.share.remote import marks
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.marks import may_run, new_mark
from embedcache.share.remote.remote import Remote

# A fork of this process would inherit its threads' locks.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["embedcache.share", "embedcache.testing", "pyarrow"])


def test_one_plans_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def plan(number: int) -> None:
        with claims_on(tmp_path).alive() as mine:
            for _ in range(3):
                with mine.planning():
                    inside.append(number)
                    most.append(len(inside))
                    time.sleep(0.01)
                    inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(plan, range(8)))
    assert len(most) == 24
    assert max(most) == 1
    assert files_of(tmp_path, "claims") == {}


def test_what_one_has_taken_others_see_until_it_is_given_up(tmp_path: Path) -> None:
    with claims_on(tmp_path).alive() as one, claims_on(tmp_path, elsewhere=True).alive() as two:
        one.take({"a" * 64, "b" * 64})
        assert list(two.of_others().values()) == [frozenset({"a" * 64, "b" * 64})]
        assert one.of_others() == {}
        one.take({"c" * 64})
        assert list(two.of_others().values()) == [frozenset({"c" * 64})]
        one.give_up()
        assert two.of_others() == {}
    assert files_of(tmp_path, "claims") == {}


def test_whoever_claims_piece_by_piece_costs_others_and_itself_little(tmp_path: Path) -> None:
    place, asked = FolderPlace(tmp_path), list[str]()

    class Counting(FolderPlace):
        def list(self, folder: str) -> dict[str, Stat]:
            asked.append("list")
            return place.list(folder)

        def write(self, path: str, data: Data) -> None:
            kind = path.rpartition(".")[2]
            asked.extend([f"write {kind}"] if kind != "beat" else [])
            place.write(path, data)

        def blocks(self, path: str, size: int) -> Iterator[memoryview]:
            asked.append("read")
            return place.blocks(path, size)

    mine = Claims(Remote(parse_location(str(tmp_path)), Counting(tmp_path)))
    with mine.alive(), claims_on(tmp_path, elsewhere=True).alive() as other:
        for number in range(20):
            other.take({f"{number:064x}"})
            asked.clear()
            with mine.planning():
                assert list(mine.of_others().values()) == [frozenset({f"{number:064x}"})]
                mine.take({"a" * 64})
            mine.give_up()
            # Is anybody planning, do I alone, what is claimed, does my claim show?
            assert asked == ["list", "write plan", "list", "list", "read", "write json", "list"]
            asked.clear()
            assert len(mine.of_others()) == 1
            assert asked == ["list"]
        # What others have given up is forgotten.
        assert len(mine._known) == 1


def test_who_waits_goes_on_when_the_claim_is_given_up(tmp_path: Path) -> None:
    with claims_on(tmp_path).alive() as one, claims_on(tmp_path).alive() as two:
        one.take({"a" * 64})
        waits: list[int] = []

        def on_wait(others: int) -> None:
            waits.append(others)
            if len(waits) == 2:
                one.give_up()

        two.wait({"a" * 64}, on_wait)
        assert waits == [1, 1]
        # Of what nobody claims there is nothing to wait for.
        two.wait({"b" * 64}, lambda others: pytest.fail("waited"))


def test_nobody_waits_for_a_process_of_this_machine_that_is_gone(tmp_path: Path) -> None:
    child = _FORKS.Process(target=_claim_and_die, args=(tmp_path,))
    child.start()
    child.join()
    assert len(files_of(tmp_path, "claims")) == 3
    with claims_on(tmp_path).alive() as mine:
        mine.wait({"a" * 64}, lambda others: pytest.fail("waited"))
        with mine.planning():
            assert mine.of_others() == {}
    assert files_of(tmp_path, "claims") == {}


def _claim_and_die(folder: Path) -> None:
    mine = claims_on(folder)
    mine._beat()
    mine.take({"a" * 64})
    mine.remote.write(f"claims/{mine.mark}.7.plan", b"plan")
    os._exit(1)


def test_without_a_beat_a_process_elsewhere_counts_as_gone_after_a_while(tmp_path: Path) -> None:
    gone = claims_on(tmp_path, elsewhere=True)
    gone._beat()
    gone.take({"a" * 64})
    gone.remote.write(f"claims/{gone.mark}.7.plan", b"plan")
    with claims_on(tmp_path).alive() as mine:
        assert len(mine.of_others()) == 1
        beat = tmp_path / "claims" / f"{gone.mark}.beat"
        then = beat.stat().st_mtime - 61
        os.utime(beat, (then, then))
        with mine.planning():
            assert mine.of_others() == {}
    assert files_of(tmp_path, "claims") == {}


def test_a_beat_goes_on_while_the_work_lasts(tmp_path: Path) -> None:
    with claims_on(tmp_path, stale_seconds=0.3, elsewhere=True).alive() as one:
        beat = tmp_path / "claims" / f"{one.mark}.beat"
        first = beat.stat().st_mtime_ns
        deadline = time.monotonic() + 60
        while beat.stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"[1]", b'["../x"]', b"[" * 99_999, b"\xff"])
def test_a_claim_that_is_none_claims_nothing(tmp_path: Path, data: bytes) -> None:
    with claims_on(tmp_path).alive() as mine, claims_on(tmp_path, elsewhere=True).alive() as other:
        other.take({"a" * 64})
        (path,) = (tmp_path / "claims").glob("*.json")
        path.write_bytes(data)
        assert all(not digests for digests in mine.of_others().values())


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "README").write_text("hello")
    with claims_on(tmp_path).alive() as mine, mine.planning():
        assert mine.of_others() == {}
    assert files_of(tmp_path, "claims") == {"README": b"hello"}


def test_waiting_ends_when_everything_is_to_stop(tmp_path: Path) -> None:
    with claims_on(tmp_path, elsewhere=True).alive() as other, claims_on(tmp_path).alive() as mine:
        other.take({"a" * 64})
        mine.remote.stop.set()
        with pytest.raises(RemoteError, match="stopped while waiting"):
            mine.wait({"a" * 64}, lambda others: None)


def test_what_a_dead_push_had_claimed_is_taken_over(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    dead = claims_on(tmp_path / "remote", elsewhere=True)
    dead._beat()
    dead.take([content(cache.folder)["corpora/corpus/corpus.json"]])
    beat = tmp_path / "remote" / "claims" / f"{dead.mark}.beat"
    os.utime(beat, (beat.stat().st_mtime - 61,) * 2)
    assert push(cache, str(tmp_path / "remote")).sent == len(objects_of(cache.folder))


def test_what_others_send_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_POLL_SECONDS", 0.02)
    cache = make_cache(tmp_path / "cache")
    path = "corpora/corpus/corpus.json"
    digest = content(cache.folder)[path]
    place = tmp_path / "remote" / "objects" / digest[:2] / digest
    with claims_on(tmp_path / "remote", elsewhere=True).alive() as other:
        other.take([digest])
        done = []
        pushing = threading.Thread(target=lambda: done.append(push(cache, str(tmp_path / "remote"))))
        pushing.start()
        time.sleep(0.3)
        assert pushing.is_alive()
        assert not place.exists()
        other.remote.write(f"objects/{digest[:2]}/{digest}", (cache.folder / path).read_bytes())
        other.give_up()
        pushing.join(60)
    assert (done[0].sent, done[0].others) == (len(objects_of(cache.folder)) - 1, 1)


def test_what_is_finished_during_the_planning_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "cache")
    path = "corpora/corpus/corpus.json"
    digest = content(cache.folder)[path]
    looks = []
    with claims_on(tmp_path / "remote", elsewhere=True).alive() as other:
        other.take([digest])

        def finishing_after_the_second(look: Callable[..., object]) -> Callable[..., object]:
            def act(*arguments: object) -> object:
                found = look(*arguments)
                looks.append(look.__name__)
                # The first is taken before the planning; after the second, one more follows in it.
                if len(looks) == 2:
                    other.remote.write(f"objects/{digest[:2]}/{digest}", (cache.folder / path).read_bytes())
                    other.give_up()
                return found

            return act

        monkeypatch.setattr(Claims, "of_others", finishing_after_the_second(Claims.of_others))
        monkeypatch.setattr(Remote, "present", finishing_after_the_second(Remote.present))
        done = push(cache, str(tmp_path / "remote"))
    assert set(looks[1:3]) == {"of_others", "present"}
    assert (done.sent, done.others) == (len(objects_of(cache.folder)) - 1, 1)


def _push(cache: Path, remote: Path, start: Path, results: SimpleQueue[tuple[int, int, int]]) -> None:
    while not start.exists():
        time.sleep(0.001)
    done = push(cache, str(remote), jobs=2)
    results.put((done.sent, done.present, done.others))


def test_eight_processes_push_overlapping_caches_and_nothing_travels_twice(tmp_path: Path) -> None:
    caches = []
    for number in range(8):
        # Windows of texts that overlap in whole shards; every two neighbours share five of six.
        texts = TEXTS * 2
        caches.append(make_cache(tmp_path / f"c{number}", texts[20 * number :][:160], name=f"n{number}"))
    shared = content(caches[0].folder).keys() & content(caches[2].folder).keys()
    assert len(shared) > 3
    results: SimpleQueue[tuple[int, int, int]] = _FORKS.SimpleQueue()
    arguments = [(cache.folder, tmp_path / "remote", tmp_path / "start", results) for cache in caches]
    children = [_FORKS.Process(target=_push, args=one) for one in arguments]
    for child in children:
        child.start()
    (tmp_path / "start").touch()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * 8
    counts = [results.get() for _ in children]
    union: dict[str, str] = {}
    for cache in caches:
        union |= content(cache.folder)
    wanted = set().union(*(objects_of(cache.folder) for cache in caches))
    assert sum(sent for sent, _, _ in counts) == len(wanted)
    for cache, (sent, present, others) in zip(caches, sorted(counts), strict=True):
        assert sent + present + others == len(objects_of(cache.folder))
    assert claims_left(tmp_path / "remote") == []
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == union
    assert len(Cache(tmp_path / "there").lookup(TEXTS)) == len(TEXTS)


# Marks of processes


@pytest.fixture
def fresh_marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let what is known of this machine be asked for anew, before and after."""
    marks._machine.cache_clear()
    yield monkeypatch
    marks._machine.cache_clear()


def ended_process() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def mark_of(process: int) -> str:
    machine, _, digits = new_mark().split("-")
    return f"{machine}-{process}-{digits}"


def test_an_ended_process_of_this_machine_does_not_run(fresh_marks: pytest.MonkeyPatch) -> None:
    assert may_run(new_mark())
    assert not may_run(mark_of(ended_process()))
    assert may_run(f"{'0' * 12}-{ended_process()}-{'0' * 12}")


@pytest.mark.parametrize("path", ["_BOOT_ID", "_PROCESS_NUMBERS"])
def test_a_hostname_alone_does_not_tell_machines_apart(
    tmp_path: Path, fresh_marks: pytest.MonkeyPatch, path: str
) -> None:
    """Without /proc, as on macOS, a mark of the same hostname may be another machine's: the beat decides."""
    fresh_marks.setattr(marks, path, tmp_path / "missing")
    other = Claims(Remote(parse_location(str(tmp_path))), mark=mark_of(ended_process()))
    assert may_run(other.mark)
    with other.alive(), claims_on(tmp_path).alive() as mine:
        other.take({"a" * 64})
        assert list(mine.of_others().values()) == [frozenset({"a" * 64})]
        assert f"{other.mark}.1.json" in files_of(tmp_path, "claims")


def test_this_machine_is_looked_up_once(fresh_marks: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read_text = Path.read_text

    def counting(path: Path, *arguments: str, **rest: str) -> str:
        reads.append(path)
        return read_text(path, *arguments, **rest)

    fresh_marks.setattr(Path, "read_text", counting)
    for _ in range(10):
        may_run(new_mark())
    assert reads.count(marks._BOOT_ID) == 1


# Connections that drop


class Dropping(FolderPlace):
    """A folder that leaves a beat out of listings, and drops the connection when it is first looked up."""

    def __init__(self, root: Path, beat: str) -> None:
        super().__init__(root)
        self.beat = beat
        self.dropped = 0

    def list(self, folder: str) -> dict[str, Stat]:
        listed = super().list(folder)
        listed.pop(self.beat, None)
        return listed

    def stat(self, path: str) -> Stat | None:
        if path == f"claims/{self.beat}" and not self.dropped:
            self.dropped += 1
            raise OSError("connection reset by peer")
        return super().stat(path)


def test_a_dropped_connection_ends_no_look_at_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    with claims_on(tmp_path, elsewhere=True).alive() as other:
        other.take({"a" * 64})
        place = Dropping(tmp_path, f"{other.mark}.beat")
        with Claims(Remote(parse_location(str(tmp_path)), place)).alive() as mine:
            assert list(mine.of_others().values()) == [frozenset({"a" * 64})]
        assert place.dropped == 1


# Places that list late


class Lagging(FolderPlace):
    """A folder that lists what is written and deleted some time later."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self.seconds = seconds
        self.known: dict[str, list[tuple[float, Stat | None]]] = {}
        self.lock = threading.Lock()

    def write(self, path: str, data: Data) -> None:
        super().write(path, data)
        self._note(path, super().stat(path))

    def remove(self, path: str) -> None:
        super().remove(path)
        self._note(path, None)

    def _note(self, path: str, stat: Stat | None) -> None:
        with self.lock:
            self.known.setdefault(path, []).append((time.monotonic(), stat))

    def list(self, folder: str) -> dict[str, Stat]:
        files = {}
        with self.lock:
            # One instant for all: what was written first must not be missing where a later file is listed.
            listed_until = time.monotonic() - self.seconds
            for path, history in self.known.items():
                above, _, name = path.rpartition("/")
                past = [stat for when, stat in history if when <= listed_until]
                if above == folder and past and past[-1] is not None:
                    files[name] = past[-1]
        return files


def test_one_plans_at_a_time_where_listings_come_late(tmp_path: Path) -> None:
    place = Lagging(tmp_path, 0.1)
    inside: list[int] = []
    most: list[int] = []
    seen: list[int] = []

    def plan(number: int) -> None:
        claims = Claims(Remote(parse_location(str(tmp_path)), place))
        with claims.alive():
            with claims.planning():
                inside.append(number)
                most.append(len(inside))
                seen.append(len(claims.of_others()))
                claims.take({f"{number:064x}"})
                inside.remove(number)
            ended.wait()

    ended = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(plan, range(4)))
    assert max(most) == 1
    # Each sees what those have claimed that came before it.
    assert seen == [0, 1, 2, 3]


def test_what_is_claimed_shows_before_anybody_else_plans_where_listings_come_late(tmp_path: Path) -> None:
    place = Lagging(tmp_path, 0.2)
    one, two = (Claims(Remote(parse_location(str(tmp_path)), place)) for _ in range(2))
    with one.alive(), two.alive():
        with one.planning():
            one.take({"a" * 64})
        with two.planning():
            assert list(two.of_others().values()) == [frozenset({"a" * 64})]


def test_a_place_that_never_lists_what_was_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "LISTING_SECONDS", 0.3)
    place = Lagging(tmp_path / "remote", 3600)
    monkeypatch.setattr(remote_module, "open_place", lambda location: place)
    cache = make_cache(tmp_path / "cache")
    with pytest.raises(RemoteError, match=r"does not list claims/.*written there .* s ago.*--alone"):
        push(cache, str(tmp_path / "remote"))
    assert files_of(tmp_path / "remote", "objects") == {}
    assert claims_left(tmp_path / "remote") == []
    # Who knows to be alone needs no listings.
    done = push(cache, str(tmp_path / "remote"), alone=True)
    assert done.sent == len(files_of(tmp_path / "remote", "objects"))
    monkeypatch.undo()
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)
