"""Training from a remote: the student of a whole cache, or that of an order fixed up front."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from distill_helpers import build, build_ten_shards, small_run
from stream_helpers import on_disk, same, shard_size
from training_children import Command, launch

from distill.config_sources import load_config
from distill.errors import CheckpointError, ConfigError, DataError
from distill.training.run import resume
from distill.training.tracking import TrainProgress
from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.share import push
from embedcache.sizes import parse_size

pytest_plugins = ["distill_fixtures"]

SETTINGS: dict[str, Any] = {"held_out": 12, "epochs": 2, "batch_size": 16, "eval_every": 3, "lr": 0.01}


class Stop(Exception):  # noqa: N818 - what stops a run here is no error
    """Stands for whatever ends a process."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path, second_folder: Path) -> Path:
    """A cache of ten shards of one teacher and five of another; ``../remote`` has it too."""
    folder = tmp_path_factory.mktemp("source")
    build_ten_shards(folder, teacher_folder)
    build(folder / "texts.txt", second_folder, folder / "cache", shard_rows=32)
    push(folder / "cache", str(folder / "remote"))
    return folder / "cache"


@pytest.fixture
def common(source: Path, teacher_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        **SETTINGS,
        "teacher": "tiny",
        "teacher_model": str(teacher_folder),
        "mirror": str(tmp_path / "mirror"),
    }


def remote_of(source: Path) -> str:
    return str(source.parent / "remote")


def local(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "mirror"}


def stop_at(step: int):
    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == step:
            raise Stop

    return look


def test_without_a_limit_it_is_the_student_of_a_whole_cache(source, common, tmp_path):
    told: list[TrainProgress] = []
    run = small_run(remote_of(source), tmp_path / "a", **common, on_progress=told.append)
    small_run(source, tmp_path / "b", **local(common))
    assert same(tmp_path / "a", tmp_path / "b")
    assert run.config.cache == remote_of(source)
    assert {one.phase for one in told} >= {"fetch", "train"}
    # A limit that everything fits in changes nothing.
    small_run(remote_of(source), tmp_path / "c", **common, cache_limit="1GB")
    assert same(tmp_path / "a", tmp_path / "c")


def test_with_a_limit_less_is_on_the_disk_and_the_order_is_fixed(source, common, tmp_path, monkeypatch):
    limit = 4 * shard_size(source, "tiny")
    peak = [0]
    mirror = tmp_path / "mirror"
    monkeypatch.setattr(fsio, "on_write_step", lambda step, path: peak.append(on_disk(mirror)))
    small_run(remote_of(source), tmp_path / "a", **common, cache_limit=limit)
    assert 0 < max(peak) <= limit < on_disk(source)
    small_run(
        remote_of(source), tmp_path / "b", **{**common, "mirror": str(tmp_path / "other")}, cache_limit=limit
    )
    assert same(tmp_path / "a", tmp_path / "b")
    small_run(source, tmp_path / "c", **local(common))
    assert not same(tmp_path / "a", tmp_path / "c")
    # Settings say what the order was; another limit is another order.
    small_run(remote_of(source), tmp_path / "d", **common, cache_limit=limit + 2 * shard_size(source, "tiny"))
    assert not same(tmp_path / "a", tmp_path / "d")


