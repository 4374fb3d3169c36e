"""Repair of stores that are gone: the same shards come back, in one kind of store, each text encoded once."""

from __future__ import annotations

import shutil
from pathlib import Path

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
    mended,
    only,
    outcomes,
    write_source,
)
from flat_build import build

from embedcache.cache import Cache
from embedcache.check import CheckProgress, Computing, repair, verify
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED
from embedcache.errors import MissingInputError
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

pytest_plugins = ["check_fixtures"]


def empty(cache: Path) -> None:
    """Delete all vectors of a cache; the seal of an LMDB store stays."""
    for pattern in ("teachers/*/shards/*", "teachers/*/vectors.mdb*"):
        for path in cache.glob(pattern):
            path.unlink()


def has_one_kind_of_store(cache: Path) -> bool:
    return all(
        not (folder / "vectors.mdb").exists() or not (folder / "shards").exists()
        for folder in (cache / "teachers").iterdir()
    )


# Without what is derived nothing tells of deleted files; a seal tells of what was in an LMDB file.
@pytest.mark.parametrize(("kind", "derived"), [*((kind, True) for kind in KINDS), ("lmdb", False)])
def test_a_store_that_is_gone_comes_back_and_each_text_is_encoded_once(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str, derived: bool
) -> None:
    cache = fresh(kind)
    empty(cache)
    if not derived:
        shutil.rmtree(cache / "derived")
    assert verify(cache).damage
    announced = repair(cache, dry_run=True)
    encoder = FakeEncoder(TEACHER)
    done = mended(cache, encoder)
    assert outcomes(done) == {IDENTICAL}
    assert announced.rows_encoded == done.rows_encoded == encoder.rows_encoded == len(TEXTS)
    assert_as_before(cache, sound_caches[kind])
    assert has_one_kind_of_store(cache)


class NewerEncoder(FakeEncoder):
    """An encoder of another library version."""

    @property
    def provenance(self) -> dict[str, object]:
        return {**super().provenance, "torch": "another"}


def test_a_store_of_a_real_encoder_comes_back(
    real_caches: dict[str, Path], loaded_teacher: Teacher, tmp_path: Path
) -> None:
    for kind in ("arrow", "lmdb"):
        cache = copy_of(real_caches[kind], tmp_path / kind)
        empty(cache)
        done = repair(cache, encoder=Encoder(loaded_teacher, compute_dtype="float32", threads=1))
        assert outcomes(done) == {IDENTICAL}
        assert done.rows_encoded == len(TEXTS)
        assert_as_before(cache, real_caches[kind])


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shard_rows", [100, 256, 333])
def test_several_corpora_are_cut_one_by_one(tmp_path: Path, codec: str, shard_rows: int) -> None:
    cache = tmp_path / "cache"
    for name, count in (("a", 500), ("b", 90), ("c", 777)):
        source = tmp_path / f"{name}.txt"
        source.write_text("\n".join(sentences(count, seed=ord(name))))
        build(
            source,
            teacher=TEACHER,
            encoder=FakeEncoder(TEACHER),  # type: ignore[arg-type]  # a fake one does as well
            cache=cache,
            codec=codec,
            store="lmdb",
            shard_rows=shard_rows,
        )
    before = content_of(cache)
    empty(cache)
    shutil.rmtree(cache / "derived")
    done = mended(cache)
    assert outcomes(done) == {IDENTICAL}
    assert done.rows_encoded == len(
        {key for corpus in Cache(cache).corpora() for key in corpus.keys().tolist()}
    )
    assert content_of(cache) == before


def test_a_lost_lmdb_file_joins_shards_that_are_there(fresh: MakeCopy, sound_caches: dict[str, Path]) -> None:
    """A teacher has one kind of store, even where files of both are left."""
    cache, arrow = fresh("lmdb"), fresh("arrow")
    empty(cache)
    shutil.rmtree(cache / "derived")
    shutil.copytree(only(arrow, "teachers/*/shards"), only(cache, "teachers/*") / "shards")
    stranger = {path.name for path in only(cache, "teachers/*/shards").iterdir()}
    assert any(one.path.endswith("vectors.mdb") for one in verify(cache).damage)
    done = mended(cache)
    assert not (only(cache, "teachers/*") / "vectors.mdb").exists()
    assert has_one_kind_of_store(cache)
    assert stranger <= {path.name for path in only(cache, "teachers/*/shards").iterdir()}
    # Texts that have a vector are not encoded again.
    assert done.rows_encoded == 0


def test_shards_noted_once_are_not_put_beside_an_lmdb_file(fresh: MakeCopy) -> None:
    """A note of shards in files, as a cache has that was of the other kind before."""
    cache, arrow = fresh("lmdb"), fresh("arrow")
    for path in arrow.glob("derived/index/*/*"):
        shutil.copy(path, only(cache, "derived/index/*") / path.name)
    assert mended(cache).left == []
    assert has_one_kind_of_store(cache)


def test_a_store_gone_with_its_seal_stays_listed(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    for path in cache.glob("teachers/*/vectors.*"):
        path.unlink()
    for dry_run in (True, False):
        (left,) = mended(cache, dry_run=dry_run).mends
        assert left.outcome == NOT_REPAIRED
        assert "build again" in left.detail
    assert has_one_kind_of_store(cache)


def test_a_shard_is_not_moved_home_to_where_an_lmdb_file_was(fresh: MakeCopy, tmp_path: Path) -> None:
    cache, shard = fresh("lmdb"), only(fresh("arrow"), "teachers/*/shards/*")
    other = fake_teacher(16, name="other", seed=1)
    build_with(cache, write_source(tmp_path), FakeEncoder(other))
    wrong = cache / "teachers" / other.contract.id / "shards" / shard.name
    shutil.copy(shard, wrong)
    (cache / "teachers" / TEACHER.contract.id / "vectors.mdb").unlink()
    assert mended(cache).left == []
    assert not wrong.exists()
    assert has_one_kind_of_store(cache)


def test_sources_and_models_are_looked_for_before_anything_else(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    with pytest.raises(MissingInputError, match=r"nope\.txt"):
        repair(cache, sources=[tmp_path / "nope.txt"])


def test_progress_tells_of_loading_and_of_all_rows(real_caches: dict[str, Path], tmp_path: Path) -> None:
    cache = copy_of(real_caches["arrow"], tmp_path / "cache")
    empty(cache)
    steps: list[CheckProgress] = []
    repair(cache, computing=Computing(device="cpu", threads=1), on_progress=steps.append)
    phases = list(dict.fromkeys(step.phase for step in steps))
    assert phases[-2:] == ["encode", "load teacher tiny"]
    encoded = [step for step in steps if step.phase == "encode"]
    assert encoded[-1].rows == encoded[-1].total_rows == len(TEXTS)
    assert [step.rows for step in encoded] == sorted(step.rows for step in encoded)
    assert {step.total_rows for step in encoded} == {len(TEXTS)}
