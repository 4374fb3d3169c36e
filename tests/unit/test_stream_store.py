"""A store over a remote's shards: right vectors, a bound on the disk, nothing deleted that is not its own."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from share_helpers import SHARD_ROWS, TEXTS, make_cache, manifest_bytes, manifest_of

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.findings import Kind
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.keys import key_array
from embedcache.share import PullChoice, limits, pull, push
from embedcache.share.mirror import others_fetch
from embedcache.share.mirror import shards as mirror_shards
from embedcache.share.mirror.mirror import Mirror, default_mirror, is_remote
from embedcache.share.mirror.shards import MirrorShards
from embedcache.share.mirror_notes import streamed_shards
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pulling import models_at_hand, sample
from embedcache.share.pulling.plan import Preparation, prepare
from embedcache.store.containers import ChosenShards
from embedcache.testing import fake_teacher, sentences

SHARDS = len(TEXTS) // SHARD_ROWS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """The cache that was pushed; not to be changed."""
    folder = tmp_path_factory.mktemp("stream")
    cache = make_cache(folder / "cache")
    push(cache, str(folder / "remote"))
    return cache


@pytest.fixture
def remote(whole: Cache) -> str:
    return str(whole.folder.parent / "remote")


def shard_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "teachers").glob("*/shards/*") if path.is_file()]


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def on_disk(folder: Path) -> int:
    return sum(map(size_of, shard_files(folder)))


def shard_bytes(whole: Cache) -> int:
    return max(path.stat().st_size for path in shard_files(whole.folder))


def contract_of(cache: Cache):
    return cache.teacher().contract


@pytest.fixture
def peak(tmp_path, monkeypatch) -> list[int]:
    """The bytes of shards, temporary ones too, in ``tmp_path / "mirror"`` at every step of a write."""
    seen = [0]

    def look(step: str, path: Path) -> None:
        seen.append(on_disk(tmp_path / "mirror"))

    monkeypatch.setattr(fsio, "on_write_step", look)
    return seen


def test_a_mirror_has_everything_but_shards_at_first(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        assert shard_files(tmp_path / "mirror") == []
        assert mirror.cache.corpus().texts() == whole.corpus().texts()
        assert mirror.cache.teacher() == whole.teacher()
    assert not verify(tmp_path / "mirror").damage


def test_a_finer_vector_of_the_mirrors_own_is_not_read_where_the_remote_has_one(tmp_path):
    coarse = make_cache(tmp_path / "coarse", TEXTS[:40], codec="int8")
    fine = make_cache(tmp_path / "mirror", TEXTS[:60], codec="float32")
    push(coarse, str(tmp_path / "remote"))
    with Mirror.open(str(tmp_path / "remote"), fine.folder) as mirror:
        store = mirror.store(contract_of(coarse))
        found = store.vectors(store.locate(key_array(TEXTS[:60])))
    np.testing.assert_array_equal(found[:40], coarse.lookup(TEXTS[:40]))
    assert not np.array_equal(found[:40], fine.lookup(TEXTS[:40]))
    np.testing.assert_array_equal(found[40:], fine.lookup(TEXTS[40:60]))


def test_vectors_are_those_of_the_cache_that_was_pushed(remote, whole, tmp_path):
    keys = key_array(TEXTS)
    expected = whole.store(contract_of(whole))
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        positions = store.locate(keys)
        assert positions.tolist() == expected.locate(keys).tolist()
        assert len(store) == len(expected)
        mixed = np.random.default_rng(0).permutation(positions)
        found, wanted = store.gather(mixed), expected.gather(mixed)
        assert found.dtype == wanted.dtype
        assert (found == wanted).all()
        assert store.vectors(mixed).dtype == np.float32
        for one, other in zip(store.seen(mixed), expected.seen(mixed), strict=True):
            assert (one == other).all()
        assert store.locate(key_array(["no such text"])).tolist() == [-1]
        with pytest.raises(IndexError):
            store.gather(np.array([-1]))
        with pytest.raises(IndexError):
            store.gather(np.array([len(TEXTS)]))
        assert store.gather(positions[:0]).shape == (0, 8)
    # What came is as it was pushed, and a second mirror of the folder fetches nothing.
    assert {path.name for path in shard_files(tmp_path / "mirror")} == {
        path.name for path in shard_files(whole.folder)
    }
    assert not verify(tmp_path / "mirror").findings
    assert (Cache(tmp_path / "mirror").lookup(TEXTS[:50]) == whole.lookup(TEXTS[:50])).all()


def test_only_the_shards_that_are_needed_come(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        store.gather(store.locate(key_array(TEXTS[: SHARD_ROWS // 2])))
    assert len(shard_files(tmp_path / "mirror")) == 1


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_limit_holds_at_every_moment(remote, whole, tmp_path, peak, shards):
    limit = shards * shard_bytes(whole)
    positions = whole.store(contract_of(whole)).locate(key_array(TEXTS))
    with Mirror.open(remote, tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        generator = np.random.default_rng(1)
        for _ in range(10):
            some = generator.choice(positions, 60)
            assert (store.gather(some) == whole.store(contract_of(whole)).gather(some)).all()
    assert 0 < max(peak) <= limit
    assert not verify(tmp_path / "mirror").damage


def test_windows_come_before_they_are_asked_for_and_within_the_limit(remote, whole, tmp_path, peak):
    limit = 4 * shard_bytes(whole)
    with Mirror.open(remote, tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        windows = [[0, 1], [2, 3], [4, 5], [0, 2]]
        for number in range(len(windows)):
            store.want(windows[number:])
            near = {one for window in windows[number : number + 2] for one in window}
            names = {f"{store._names[one]}.arrow" for one in near}
            deadline = time.monotonic() + 60
            while not names <= {path.name for path in shard_files(tmp_path / "mirror")}:
                assert time.monotonic() < deadline, "they never came"
                time.sleep(0.01)
    assert max(peak) <= limit


def test_shards_that_were_pulled_or_built_here_are_never_deleted(remote, whole, tmp_path, peak):
    mirror_folder = tmp_path / "mirror"
    pull(mirror_folder, remote, sample_check=False)
    names = sorted(path.name for path in shard_files(mirror_folder))
    # Two are left of what was pulled; others are of a corpus that was built here and pushed nowhere.
    for path in shard_files(mirror_folder):
        if path.name in names[2:]:
            path.unlink()
    own = sentences(80, seed=99)
    make_cache(mirror_folder, own, name="own")
    kept = {path.name: path.read_bytes() for path in shard_files(mirror_folder)}
    here = on_disk(mirror_folder)
    peak.clear()
    limit = 2 * shard_bytes(whole)
    with Mirror.open(remote, mirror_folder, limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        for _ in range(2):
            for start in range(0, len(TEXTS), 30):
                texts = TEXTS[start : start + 30]
                assert (store.vectors(store.locate(key_array(texts))) == whole.lookup(texts)).all()
        # Those that the remote lacks are found all the same.
        assert (store.vectors(store.locate(key_array(own))) == Cache(mirror_folder).lookup(own)).all()
    for name, data in kept.items():
        (found,) = mirror_folder.glob(f"teachers/*/shards/{name}")
        assert found.read_bytes() == data
    assert max(peak) <= here + limit


def test_a_pull_takes_over_what_a_run_has_fetched(remote, whole, tmp_path, peak):
    folder, limit = tmp_path / "mirror", 2 * shard_bytes(whole)
    with Mirror.open(remote, folder, limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        store.gather(np.arange(2 * SHARD_ROWS))
        fetched = {path.name: path.read_bytes() for path in shard_files(folder)}
        assert len(fetched) == 2
        # Another run is still at work, and has seen that they may be deleted.
        assert pull(folder, remote, sample_check=False).fetched_vectors == len(TEXTS) - 2 * SHARD_ROWS
        assert len(shard_files(folder)) == SHARDS
        for path in shard_files(folder):
            if path.name not in fetched:
                path.unlink()
        peak.clear()
        for start in range(2 * SHARD_ROWS, len(TEXTS), SHARD_ROWS):
            store.gather(np.arange(start, start + SHARD_ROWS))
    there = {path.name: path.read_bytes() for path in shard_files(folder)}
    assert fetched.items() < there.items()
    assert max(peak) <= 2 * shard_bytes(whole) + limit


def test_a_part_keeps_the_shards_that_its_rows_were_found_in(remote, whole, tmp_path):
    folder, limit = tmp_path / "mirror", shard_bytes(whole)
    with Mirror.open(remote, folder, limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        positions = store.locate(key_array(TEXTS[:1]))
        store.gather(positions)
        (kept,) = shard_files(folder)
        part = pull(folder, remote, PullChoice(corpora=["corpus"], rows=1), sample_check=False).part
        assert [one.present for one in part.vectors] == [1]
        for start in range(0, len(TEXTS), SHARD_ROWS):
            store.gather(np.arange(start, start + SHARD_ROWS))
    assert kept.is_file()
    assert len(shard_files(folder)) == 2
    assert (Cache(folder).lookup(TEXTS[:1]) == whole.lookup(TEXTS[:1])).all()


def test_what_a_run_has_fetched_is_sampled_when_a_pull_takes_it_over(remote, whole, tmp_path, monkeypatch):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        mirror.store(contract_of(whole)).gather(np.arange(len(TEXTS)))
    compared = []
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)

    def check_deep(cache, *, shards, **settings):
        compared.append(shards)
        raise InputError("far enough")

    monkeypatch.setattr(sample, "check_deep", check_deep)
    assert pull(tmp_path / "mirror", remote).fetched_vectors == 0
    assert compared == [{path.stem for path in shard_files(tmp_path / "mirror")}]


def test_what_the_remote_has_lost_is_not_deleted(whole, tmp_path):
    remote = tmp_path / "remote"
    push(whole, str(remote))
    limit = 2 * shard_bytes(whole)
    keys = key_array(TEXTS)
    with Mirror.open(str(remote), tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        positions = np.sort(store.locate(keys))
        store.gather(positions[: 2 * SHARD_ROWS])
        (first, second) = shard_files(tmp_path / "mirror")
        for path in (first, second):
            (remote / "objects" / path.stem[:2] / path.stem).unlink()
        shards: MirrorShards = mirror._shards
        assert not shards._obtain((contract_of(whole).id, store._names[3]), urgent=False)
        with pytest.raises(StorageError, match="which are kept"):
            shards.open(contract_of(whole).id, store._names[3])
        assert set(shard_files(tmp_path / "mirror")) == {first, second}
        # What is here is still read.
        store.gather(positions[: 2 * SHARD_ROWS])


def test_the_least_recently_wanted_goes_first(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror", limit=3 * shard_bytes(whole)) as mirror:
        store = mirror.store(contract_of(whole))

        def use(number: int) -> None:
            store.want([[number]])
            store.gather(np.array([number * SHARD_ROWS]))

        for number in (0, 1, 2, 0, 3):
            use(number)
        there = {path.stem for path in shard_files(tmp_path / "mirror")}
        assert there == {store._names[number] for number in (0, 2, 3)}


def test_shards_are_opened_together_even_if_others_delete_one_meanwhile(remote, whole, tmp_path, monkeypatch):
    find_liars, deleted = ChosenShards.find_liars, []

    def find_after_deletion(shards: ChosenShards, names: list[str]) -> list[str]:
        if len(names) == 2 and not deleted:
            deleted.append(names[0])
            Path(shards.where(names[0])).unlink()
        return find_liars(shards, names)

    monkeypatch.setattr(ChosenShards, "find_liars", find_after_deletion)
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        opened = mirror.store(contract_of(whole)).opened(np.array([0, 1]))
        assert deleted
        assert len(opened) == 2 * SHARD_ROWS


def test_a_shard_that_others_delete_stays_readable(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        store.want([[0]])
        first = store.gather(np.arange(SHARD_ROWS))
        for path in shard_files(tmp_path / "mirror"):
            path.unlink()
        assert (store.gather(np.arange(SHARD_ROWS)) == first).all()
        store.want([[1]])
        # Closed meanwhile, it is fetched again.
        assert (store.gather(np.arange(SHARD_ROWS)) == first).all()


def test_a_part_keeps_the_shards_that_a_run_was_just_fetching(remote, whole, tmp_path):
    (contract_id,) = {contract_of(whole).id}
    folder = tmp_path / "mirror"
    with Mirror.open(remote, folder) as mirror:
        shards = mirror._shards
        listed = shards._listed[contract_id]
        # As a run does before it fetches a shard, while the pull is looking which are there.
        held = [shards._shards.reserve((contract_id, name), file.bytes) for name, file in listed.items()]
        done = pull(
            folder, remote, PullChoice(corpora=["corpus"], rows=len(TEXTS), alias="part"), sample_check=False
        )
        assert done.part is not None
        assert [one.taken for one in done.part.vectors] == [len(TEXTS)]
        for descriptor in held:
            os.close(descriptor)
        assert not streamed_shards(Cache(folder), contract_id)
    with Mirror.open(remote, folder, limit=3 * shard_bytes(whole)) as mirror:
        mirror.store(contract_of(whole)).want([range(SHARDS)])
    assert len(shard_files(folder)) == SHARDS
    assert np.array_equal(Cache(folder).lookup(TEXTS), whole.lookup(TEXTS))


def test_a_damaged_shard_that_was_fetched_is_fetched_again(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        expected = store.gather(np.arange(SHARD_ROWS))
    (path,) = shard_files(tmp_path / "mirror")
    flip_middle(path)
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        assert (store.gather(np.arange(SHARD_ROWS)) == expected).all()


def test_two_mirrors_of_one_folder_share_its_limit(remote, whole, tmp_path, peak):
    limit = 2 * shard_bytes(whole)
    errors = []

    def read(seed: int) -> None:
        try:
            with Mirror.open(remote, tmp_path / "mirror", limit=limit) as mirror:
                store = mirror.store(contract_of(whole))
                generator = np.random.default_rng(seed)
                for _ in range(8):
                    some = generator.integers(0, len(TEXTS), 50)
                    assert (store.gather(some) == expected[some]).all()
        except BaseException as error:  # noqa: BLE001 - told in the thread that asserts
            errors.append(error)

    expected = whole.store(contract_of(whole)).gather(np.arange(len(TEXTS)))
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert max(peak) <= limit


def test_what_a_killed_fetch_has_left_is_taken_away(remote, whole, tmp_path):
    limit = 2 * shard_bytes(whole)
    with Mirror.open(remote, tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        store.gather(np.array([0]))
        names = store._names
    (note,) = (tmp_path / "mirror" / "derived" / "stream").glob("*/*.json")
    (shard,) = shard_files(tmp_path / "mirror")
    # One was being fetched, of another nothing had come yet, the note of a third was being written.
    of_first = note.stem.removeprefix(shard.stem)
    for name in names[1:3]:
        note.with_stem(f"{name}{of_first}").write_bytes(note.read_bytes())
    shard.with_name(f".tmp-{'0' * 32}-{names[1]}.arrow").write_bytes(b"x" * 1000)
    note.with_stem(f"{names[3]}{of_first}").write_bytes(note.read_bytes()[:20])
    with Mirror.open(remote, tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract_of(whole))
        store.gather(np.arange(len(TEXTS)))
    assert list((tmp_path / "mirror").rglob(".tmp-*")) == []
    assert on_disk(tmp_path / "mirror") <= limit
    assert len(list(note.parent.iterdir())) == len(shard_files(tmp_path / "mirror"))


def test_errors_of_fetching_are_told_where_the_vectors_are_needed(whole, tmp_path):
    remote = tmp_path / "remote"
    push(whole, str(remote))
    with Mirror.open(str(remote), tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        for name in store._names:
            (remote / "objects" / name[:2] / name).unlink()
        store.want([[0, 1]])
        with pytest.raises(RemoteError, match="is not there though a manifest lists it"):
            store.gather(np.array([0]))


def test_a_mirror_in_lmdb_is_refused(remote, whole, tmp_path):
    make_cache(tmp_path / "mirror", TEXTS[:50], name="other", store="lmdb")
    with pytest.raises(InputError, match="give another --mirror"):
        Mirror.open(remote, tmp_path / "mirror")


def test_a_teacher_without_vectors_is_refused(whole, tmp_path, remote):
    other = fake_teacher(4)
    with Mirror.open(remote, tmp_path / "mirror") as mirror, pytest.raises((InputError, KeyError)):
        mirror.store(other.contract)


def test_nothing_is_written_to_a_streamed_store(remote, whole, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        assert store.codec_name == "float16"
        with pytest.raises(InputError, match="build, and push"):
            store.put(None)  # type: ignore[arg-type]


def test_what_is_a_remote(remote, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("EMBEDCACHE_CONFIG", str(tmp_path / "remotes.json"))
    from embedcache.share import add_remote

    assert is_remote("s3://bucket/x")
    assert is_remote(remote)
    assert not is_remote(str(whole.folder))
    assert not is_remote(str(tmp_path / "nothing"))
    assert not is_remote("team")
    add_remote("team", remote)
    assert is_remote("team")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_mirror("team") == default_mirror(remote)
    assert default_mirror("team").parent == tmp_path / "xdg" / "embedcache" / "mirrors"


def test_a_mirror_that_cannot_be_written_is_told_of(remote, tmp_path, monkeypatch):
    open_file = os.open

    def refuse(path: Path, *arguments: Any, **settings: Any) -> int:
        if str(path).endswith(".lock"):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"\.mirror\.lock: permission denied.*--mirror"):
        Mirror.open(remote, tmp_path / "mirror")


def test_row_indexes_that_the_disk_has_no_room_for_are_refused_before_they_are_fetched(
    remote, whole, tmp_path, monkeypatch
):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        full = shutil._ntuple_diskusage(1 << 40, 1 << 40, 64 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda folder: full)
            with pytest.raises(StorageError, match=r"bytes would have to be fetched, and .* --mirror"):
                mirror.store(contract_of(whole))
            assert not list((tmp_path / "mirror").rglob("*.index"))
        mirror.store(contract_of(whole))
    # Those that are here need no more room.
    with Mirror.open(remote, tmp_path / "mirror") as mirror, monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: full)
        assert len(mirror.store(contract_of(whole))) == len(TEXTS)


def test_a_plan_without_a_corpus_is_refused_before_anything_is_fetched(remote, tmp_path, monkeypatch):
    def without_corpus(*arguments: Any, **settings: Any) -> Preparation:
        prepared = prepare(*arguments, **settings)
        wanted = [file for file in prepared.plan.wanted if file.entry.kind is not Kind.CORPUS]
        return replace(prepared, plan=replace(prepared.plan, wanted=wanted))

    monkeypatch.setattr("embedcache.share.mirror.mirror.prepare", without_corpus)
    with pytest.raises(RemoteError, match=r"0 corpora to train on \(none\), expected one.*--corpus"):
        Mirror.open(remote, tmp_path / "mirror")
    assert not list((tmp_path / "mirror").glob("corpora/*"))


def test_a_note_that_cannot_be_written_is_told_of_and_keeps_nobody_waiting(remote, whole, tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".json":
            raise full
        sync(descriptor)

    contract_id = contract_of(whole).id
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(StorageError, match=r"\.json: the disk is full; make room and run the same"):
                mirror._shards.open(contract_id, store._names[0])
        # Neither the note nor its lock is left; otherwise the next who wants the shard waits for nobody.
        assert not streamed_shards(mirror.cache, contract_id)
        notes = str(mirror.cache.derived_folder / "stream" / contract_id)
        assert not [path for path in open_files() if path.startswith(notes)]
        assert len(store.gather(np.arange(SHARD_ROWS))) == SHARD_ROWS


def open_files() -> list[str]:
    """Return the paths of the files that this process has open."""
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            paths.append(str(link.readlink()))
    return paths


class Arriving:
    """A shard that somebody else fetches: its temporary file grows so many times, once in 200 s.

    It is a clock too, by which time passes for those alone who sleep.
    """

    def __init__(self, mirror: Mirror, key: tuple[str, str], times: int) -> None:
        shards = mirror._shards._shards
        self._held = shards.reserve(key, 1000)
        self._path = shards.path(key).with_name(f".tmp-{'0' * 32}-{key[1]}.arrow")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._times, self.now = times, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        # Faster than life, but slower than is looked for progress.
        before, self.now = self.now, self.now + 100 * seconds
        if before // 200 < self.now // 200 <= self._times:
            with self._path.open("ab") as file:
                file.write(b"x")

    def end(self) -> None:
        os.close(self._held)


def test_who_waits_for_a_shard_that_another_fetches_waits_as_long_as_more_of_it_arrives(
    remote, whole, tmp_path, monkeypatch
):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        key = (contract_of(whole).id, store._names[0])
        arriving = Arriving(mirror, key, times=12)
        with monkeypatch.context() as patch:
            patch.setattr(mirror_shards, "time", arriving)
            patch.setattr(others_fetch, "time", arriving)
            with pytest.raises(StorageError, match="another process on this mirror fetches it, and nothing"):
                mirror._shards.open(*key)
        # While it grew nobody gave up, though that took four times as long as one waits for nothing.
        assert arriving.now > 4 * others_fetch.LONGEST_WAIT_SECONDS
        # Its process has ended: then it is fetched.
        arriving.end()
        assert len(store.gather(np.arange(SHARD_ROWS))) == SHARD_ROWS
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_what_a_mirror_fetches_is_bounded_before_any_shard_is(remote, whole, tmp_path):
    shards = sum(path.stat().st_size for path in shard_files(whole.folder))
    files = manifest_of(Path(remote))["files"]
    indexes = sum(file["index"]["bytes"] for file in files if "index" in file)
    others = sum(file["bytes"] for file in files) - shards + manifest_bytes(remote)
    contract, keys = contract_of(whole), key_array(TEXTS)

    def expect(most: int, **settings: Any) -> None:
        with Mirror.open(remote, tmp_path / str(most), max_bytes=most, **settings) as mirror:
            store = mirror.store(contract)
            store.expect(store.locate(keys))

    with pytest.raises(InputError, match=f"{others:,} bytes would .* 'embedcache pull --rows'"):
        expect(others - 1)
    assert not list((tmp_path / str(others - 1)).rglob("*.arrow"))
    with pytest.raises(InputError, match=f"{others + indexes:,} bytes would have to be fetched"):
        expect(others + indexes - 1)
    needed = others + indexes + shards
    with pytest.raises(InputError, match=f"{needed:,} bytes would have to be fetched"):
        expect(needed - 1)
    assert shard_files(tmp_path / str(needed - 1)) == []
    expect(needed)
    # With a limit shards come and go, and only what comes before them is bounded.
    expect(others + indexes, limit=shards)
    # What is here counts nothing.
    pull(tmp_path / "0", remote)
    pull(tmp_path / "0", remote)
    with Mirror.open(remote, tmp_path / "0", max_bytes=indexes) as mirror:
        store = mirror.store(contract)
        store.expect(store.locate(keys))


def test_what_was_read_for_a_plan_that_failed_counts_too(tmp_path, monkeypatch):
    remote = str(tmp_path / "remote")
    caches = [make_cache(tmp_path / str(width), teacher=fake_teacher(width)) for width in (8, 16)]
    for cache in caches:
        push(cache, remote)
    ids = [contract_of(cache).id for cache in caches]
    fetched: list[int] = []
    blocks = FolderPlace.blocks

    def counted(self, path, size):
        for block in blocks(self, path, size):
            fetched.append(len(block) if path.startswith(("manifests/", "objects/")) else 0)
            yield block

    with monkeypatch.context() as patch:
        patch.setattr(FolderPlace, "blocks", counted)
        Mirror.open(remote, tmp_path / "free", teachers=ids[:1]).close()
    needed = sum(fetched)
    with pytest.raises(InputError, match="would have to be fetched"):
        Mirror.open(remote, tmp_path / "less", teachers=ids[:1], max_bytes=needed - 1)
    Mirror.open(remote, tmp_path / "enough", teachers=ids[:1], max_bytes=needed).close()


def test_a_shard_is_fetched_only_where_the_disk_has_room_for_it(remote, whole, tmp_path, monkeypatch):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(contract_of(whole))
        usage = shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch:
            full = usage._replace(free=limits.RESERVE_BYTES + 1000)
            patch.setattr(shutil, "disk_usage", lambda _: full)
            with pytest.raises(StorageError, match=r"would have to be fetched, .* are free.*--cache-limit"):
                store.gather(np.arange(4))
        assert streamed_shards(mirror.cache, contract_of(whole).id) == frozenset()
        assert shard_files(tmp_path / "mirror") == []
        assert len(store.gather(np.arange(4))) == 4
