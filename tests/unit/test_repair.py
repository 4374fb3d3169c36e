"""Repair: vectors come back, documents where they are known; nothing is guessed and nothing deleted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_helpers import (
    KINDS,
    SHARD_ROWS,
    TEACHER,
    TEXTS,
    VIEWS,
    MakeCopy,
    assert_whole,
    content_of,
    flip,
    only,
    own_files,
    reseal,
    run,
)  # fmt: skip
from flat_build import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import embedcache.probes
from embedcache.cache import Cache
from embedcache.gc import find_removal
from embedcache.inventory import QUARANTINE
from embedcache.keys import key
from embedcache.projection import PROJECTION, extend, write_derived
from embedcache.repair import LEFT, LOST, MADE, Repair, repair
from embedcache.teacher.batching import EncodedTexts
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify

pytest_plugins = ["check_fixtures"]

SHARDS = "teachers/*/shards/*.arrow"
MDB = "teachers/*/vectors.mdb"


@pytest.fixture(autouse=True)
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the rows of a build alone; ``test_stored_probes`` holds what probes promise."""
    monkeypatch.setattr(embedcache.probes, "COUNT", 0)


def repaired(cache: Path, encoder: FakeEncoder | None = None) -> Repair:
    return repair(cache, encoder=encoder or FakeEncoder(TEACHER))  # type: ignore[arg-type]


def outcomes(done: Repair) -> set[str]:
    return {fix.outcome for fix in done.fixes}


