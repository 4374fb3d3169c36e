"""A remote that fails while it is trained from: the run ends soon and says why, and can be gone on with."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distill_helpers import build_ten_shards, metrics, small_run
from share_helpers import SHARD_ROWS, make_cache
from stream_helpers import on_disk, same, shard_size

from distill.cli.progress import describe
from distill.data.source import DistillSource
from distill.layout import CHECKPOINT
from distill.training.run import resume
from distill.training.selection import PairSelector
from distill.training.tracking import TrainProgress
from embedcache.cache import Cache
from embedcache.errors import RemoteError, StorageError
from embedcache.share import push, retry
from embedcache.share.mirror import shards as mirror_shards
from embedcache.share.mirror.mirror import Mirror
from embedcache.share.places.base import Stat
from embedcache.share.places.folder import FolderPlace
from embedcache.share.retry import TRIES

pytest_plugins = ["distill_fixtures"]


class Outage:
    """What becomes of every folder that is a remote, once it is ``begin``-ned.

    Attributes:
        asked: what was asked for meanwhile.
        before: called before anything asked for meanwhile is refused.
    """

    def __init__(self) -> None:
        self.is_on = threading.Event()
        self.asked: list[str] = []
        self.before: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self.is_on.set()

    def end(self) -> None:
        self.is_on.clear()

    def meet(self, path: str) -> None:
        if self.is_on.is_set():
            self.asked.append(path)
            self.before()
            raise OSError("Connection refused")


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    found = Outage()
    stat, blocks = FolderPlace.stat, FolderPlace.blocks

    def failing_stat(place: FolderPlace, path: str) -> Stat | None:
        found.meet(path)
        return stat(place, path)

    def failing_blocks(place: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        found.meet(path)
        return blocks(place, path, size)

    monkeypatch.setattr(FolderPlace, "stat", failing_stat)
    monkeypatch.setattr(FolderPlace, "blocks", failing_blocks)
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    folder = tmp_path_factory.mktemp("outage")
    cache = make_cache(folder / "cache")
    push(cache, str(folder / "remote"))
    return cache


@pytest.fixture
def mirror(whole: Cache, tmp_path: Path) -> Iterator[Mirror]:
    """A mirror of the remote of ``whole``, which has room for two shards."""
    contract = whole.teacher().contract
    limit = 2 * max(shard.bytes for shard in whole.store(contract).shards)
    with Mirror.open(str(whole.folder.parent / "remote"), tmp_path / "mirror", limit=limit) as opened:
        yield opened


def shard_names(mirror: Mirror) -> list[str]:
    return sorted(path.name for path in mirror.cache.folder.glob("teachers/*/shards/*.arrow"))


def rows_of(*shards: int) -> np.ndarray:
    return np.concatenate([np.arange(SHARD_ROWS) + SHARD_ROWS * shard for shard in shards])


def test_who_needs_a_shard_is_told_after_one_round_of_tries_and_nothing_is_deleted(mirror, whole, outage):
    store = mirror.store(whole.teacher().contract)
    store.gather(rows_of(0, 1))
    there = shard_names(mirror)
    outage.begin()
    with pytest.raises(RemoteError, match="Connection refused; see to the connection"):
        store.gather(rows_of(2))
    # Those who fetch ahead may have asked beside: in all, so often for each shard.
    assert len(outage.asked) <= 2 * TRIES
    assert shard_names(mirror) == there
    # What is here is still read.
    assert len(store.gather(rows_of(0, 1))) == 2 * SHARD_ROWS
    outage.end()
    found = store.gather(rows_of(2, 3))
    assert (found == whole.store(whole.teacher().contract).gather(rows_of(2, 3))).all()


def test_where_room_is_to_spare_as_well(whole, outage, tmp_path, monkeypatch):
    # Long enough that whoever needs it comes while it is tried.
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.1)
    with Mirror.open(str(whole.folder.parent / "remote"), tmp_path / "mirror") as mirror:
        store = mirror.store(whole.teacher().contract)
        is_needed, join = threading.Event(), mirror._shards._join

        def joining(key: tuple[str, str]) -> None:
            is_needed.set()
            join(key)

        monkeypatch.setattr(mirror._shards, "_join", joining)
        outage.before = lambda: is_needed.wait(60)
        outage.begin()
        with pytest.raises(RemoteError, match=r"tried 5 times"):
            store.gather(rows_of(3))
        # Fetched in the background already, it is not tried anew: that error is the error.
        assert len(outage.asked) == TRIES


def test_others_are_not_kept_out_while_a_remote_is_asked_again(mirror, whole, outage):
    store = mirror.store(whole.teacher().contract)
    store.gather(rows_of(0, 1))
    free = []

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            descriptor = os.open(mirror.cache.derived_folder / "stream", os.O_RDONLY)
            try:
                # Another thread may hold it for a moment, but not for all of this.
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        free.append(True)
                        break
                    except BlockingIOError:
                        time.sleep(0.01)
            finally:
                os.close(descriptor)
            return super().wait(timeout)

    mirror._source.stop = Watched()
    outage.begin()
    with pytest.raises(RemoteError):
        mirror._shards.open(store.contract.id, store._names[2])
    assert len(free) == TRIES - 1


def test_shards_that_the_remote_has_lost_are_kept_and_that_there_is_no_room_is_said_at_once(whole, tmp_path):
    remote = tmp_path / "remote"
    push(whole, str(remote))
    contract = whole.teacher().contract
    limit = 2 * max(shard.bytes for shard in whole.store(contract).shards)
    with Mirror.open(str(remote), tmp_path / "mirror", limit=limit) as mirror:
        store = mirror.store(contract)
        store.gather(rows_of(0, 1))
        there = shard_names(mirror)
        for name in there:
            (remote / "objects" / name[:2] / name.removesuffix(".arrow")).unlink()
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"does not have any more, which are kept: give a larger"):
            store.gather(rows_of(2))
        # Not after ten minutes, as where waiting might help.
        assert time.monotonic() - began < 60
        assert shard_names(mirror) == there


def test_what_is_waited_for_long_is_said_and_not_again_and_again(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_shards, "_SLOW_SECONDS", 0.05)
    blocks = FolderPlace.blocks

    told: list[str] = []

    def slow(place: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        if path.startswith("objects/"):
            time.sleep(0.3)
            deadline = time.monotonic() + 60
            while not told and time.monotonic() < deadline:
                time.sleep(0.01)
        return blocks(place, path, size)

    remote = str(whole.folder.parent / "remote")
    with Mirror.open(remote, tmp_path / "mirror", on_wait=told.append) as mirror:
        store = mirror.store(whole.teacher().contract)
        monkeypatch.setattr(FolderPlace, "blocks", slow)
        store.gather(rows_of(4))
        assert told == [f"shard {store._names[4][:12]} of {remote}"]
        store.gather(rows_of(5))
        assert len(told) == 1
    shown = describe(TrainProgress("wait", 0, 0, text=told[0]), 1.0)
    assert shown == f"waiting for {told[0]}"


def test_nothing_is_said_where_nothing_takes_long(mirror, whole, monkeypatch):
    told: list[str] = []
    # On a busy machine a small shard may take seconds.
    monkeypatch.setattr(mirror_shards, "_SLOW_SECONDS", 60.0)
    monkeypatch.setattr(mirror._shards, "_on_wait", told.append)
    store = mirror.store(whole.teacher().contract)
    for number in range(6):
        store.gather(rows_of(number))
    assert told == []


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of ten shards; ``../remote`` has it too."""
    folder = tmp_path_factory.mktemp("source")
    build_ten_shards(folder, teacher_folder)
    push(folder / "cache", str(folder / "remote"))
    return folder / "cache"


