"""Runs from a remote that are killed while they train: resumed, they end as if they never had been."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distill_helpers import build_ten_shards, small_run
from stream_helpers import on_disk, same, shard_size
from training_children import KILLED, Command, launch

from distill.layout import LOCK
from embedcache import fsio
from embedcache.cache import Cache
from embedcache.share import push

pytest_plugins = ["distill_fixtures"]

CREATE, WRITTEN, SYNCED, RENAMED, RECORDED, REMOVE = range(6)
"""What happens to a shard's file from its fetch to its eviction, in order."""

SHARDS = 10
CHECKPOINT = "checkpoint.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of ten shards; ``../remote`` has it too."""
    folder = tmp_path_factory.mktemp("source")
    build_ten_shards(folder, teacher_folder)
    push(folder / "cache", str(folder / "remote"))
    assert len(shard_files(folder / "cache")) == SHARDS
    return folder / "cache"


@pytest.fixture(scope="module")
def limit(source: Path) -> int:
    """Room for two windows of two shards each."""
    return 4 * shard_size(source, "tiny")


@dataclass(frozen=True)
class Whole:
    """A run that is not killed.

    Attributes:
        run: its folder.
        order: names of the shards' files, in the order in which they were fetched first.
    """

    run: Path
    order: tuple[str, ...]


@pytest.fixture(scope="module")
def whole(source: Path, limit: int, teacher_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    fetched: list[str] = []

    def look(step: str, path: Path) -> None:
        if step == "create" and path.parent.name == "shards":
            fetched.append(path.name)

    settings: dict[str, Any] = {"held_out": 12, "epochs": 2, "batch_size": 16, "eval_every": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsio, "on_write_step", look)
        small_run(
            source.parent / "remote",
            folder / "run",
            teacher="tiny",
            teacher_model=str(teacher_folder),
            mirror=str(folder / "mirror"),
            cache_limit=limit,
            **settings,
        )
    order = tuple(dict.fromkeys(fetched))
    assert len(order) == SHARDS < len(fetched)
    return Whole(folder / "run", order)


def shard_files(cache: Path) -> list[Path]:
    """Return the shards of a cache, without what is on its way to be one."""
    return sorted(cache.glob("teachers/*/shards/[0-9a-f]*.arrow"))


@contextmanager
def never_above(limit: int, mirror: Path) -> Iterator[None]:
    """See, again and again while the block runs, that a mirror's shards take no more than ``limit`` bytes."""
    ended, seen = threading.Event(), [0]

    def look() -> None:
        while not ended.wait(0.005):
            seen.append(on_disk(mirror))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()
    assert max(seen) <= limit


def assert_sound(mirror: Path) -> None:
    """See that shards are whole, and that what lies beside notes, and so counts for no limit, is nothing."""
    files = shard_files(mirror)
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.stem for path in files)
    noted = {path.stem[:64] for path in (mirror / "derived" / "stream").glob("*/*.json")}
    assert {path.stem for path in files} <= noted
    left = [path.name for path in mirror.glob("teachers/*/shards/.tmp-*")]
    assert all(name.removesuffix(".arrow")[-64:] in noted for name in left)


def run_killed_and_resumed(
    source: Path, limit: int, teacher_folder: Path, folder: Path, kills: Sequence[dict[str, Any]]
) -> None:
    """Start a run, kill it and each resumed one as told, and resume it to its end."""
    run, mirror = folder / "run", folder / "mirror"
    words = ["run", "--cache", str(source.parent / "remote"), "--teacher", "tiny", "--student", "layers:1"]
    words += ["--teacher-model", str(teacher_folder), "--mirror", str(mirror), "--cache-limit", str(limit)]
    words += ["--held-out", "12", "--epochs", "2", "--batch-size", "16", "--eval-every", "3"]
    words += ["--checkpoint-every", "1", "--set", "tracking.log_every=1", "--out", str(run)]
    words += ["--device", "cpu", "--mixed-precision", "no", "--threads", "1"]
    for number, kill in enumerate([*kills, {}]):
        output = folder / f"printed-{number}"
        with never_above(limit, mirror):
            ended = launch(Command(words, **kill), output)
        assert ended == [KILLED if kill else 0], (output / "0.txt").read_text()
        assert_sound(mirror)
        if kill:
            assert (run / LOCK).exists(), "it was not killed while it trained"
        words = ["run", "--resume", str(run)]


def of_shard(number: int, step: int) -> dict[str, Any]:
    """Return what kills a run at a step of the shard that is the ``number``-th to be fetched.

    The first four, two windows, are fetched before training begins, and the others while it goes on.
    """
    return {"shard": number, "step": step}


KILLS = {
    "in its first window": [{"kill_at_step": 2}],
    "in its second epoch": [{"kill_at_step": 14}],
    "as a fetch begins": [of_shard(5, CREATE)],
    "as a shard has arrived": [of_shard(6, WRITTEN)],
    "as a shard has its name": [of_shard(7, RENAMED)],
    "as a shard is deleted": [of_shard(0, REMOVE)],
    "as a checkpoint is written": [{"kill_at_write": (CHECKPOINT, 26)}],
    "again and again": [
        of_shard(4, WRITTEN),
        {"kill_at_step": 4},
        of_shard(6, CREATE),
        of_shard(9, WRITTEN),
        {"kill_at_step": 12},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_killed_and_resumed_it_is_the_same_student(
    source: Path,
    limit: int,
    teacher_folder: Path,
    whole: Whole,
    tmp_path: Path,
    kills: list[dict[str, Any]],
) -> None:
    told = [
        {"kill_at_write": (whole.order[kill["shard"]], kill["step"])} if "shard" in kill else kill
        for kill in kills
    ]
    run_killed_and_resumed(source, limit, teacher_folder, tmp_path, told)
    assert same(tmp_path / "run", whole.run)
    # Whoever comes next finds nothing wrong with the mirror, nor with the room in it.
    opened = Cache(tmp_path / "mirror")
    assert len(opened.store(opened.teacher("tiny").contract).shards) == len(shard_files(opened.folder))
