"""Training from a remote under a limit: the order is fixed up front, and vectors are admitted before use."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import build, build_ten_shards, small_run
from streaming_helpers import pushed, same, shard_bytes, shard_size

from distill.cli.main import main
from distill.config_sources import load_config
from distill.errors import CheckpointError, ConfigError, DataError
from distill.layout import CHECKPOINT
from distill.training.place import refuse_remote
from distill.training.run import resume
from embedcache.cache import Cache
from embedcache.errors import RemoteError
from embedcache.share import mirror
from embedcache.share.mirror import StreamedStore
from embedcache.share.remote import Remote
from embedcache.share.sample import SampleCheck
from embedcache.sizes import parse_size
from embedcache.store import ShardStore, VectorBatch

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path, second_folder: Path) -> Path:
    """A cache of ten shards of one teacher and five of another."""
    folder = tmp_path_factory.mktemp("source")
    build_ten_shards(folder, teacher_folder)
    build(folder / "texts.txt", second_folder, folder / "cache", shard_rows=32)
    return folder / "cache"


@pytest.fixture(scope="module")
def remote(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return pushed(source, tmp_path_factory.mktemp("remote") / "team")


@pytest.fixture
def settings(source: Path, teacher_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """Two epochs of nine steps, in windows of two shards."""
    return {
        "teacher": "tiny",
        "teacher_model": str(teacher_folder),
        "held_out": 12,
        "epochs": 2,
        "batch_size": 16,
        "eval_every": 3,
        "lr": 0.01,
        "checkpoint_every": 1,
        "cache_limit": 4 * shard_size(source, "tiny"),
        "mirror": str(tmp_path / "mirror"),
    }


def watch_admissions(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[np.ndarray, Any], None]
) -> list[StreamedStore]:
    """Call ``before`` with the arguments of each call of ``admit``; return the stores that are called."""
    stores: list[StreamedStore] = []
    admit = StreamedStore.admit

    def watched(store: StreamedStore, positions: np.ndarray, computing: Any) -> None:
        stores.append(store)
        before(positions, computing)
        admit(store, positions, computing)

    monkeypatch.setattr(StreamedStore, "admit", watched)
    return stores


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The positions of each call of ``admit``."""
    calls: list[set[int]] = []
    watch_admissions(monkeypatch, lambda positions, computing: calls.append({*positions}))
    return calls


def without_limit(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("cache_limit", "mirror")}


def test_without_a_limit_or_with_room_for_all_it_is_the_student_of_a_whole_cache(
    source, remote, settings, admitted, tmp_path
):
    plain = without_limit(settings)
    small_run(source, tmp_path / "cache", **plain)
    small_run(remote, tmp_path / "pulled", **plain, mirror=str(tmp_path / "m1"))
    assert admitted == []
    small_run(remote, tmp_path / "fits", **plain, cache_limit="1GB", mirror=str(tmp_path / "m2"))
    assert len(admitted) == 1
    assert same(tmp_path / "cache", tmp_path / "pulled")
    assert same(tmp_path / "cache", tmp_path / "fits")
    assert json.loads((tmp_path / "fits" / "run.json").read_text())["order"] is None


def test_with_a_limit_each_window_is_admitted_before_it_is_trained_on(
    remote, settings, tmp_path, monkeypatch
):
    events: list[Any] = []
    watch_admissions(monkeypatch, lambda positions, computing: events.append(positions))
    wanted: list[Any] = []
    want = StreamedStore.want
    monkeypatch.setattr(
        StreamedStore, "want", lambda store, *windows: (wanted.append(windows), want(store, *windows))
    )
    # What arrives is reported from other threads at any time.
    small_run(
        remote,
        tmp_path / "a",
        **settings,
        on_progress=lambda step: events.append(step.phase) if step.phase != "fetch" else None,
    )
    calls = [event for event in events if not isinstance(event, str)]
    first = next(number for number, event in enumerate(events) if not isinstance(event, str))
    assert "train" not in events[:first]
    # The first window is admitted before the student is built, and once more as it is trained on; the batch
    # in which it ends is admitted with the second one.
    assert {*calls[0]} > {*calls[1]}
    assert len(calls) == 1 + 2 * 5
    rows = [sorted(np.concatenate(calls[epoch : epoch + 5]).tolist()) for epoch in (1, 6)]
    assert rows[0] == rows[1]
    assert len({*rows[0]}) == 148
    # Ten shards in turns of two, each window announced as the next one before.
    turns = [now for now, _ in groupby(windows[0] for windows in wanted)]
    assert sorted(number for window in turns[:5] for number in window) == list(range(10))
    assert all(len(window) == 2 for window in turns)
    assert [windows[1] for windows, _ in groupby(wanted) if len(windows) == 2] == turns[1:]