@pytest.fixture
def settings(source: Path, teacher_folder: Path) -> dict[str, Any]:
    return {
        "held_out": 12,
        "epochs": 2,
        "batch_size": 16,
        "eval_every": 3,
        "lr": 0.01,
        "checkpoint_every": 1,
        "teacher": "tiny",
        "teacher_model": str(teacher_folder),
        "cache_limit": 4 * shard_size(source, "tiny"),
    }


@pytest.mark.parametrize("step", [2, 9])
def test_a_run_ends_with_the_error_and_is_gone_on_with_later(source, settings, outage, tmp_path, step):
    remote, run, mirror = str(source.parent / "remote"), tmp_path / "run", tmp_path / "mirror"

    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == step:
            outage.begin()

    began = time.monotonic()
    with pytest.raises(
        RemoteError, match=r"Connection refused.*goes on from its last checkpoint with 'distill run --resume"
    ) as ended:
        small_run(remote, run, **settings, mirror=str(mirror), on_progress=look)
    assert time.monotonic() - began < 60
    assert str(run) in str(ended.value)
    assert (run / CHECKPOINT).is_file()
    assert on_disk(mirror) <= settings["cache_limit"]
    # It is not back yet.
    with pytest.raises(RemoteError, match="Connection refused"):
        resume(run)
    outage.end()
    assert resume(run).resumed >= step
    small_run(remote, tmp_path / "other", **settings, mirror=str(tmp_path / "elsewhere"))
    assert same(run, tmp_path / "other")


