"""Verify knows views: every changed byte of them is found, and what is no damage is told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from cache_with_views import NAMES, TEXTS, build_all, build_views, shards_of_views, write_views_source
from check_helpers import files_of, flip, only, run

from embedcache.cache import Cache
from embedcache.check import Finding, Verifier, repair, verify
from embedcache.corpus.corpus import Corpus
from embedcache.fsio import read_sealed_json, write_sealed_json


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    return build_all(folder / "cache", folder).folder


@pytest.fixture
def cache(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "cache"))


def folder_of(cache: Path, view: str) -> Path:
    return cache / "corpora" / "pairs" / "views" / view


def of_views(cache: Path) -> list[Finding]:
    """Return the findings about views; there are no others."""
    findings = list(verify(cache).findings)
    assert all(one.path.startswith("corpora/pairs/views") for one in findings), findings
    return findings


def test_views_are_sound_and_nothing_strange(cache: Path) -> None:
    done = verify(cache)
    assert done.findings == ()
    assert Cache(cache).corpus().view_names() == list(NAMES)
    # Rows are the corpus's; a view is no other corpus.
    assert done.corpus_rows == len(TEXTS)
    moved = repair(cache, quarantine=True)
    assert moved.mends == ()
    assert not (cache / "quarantine").exists()


def test_every_flipped_byte_of_a_description_or_recipe_is_found(cache: Path) -> None:
    generator = np.random.default_rng(4)
    verifier = Verifier(cache)
    for name in ("corpora/pairs/views/crop/recipe.json", "corpora/pairs/views/column-french/corpus.json"):
        size = (cache / name).stat().st_size
        for place, mask in enumerate(generator.integers(1, 256, size).tolist()):
            flip(cache / name, place, mask)
            assert any(one.is_damage for one in verifier.check_file(name)), (name, place, mask)
            flip(cache / name, place, mask)
    assert verify(cache).findings == ()


@pytest.mark.slow
def test_every_flipped_byte_of_a_part_is_found(cache: Path) -> None:
    name = only(cache, "corpora/pairs/views/crop/*.arrow").relative_to(cache).as_posix()
    verifier = Verifier(cache)
    for place in range((cache / name).stat().st_size):
        flip(cache / name, place, 1 + place % 255)
        assert [one.kind for one in verifier.check_file(name)] == ["view part"], place
        flip(cache / name, place, 1 + place % 255)


def test_files_of_views_cut_off_emptied_or_prolonged_are_found(cache: Path) -> None:
    verifier = Verifier(cache)
    names = [name for name in files_of(cache) if "/views/" in name]
    assert len(names) == 3 * len(NAMES)
    for name in names:
        path = cache / name
        whole = path.read_bytes()
        for data in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
            path.write_bytes(data)
            assert any(one.is_damage for one in verifier.check_file(name)), (name, len(data))
        path.write_bytes(whole)


@pytest.mark.parametrize(("missing", "kind"), [("*.arrow", "view part"), ("corpus.json", "view description")])
def test_what_is_missing_of_a_view_is_damage_to_it_alone(cache: Path, missing: str, kind: str) -> None:
    path = only(folder_of(cache, "crop"), missing)
    path.unlink()
    (one,) = of_views(cache)
    assert (one.path, one.kind, one.severity) == (path.relative_to(cache).as_posix(), kind, "damage")
    assert "missing" in one.found
    assert "repair" in one.way_out


def test_a_view_without_a_recipe_is_one_that_was_never_finished(cache: Path) -> None:
    (folder_of(cache, "crop") / "recipe.json").unlink()
    (one,) = of_views(cache)
    assert one.severity == "note"
    assert "never finished" in one.found
    assert "gc" in one.way_out


def test_a_view_of_other_rows_is_noted_with_the_way_out(cache: Path, tmp_path: Path) -> None:
    other = build_views(tmp_path / "other", write_views_source(tmp_path), "crop", limit=100)
    shutil.rmtree(folder_of(cache, "crop"))
    shutil.copytree(folder_of(other.folder, "crop"), folder_of(cache, "crop"))
    (one,) = of_views(cache)
    assert (one.path, one.severity) == ("corpora/pairs/views/crop/recipe.json", "note")
    assert "made of other rows" in one.found
    assert "--view" in one.way_out


def test_rows_that_are_not_the_recipes_are_damage(cache: Path) -> None:
    for path in folder_of(cache, "crop").iterdir():
        if path.name != "recipe.json":
            path.unlink()
    for path in folder_of(cache, "delete-one-word").iterdir():
        if path.name != "recipe.json":
            shutil.copy(path, folder_of(cache, "crop"))
    description = folder_of(cache, "crop") / "corpus.json"
    value = read_sealed_json(description)
    write_sealed_json(description, {**value, "name": "crop"})
    (one,) = of_views(cache)
    assert one.is_damage
    assert "recipe.json was written for" in one.found


def test_a_recipe_under_another_name_is_damage(cache: Path) -> None:
    shutil.copy(folder_of(cache, "crop") / "recipe.json", folder_of(cache, "mask-fill") / "recipe.json")
    (one,) = of_views(cache)
    assert one.is_damage
    assert "describes a view called 'crop'" in one.found


@pytest.mark.parametrize("kept", [0, 40, -1])
def test_of_a_recipe_cut_off_verify_advises_the_build_that_brings_it_back(
    cache: Path, tmp_path: Path, kept: int
) -> None:
    path = folder_of(cache, "crop") / "recipe.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    (one,) = of_views(cache)
    assert one.is_damage
    assert "'embedcache build' with its --view and --overwrite makes the view anew" in one.way_out
    assert "brings it back" not in one.way_out
    (mend,) = repair(cache).mends
    assert (mend.outcome, "--overwrite" in mend.detail) == ("not repaired", True)
    build_views(cache, write_views_source(tmp_path), "crop", embed=("crop",), overwrite=True)
    assert path.read_bytes() == whole
    assert verify(cache).findings == ()


def test_a_newer_recipe_asks_for_a_newer_embedcache_and_is_not_touched(cache: Path) -> None:
    path = folder_of(cache, "crop") / "recipe.json"
    write_sealed_json(path, {**read_sealed_json(path), "version": 2})
    before = path.read_bytes()
    (one,) = of_views(cache)
    assert one.is_damage
    assert "format version 2" in one.found
    assert "upgrade embedcache" in one.way_out
    (mend,) = repair(cache).mends
    assert (mend.outcome, mend.path) == ("not repaired", one.path)
    assert "upgrade embedcache" in mend.detail
    assert path.read_bytes() == before


def test_views_of_a_corpus_that_is_gone_are_noted(cache: Path) -> None:
    for path in (cache / "corpora" / "pairs").glob("*.*"):
        path.unlink()
    shutil.rmtree(cache / "derived" / "sources")
    found = [one for one in verify(cache).findings if "/views" in one.path]
    assert [(one.path, one.severity) for one in found] == [("corpora/pairs/views", "note")]


def test_a_view_of_a_damaged_corpus_is_still_checked(cache: Path) -> None:
    (cache / "corpora" / "pairs" / "corpus.json").write_text("{")
    flip(only(folder_of(cache, "crop"), "*.arrow"), 900, 3)
    kinds = {one.kind for one in verify(cache).damage}
    assert kinds == {"corpus description", "view part"}


def test_one_corpus_is_checked_with_its_views(cache: Path) -> None:
    flip(folder_of(cache, "crop") / "recipe.json", 30, 3)
    assert [one.kind for one in verify(cache, corpus="pairs").damage] == ["view recipe"]


def test_vectors_are_missed_of_a_view_that_was_encoded_alone(tmp_path: Path) -> None:
    source = write_views_source(tmp_path)
    cache = build_views(tmp_path / "cache", source, "crop", "delete-words", embed=("crop",))
    assert verify(cache.folder).findings == ()
    smallest, _ = sorted(shards_of_views(cache), key=len)
    Path(smallest.where).unlink()
    shutil.rmtree(cache.derived_folder)
    (one,) = verify(cache.folder).notes
    assert (one.path, one.kind) == ("corpora/pairs/views/crop", "view description")
    assert f"{len(smallest)} of the" in one.found
    assert "--embed-views" in one.way_out


def test_verify_prints_a_sound_cache_with_views(cache: Path) -> None:
    code, shown = run("verify", "--cache", cache)
    assert code == 0
    assert "0 notes" in shown


def test_a_view_called_original_or_beyond_a_name_is_a_stranger(cache: Path) -> None:
    for name in ("original", "x" * 101):
        (folder_of(cache, name)).mkdir()
        (folder_of(cache, name) / "recipe.json").write_text("{}")
    assert {one.kind for one in of_views(cache)} == {"foreign file"}
    assert Corpus(cache / "corpora" / "pairs").view_names() == list(NAMES)