@pytest.mark.parametrize("step", [1, 7, 13])
def test_a_run_that_is_stopped_goes_on_as_if_it_never_was(source, common, tmp_path, step):
    settings = {**common, "cache_limit": 4 * shard_size(source, "tiny"), "checkpoint_every": 1}
    with pytest.raises(Stop):
        small_run(remote_of(source), tmp_path / "a", **settings, on_progress=stop_at(step))
    run = resume(tmp_path / "a")
    assert run.resumed > 0 or step == 1
    small_run(remote_of(source), tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


def test_several_teachers_in_shards_of_other_sizes(source, common, tmp_path, monkeypatch):
    settings = {**common, "teacher": ["tiny", "other"], "student": "layers:1"}
    group = 2 * shard_size(source, "tiny") + shard_size(source, "other")
    peak = [0]
    mirror = tmp_path / "mirror"
    monkeypatch.setattr(fsio, "on_write_step", lambda step, path: peak.append(on_disk(mirror)))
    small_run(remote_of(source), tmp_path / "a", **settings, cache_limit=2 * group)
    assert max(peak) <= 2 * group < on_disk(source)
    small_run(remote_of(source), tmp_path / "b", **settings)
    small_run(source, tmp_path / "c", **local(settings))
    assert same(tmp_path / "b", tmp_path / "c")
    assert not same(tmp_path / "a", tmp_path / "b")


def test_a_window_over_the_corpus_begins_with_its_first_shards(source, common, tmp_path):
    settings = {**common, "epochs": 1, "window": 40}
    with pytest.raises(Stop):
        small_run(remote_of(source), tmp_path / "a", **settings, on_progress=stop_at(1))
    small_run(remote_of(source), tmp_path / "b", **settings)
    small_run(source, tmp_path / "c", **local(settings))
    assert same(tmp_path / "b", tmp_path / "c")


def test_a_limit_that_is_too_small_says_how_much_it_takes(source, common, tmp_path):
    size = shard_size(source, "tiny")
    with pytest.raises(ConfigError, match=r"give --cache-limit [\d.]+kB or more") as refused:
        small_run(remote_of(source), tmp_path / "a", **common, cache_limit=2 * size - 1)
    named = re.findall(r"give --cache-limit (\S+)", str(refused.value))
    assert 2 * size <= parse_size(named[0]) < 2.1 * size
    small_run(remote_of(source), tmp_path / "a", **common, cache_limit=named[0])


def named(refused: pytest.ExceptionInfo[Exception]) -> str:
    """Return the limit that an error says is enough."""
    (found,) = re.findall(r"give --cache-limit (\S+) or more", str(refused.value))
    return str(found)


def test_no_more_is_advised_than_all_shards_take(source, common, tmp_path, teacher_folder):
    build(source.parent / "texts.txt", teacher_folder, tmp_path / "two", shard_rows=100)
    push(tmp_path / "two", str(tmp_path / "remote"))
    cache = Cache(tmp_path / "two")
    sizes = [shard.bytes for shard in cache.store(cache.teacher("tiny").contract).shards]
    assert len(sizes) == 2
    assert sum(sizes) < 2 * max(sizes)
    for limit, error in ((min(sizes) - 1, InputError), (sum(sizes) - 1, ConfigError)):
        with pytest.raises(error) as refused:
            small_run(tmp_path / "remote", tmp_path / "a", **common, cache_limit=limit)
        assert sum(sizes) <= parse_size(named(refused)) < 1.02 * sum(sizes)
    small_run(tmp_path / "remote", tmp_path / "a", **common, cache_limit=named(refused))


@pytest.mark.parametrize("held_out", [40, 75])
def test_a_first_window_that_is_too_small_says_how_much_it_takes(source, common, tmp_path, held_out):
    size = shard_size(source, "tiny")
    settings = {**common, "held_out": held_out}
    with pytest.raises(DataError, match=f"has 32 rows, and {held_out} are needed") as refused:
        small_run(remote_of(source), tmp_path / "a", **settings, cache_limit=4 * size)
    # With one shard less in the window there are too few rows.
    shards = -(-held_out // 16)
    assert (2 * shards - 1) * size < parse_size(named(refused)) < (2 * shards + 1) * size
    with pytest.raises(DataError, match="the first window has"):
        small_run(remote_of(source), tmp_path / "a", **settings, cache_limit=2 * (shards - 1) * size)
    small_run(remote_of(source), tmp_path / "a", **settings, cache_limit=named(refused))
    with pytest.raises(DataError, match=f"has 20 rows.*give --window {held_out} or more"):
        small_run(remote_of(source), tmp_path / "b", **settings, window=20)


def test_a_limit_that_no_row_fits_in_is_refused_before_anything_is_fetched(source, common, tmp_path):
    cache = Cache(source)
    sizes = {
        name: [shard.bytes for shard in cache.store(cache.teacher(name).contract).shards]
        for name in ("tiny", "other")
    }
    smallest = min(sizes["tiny"])
    with pytest.raises(InputError, match="a single row needs a shard of each teacher") as refused:
        small_run(remote_of(source), tmp_path / "a", **common, cache_limit=smallest - 1)
    assert not (tmp_path / "mirror").exists()
    assert not (tmp_path / "a").exists()
    named = re.findall(r"give --cache-limit (\S+)", str(refused.value))
    assert 2 * max(sizes["tiny"]) <= parse_size(named[0]) < 2.1 * max(sizes["tiny"])
    small_run(remote_of(source), tmp_path / "a", **common, cache_limit=named[0])
    # A row of two teachers needs a shard of each.
    both = {**common, "teacher": ["tiny", "other"], "mirror": str(tmp_path / "both")}
    limit = smallest + min(sizes["other"]) - 1
    with pytest.raises(InputError, match="of each teacher") as refused:
        small_run(remote_of(source), tmp_path / "b", **both, cache_limit=limit)
    assert not (tmp_path / "both").exists()
    # What is just not hopeless is judged once it is known which shards the rows need.
    with pytest.raises(ConfigError, match=r"stream\.limit .* has to hold two windows"):
        small_run(remote_of(source), tmp_path / "b", **both, cache_limit=limit + 1)


def test_vectors_that_the_mirror_alone_has_need_no_room(source, common, tmp_path, teacher_folder):
    # Whether the rows are among them is not known before all keys are.
    own = tmp_path / "own.txt"
    own.write_text("A text that the remote does not have.\n", encoding="utf-8")
    build(own, teacher_folder, tmp_path / "mirror", name="own")
    with pytest.raises(ConfigError, match=r"stream\.limit 1B has to hold two windows"):
        small_run(remote_of(source), tmp_path / "a", **common, corpus="texts", cache_limit=1)


def test_a_remote_whose_shards_are_others_now_is_not_gone_on_from(source, common, tmp_path, teacher_folder):
    remote = tmp_path / "remote"
    shutil.copytree(source.parent / "remote", remote)
    settings = {**common, "cache_limit": 4 * shard_size(source, "tiny"), "checkpoint_every": 1}
    with pytest.raises(Stop):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop_at(3))
    # The same rows in shards of another size, of which some come first by name.
    build(source.parent / "texts.txt", teacher_folder, tmp_path / "again", shard_rows=10)
    push(tmp_path / "again", str(remote))
    with pytest.raises(CheckpointError, match="the run's order was"):
        resume(tmp_path / "a")


def test_what_others_push_of_the_same_teacher_does_not_end_a_run(source, common, tmp_path, teacher_folder):
    remote = tmp_path / "remote"
    shutil.copytree(source.parent / "remote", remote)
    settings = {**common, "cache_limit": 4 * shard_size(source, "tiny"), "checkpoint_every": 1}
    small_run(remote, tmp_path / "a", **settings)
    with pytest.raises(Stop):
        small_run(remote, tmp_path / "b", **settings, on_progress=stop_at(3))
    # Other texts: their shards stand between those of the run, in the order of names.
    theirs = [f"Text {number} of somebody else.\n" for number in range(60)]
    (tmp_path / "theirs.txt").write_text("".join(theirs), encoding="utf-8")
    build(tmp_path / "theirs.txt", teacher_folder, tmp_path / "theirs", name="theirs", shard_rows=5)
    push(tmp_path / "theirs", str(remote))
    resume(tmp_path / "b")
    assert same(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_two_processes_share_a_mirror_and_its_limit(source, common, tmp_path):
    limit = 4 * shard_size(source, "tiny")

    def train(name: str) -> None:
        words = ["run", "--cache", remote_of(source), "--teacher", "tiny", "--student", "layers:1"]
        words += ["--teacher-model", common["teacher_model"], "--mirror", str(tmp_path / f"mirror-{name}")]
        words += ["--cache-limit", str(limit), "--out", str(tmp_path / name), "--held-out", "12"]
        words += ["--epochs", "2", "--batch-size", "16", "--device", "cpu", "--mixed-precision", "no"]
        assert launch(Command(words), tmp_path / f"printed-{name}", processes=2) == [0, 0]
        assert on_disk(tmp_path / f"mirror-{name}") <= limit

    train("a")
    train("b")
    assert same(tmp_path / "a", tmp_path / "b")


def test_sizes_are_read_as_people_write_them():
    found = load_config(flags={"cache": "s3://b/x", "stream.limit": "1.5GB"})
    assert found.stream.limit == 1_500_000_000
    with pytest.raises(ConfigError, match=r"stream\.limit: 'much' is no size.*--cache-limit") as refused:
        load_config(flags={"cache": "s3://b/x", "stream.limit": "much"})
    assert str(refused.value).count("much") == 1
