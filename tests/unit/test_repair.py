"""Repair: vectors come back, documents where they are known; nothing is guessed and nothing deleted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_with_views import TEXTS as VIEW_TEXTS
from cache_with_views import add_model_view, build_views, shards_of_views, write_views_source
from check_helpers import (
    KINDS,
    SHARD_ROWS,
    TEACHER,
    TEXTS,
    MakeCopy,
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
from flat_build import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_verify import reseal

from embedcache.cache import Cache
from embedcache.gc import find_removal
from embedcache.inventory import QUARANTINE
from embedcache.live import Computing
from embedcache.projection import PROJECTION, extend, write_derived
from embedcache.repair import ENCODED, LEFT, LOST, MADE, MOVED, repair
from embedcache.teacher.batching import EncodedTexts
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify

pytest_plugins = ["check_fixtures"]

WAYS = ("deleted", "flipped", "cut")
REMADE = {
    "arrow": ["cache.json", "teachers/*/contract.json", "teachers/*/shards/*.arrow"],
    "lmdb": [
        "cache.json",
        "teachers/*/contract.json",
        "teachers/*/vectors.mdb",
        "teachers/*/vectors.seal.json",
    ],
    "pq": ["teachers/*/shards/*.arrow", "teachers/*/codebooks/*.npy", "teachers/*/contract.json"],
}
"""Files that come back as they were."""


def harm(path: Path, way: str) -> None:
    size = path.stat().st_size
    if way == "deleted":
        path.unlink()
    elif way == "flipped":
        flip(path, size // 2, 1)
    else:
        path.write_bytes(path.read_bytes()[: size // 2])


def states_of(cache: Path) -> dict[Path, tuple[int, int]]:
    """Return path -> size and time of the last change of everything in a cache."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in cache.rglob("*")}