def test_the_order_depends_on_the_limit_alone(source, remote, settings, tmp_path, monkeypatch):
    small_run(remote, tmp_path / "a", **settings)
    with monkeypatch.context() as patch:
        slow_down(patch, 0.02)
        small_run(remote, tmp_path / "b", **{**settings, "mirror": str(tmp_path / "other")})
    small_run(remote, tmp_path / "c", **{**settings, "cache_limit": 6 * shard_size(source, "tiny")})
    small_run(source, tmp_path / "d", **without_limit(settings))
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")
    assert not same(tmp_path / "a", tmp_path / "d")


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every download take longer."""
    fetch = Remote.fetch

    def slowly(remote: Remote, *arguments: Any) -> None:
        time.sleep(seconds)
        fetch(remote, *arguments)

    monkeypatch.setattr(Remote, "fetch", slowly)


def test_shards_stay_under_the_limit_while_a_run_trains(remote, settings, tmp_path, monkeypatch):
    slow_down(monkeypatch, 0.005)
    most, ended = [0], threading.Event()

    def poll() -> None:
        while not ended.wait(0.001):
            most.append(shard_bytes(tmp_path / "mirror"))

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        small_run(remote, tmp_path / "a", **settings)
    finally:
        ended.set()
        poller.join()
    assert 0.6 * settings["cache_limit"] < max(most) <= settings["cache_limit"]


def test_each_shard_is_fetched_once_an_epoch_and_compared_once_a_run(remote, settings, tmp_path, monkeypatch):
    fetched: list[str] = []
    fetch = Remote.fetch

    def counted(remote: Remote, sha256: str, size: int, target: Path, *more: Any) -> None:
        if target.suffix == ".arrow" and "shards" in target.parts:
            fetched.append(sha256)
        fetch(remote, sha256, size, target, *more)

    monkeypatch.setattr(Remote, "fetch", counted)
    compared: list[str] = []
    compare = mirror.compare

    def noted(name: str, came: ShardStore, *arguments: Any) -> SampleCheck:
        compared.extend(shard.name for shard in came.shards)
        return compare(name, came, *arguments)

    monkeypatch.setattr(mirror, "compare", noted)
    notes: list[str] = []
    small_run(remote, tmp_path / "a", **settings, on_progress=lambda step: notes.append(step.text))
    assert len([text for text in notes if text.startswith("sample of tiny: ok (")]) == 1
    assert len(compared) == len({*compared}) == 10
    assert 10 < len(fetched) <= 20


def test_waiting_for_vectors_is_reported(remote, settings, tmp_path, monkeypatch):
    slow_down(monkeypatch, 0.05)
    seen: list[Any] = []
    small_run(remote, tmp_path / "a", **settings, on_progress=seen.append)
    first = next(number for number, one in enumerate(seen) if one.phase == "train")
    later = [one for one in seen[first:] if one.phase == "fetch"]
    assert {one.text for one in later} == {"fetch vectors"}
    assert any(0 < one.step <= one.total for one in later)
    assert any("fetched" in one.text for one in seen if one.phase == "note")


@pytest.mark.parametrize("window", [0, 1, 3, 8])
def test_a_run_whose_vectors_are_not_admitted_ends_with_a_checkpoint(
    remote, settings, tmp_path, monkeypatch, window
):
    small_run(remote, tmp_path / "whole", **settings)
    calls: list[int] = []

    def refuse(positions: np.ndarray, computing: object) -> None:
        calls.append(len(positions))
        if len(calls) == window + 1:
            raise RemoteError("not the vectors of teacher 'tiny'")

    with monkeypatch.context() as patch:
        watch_admissions(patch, refuse)
        with pytest.raises(RemoteError, match="not the vectors") as stopped:
            small_run(remote, tmp_path / "run", **settings)
    assert (tmp_path / "run").exists() is (window > 0)
    if window > 1:
        assert "distill run --resume" in str(stopped.value)
    if window:
        run = resume(tmp_path / "run")
        assert (run.resumed > 0) is (window > 1)
        assert same(tmp_path / "run", tmp_path / "whole")


def test_a_run_goes_on_with_the_corpus_it_began_with(source, settings, tmp_path, teacher_folder):
    """A newer corpus of the same name is on the remote when it is resumed, and in the mirror."""
    remote = pushed(source, tmp_path / "team")
    small_run(remote, tmp_path / "whole", **settings)

    def stop(progress: Any) -> None:
        if progress.phase == "train" and progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop)
    texts = (source.parent / "texts.txt").read_text().splitlines()[:100]
    newer = tmp_path / "newer" / "texts.txt"
    newer.parent.mkdir()
    newer.write_text("\n".join(texts) + "\n")
    time.sleep(1.1)  # Manifests are sorted by their second.
    pushed(build(newer, teacher_folder, tmp_path / "newer" / "cache", shard_rows=16).folder, Path(remote))
    small_run(remote, tmp_path / "b", **settings)
    assert len(Cache(tmp_path / "mirror").corpus()) == 100
    resume(tmp_path / "a")
    assert len(Cache(tmp_path / "mirror").corpus()) == 160
    assert same(tmp_path / "a", tmp_path / "whole")


def damaged_copy(source: Path, folder: Path, teacher: str, shards: int) -> Path:
    """Copy a cache with other vectors in the last shards of a teacher, under right digests."""
    shutil.copytree(source, folder)
    cache = Cache(folder)
    store = cache.store(cache.teacher(teacher).contract)
    for shard in store.shards[-shards:]:
        vectors = np.roll(store.vectors(store.locate(shard.keys)), 1, axis=0)
        batch = VectorBatch(
            np.array(shard.keys), vectors, np.array(shard.tokens), np.array(shard.truncated), {}
        )
        store.put(batch)
        Path(shard.where).unlink()
    return folder


@pytest.mark.parametrize("shards", [1, 10])
def test_vectors_of_another_teacher_end_the_run_and_are_not_kept(
    source, settings, tmp_path, shards, teacher_folder, monkeypatch, capsys
):
    bad = damaged_copy(source, tmp_path / "bad", "tiny", shards)
    remote = pushed(bad, tmp_path / "team", by="Mallory")
    (manifest,) = (tmp_path / "team" / "manifests").iterdir()
    command = ["run", "--cache", remote, "--out", str(tmp_path / "run"), "--student", "layers:1"]
    command += ["--cache-limit", str(settings["cache_limit"]), "--mirror", settings["mirror"]]
    command += ["--teacher", "tiny", "--teacher-model", str(teacher_folder), "--held-out", "12"]
    command += ["--batch-size", "16", "--device", "cpu", "--threads", "1", "--mixed-precision", "no"]
    monkeypatch.setattr("sys.argv", ["distill", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "vectors of tiny: these are not this teacher's vectors" in told
    assert f"{manifest.name[-69:-57]} (by Mallory)" in told
    assert (tmp_path / "run" / CHECKPOINT).exists() is (shards == 1)
    assert not list(tmp_path.glob("mirror/teachers/*/shards/*"))
    assert not list(tmp_path.glob("mirror/derived/mirror/teachers/*/shards/.tmp*"))
    if shards == 1:
        cache = Cache(source)
        good = {shard.name for shard in cache.store(cache.teacher("tiny").contract).shards}
        assert {path.stem for path in tmp_path.rglob("derived/mirror/teachers/*/shards/*.arrow")} <= good


def test_drawing_random_numbers_or_having_no_memory_changes_no_student(
    remote, settings, tmp_path, monkeypatch
):
    small_run(remote, tmp_path / "a", **settings)
    calls: list[np.ndarray] = []

    def admit(positions: np.ndarray, computing: Any) -> None:
        torch.rand(3)
        calls.append(positions)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        assert computing.device == "cpu"

    watch_admissions(monkeypatch, admit)
    small_run(remote, tmp_path / "b", **settings)
    assert np.array_equal(calls[0], calls[1])
    assert same(tmp_path / "a", tmp_path / "b")


def test_several_teachers_share_windows(remote, source, settings, monkeypatch, tmp_path):
    group = 2 * shard_size(source, "tiny") + shard_size(source, "other")
    both = {**settings, "teacher": ["tiny", "other"], "cache_limit": 2 * group}
    small_run(remote, tmp_path / "a", **both)
    stores = watch_admissions(monkeypatch, lambda positions, computing: None)
    small_run(remote, tmp_path / "b", **both)
    assert same(tmp_path / "a", tmp_path / "b")
    assert len({*map(id, stores)}) == 2
    assert len(stores) > 2 * 2 * 2


def test_a_remote_whose_shards_are_others_now_is_not_resumed_from(
    remote, settings, tmp_path, teacher_folder, source
):
    def stop(progress: Any) -> None:
        if progress.phase == "train" and progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop)
    again = build(source.parent / "texts.txt", teacher_folder, tmp_path / "again", shard_rows=10).folder
    shutil.rmtree(tmp_path / "mirror")
    with pytest.raises(CheckpointError, match="the run's order was"):
        resume(tmp_path / "a", cache=pushed(again, tmp_path / "team"))


def advised(refused: pytest.ExceptionInfo[Exception]) -> str:
    (found,) = re.findall(r"give --cache-limit (\S+) or more", str(refused.value))
    return str(found)


def test_a_limit_that_is_too_small_says_how_much_it_takes(source, remote, settings, tmp_path):
    size = shard_size(source, "tiny")
    with pytest.raises(ConfigError) as refused:
        small_run(remote, tmp_path / "a", **{**settings, "cache_limit": 2 * size - 1})
    assert 2 * size <= parse_size(advised(refused)) < 2.1 * size
    small_run(remote, tmp_path / "a", **{**settings, "cache_limit": advised(refused)})


@pytest.mark.parametrize("held_out", [40, 75])
def test_a_first_window_that_is_too_small_says_how_much_it_takes(
    source, remote, settings, tmp_path, held_out
):
    size = shard_size(source, "tiny")
    with pytest.raises(DataError, match=f"has 32 rows, and {held_out} are needed") as refused:
        small_run(remote, tmp_path / "a", **{**settings, "held_out": held_out})
    # With one shard less in the window there are too few rows.
    shards = -(-held_out // 16)
    assert (2 * shards - 1) * size < parse_size(advised(refused)) < (2 * shards + 1) * size
    small_run(remote, tmp_path / "a", **{**settings, "held_out": held_out, "cache_limit": advised(refused)})


def test_a_predicate_over_vectors_needs_all_of_them(remote, settings, tmp_path):
    with pytest.raises(ConfigError, match="'tokens' needs all vectors"):
        small_run(remote, tmp_path / "a", **settings, where="tokens > 3")
    small_run(remote, tmp_path / "b", **without_limit(settings), where="tokens > 3")


def test_a_remote_is_refused_where_a_cache_is_needed(remote):
    with pytest.raises(ConfigError, match="a sweep needs a cache of this machine"):
        refuse_remote(remote, "a sweep")


def test_sizes_are_read_as_people_write_them():
    found = load_config(flags={"cache": "s3://b/x", "stream.limit": "1.5GB"})
    assert found.stream.limit == 1_500_000_000
    with pytest.raises(ConfigError, match=r"stream\.limit: 'much' is no size.*--cache-limit") as refused:
        load_config(flags={"cache": "s3://b/x", "stream.limit": "much"})
    assert str(refused.value).count("much") == 1
