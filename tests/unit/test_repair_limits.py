"""Repair: what it leaves alone, what it needs, what it moves, and that it can be cut off anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from check_helpers import (
    KINDS,
    TEACHER,
    TEXTS,
    MakeCopy,
    assert_as_before,
    build_with,
    content_of,
    copy_of,
    files_of,
    flip,
    mended,
    only,
    outcomes,
    write_source,
)

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.check import Computing, repair, verify
from embedcache.check.repair.mending import MOVED, REMOVED, RIGHT, TO_ENCODE
from embedcache.store import LmdbShards
from embedcache.testing import FakeEncoder, fake_teacher, tiny_encoder

pytest_plugins = ["check_fixtures"]


def test_what_no_corpus_has_stays_and_is_listed(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shutil.rmtree(cache / "corpora")
    shard = only(cache, "teachers/*/shards/*")
    flip(shard, 3000, 1)
    data = shard.read_bytes()
    (left,) = mended(cache).left
    assert left.path == shard.relative_to(cache).as_posix()
    assert "build the corpus" in left.detail
    assert shard.read_bytes() == data


def test_without_the_teacher_a_shard_stays_and_says_what_is_needed(
    fresh: MakeCopy, plain_teacher: Path
) -> None:
    cache = fresh("arrow")
    shard = only(cache, "teachers/*/shards/*")
    flip(shard, 3000, 1)
    data = shard.read_bytes()
    (left,) = repair(cache).left
    assert "--teacher-model" in left.detail
    assert "a model that is not there" in left.detail
    (left,) = repair(cache, computing=Computing(teacher_model=plain_teacher, device="cpu")).left
    assert "weights" in left.detail
    assert "--teacher-model" in left.detail
    assert shard.read_bytes() == data


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_changes_nothing_and_says_what_would_be_done(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    for name in files_of(cache):
        if name != "cache.json":
            flip(cache / name, (cache / name).stat().st_size // 2, 1)
    (cache / "strange.txt").write_text("strange")
    before = {name: ((cache / name).read_bytes(), (cache / name).stat()) for name in files_of(cache)}
    done = repair(cache, dry_run=True, quarantine=True)
    assert {name: ((cache / name).read_bytes(), (cache / name).stat()) for name in files_of(cache)} == before
    assert done.dry_run
    assert {TO_ENCODE, REMOVED, MOVED} <= outcomes(done)
    # Of a shard inside an LMDB store only the corpus could tell the rows, which is damaged as well.
    assert done.rows_encoded == (0 if kind == "lmdb" else len(TEXTS))


class _Stop(BaseException):
    """Stands for a kill."""


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], list[str]]]:
    """Return a function that stops the process's writing at a step; it returns the steps taken."""

    def arrange(at: int | None) -> list[str]:
        taken: list[str] = []

        def hook(step: str, path: Path) -> None:
            taken.append(step)
            if at is not None and len(taken) > at:
                raise _Stop

        monkeypatch.setattr(fsio, "on_write_step", hook)
        return taken

    yield arrange
    monkeypatch.setattr(fsio, "on_write_step", None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_that_is_killed_goes_on_where_it_was(
    fresh: MakeCopy,
    sound_caches: dict[str, Path],
    stop_at: Callable[[int | None], list[str]],
    kind: str,
) -> None:
    damaged = fresh(kind)
    for name in files_of(damaged):
        if not name.startswith("derived/"):
            flip(damaged / name, (damaged / name).stat().st_size // 2, 1)
    steps = stop_at(None)
    whole = copy_of(damaged, damaged.with_name("whole"))
    assert mended(whole).left == []
    assert len(steps) > 20
    for at in range(0, len(steps), 7):
        cache = copy_of(damaged, damaged.with_name(f"stopped-{at}"))
        stop_at(at)
        with pytest.raises(_Stop):
            mended(cache)
        stop_at(None)
        assert mended(cache).left == []
        assert_as_before(cache, sound_caches[kind])
        shutil.rmtree(cache)


def test_unknown_files_are_moved_only_when_asked(fresh: MakeCopy, sound_caches: dict[str, Path]) -> None:
    cache = fresh("arrow")
    strangers = [cache / "teachers" / "notes.txt", cache / "corpora" / "corpus" / "part-00000.arrow"]
    for path in strangers:
        path.write_text(path.name)
    assert mended(cache).mends == ()
    done = mended(cache, quarantine=True)
    assert {(mend.path, mend.outcome) for mend in done.mends} == {
        (path.relative_to(cache).as_posix(), MOVED) for path in strangers
    }
    for path in strangers:
        assert not path.exists()
        assert (cache / "quarantine" / path.relative_to(cache)).read_text() == path.name
    shutil.rmtree(cache / "quarantine")
    assert content_of(cache) == content_of(sound_caches["arrow"])


def test_a_shard_of_another_teacher_goes_home_or_aside(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("arrow")
    other = fake_teacher(16, name="other", seed=1)
    build_with(cache, write_source(cache.parent), FakeEncoder(other))
    before = content_of(cache)
    stranger = only(cache, f"teachers/{other.contract.id}/shards/*")
    wrong = cache / "teachers" / TEACHER.contract.id / "shards" / stranger.name
    stranger.rename(wrong)
    (mend,) = mended(cache).mends
    assert mend.outcome == MOVED
    assert content_of(cache) == before
    data = stranger.read_bytes()
    shutil.rmtree(cache / "teachers" / other.contract.id)
    wrong.write_bytes(data)
    assert outcomes(mended(cache)) == {MOVED}
    assert (cache / "quarantine" / wrong.relative_to(cache)).read_bytes() == data
    shutil.rmtree(cache / "quarantine")
    assert content_of(cache) == content_of(sound_caches["arrow"])


def test_a_shard_of_another_teacher_in_an_lmdb_store_goes_aside(
    fresh: MakeCopy, sound_caches: dict[str, Path], tmp_path: Path
) -> None:
    cache = fresh("lmdb")
    other = fake_teacher(16, name="other", seed=1)
    build_with(tmp_path / "there", write_source(tmp_path), FakeEncoder(other))
    stranger = only(tmp_path / "there", "teachers/*/shards/*")
    container = LmdbShards(only(cache, "teachers/*/vectors.mdb"))
    container.add(stranger.stem, pa.py_buffer(stranger.read_bytes()))
    container.finish()
    container.close()
    (damage,) = verify(cache).damage
    assert other.contract.id[:12] in damage.found
    done = mended(cache)
    assert done.left == []
    assert done.rows_encoded == 0
    assert (cache / "quarantine" / stranger.name).read_bytes() == stranger.read_bytes()
    shutil.rmtree(cache / "quarantine")
    assert_as_before(cache, sound_caches["lmdb"])


def test_a_teacher_that_lost_its_names_is_named_after_the_model(
    real_caches: dict[str, Path], tiny_teacher: Path, tmp_path: Path
) -> None:
    cache = copy_of(real_caches["arrow"], tmp_path / "cache")
    shutil.rmtree(only(cache, "teachers/*/names"))
    other = tiny_encoder(tmp_path / "other", seed=1)
    (left,) = repair(cache, computing=Computing(teacher_model=other)).left
    assert "weights" in left.detail
    noted = copy_of(cache, tmp_path / "noted")
    assert outcomes(repair(cache, computing=Computing(teacher_model=tiny_teacher))) == {RIGHT}
    assert outcomes(repair(noted)) == {RIGHT}
    for one in (cache, noted):
        assert_as_before(one, real_caches["arrow"])
        assert [teacher.name for teacher in Cache(one).teachers()] == ["tiny"]


@pytest.mark.parametrize("has_contract", [True, False])
def test_a_teacher_of_an_unknown_model_is_named_by_its_contract(fresh: MakeCopy, has_contract: bool) -> None:
    cache = fresh("arrow")
    shutil.rmtree(only(cache, "teachers/*/names"))
    if not has_contract:
        only(cache, "teachers/*/contract.json").unlink()
    done = mended(cache)
    assert done.left == []
    assert verify(cache).findings == ()
    (teacher,) = Cache(cache).teachers()
    assert teacher.name == TEACHER.contract.id[:12]
    assert Cache(cache).lookup(TEXTS[:3], teacher.name).shape == (3, 16)


def test_links_are_left_to_their_owner(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (cache / "corpora" / "linked").symlink_to(outside)
    shard = only(cache, "teachers/*/shards/*")
    flip(shard, 3000, 1)
    data = shard.read_bytes()
    done = mended(cache)
    assert {mend.path for mend in done.left} == {"corpora/linked", shard.relative_to(cache).as_posix()}
    assert shard.read_bytes() == data
    assert outside.read_text() == "mine"