def assert_whole(cache: Path) -> None:
    """Assert that nothing is damaged, and every text has the vector it had."""
    assert verify(cache).damage == []
    expected = FakeEncoder(TEACHER).encode(TEXTS).vectors
    found = Cache(cache).lookup(TEXTS, TEACHER.contract.id)
    assert float((expected * found).sum(axis=1).min()) > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_cache_is_left_alone(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    before = states_of(cache)
    assert mended(cache).fixes == ()
    assert states_of(cache) == before


@pytest.mark.parametrize(
    ("kind", "pattern", "way"),
    [(kind, pattern, way) for kind, patterns in REMADE.items() for pattern in patterns for way in WAYS],
)
def test_what_is_known_comes_back_with_the_same_bytes(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str, pattern: str, way: str
) -> None:
    if (pattern, way) == ("teachers/*/vectors.seal.json", "deleted"):
        pytest.skip("a build that did not end leaves no seal either")
    cache = fresh(kind)
    encoder = FakeEncoder(TEACHER)
    path = only(cache, pattern)
    harm(path, way)
    before = states_of(cache)
    plan = repair(cache, dry_run=True)
    assert states_of(cache) == before
    done = mended(cache, encoder)
    assert done.left == []
    assert done.rows_encoded == encoder.rows_encoded <= plan.rows_encoded
    assert_whole(cache)
    assert content_of(cache) == content_of(sound_caches[kind])
    if way == "flipped":
        assert encoder.rows_encoded <= 2 * SHARD_ROWS
    assert mended(cache).fixes == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_encoder_gives_the_same_bytes_again(
    tmp_path: Path, loaded_teacher: Teacher, kind: str
) -> None:
    store, codec = KINDS[kind]
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    cache = build_with(tmp_path / "cache", write_source(tmp_path), encoder, store=store, codec=codec).folder
    before = content_of(cache)
    path = only(cache, "teachers/*/vectors.mdb" if store == "lmdb" else "teachers/*/shards/*.arrow")
    flip(path, path.read_bytes().rindex(b"ARROW1\0\0") + 200, 1)
    assert verify(cache).damage
    done = repair(cache, computing=Computing(device="cpu", threads=1))
    assert done.left == []
    assert content_of(cache) == before


def test_what_was_damaged_is_kept_in_quarantine(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    for _ in range(2):
        paths = [cache / "cache.json", only(cache, "teachers/*/shards/*.arrow")]
        for path in paths:
            flip(path, 20, 1)
        damaged = [path.read_bytes() for path in paths]
        mended(cache)
    kept = [cache / QUARANTINE / f"{path.relative_to(cache)}.1" for path in paths]
    assert [path.read_bytes() for path in kept] == damaged
    assert len([path for path in (cache / QUARANTINE).rglob("*") if path.is_file()]) == 4
    assert verify(cache).findings == ()


def test_an_emptied_shard_comes_back_without_an_index(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shutil.rmtree(cache / "derived")
    only(cache, "teachers/*/shards/*.arrow").write_bytes(b"")
    assert outcomes(mended(cache)) == {ENCODED}
    assert_whole(cache)


def damage_in_lmdb(store: Path, shards: int) -> None:
    """Flip a byte among the vectors of some shards in an LMDB file."""
    data = store.read_bytes()
    places = [at for at in range(0, len(data), 4096) if data[at + 16 : at + 22] == b"ARROW1"]
    for place in places[:shards]:
        flip(store, place + 2500, 1)


class Killed(BaseException):
    """Stands for SIGKILL."""


class DyingEncoder(FakeEncoder):
    """Dies after one window."""

    def encode_windows(self, windows: Any, on_wait: Any = None) -> Iterator[EncodedTexts]:  # type: ignore[override]
        for number, texts in enumerate(windows):
            if number:
                raise Killed
            yield self.encode(texts)


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_killed_repair_is_finished_by_the_next(
    fresh: MakeCopy, sound_caches: dict[str, Path], kind: str
) -> None:
    cache = fresh(kind)
    if kind == "arrow":
        for path in cache.glob("teachers/*/shards/*.arrow"):
            flip(path, path.stat().st_size // 2, 1)
    else:
        damage_in_lmdb(only(cache, "teachers/*/vectors.mdb"), 2)
    with pytest.raises(Killed):
        mended(cache, DyingEncoder(TEACHER))
    assert mended(cache).left == []
    assert_whole(cache)
    assert content_of(cache) == content_of(sound_caches[kind])


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize("damaged", [1, 2])
def test_only_the_corpora_that_a_teacher_had_encoded_are_encoded_again(
    tmp_path: Path, store: str, damaged: int
) -> None:
    """Each corpus is one shard; another teacher has encoded a third one."""
    cache, other, texts = tmp_path / "cache", fake_teacher(16, name="other", seed=1), {}
    for number, name in enumerate(("first", "second", "third")):
        texts[name] = sentences(50, seed=number)
        (tmp_path / name).write_text("\n".join(texts[name]))
        teacher = other if name == "third" else TEACHER
        encoder = FakeEncoder(teacher)
        build(
            tmp_path / name,
            teacher=teacher,
            encoder=encoder,
            cache=cache,
            name=name,
            format="text",
            store=store,
        )  # type: ignore[arg-type]
    before, folder = content_of(cache), cache / "teachers" / TEACHER.contract.id
    if store == "lmdb":
        damage_in_lmdb(folder / "vectors.mdb", damaged)
    else:
        for path in sorted(folder.glob("shards/*"))[:damaged]:
            path.unlink()
    encoder = FakeEncoder(TEACHER)
    mended(cache, encoder)
    assert encoder.rows_encoded == 50 * damaged
    assert content_of(cache) == before
    for name in ("first", "second"):
        assert len(Cache(cache).lookup(texts[name], "fake")) == 50


def test_vectors_whose_texts_are_gone_are_named_and_moved_aside(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    find_removal(Cache(cache), "corpus", "corpus").delete()
    flip(only(cache, "teachers/*/shards/*.arrow"), 9000, 1)
    (fix,) = mended(cache).fixes
    assert fix.outcome == LOST
    assert f"{SHARD_ROWS} rows" in fix.detail
    assert verify(cache).damage == []


def test_a_damaged_corpus_is_left_with_the_command_that_reads_it_again(
    fresh: MakeCopy, sound_caches: dict[str, Path], tmp_path: Path
) -> None:
    cache = fresh("arrow")
    for pattern in ("corpora/*/*.arrow", "corpora/*/corpus.json"):
        flip(only(cache, pattern), 300, 1)
    done = mended(cache)
    assert outcomes(done) == {LEFT}
    assert all("embedcache build SRC --name corpus --overwrite" in fix.detail for fix in done.fixes)
    shutil.rmtree(cache / QUARANTINE, ignore_errors=True)
    assert len(verify(cache).damage) == 2


def test_what_another_teacher_or_nobody_wrote_is_moved_aside(fresh: MakeCopy, tmp_path: Path) -> None:
    cache, teacher = fresh("arrow"), fake_teacher(16, seed=3, name="other")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    other = build(
        tmp_path / "texts.txt", teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "other"
    )  # type: ignore[arg-type]
    shard = only(other.folder, "teachers/*/shards/*.arrow")
    place = only(cache, "teachers/*/shards") / shard.name
    shutil.copy(shard, place)
    assert [fix.outcome for fix in mended(cache).fixes] == [MOVED]
    assert (cache / QUARANTINE / place.relative_to(cache)).read_bytes() == shard.read_bytes()
    assert_whole(cache)


def test_a_teacher_with_two_stores_keeps_all_shards_in_files(fresh: MakeCopy) -> None:
    cache, lmdb = fresh("arrow"), fresh("lmdb")
    shards = sorted(cache.glob("teachers/*/shards/*"))
    for name in ("vectors.mdb", "vectors.seal.json"):
        shutil.copy(only(lmdb, f"teachers/*/{name}"), shards[0].parents[1] / name)
    for shard in shards[1:]:
        shard.unlink()
    encoder = FakeEncoder(TEACHER)
    assert mended(cache, encoder).left == []
    assert encoder.rows_encoded == 0
    assert_whole(cache)


def test_shards_of_a_lost_codebook_are_encoded_again_where_it_is_learned_otherwise(fresh: MakeCopy) -> None:
    class Noisy(FakeEncoder):
        def encode(self, texts: Any) -> EncodedTexts:
            encoded = super().encode(texts)
            noise = np.random.default_rng(len(texts)).normal(0, 1e-3, encoded.vectors.shape)
            return EncodedTexts(
                (encoded.vectors + noise).astype(np.float32), encoded.tokens, encoded.truncated
            )

    cache = fresh("pq")
    (book,) = cache.glob("teachers/*/codebooks/*")
    book.write_bytes(b"gone")
    assert mended(cache, Noisy(TEACHER)).left == []
    assert not book.exists()
    assert_whole(cache)
    assert Cache(cache).store(TEACHER.contract).codec_name == "pq"


@pytest.mark.parametrize("way", ["deleted", "flipped"])
def test_names_are_written_again_as_far_as_they_are_known(fresh: MakeCopy, way: str) -> None:
    cache = fresh("arrow")
    shutil.rmtree(cache / "derived" / "models")
    for path in cache.glob("teachers/*/names/*"):
        harm(path, way)
    assert outcomes(mended(cache)) == {MADE}
    names = {teacher.name for teacher in Cache(cache).teachers()}
    assert names == ({"fake", "other-name"} if way == "flipped" else {TEACHER.contract.id[:12]})
    assert_whole(cache)


def test_a_model_is_taken_from_the_name_of_an_alias(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    name = only(cache, "teachers/*/names") / "minilm-l6.json"
    name.write_text("{}")
    assert outcomes(mended(cache)) == {MADE}
    assert (
        next(one for one in Cache(cache).teachers() if one.name == "minilm-l6").origin["spec"] == "minilm-l6"
    )


def test_token_embeddings_are_read_from_the_model_again(tmp_path: Path, loaded_teacher: Teacher) -> None:
    source = write_source(tmp_path)
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    cache = build(
        source, teacher=loaded_teacher, encoder=encoder, cache=tmp_path / "cache", token_embeddings=True,
        text_column="text",
    ).folder  # fmt: skip
    table = only(cache, "teachers/*/token_embeddings.safetensors")
    before = table.read_bytes()
    flip(table, 200, 1)
    assert outcomes(mended(cache, encoder)) == {MADE}
    assert table.read_bytes() == before


def test_vectors_of_a_projection_are_made_again_and_its_map_is_named(fresh: MakeCopy) -> None:
    cache = Cache(fresh("arrow"))
    matrix = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    derived = write_derived(cache, cache.teacher("fake"), "fake.projected", matrix, "a test")
    assert list(extend(cache, derived, cache.corpus()))
    expected = cache.lookup(TEXTS, "fake.projected")
    folder = cache.teacher_folder(derived.contract)
    flip(only(folder, "shards/*"), 5000, 1)
    assert mended(cache.folder).left == []
    np.testing.assert_array_equal(Cache(cache.folder).lookup(TEXTS, "fake.projected"), expected)
    (folder / PROJECTION).unlink()
    (left,) = mended(cache.folder).fixes
    assert (left.outcome, Path(left.path).name) == (LEFT, PROJECTION)


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with views of all kinds, one of them embedded; not to be changed."""
    folder = tmp_path_factory.mktemp("viewed")
    cache = build_views(folder / "cache", write_views_source(folder), embed=("crop",))
    add_model_view(cache.corpus())
    return cache.folder


@pytest.mark.parametrize("pattern", ["*.arrow", "corpus.json", "recipe.json"])
def test_a_damaged_view_is_left_with_the_command_that_makes_it_again(
    viewed: Path, tmp_path: Path, pattern: str
) -> None:
    cache = copy_of(viewed, tmp_path / "cache")
    path = only(cache, f"corpora/*/views/crop/{pattern}")
    flip(path, 100, 1)
    damaged = path.read_bytes()
    (left,) = mended(cache).fixes
    assert left.outcome == LEFT
    assert "embedcache build SRC --name pairs --view crop --overwrite" in left.detail
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("keys_read", [True, False])
def test_vectors_of_an_embedded_view_come_back(viewed: Path, tmp_path: Path, keys_read: bool) -> None:
    cache = copy_of(viewed, tmp_path / "cache")
    before = content_of(cache)
    shard = max(shards_of_views(Cache(cache)), key=len)
    path = Path(shard.where)
    flip(path, path.stat().st_size - 3000 if keys_read else 600, 1)
    assert mended(cache).left == []
    assert content_of(cache) == before
    assert len(Cache(cache).lookup(VIEW_TEXTS, "fake")) == len(VIEW_TEXTS)


@pytest.mark.parametrize("place", ["corpora/linked", QUARANTINE, "derived/linked"])
def test_nothing_is_written_where_there_is_a_link(fresh: MakeCopy, tmp_path: Path, place: str) -> None:
    cache, outside = fresh("arrow"), tmp_path / "outside"
    outside.mkdir()
    (cache / place).symlink_to(outside)
    flip(only(cache, "teachers/*/shards/*.arrow"), 9000, 1)
    before = content_of(cache)
    assert outcomes(mended(cache)) == {LEFT}
    assert content_of(cache) == before
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("pattern", ["cache.json", "corpora/*/corpus.json"])
def test_what_a_newer_version_wrote_is_left(fresh: MakeCopy, pattern: str) -> None:
    cache = fresh("arrow")
    reseal(only(cache, pattern), lambda value: value.update(version=99))
    before = content_of(cache)
    assert outcomes(mended(cache)) == {LEFT}
    assert content_of(cache) == before


def test_an_encoder_of_another_model_repairs_nothing(fresh: MakeCopy, tiny_teacher: Path) -> None:
    cache = fresh("arrow")
    path = only(cache, "teachers/*/shards/*.arrow")
    flip(path, 9000, 1)
    damaged = path.read_bytes()
    (left,) = repair(cache, computing=Computing(teacher_model=tiny_teacher, device="cpu")).fixes
    assert left.outcome == LEFT
    assert path.read_bytes() == damaged


def tampered(data: bytes, other: bytes, draw: st.DataObject) -> bytes:
    """Return ``data`` changed in one of the ways in which files come to harm."""
    place, length = draw.draw(st.integers(0, max(len(data) - 1, 0))), draw.draw(st.integers(1, 64))
    how = draw.draw(st.sampled_from(["bytes", "cut", "splice", "swap", "repeat"]))
    if how == "bytes":
        return data[:place] + draw.draw(st.binary(min_size=length, max_size=length)) + data[place + length :]
    if how == "cut":
        return data[:place]
    if how == "splice":
        return data[:place] + other[place:]
    return other if how == "swap" else data[:place] + data[max(0, place - length) :]


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_was_done_to_a_cache_it_is_mended_or_listed(
    sound_caches: dict[str, Path], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    cache = tmp_path / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    copy_of(sound_caches[kind], cache)
    names = [name for name in files_of(cache) if not name.startswith("derived/")]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        other = (cache / data.draw(st.sampled_from(names))).read_bytes()
        (cache / name).write_bytes(tampered((cache / name).read_bytes(), other, data))
    done = mended(cache)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}
    left = {fix.path for fix in done.left if fix.outcome == LEFT}
    assert {one.path for one in verify(cache).damage} == left
    if not done.left:
        assert_whole(cache)
        assert mended(cache).fixes == ()


def test_the_command_repairs_or_says_what_is_left(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    assert run("repair", "--cache", cache)[0] == 0
    (cache / "cache.json").unlink()
    code, shown = run("repair", "--cache", cache, "--dry-run")
    assert code == 0
    assert "would be repaired" in shown
    assert run("repair", "--cache", cache)[0] == 0
    only(cache, "corpora/*/corpus.json").unlink()
    code, shown = run("repair", "--cache", cache)
    assert code == 1
    assert "embedcache build SRC --name corpus" in shown