def harm(path: Path, way: str) -> None:
    size = path.stat().st_size
    if way == "deleted":
        path.unlink()
    elif way == "flipped":
        flip(path, size // 2)
    else:
        path.write_bytes(path.read_bytes()[: size // 2 if way == "cut" else 0])


def states_of(cache: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of everything in a cache but LMDB's lock, which opening touches."""
    paths = (path for path in cache.rglob("*") if not path.name.endswith("-lock"))
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


@pytest.mark.parametrize(
    ("kind", "pattern", "way"),
    [
        ("arrow", "cache.json", "deleted"),
        ("arrow", "teachers/*/contract.json", "flipped"),
        ("arrow", SHARDS, "deleted"),
        ("arrow", SHARDS, "flipped"),
        ("pq", SHARDS, "cut"),
        ("pq", "teachers/*/codebooks/*.npy", "flipped"),
        ("views", SHARDS, "cut"),
        ("lmdb", "teachers/*/vectors.seal.json", "flipped"),
    ],
)
def test_known_content_comes_back_with_the_same_bytes(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str, pattern: str, way: str
) -> None:
    cache, encoder = fresh(kind), FakeEncoder(TEACHER)
    harm(only(cache, pattern), way)
    before = states_of(cache)
    plan = repair(cache, dry_run=True)
    assert states_of(cache) == before
    done = repaired(cache, encoder)
    assert done.left == []
    assert done.rows_encoded == encoder.rows_encoded == plan.rows_encoded
    assert_whole(cache)
    assert content_of(cache) == content_of(sound_caches[kind])
    if pattern == SHARDS:
        assert encoder.rows_encoded <= SHARD_ROWS
    before = states_of(cache)
    assert repaired(cache).fixes == ()
    assert states_of(cache) == before


def test_damaged_files_are_kept_in_quarantine(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    for _ in range(2):
        paths = [cache / "cache.json", only(cache, SHARDS)]
        for path in paths:
            flip(path, 20)
        damaged = [path.read_bytes() for path in paths]
        repaired(cache)
    kept = [cache / QUARANTINE / f"{path.relative_to(cache)}.1" for path in paths]
    assert [path.read_bytes() for path in kept] == damaged
    assert len([path for path in (cache / QUARANTINE).rglob("*") if path.is_file()]) == 4
    assert verify(cache).findings == ()


def damage_in_lmdb(store: Path, shards: int) -> None:
    """Flip a byte among the vectors of some shards in an LMDB file."""
    data = store.read_bytes()
    places = [at for at in range(0, len(data), 4096) if data[at + 16 : at + 22] == b"ARROW1"]
    for place in places[:shards]:
        flip(store, place + 2500)


class Killed(BaseException):
    """Stands for SIGKILL."""


class DyingEncoder(FakeEncoder):
    """Dies after one window."""

    def encode_windows(self, windows: Any, *others: Any) -> Iterator[EncodedTexts]:  # type: ignore[override]
        for number, texts in enumerate(windows):
            if number:
                raise Killed
            yield self.encode(texts)


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_killed_repair_is_finished_by_the_next(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str
) -> None:
    cache = fresh(kind)
    if kind == "lmdb":
        damage_in_lmdb(only(cache, MDB), 2)
    for path in cache.glob(SHARDS):
        harm(path, "flipped")
    with pytest.raises(Killed):
        repaired(cache, DyingEncoder(TEACHER))
    assert repaired(cache).left == []
    assert_whole(cache)
    assert content_of(cache) == content_of(sound_caches[kind])


def test_rows_that_a_sound_lmdb_file_lacks_are_encoded_into_it(tmp_path: Path) -> None:
    texts = sentences(60)
    build(texts, teacher=FakeEncoder(TEACHER), cache=tmp_path / "cache", store="lmdb", part="1/2")
    done = repaired(tmp_path / "cache")
    assert done.left == []
    assert done.rows_encoded > 10
    assert len(Cache(tmp_path / "cache").lookup(texts)) == 60


def test_a_teacher_may_be_called_name(tmp_path: Path) -> None:
    encoder = FakeEncoder(fake_teacher(16, name="NAME"))
    cache = build(sentences(20), teacher=encoder, cache=tmp_path / "cache").folder
    flip(only(cache, "teachers/*/names/NAME.json"), 20)
    assert repaired(cache, encoder).left == []
    assert [one.name for one in Cache(cache).teachers()] == ["NAME"]


def test_a_repair_names_the_text_of_nan(fresh: MakeCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, encoder = fresh("arrow"), FakeEncoder(TEACHER)
    harm(only(cache, SHARDS), "flipped")
    monkeypatch.setattr(encoder, "_vectors", lambda keys: np.full((len(keys), 16), np.nan, np.float32))
    (fix,) = repaired(cache, encoder).left
    texts = [text for corpus in Cache(cache).corpora() for text in corpus.texts()]
    assert any(f"NaN or infinity for {text!r}" in fix.detail for text in texts)


@pytest.mark.parametrize(
    ("store", "damaged", "in_keys"),
    [("arrow", 1, False), ("arrow", 2, True), ("lmdb", 2, False)],
)
def test_only_the_corpora_that_a_teacher_had_encoded_are_encoded_again(
    tmp_path: Path, store: str, damaged: int, in_keys: bool
) -> None:
    """Each corpus is one shard; another teacher has encoded a third one."""
    cache, other = tmp_path / "cache", fake_teacher(16, name="other", seed=1)
    for number, name in enumerate(("first", "second", "third")):
        encoder = FakeEncoder(other if name == "third" else TEACHER)
        texts = sentences(50, seed=number)
        build(texts, teacher=encoder.teacher, encoder=encoder, cache=cache, name=name, store=store)
    before, folder = content_of(cache), cache / "teachers" / TEACHER.contract.id
    if store == "lmdb":
        damage_in_lmdb(folder / "vectors.mdb", damaged)
    for path in sorted(folder.glob("shards/*"))[:damaged]:
        data, first = path.read_bytes(), [key(sentences(50, seed=number)[0]) for number in range(2)]
        flip(path, max(map(data.find, first)) if in_keys else len(data) // 2)
    encoder = FakeEncoder(TEACHER)
    repaired(cache, encoder)
    assert encoder.rows_encoded == 50 * damaged
    assert content_of(cache) == before


@pytest.mark.parametrize("place", ["key", "header"])
def test_a_view_that_was_embedded_alone_in_a_shard_comes_back_or_is_said_to_be_lost(
    tmp_path: Path, place: str
) -> None:
    cache, encoder = tmp_path / "cache", FakeEncoder(TEACHER)
    for views in ((), VIEWS):
        build(TEXTS, teacher=TEACHER, encoder=encoder, cache=cache, name="corpus", views=views)
    before = content_of(cache)
    cropped = next(Cache(cache).corpus("corpus").view("crop").iter_keys())
    paths = {path: path.read_bytes().find(cropped[0].tobytes()) for path in cache.glob(SHARDS)}
    path, at = max(paths.items(), key=lambda one: one[1])
    flip(path, at if place == "key" else 4)
    done = repaired(cache)
    if place == "key":
        assert content_of(cache) == before
    else:
        assert "the next build encodes what is missing" in done.fixes[0].detail


def test_vectors_whose_texts_are_gone_are_named_and_moved_aside(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    find_removal(Cache(cache), "corpus", "corpus").delete()
    flip(only(cache, SHARDS), 9000)
    (fix,) = repaired(cache).fixes
    assert fix.outcome == LOST
    assert f"{SHARD_ROWS} rows" in fix.detail
    assert verify(cache).damage == []


@pytest.mark.parametrize(
    "pattern", ["*.arrow", "corpus.json", "views/crop/*.arrow", "views/crop/recipe.json"]
)
def test_a_damaged_corpus_or_view_is_left_with_the_build_that_makes_it_again(
    fresh: MakeCopy, pattern: str
) -> None:
    cache = fresh("views")
    path = only(cache, f"corpora/corpus/{pattern}")
    flip(path, 100)
    damaged = path.read_bytes()
    (left,) = repaired(cache).fixes
    assert left.outcome == LEFT
    view = "--view crop " if "crop" in pattern else ""
    assert f"embedcache build SRC --name corpus {view}--overwrite" in left.detail
    assert path.read_bytes() == damaged


def test_a_teacher_with_two_stores_keeps_all_shards_in_files(fresh: MakeCopy) -> None:
    cache, lmdb = fresh("arrow"), fresh("lmdb")
    first, *others = sorted(cache.glob(SHARDS))
    for name in ("vectors.mdb", "vectors.seal.json"):
        shutil.copy(only(lmdb, f"teachers/*/{name}"), first.parents[1] / name)
    for shard in others:
        shard.unlink()
    encoder = FakeEncoder(TEACHER)
    assert repaired(cache, encoder).left == []
    assert encoder.rows_encoded == 0
    assert_whole(cache)


def test_another_codebook_may_take_the_place_of_a_lost_one(fresh: MakeCopy) -> None:
    class Noisy(FakeEncoder):
        def encode(self, texts: Any) -> EncodedTexts:
            encoded = super().encode(texts)
            noise = np.random.default_rng(len(texts)).normal(0, 1e-3, encoded.vectors.shape)
            return encoded._replace(vectors=np.float32(encoded.vectors + noise))

    cache = fresh("pq")
    (book,) = cache.glob("teachers/*/codebooks/*")
    book.write_bytes(b"gone")
    assert repaired(cache, Noisy(TEACHER)).left == []
    assert not book.exists()
    assert_whole(cache)
    assert Cache(cache).store(TEACHER.contract).codec_name == "pq"


@pytest.mark.parametrize(("way", "count"), [("deleted", 1), ("flipped", 2)])
def test_names_are_written_again_as_far_as_they_are_known(fresh: MakeCopy, way: str, count: int) -> None:
    """A name without a file is not known; the origin of an alias is."""
    cache = fresh("arrow")
    only(cache, "teachers/*/names/fake.json").rename(only(cache, "teachers/*/names") / "minilm-l6.json")
    for path in cache.glob("teachers/*/names/*"):
        harm(path, way)
    assert outcomes(repaired(cache)) == {MADE}
    found = {teacher.name: teacher.origin for teacher in Cache(cache).teachers()}
    assert len(found) == count
    if way == "flipped":
        assert found["minilm-l6"]["spec"] == "minilm-l6"
    assert_whole(cache)


def test_vectors_of_a_projection_are_made_again_and_its_map_is_named(fresh: MakeCopy) -> None:
    cache = Cache(fresh("arrow"))
    matrix = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    derived = write_derived(cache, cache.teacher("fake"), "fake.projected", matrix, "a test")
    assert extend(cache, derived, cache.corpus())
    expected = cache.lookup(TEXTS, "fake.projected")
    folder = cache.teacher_folder(derived.contract)
    flip(only(folder, "shards/*"), 5000)
    assert repaired(cache.folder).left == []
    np.testing.assert_array_equal(Cache(cache.folder).lookup(TEXTS, "fake.projected"), expected)
    (folder / PROJECTION).unlink()
    (left,) = repaired(cache.folder).fixes
    assert (left.outcome, Path(left.path).name) == (LEFT, PROJECTION)


@pytest.mark.parametrize("place", ["corpora/linked", QUARANTINE, "derived/linked"])
def test_nothing_is_written_where_there_is_a_link(fresh: MakeCopy, tmp_path: Path, place: str) -> None:
    cache, outside = fresh("arrow"), tmp_path / "outside"
    outside.mkdir()
    (cache / place).symlink_to(outside)
    flip(only(cache, SHARDS), 9000)
    before = content_of(cache)
    assert outcomes(repaired(cache)) == {LEFT}
    assert content_of(cache) == before
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("pattern", ["cache.json", "corpora/*/corpus.json"])
def test_files_of_a_newer_version_stay(fresh: MakeCopy, pattern: str) -> None:
    cache = fresh("arrow")
    reseal(only(cache, pattern), lambda value: value.update(version=99))
    before = content_of(cache)
    (left,) = repaired(cache).fixes
    assert left.outcome == LEFT
    assert "upgrade" in left.detail
    assert content_of(cache) == before


def test_without_the_teacher_nothing_is_moved(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    path = only(cache, SHARDS)
    flip(path, 9000)
    damaged = path.read_bytes()
    assert outcomes(repair(cache)) == {LEFT}
    assert path.read_bytes() == damaged


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_damage_to_a_cache_is_repaired_or_listed(
    sound_caches: dict[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    cache = tmp_path / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(sound_caches[data.draw(st.sampled_from(list(KINDS)))], cache)
    names = own_files(cache)
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        # A piece is lost, and other bytes or the end of another file stand there.
        old, other = ((cache / one).read_bytes() for one in (name, data.draw(st.sampled_from(names))))
        start, lost = data.draw(st.integers(0, len(old))), data.draw(st.integers(0, 64))
        new = data.draw(st.sampled_from([old[start + lost :], other[start:], b""]) | st.binary(max_size=64))
        (cache / name).write_bytes(old[:start] + new)
    done = repaired(cache)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}
    if LOST not in outcomes(done):
        assert {one.path for one in verify(cache).damage} == {fix.path for fix in done.left}
    if not done.left:
        assert_whole(cache)
        assert repaired(cache).fixes == ()


def test_the_command_repairs_and_lists_the_rest(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    (cache / "cache.json").unlink()
    code, shown = run("repair", "--cache", cache, "--dry-run")
    assert (code, "would be repaired" in shown) == (0, True)
    assert run("repair", "--cache", cache)[0] == 0
    flip(only(cache, "corpora/*/corpus.json"), 50)
    code, shown = run("repair", "--cache", cache)
    assert (code, "embedcache build SRC --name corpus" in shown) == (1, True)
