"""Training from a remote under a limit: the order is fixed up front, and vectors are admitted before use."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import build, build_ten_shards, small_run
from streaming_helpers import pushed, same, shard_size, slow_down

from distill.config.models import RunConfig
from distill.config.sources import load_config
from distill.errors import CheckpointError, ConfigError, DataError
from distill.layout import CHECKPOINT
from distill.training.remote import refuse_remote
from distill.training.train import resume
from embedcache.cache import Cache
from embedcache.errors import RemoteError
from embedcache.share.mirror import StreamedStore
from embedcache.sizes import parse_size
from embedcache.store import VectorBatch

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


def run_settings(source: Path, teacher_folder: Path, folder: Path) -> dict[str, Any]:
    """Return the settings of two epochs of nine steps, in windows of two shards."""
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
        "mirror": str(folder / "mirror"),
    }


@pytest.fixture
def settings(source: Path, teacher_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return run_settings(source, teacher_folder, tmp_path)


@pytest.fixture(scope="module")
def whole(source: Path, remote: str, teacher_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    small_run(remote, folder / "run", **run_settings(source, teacher_folder, folder))
    return folder / "run"


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


def without_limit(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("cache_limit", "mirror")}


def stop_at(step: int) -> Callable[[Any], None]:
    def stop(progress: Any) -> None:
        if progress.phase == "train" and progress.step == step:
            raise KeyboardInterrupt

    return stop


def test_without_a_limit_or_with_room_for_all_it_is_the_student_of_a_whole_cache(
    source, remote, settings, tmp_path, monkeypatch
):
    plain, stores = without_limit(settings), watch_admissions(monkeypatch, lambda *_: None)
    small_run(source, tmp_path / "cache", **plain)
    small_run(remote, tmp_path / "pulled", **plain, mirror=str(tmp_path / "m1"))
    assert stores == []
    small_run(remote, tmp_path / "fits", **plain, cache_limit="1GB", mirror=str(tmp_path / "m2"))
    assert len({*map(id, stores)}) == 1
    assert same(tmp_path / "cache", tmp_path / "pulled")
    assert same(tmp_path / "cache", tmp_path / "fits")
    assert json.loads((tmp_path / "fits" / "run.json").read_text())["order"] is None


def test_with_a_limit_each_window_is_announced_and_admitted_before_it_is_trained_on(
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
    assert len(calls) == 2 * 5
    rows = [sorted(np.concatenate(calls[epoch : epoch + 5]).tolist()) for epoch in (0, 5)]
    assert rows[0] == rows[1]
    assert len({*rows[0]}) == 148
    # Ten shards in turns of two, each window announced as the next one before.
    turns = [now for now, _ in groupby(windows[0] for windows in wanted)]
    assert sorted(number for window in turns[:5] for number in window) == list(range(10))
    assert all(len(window) == 2 for window in turns)
    assert [windows[1] for windows, _ in groupby(wanted) if len(windows) == 2] == turns[1:]


def test_the_order_depends_on_the_limit_alone(source, remote, settings, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        slow_down(patch, 0.02)
        small_run(remote, tmp_path / "slow", **{**settings, "mirror": str(tmp_path / "other")})
    small_run(remote, tmp_path / "larger", **{**settings, "cache_limit": 6 * shard_size(source, "tiny")})
    assert same(whole, tmp_path / "slow")
    assert not same(whole, tmp_path / "larger")


def test_random_rows_come_in_windows_too_and_are_resumed(remote, settings, whole, tmp_path):
    settings |= {"order": "random"}
    small_run(remote, tmp_path / "a", **settings)
    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "b", **settings, on_progress=stop_at(5))
    assert resume(tmp_path / "b").resumed == 4
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", whole)


def test_each_shard_is_fetched_once_an_epoch_and_reported(remote, settings, tmp_path, monkeypatch):
    fetched: list[str] = []
    slow_down(monkeypatch, 0.02, fetched)
    seen: list[Any] = []
    small_run(remote, tmp_path / "a", **settings, on_progress=seen.append)
    assert 10 < len(fetched) <= 20
    notes = [one.text for one in seen if one.phase == "note"]
    assert len([text for text in notes if text.startswith("sample of tiny: ok (")]) == 1
    assert any("fetched" in text for text in notes)
    first = next(number for number, one in enumerate(seen) if one.phase == "train")
    assert any(0 < one.step <= one.total for one in seen[first:] if one.phase == "fetch")


@pytest.mark.parametrize("window", [0, 2])
def test_a_run_whose_vectors_are_not_admitted_ends_with_a_checkpoint(
    remote, settings, whole, tmp_path, monkeypatch, window
):
    calls: list[int] = []

    def refuse(positions: np.ndarray, computing: object) -> None:
        calls.append(len(positions))
        if len(calls) == window + 1:
            raise RemoteError("not the vectors of teacher 'tiny'")

    with monkeypatch.context() as patch:
        watch_admissions(patch, refuse)
        with pytest.raises(RemoteError, match="not the vectors"):
            small_run(remote, tmp_path / "run", **settings)
    assert (resume(tmp_path / "run").resumed > 0) is (window > 0)
    assert same(tmp_path / "run", whole)


def test_a_run_goes_on_with_the_corpus_it_began_with(source, settings, tmp_path, teacher_folder):
    """A newer corpus of the same name is on the remote when it is resumed, and in the mirror."""
    remote = pushed(source, tmp_path / "team")
    small_run(remote, tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop_at(5))
    # Of other texts: where shards of the same texts come, the run may have to be refused, as below.
    texts = [f"newer {text}" for text in (source.parent / "texts.txt").read_text().splitlines()[:100]]
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


def test_a_run_is_not_resumed_where_a_teammate_pushed_other_shards_of_its_texts(
    settings, tmp_path, teacher_folder, source
):
    remote = pushed(source, tmp_path / "team")
    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop_at(3))
    # A vector is read from the first of the shards that hold it, by name.
    again = build(source.parent / "texts.txt", teacher_folder, tmp_path / "again", shard_rows=20).folder
    time.sleep(1.1)  # Manifests are sorted by their second.
    pushed(again, Path(remote), by="Bob")
    with pytest.raises(CheckpointError, match="shards"):
        resume(tmp_path / "a")


@pytest.mark.parametrize("shards", [1, 10])
def test_vectors_of_another_teacher_end_the_run_and_are_not_kept(source, settings, tmp_path, shards):
    """The last shards of the remote have other vectors under right digests."""
    shutil.copytree(source, tmp_path / "bad")
    cache = Cache(tmp_path / "bad")
    store = cache.store(cache.teacher("tiny").contract)
    good = [shard.name for shard in store.shards]
    for shard in store.shards[-shards:]:
        vectors = np.roll(store.vectors(store.locate(shard.keys)), 1, axis=0)
        columns = [np.array(column) for column in (shard.tokens, shard.truncated)]
        store.put(VectorBatch(np.array(shard.keys), vectors, *columns, {}))
        Path(shard.where).unlink()
    remote = pushed(tmp_path / "bad", tmp_path / "team", by="Mallory")
    with pytest.raises(RemoteError, match=r"vectors of tiny.*\(by Mallory\)"):
        small_run(remote, tmp_path / "run", **settings)
    assert (tmp_path / "run" / CHECKPOINT).exists() is (shards == 1)
    assert not list(tmp_path.glob("mirror/teachers/*/shards/*"))
    assert {path.stem for path in tmp_path.glob("mirror/derived/mirror/teachers/*/shards/*")} <= {*good}


def test_drawing_random_numbers_or_having_no_memory_changes_no_student(
    remote, settings, whole, tmp_path, monkeypatch
):
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
    assert same(whole, tmp_path / "b")


def test_several_teachers_share_windows(remote, source, settings, monkeypatch, tmp_path):
    group = 2 * shard_size(source, "tiny") + shard_size(source, "other")
    stores = watch_admissions(monkeypatch, lambda positions, computing: None)
    small_run(remote, tmp_path / "a", **{**settings, "teacher": ["tiny", "other"], "cache_limit": 2 * group})
    assert len({*map(id, stores)}) == 2
    assert len(stores) > 2 * 2 * 2


def test_a_limit_that_is_too_small_is_refused(source, remote, settings, tmp_path):
    """Two windows need room, each of a shard or more and the first of all rows that are held out."""
    size = shard_size(source, "tiny")
    with pytest.raises(ConfigError, match="cache_limit") as refused:
        small_run(remote, tmp_path / "a", **{**settings, "cache_limit": int(1.99 * size)})
    (advised,) = re.findall(r"give cache_limit=(\S+) or more", str(refused.value))
    assert size < parse_size(advised) < 3 * size
    with pytest.raises(DataError, match="cache_limit"):
        small_run(remote, tmp_path / "a", **{**settings, "held_out": 40})


def test_settings_that_a_remote_cannot_serve_are_refused(remote, settings, tmp_path):
    with pytest.raises(ConfigError, match="'tokens' needs all vectors"):
        small_run(remote, tmp_path / "a", **settings, where="tokens > 3")
    small_run(remote, tmp_path / "b", **without_limit(settings), where="tokens > 3")
    with pytest.raises(ConfigError, match="a sweep needs a cache of this machine"):
        refuse_remote(remote, "a sweep")
    assert (
        load_config(RunConfig, options={"cache": "s3://b/x", "stream.limit": "1.5GB"}).stream.limit
        == 1_500_000_000
    )
    with pytest.raises(ConfigError, match=r"stream\.limit"):
        load_config(RunConfig, options={"cache": "s3://b/x", "stream.limit": "much"})
