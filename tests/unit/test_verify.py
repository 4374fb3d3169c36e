"""Verify: every changed byte and missing file is found, nothing else is damage, nothing is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cache_with_views import add_model_view, build_views, write_views_source
from check_helpers import KINDS, SHARD_ROWS, TEXTS, MakeCopy, copy_of, files_of, flip, only, run
from damage import damage_finder

from embedcache.codecs import get_codec
from embedcache.corpus.description import read_info
from embedcache.errors import CacheFormatError, MissingInputError
from embedcache.fsio import sealed, sha256_file, spelled_json
from embedcache.store.shard import stored_shard
from embedcache.testing import example_batch, example_contract
from embedcache.verify import verify
from embedcache.verify.files import UPGRADE

pytest_plugins = ["check_fixtures"]


def own_files(cache: Path) -> list[str]:
    """Return the files that verify has to vouch for."""
    return [name for name in files_of(cache) if not name.startswith("derived/")]


def missed(cache: Path, flips: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return those of the flips that are not found where they are made."""
    is_damaged, unseen = damage_finder(cache), []
    for name, place, mask in flips:
        flip(cache / name, place, mask)
        if not is_damaged(name):
            unseen.append((name, place, mask))
        flip(cache / name, place, mask)
    return unseen


def reseal(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    value = json.loads(path.read_bytes())
    del value["sha256"]
    change(value)
    path.write_bytes(spelled_json(sealed(value)))


def the_damage(cache: Path) -> tuple[str, str]:
    (one,) = verify(cache).damage
    return one.path, one.what


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with views of all kinds, one of them embedded; not to be changed."""
    folder = tmp_path_factory.mktemp("viewed")
    cache = build_views(folder / "cache", write_views_source(folder), embed=("crop",))
    add_model_view(cache.corpus())
    return cache.folder


@pytest.mark.parametrize("kind", [*KINDS, "views"])
def test_a_sound_cache_is_sound_and_not_written_to(
    sound_caches: dict[str, Path], viewed: Path, kind: str
) -> None:
    cache = viewed if kind == "views" else sound_caches[kind]
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    done = verify(cache)
    assert done.findings == ()
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert done.bytes == sum((cache / name).stat().st_size for name in own_files(cache))


@pytest.mark.parametrize("kind", [*KINDS, "views"])
def test_flipped_bytes_are_found(
    sound_caches: dict[str, Path], viewed: Path, tmp_path: Path, kind: str
) -> None:
    cache = copy_of(viewed if kind == "views" else sound_caches[kind], tmp_path / "cache")
    generator, flips = np.random.default_rng(1), []
    for name in own_files(cache):
        size = (cache / name).stat().st_size
        places = generator.choice(size, min(size, 40), replace=False)
        flips += [(name, int(place), int(generator.integers(1, 256))) for place in places]
    assert missed(cache, flips) == []
    assert verify(cache).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_found(fresh: MakeCopy, kind: str) -> None:
    cache, generator = fresh(kind), np.random.default_rng(7)
    every = [
        (name, place, int(mask))
        for name in own_files(cache)
        for place, mask in enumerate(generator.integers(1, 256, (cache / name).stat().st_size))
    ]
    assert missed(cache, every) == []


@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_off_emptied_or_prolonged_are_found(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    for name in own_files(cache):
        path = cache / name
        whole = path.read_bytes()
        for data in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
            path.write_bytes(data)
            assert damage_finder(cache)(name), (name, len(data))
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", [*KINDS, "views"])
def test_any_deleted_file_is_named(
    sound_caches: dict[str, Path], viewed: Path, tmp_path: Path, kind: str
) -> None:
    cache = copy_of(viewed if kind == "views" else sound_caches[kind], tmp_path / "cache")
    for name in own_files(cache):
        # That a teacher had a second name, or a file a seal, no other file tells.
        if "/names/" in name or name.endswith("seal.json"):
            continue
        data = (cache / name).read_bytes()
        (cache / name).unlink()
        assert any(one.path == name for one in verify(cache).findings), name
        (cache / name).write_bytes(data)


def test_a_teacher_without_a_name_and_one_with_two_stores_are_found(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shutil.copy(only(fresh("lmdb"), "teachers/*/vectors.mdb"), only(cache, "teachers/*/shards").parent)
    shutil.rmtree(only(cache, "teachers/*/names"))
    assert [Path(one.path).name for one in verify(cache).damage] == ["NAME.json", "vectors.mdb"]


def test_derived_files_are_not_checked(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    for path in (cache / "derived").rglob("*"):
        if path.is_file():
            path.write_bytes(b"anything")
    assert verify(cache).findings == ()
    shutil.rmtree(cache / "derived")
    assert verify(cache).findings == ()


def test_links_and_pipes_are_damage_and_not_followed(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    (tmp_path / "outside").mkdir()
    (cache / "corpora" / "linked").symlink_to(tmp_path / "outside")
    (cache / "derived" / "linked").symlink_to("/etc/passwd")
    os.mkfifo(cache / "pipe")
    found = {one.path: one.what for one in verify(cache).damage}
    assert found.keys() == {"corpora/linked", "derived/linked", "pipe"}
    assert "symbolic link" in found["corpora/linked"]


def test_unknown_and_unfinished_files_are_notes(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    (cache / "README\n\x1b[2J").write_text("hello")
    (only(cache, "teachers/*/shards") / ".tmp-1234-x.arrow").write_bytes(b"x")
    (cache / "corpora" / "corpus" / "copy.arrow.part").write_bytes(b"x")
    done = verify(cache)
    assert done.damage == []
    assert [one.kind for one in done.notes] == ["unknown file", "unknown file"]
    assert all(one.path.isprintable() for one in done.notes)


def test_a_text_that_is_not_its_keys_is_found(fresh: MakeCopy) -> None:
    """Digests are all right: the writer lied."""
    cache = fresh("arrow")
    folder = cache / "corpora" / "corpus"
    (part,) = read_info(folder).parts
    data = (folder / part.file_name).read_bytes()
    other = data.replace(TEXTS[5].encode(), TEXTS[5].upper().encode())
    assert other != data
    (folder / "new").write_bytes(other)
    name = sha256_file(folder / "new")
    (folder / "new").rename(folder / f"{name}.arrow")
    (folder / part.file_name).unlink()
    reseal(folder / "corpus.json", lambda value: value["parts"][0].update(sha256=name))
    assert the_damage(cache) == (
        f"corpora/corpus/{name}.arrow",
        "1 keys are not those of their texts (first: row 5)",
    )


def test_a_shard_of_another_teacher_is_found(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    batch, codec = example_batch(["a", "b"]), get_codec("float32")
    error = {"mean_cosine": 1.0, "worst_cosine": 1.0}
    name, data = stored_shard(example_contract(), codec, codec.encode(batch.vectors), batch, error)
    (only(cache, "teachers/*/shards") / f"{name}.arrow").write_bytes(data)
    path, what = the_damage(cache)
    assert name in path
    assert example_contract().id[:12] in what


def test_views_are_compared_with_recipe_and_corpus(viewed: Path, tmp_path: Path) -> None:
    cache = copy_of(viewed, tmp_path / "cache")
    views = cache / "corpora" / "pairs" / "views"
    reseal(views / "crop" / "recipe.json", lambda value: value.update(digest="0" * 64))
    reseal(views / "mask-fill" / "recipe.json", lambda value: value.update(of="0" * 64))
    (views / "delete-one-word" / "recipe.json").unlink()
    done = verify(cache)
    assert [one.path for one in done.damage] == ["corpora/pairs/views/crop/corpus.json"]
    assert [Path(one.path).parent.name for one in done.notes] == ["delete-one-word", "mask-fill"]


def test_texts_without_a_vector_are_a_note_where_no_shard_is_known_to_be_lost(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shutil.rmtree(cache / "derived")
    only(cache, "teachers/*/shards/*.arrow").unlink()
    (found,) = verify(cache).findings
    assert not found.is_damage
    assert f"{SHARD_ROWS} of {len(TEXTS)} texts" in found.what


def test_an_unsealed_lmdb_file_is_a_note(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    only(cache, "teachers/*/vectors.seal.json").unlink()
    (found,) = verify(cache).findings
    assert not found.is_damage
    store = only(cache, "teachers/*/vectors.mdb")
    flip(store, store.read_bytes().index(b"ARROW1", 8192) + 3000, 1)
    assert verify(cache).damage


@pytest.mark.parametrize("pattern", ["cache.json", "corpora/*/corpus.json"])
def test_what_a_newer_version_wrote_asks_for_an_upgrade(fresh: MakeCopy, pattern: str) -> None:
    cache = fresh("arrow")
    reseal(only(cache, pattern), lambda value: value.update(version=99))
    assert verify(cache).damage[0].fix == UPGRADE


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        verify(tmp_path / "missing")
    with pytest.raises(CacheFormatError):
        verify(tmp_path)
    (tmp_path / "embedcache-remote.json").write_text("{}")
    with pytest.raises(CacheFormatError, match="remote"):
        verify(tmp_path)


def test_progress_counts_the_bytes(sound_caches: dict[str, Path]) -> None:
    class Seen:
        def __init__(self) -> None:
            self.phases: dict[str, list[int]] = {}

        def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
            self.now = self.phases.setdefault(name, [total or 0, 0])

        def advance(self, count: int = 1) -> None:
            self.now[1] += count

        def note(self, text: str) -> None: ...

    for cache in sound_caches.values():
        seen = Seen()
        verify(cache, progress=seen)
        total, done = seen.phases["verify"]
        assert total == done


def test_the_command_says_what_is_wrong(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    assert run("verify", "--cache", cache)[0] == 0
    shard = only(cache, "teachers/*/shards/*.arrow")
    flip(shard, 1000, 1)
    code, shown = run("verify", "--cache", cache)
    assert code == 1
    assert shard.name[:12] in shown
    assert "embedcache repair" in shown
    code, shown = run("verify", "--cache", cache, "--json")
    assert code == 1
    assert [one["path"] for one in json.loads(shown)["findings"]] == [shard.relative_to(cache).as_posix()]
