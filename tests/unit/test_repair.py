"""Repair: what was damaged is byte for byte what it was, and only what was damaged is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from check_helpers import (
    KINDS,
    OPTIONS,
    SHARD_ROWS,
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
    run,
    write_source,
)

from embedcache.cache import Cache
from embedcache.check import Computing, repair, verify
from embedcache.check.repair.mending import IDENTICAL, REMOVED, RIGHT
from embedcache.teacher.batching import EncodedTexts
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher

pytest_plugins = ["check_fixtures"]


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_are_put_right_with_a_real_encoder(
    real_caches: dict[str, Path], loaded_teacher: Teacher, tmp_path: Path, kind: str
) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    generator = np.random.default_rng(11)
    sound = content_of(real_caches[kind])
    cache = copy_of(real_caches[kind], tmp_path / "cache")
    names = files_of(cache)
    assert len(names) >= 9
    for name in [*names, *generator.choice(names, 22 - len(names))]:
        place, mask = int(generator.integers((cache / name).stat().st_size)), int(generator.integers(1, 256))
        flip(cache / name, place, mask)
        done = repair(cache, encoder=encoder)
        assert outcomes(done) <= {IDENTICAL, REMOVED}, (name, place, mask, done.mends)
        assert done.rows_encoded <= SHARD_ROWS, (name, place, mask)
        assert content_of(cache) == sound, (name, place, mask)
        found = verify(cache)
        assert found.findings == (), (name, place, mask)
        # What is derived was removed; it is there again for the next flip.
        shutil.rmtree(cache / "derived")
        shutil.copytree(real_caches[kind] / "derived", cache / "derived")


def test_the_model_is_loaded_from_where_it_was_built(real_caches: dict[str, Path], tmp_path: Path) -> None:
    cache = copy_of(real_caches["arrow"], tmp_path / "cache")
    flip(only(cache, "teachers/*/shards/*"), 4000, 3)
    done = repair(cache, computing=Computing(device="cpu", threads=1))
    assert outcomes(done) == {IDENTICAL}
    assert_as_before(cache, real_caches["arrow"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cut off", "emptied"])
def test_files_cut_off_emptied_or_missing_come_back(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str, how: str
) -> None:
    cache = fresh(kind)
    for name in files_of(sound_caches[kind]):
        path = cache / name
        optional = path.name == "vectors.seal.json" or "/names/" in name
        if name.startswith("derived/") or (how == "missing" and optional):
            continue
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: 3 * path.stat().st_size // 4 if how == "cut off" else 0])
        done = mended(cache)
        assert done.left == [], name
        assert_as_before(cache, sound_caches[kind])


def test_only_the_rows_of_the_damaged_shards_are_encoded(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("arrow")
    first, *_, last = sorted(only(cache, "teachers/*/shards").iterdir(), key=lambda path: path.stat().st_size)
    others = {path: path.stat().st_ino for path in first.parent.iterdir() if path not in (first, last)}
    for path in (first, last):
        flip(path, path.stat().st_size // 2, 7)
    encoder = FakeEncoder(TEACHER)
    done = mended(cache, encoder)
    assert encoder.rows_encoded == done.rows_encoded == 128 + 256
    assert {path: path.stat().st_ino for path in others} == others
    assert_as_before(cache, sound_caches["arrow"])


@pytest.mark.parametrize("kind", KINDS)
def test_without_anything_derived_rows_are_told_by_what_is_missing(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str
) -> None:
    cache = fresh(kind)
    shutil.rmtree(cache / "derived")
    if kind == "lmdb":
        path = only(cache, "teachers/*/vectors.mdb")
        data = bytearray(path.read_bytes())
        start = data.index(b"ARROW1\0\0")
        data[start : start + 4000] = bytes(4000)
        path.write_bytes(data)
    else:
        for path in only(cache, "teachers/*/shards").iterdir():
            path.write_bytes(b"gone")
    assert outcomes(mended(cache)) == {IDENTICAL}
    assert_as_before(cache, sound_caches[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_everything_at_once(
    real_caches: dict[str, Path], tiny_teacher: Path, tmp_path: Path, kind: str
) -> None:
    cache = copy_of(real_caches[kind], tmp_path / "cache")
    for name in files_of(cache):
        flip(cache / name, (cache / name).stat().st_size // 3, 5)
    settings = Computing(teacher_model=tiny_teacher, device="cpu", threads=1)
    done = repair(cache, sources=[write_source(tmp_path)], options=OPTIONS, computing=settings)
    assert done.left == []
    assert content_of(cache) == content_of(real_caches[kind])
    assert verify(cache).damage == []


class _OtherLibrary(FakeEncoder):
    """The same vectors, from another version of a library."""

    @property
    def provenance(self) -> dict[str, object]:
        return {"device": "none", "torch": "another"}


class _OtherVectors(FakeEncoder):
    """Nearly the same vectors: another library, or another processor."""

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        encoded = super().encode(texts)
        return EncodedTexts(encoded.vectors * np.float32(1.001), encoded.tokens, encoded.truncated)


@pytest.mark.parametrize("kind", KINDS)
def test_another_library_gives_a_shard_of_another_name(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str
) -> None:
    cache = fresh(kind)
    if kind == "lmdb":
        path = only(cache, "teachers/*/vectors.mdb")
        flip(path, path.read_bytes().index(b"ARROW1\0\0") + 3500, 1)
    else:
        path = only(cache, "teachers/*/shards/*")
        flip(path, 3500, 1)
    done = mended(cache, _OtherLibrary(TEACHER))
    assert RIGHT in outcomes(done)
    assert outcomes(done) <= {RIGHT, IDENTICAL}
    assert verify(cache).damage == []
    assert len(content_of(cache)) == len(content_of(sound_caches[kind]))
    assert content_of(cache) != content_of(sound_caches[kind])
    expected = Cache(sound_caches[kind]).lookup(TEXTS, "fake")
    np.testing.assert_array_equal(Cache(cache).lookup(TEXTS, "fake"), expected)


@pytest.mark.parametrize("number", range(3))
def test_a_codebook_comes_back_although_a_shard_is_lost_as_well(
    fresh: MakeCopy, sound_caches: dict[str, Path], number: int
) -> None:
    cache = fresh("pq")
    only(cache, "teachers/*/codebooks/*").write_bytes(b"")
    shards = sorted(only(cache, "teachers/*/shards").iterdir())
    assert len(shards) == 3
    shards[number].write_bytes(b"")
    assert outcomes(mended(cache)) == {IDENTICAL}
    assert_as_before(cache, sound_caches["pq"])


def test_a_codebook_that_cannot_be_learnt_again_takes_its_shards_along(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("pq")
    book = only(cache, "teachers/*/codebooks/*")
    before = {path.name for path in only(cache, "teachers/*/shards").iterdir()}
    flip(book, 5000, 1)
    encoder = _OtherVectors(TEACHER)
    done = mended(cache, encoder)
    assert outcomes(done) == {RIGHT}
    assert not book.exists()
    assert verify(cache).damage == []
    assert before.isdisjoint(path.name for path in only(cache, "teachers/*/shards").iterdir())
    expected = Cache(sound_caches["pq"]).lookup(TEXTS, "fake")
    np.testing.assert_allclose(Cache(cache).lookup(TEXTS, "fake"), expected, atol=0.1)


def test_carried_rows_are_carried_again_without_the_teacher(tmp_path: Path) -> None:
    source, cache = write_source(tmp_path), tmp_path / "cache"
    teachers = [fake_teacher(16, name=f"cut-at-{length}", max_length=length) for length in (64, 12)]
    for teacher in teachers:
        build_with(cache, source, FakeEncoder(teacher))
    before = content_of(cache)
    shards = only(cache, f"teachers/{teachers[1].contract.id}/shards")
    for path in shards.iterdir():
        flip(path, path.stat().st_size // 2, 1)
    encoder = FakeEncoder(teachers[1])
    done = mended(cache, encoder)
    assert outcomes(done) == {IDENTICAL}
    assert content_of(cache) == before
    carried = [mend for mend in done.mends if mend.detail == "carried over again"]
    assert len(carried) >= 2
    assert done.rows_encoded == encoder.rows_encoded < SHARD_ROWS


def test_the_command_repairs_and_says_how(
    real_caches: dict[str, Path], tiny_teacher: Path, tmp_path: Path
) -> None:
    cache = copy_of(real_caches["arrow"], tmp_path / "cache")
    shutil.rmtree(cache / "derived")
    largest = max(cache.glob("teachers/*/shards/*"), key=lambda path: path.stat().st_size)
    for path in (largest, only(cache, "corpora/*/*.arrow")):
        flip(path, path.stat().st_size // 2, 1)
    code, text = run("repair", "--cache", cache, "--dry-run")
    assert code == 1
    assert "--source" in text
    settings = ["--text-column", "text", "--id-column", "id", "--label-column", "label"]
    settings += ["--source", write_source(tmp_path), "--teacher-model", tiny_teacher, "--device", "cpu"]
    settings += ["--compute-dtype", "float32", "--threads", "1", "--json"]
    code, text = run("repair", "--cache", cache, *settings)
    told = json.loads(text)
    assert code == 0
    assert told["whole"] is True
    assert told["rows_encoded"] == SHARD_ROWS
    assert {mend["outcome"] for mend in told["mends"]} == {IDENTICAL}
    assert content_of(cache) == content_of(real_caches["arrow"])
    code, text = run("repair", "--cache", cache)
    assert code == 0
    assert "0 repaired, 0 not" in text