@pytest.mark.parametrize("step", [1, 5, 9])
def test_what_was_trained_is_written_down_where_no_checkpoint_was_due(
    source, settings, outage, tmp_path, step
):
    remote, run = str(source.parent / "remote"), tmp_path / "run"
    settings = {**settings, "checkpoint_every": 1000}

    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == step:
            outage.begin()

    with pytest.raises(RemoteError, match="'distill run --resume"):
        small_run(remote, run, **settings, mirror=str(tmp_path / "mirror"), on_progress=look)
    outage.end()
    assert resume(run).resumed >= step
    small_run(remote, tmp_path / "other", **settings, mirror=str(tmp_path / "elsewhere"))
    assert same(run, tmp_path / "other")


def test_a_remote_that_fails_during_an_evaluation_ends_the_run_in_the_same_way(
    source, settings, outage, tmp_path, monkeypatch
):
    remote, run = str(source.parent / "remote"), tmp_path / "run"
    settings = {**settings, "checkpoint_every": 1000}
    score = PairSelector.score

    def score_without_remote(selector: PairSelector, encode: Any) -> float:
        outage.begin()
        return score(selector, encode)

    with monkeypatch.context() as patch:
        patch.setattr(PairSelector, "score", score_without_remote)
        with pytest.raises(RemoteError, match="'distill run --resume"):
            small_run(remote, run, **settings, mirror=str(tmp_path / "mirror"))
    outage.end()
    assert resume(run).resumed >= settings["eval_every"]
    small_run(remote, tmp_path / "other", **settings, mirror=str(tmp_path / "elsewhere"))
    assert same(run, tmp_path / "other")
    scores = [
        [(line["step"], line["held_out_spearman"]) for line in metrics(folder) if "held_out_spearman" in line]
        for folder in (run, tmp_path / "other")
    ]
    assert scores[0] == scores[1]


def test_where_nothing_was_trained_the_same_command_begins_anew(source, settings, tmp_path, monkeypatch):
    remote, run = str(source.parent / "remote"), tmp_path / "run"
    settings = {**settings, "mirror": str(tmp_path / "mirror")}

    def fail(*_: object) -> None:
        raise RemoteError("cannot read a shard: run the same command again")

    with monkeypatch.context() as patch:
        patch.setattr(DistillSource, "prepare", fail)
        with pytest.raises(RemoteError, match="run the same command again") as ended:
            small_run(remote, run, **settings)
    assert "--resume" not in str(ended.value)
    assert not (run / CHECKPOINT).exists()
    assert small_run(remote, run, **settings).resumed == 0
