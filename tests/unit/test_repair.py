"""Repair: what was damaged is byte for byte what it was, and only what was damaged is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from check_helpers import (
    KINDS,
    SHARD_ROWS,
    TEACHER,
    TEXTS,
    build_cache,
    build_with,
    content_of,
    copy_of,
    files_of,
    flip,
    write_source,
)
from click.testing import CliRunner

from embedcache import fsio
from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check import Computing, Repair, repair, verify
from embedcache.check.mending import IDENTICAL, MOVED, REMOVED, RIGHT, TO_ENCODE
from embedcache.cli.main import cli
from embedcache.corpus.readers import ReadOptions
from embedcache.fsio import spelled_json
from embedcache.store import LmdbShards
from embedcache.teacher.encode import Encoder
from embedcache.teacher.encoded import EncodedTexts
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, tiny_encoder

pytest_plugins = ["check_fixtures"]

MakeCopy = Callable[[str], Path]
OPTIONS = ReadOptions("text", "id", "label")


def mended(cache: Path, encoder: object = None, **settings: object) -> Repair:
    """Repair a cache of the fake teacher."""
    return repair(cache, encoder=encoder or FakeEncoder(TEACHER), **settings)  # type: ignore[arg-type]


def only(cache: Path, pattern: str) -> Path:
    """Return the first file that matches ``pattern``."""
    return min(cache.glob(pattern))


def outcomes(done: Repair) -> set[str]:
    return {mend.outcome for mend in done.mends}


def assert_as_before(cache: Path, sound: Path) -> None:
    assert content_of(cache) == content_of(sound)
    assert verify(cache).damage == []


@pytest.fixture(scope="module")
def real_caches(tmp_path_factory: pytest.TempPathFactory, loaded_teacher: Teacher) -> dict[str, Path]:
    """Return a cache of each kind of store, built with a real encoder; not to be changed."""
    folder = tmp_path_factory.mktemp("real")
    source = write_source(folder)
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    for kind, (store, codec) in KINDS.items():
        build(
            source,
            teacher=loaded_teacher,
            encoder=encoder,
            cache=folder / kind,
            text_column="text",
            id_column="id",
            label_column="label",
            store=store,
            codec=codec,
            shard_rows=SHARD_ROWS,
        )
    return {kind: folder / kind for kind in KINDS}


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
@pytest.mark.parametrize("how", ["cut off", "emptied", "missing"])
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


def test_a_shard_that_is_gone_is_known_by_the_index(fresh: MakeCopy, sound_caches: dict[str, Path]) -> None:
    cache = fresh("arrow")
    only(cache, "teachers/*/shards/*").unlink()
    assert outcomes(mended(cache)) == {IDENTICAL}
    assert_as_before(cache, sound_caches["arrow"])
    # Where nothing says that it was ever there, it is not missed: a build brings it back.
    only(cache, "teachers/*/shards/*").unlink()
    shutil.rmtree(cache / "derived")
    assert mended(cache).mends == ()
    build_cache(cache, write_source(cache.parent), store="arrow", codec="float16")
    assert_as_before(cache, sound_caches["arrow"])


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
    assert repair(cache).mends == ()
    other = tiny_encoder(tmp_path / "other", seed=1)
    (left,) = repair(cache, computing=Computing(teacher_model=other)).left
    assert "weights" in left.detail
    assert outcomes(repair(cache, computing=Computing(teacher_model=tiny_teacher))) == {RIGHT}
    assert_as_before(cache, real_caches["arrow"])
    assert [teacher.name for teacher in Cache(cache).teachers()] == ["tiny"]


def test_a_cache_of_a_newer_format_is_left_alone(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    newer = spelled_json({"format": "embedcache", "version": 3})
    (cache / "cache.json").write_bytes(newer)
    (cache / "something-new.json").write_text("{}")
    (left,) = mended(cache).left
    assert "upgrade" in left.detail
    assert (cache / "cache.json").read_bytes() == newer


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


def run(*arguments: object) -> tuple[int, str]:
    """Run ``embedcache`` with wide columns; return its exit code and what it prints."""
    done = CliRunner().invoke(cli, [str(one) for one in arguments], env={"COLUMNS": "300"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


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
