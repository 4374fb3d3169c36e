"""Training from a remote under a limit: the order is fixed up front, and vectors are admitted before use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import build, build_ten_shards, small_run
from streaming_helpers import PREFIX, FakeMirror, fake_remotes, same, shard_size

from distill.config_sources import load_config
from distill.errors import CheckpointError, ConfigError, DataError
from distill.training.place import refuse_remote
from distill.training.run import resume
from embedcache.errors import RemoteError
from embedcache.sizes import parse_size

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path, second_folder: Path) -> Path:
    """A cache of ten shards of one teacher and five of another."""
    folder = tmp_path_factory.mktemp("source")
    build_ten_shards(folder, teacher_folder)
    build(folder / "texts.txt", second_folder, folder / "cache", shard_rows=32)
    return folder / "cache"


@pytest.fixture
def remote(source: Path) -> Iterator[str]:
    with fake_remotes():
        yield f"{PREFIX}{source}"


@pytest.fixture
def settings(source: Path, teacher_folder: Path) -> dict[str, Any]:
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
    }


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The positions of each call of ``admit``."""
    calls: list[set[int]] = []
    monkeypatch.setattr(FakeMirror, "on_admit", lambda positions, computing: calls.append({*positions}))
    return calls


def without_limit(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "cache_limit"}


def test_without_a_limit_or_with_room_for_all_it_is_the_student_of_a_whole_cache(
    source, remote, settings, admitted, tmp_path
):
    plain = without_limit(settings)
    small_run(source, tmp_path / "cache", **plain)
    small_run(remote, tmp_path / "pulled", **plain)
    assert admitted == []
    small_run(remote, tmp_path / "fits", **plain, cache_limit="1GB")
    assert len(admitted) == 1
    assert same(tmp_path / "cache", tmp_path / "pulled")
    assert same(tmp_path / "cache", tmp_path / "fits")
    assert json.loads((tmp_path / "fits" / "run.json").read_text())["order"] is None


def test_each_window_is_admitted_before_it_is_trained_on(remote, settings, tmp_path, monkeypatch):
    events: list[Any] = []
    monkeypatch.setattr(FakeMirror, "on_admit", lambda positions, computing: events.append(positions))
    small_run(remote, tmp_path / "a", **settings, on_progress=lambda step: events.append(step.phase))
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
    # Ten shards in turns of two, the present window first.
    (stream,) = FakeMirror.last.streams
    assert sorted(shard for window in stream.wanted[0][:5] for shard in window) == list(range(10))
    assert all(len(window) == 2 for window in stream.wanted[0])


def test_the_order_depends_on_the_limit_alone(source, remote, settings, tmp_path):
    small_run(remote, tmp_path / "a", **settings)
    small_run(remote, tmp_path / "b", **settings)
    small_run(remote, tmp_path / "c", **{**settings, "cache_limit": 6 * shard_size(source, "tiny")})
    small_run(source, tmp_path / "d", **without_limit(settings))
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "c")
    assert not same(tmp_path / "a", tmp_path / "d")


@pytest.mark.parametrize("window", [0, 1, 3, 8])
def test_a_run_whose_vectors_are_not_admitted_ends_with_a_checkpoint(
    remote, settings, tmp_path, monkeypatch, window
):
    small_run(remote, tmp_path / "whole", **settings)
    calls: list[int] = []

    def admit(positions: np.ndarray, computing: object) -> None:
        calls.append(len(positions))
        if len(calls) == window + 1:
            raise RemoteError("not the vectors of teacher 'tiny'")

    monkeypatch.setattr(FakeMirror, "on_admit", admit)
    with pytest.raises(RemoteError, match="not the vectors") as stopped:
        small_run(remote, tmp_path / "run", **settings)
    assert (tmp_path / "run").exists() is (window > 0)
    if window > 1:
        assert "distill run --resume" in str(stopped.value)
    if window:
        run = resume(tmp_path / "run")
        assert (run.resumed > 0) is (window > 1)
        # The corpus of the run, whatever has its name now.
        name, _, digest = FakeMirror.settings["corpus"].partition("@")
        corpus = json.loads((tmp_path / "run" / "run.json").read_text())["corpus"]
        assert (name, digest) == (corpus["name"], corpus["digest"])
        assert same(tmp_path / "run", tmp_path / "whole")


def test_how_vectors_are_admitted_does_not_change_the_student(remote, settings, tmp_path, monkeypatch):
    small_run(remote, tmp_path / "a", **settings)
    calls: list[np.ndarray] = []

    def admit(positions: np.ndarray, computing: Any) -> None:
        torch.rand(3)
        calls.append(positions)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        assert computing.device == "cpu"

    monkeypatch.setattr(FakeMirror, "on_admit", admit)
    small_run(remote, tmp_path / "b", **settings)
    assert np.array_equal(calls[0], calls[1])
    assert same(tmp_path / "a", tmp_path / "b")


def test_several_teachers_share_windows(remote, source, settings, admitted, tmp_path):
    group = 2 * shard_size(source, "tiny") + shard_size(source, "other")
    both = {**settings, "teacher": ["tiny", "other"], "cache_limit": 2 * group}
    small_run(remote, tmp_path / "a", **both)
    small_run(remote, tmp_path / "b", **both)
    assert same(tmp_path / "a", tmp_path / "b")
    assert len(FakeMirror.last.streams) == 2
    assert len(admitted) > 2 * 2 * 2
    assert {*FakeMirror.settings["teachers"]} == {"tiny", "other"}


def test_a_remote_with_other_shards_is_not_resumed_from(remote, settings, tmp_path, teacher_folder, source):
    def stop(progress: Any) -> None:
        if progress.phase == "train" and progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop)
    build(source.parent / "texts.txt", teacher_folder, tmp_path / "again", shard_rows=10)
    with pytest.raises(CheckpointError, match="the run's order was"):
        resume(tmp_path / "a", cache=f"{PREFIX}{tmp_path / 'again'}")


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
def test_a_first_window_that_is_too_small_is_refused(source, remote, settings, tmp_path, held_out):
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
