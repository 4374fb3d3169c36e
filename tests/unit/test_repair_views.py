"""Repair brings views back to the byte, where the recipe, the corpus or the source can give them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cache_with_views import NAMES, build_all, build_views, shards_of_views, write_views_source
from check_helpers import content_of, flip, mended, only, outcomes

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.repair.mend_views import build_command
from embedcache.check.repair.one_byte import undo_one_byte
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions
from embedcache.fsio import read_sealed_json, sealed, spelled_json, write_sealed_json
from embedcache.views.recipe import Recipe, parse_views

MADE_AGAIN = [name for name in NAMES if name != "mask-fill"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    return build_all(folder / "cache", folder).folder


@pytest.fixture
def cache(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "cache"))


def folder_of(cache: Path, view: str) -> Path:
    return cache / "corpora" / "pairs" / "views" / view


def cut_off(path: Path) -> None:
    """Cut a file off in the middle: nothing of it tells what it was."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def assert_whole(cache: Path, sound: Path) -> None:
    assert content_of(cache) == content_of(sound)
    assert verify(cache).findings == ()


@pytest.mark.parametrize("view", MADE_AGAIN)
def test_a_lost_part_is_made_again(cache: Path, sound: Path, view: str) -> None:
    only(folder_of(cache, view), "*.arrow").unlink()
    done = mended(cache)
    assert outcomes(done) == {"identical"}
    assert [mend.kind for mend in done.mends] == ["view part"]
    how = "read again from" if view == "column-french" else "made again by its recipe"
    assert how in done.mends[0].detail
    assert done.rows_encoded == 0
    assert_whole(cache, sound)


@pytest.mark.parametrize("view", MADE_AGAIN)
def test_rows_and_description_are_made_again_together(cache: Path, sound: Path, view: str) -> None:
    cut_off(only(folder_of(cache, view), "*.arrow"))
    cut_off(folder_of(cache, view) / "corpus.json")
    done = mended(cache)
    assert sorted(mend.kind for mend in done.mends) == ["view description", "view part"]
    assert outcomes(done) == {"identical"}
    assert_whole(cache, sound)


@pytest.mark.parametrize("view", NAMES)
def test_a_lost_description_is_told_by_the_rows(cache: Path, sound: Path, view: str) -> None:
    (folder_of(cache, view) / "corpus.json").unlink()
    (mend,) = mended(cache).mends
    assert (mend.outcome, mend.detail) == ("identical", "made anew of its parts")
    assert_whole(cache, sound)


def test_a_changed_key_is_told_by_the_texts_also_of_a_model(cache: Path, sound: Path) -> None:
    path = only(folder_of(cache, "mask-fill"), "*.arrow")
    key = Cache(sound).corpus().view("mask-fill").keys().tobytes()[:16]
    flip(path, path.read_bytes().index(key), 1)
    (mend,) = mended(cache).mends
    assert (mend.outcome, mend.detail) == ("identical", "made anew of its own texts")
    assert_whole(cache, sound)


@pytest.mark.parametrize("view", ["crop", "mask-fill"])
@pytest.mark.parametrize("place", [0, 40, 200, -70, -2])
def test_a_changed_byte_of_a_recipe_is_told_by_its_seal(
    cache: Path, sound: Path, view: str, place: int
) -> None:
    path = folder_of(cache, view) / "recipe.json"
    flip(path, place % path.stat().st_size, 0x15)
    (mend,) = mended(cache).mends
    assert (mend.kind, mend.outcome) == ("view recipe", "identical")
    assert_whole(cache, sound)


def test_only_what_one_byte_explains_is_undone() -> None:
    whole = spelled_json(sealed({"a": "text", "n": [1, 2]}))
    for place in (0, 4, 5, 9, 12, 30, 60, len(whole) // 2, len(whole) - 3, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1 + place % 255
        assert undo_one_byte(bytes(damaged)) == {"a": "text", "n": [1, 2]}
    twice = bytearray(whole)
    twice[5] ^= 1
    twice[20] ^= 1
    assert undo_one_byte(bytes(twice)) is None
    assert undo_one_byte(whole[:-1]) is None
    assert undo_one_byte(b"") is None
    assert undo_one_byte(whole + b" " * 5000) is None


def test_a_recipe_that_is_beyond_telling_stays_and_says_what_to_type(cache: Path) -> None:
    path = folder_of(cache, "crop") / "recipe.json"
    cut_off(path)
    before = content_of(cache)
    (mend,) = mended(cache).mends
    assert mend.outcome == "not repaired"
    assert "--view and --overwrite" in mend.detail
    assert content_of(cache) == before


def test_rows_of_a_model_are_not_made_again(cache: Path) -> None:
    cut_off(only(folder_of(cache, "mask-fill"), "*.arrow"))
    before = content_of(cache)
    (mend,) = mended(cache).mends
    assert (mend.kind, mend.outcome) == ("view part", "not repaired")
    assert "mask-fill abababababab" in mend.detail
    assert "--view mask-fill=mask-fill:share=0.15 --overwrite" in mend.detail
    assert content_of(cache) == before


def test_a_column_needs_its_source(cache: Path, sound: Path, tmp_path: Path) -> None:
    shutil.rmtree(cache / "derived" / "sources")
    cut_off(only(folder_of(cache, "column-french"), "*.arrow"))
    (mend,) = mended(cache).mends
    assert mend.outcome == "not repaired"
    assert "--source" in mend.detail
    source = write_views_source(tmp_path)
    lines = source.read_text(encoding="utf-8").splitlines()
    changed = tmp_path / "changed.tsv"
    changed.write_text("\n".join([*lines[:2], f"{lines[2]}!", *lines[3:], ""]), encoding="utf-8")
    options = ReadOptions(text_column="text")
    (mend,) = mended(cache, sources=[changed], options=options).mends
    assert mend.outcome == "not repaired"
    assert "other texts" in mend.detail
    (mend,) = mended(cache, sources=[source], options=options).mends
    assert (mend.outcome, str(source) in mend.detail) == ("identical", True)
    assert content_of(cache) == content_of(sound)


def test_the_corpus_is_mended_before_its_views(cache: Path, sound: Path) -> None:
    cut_off(only(cache, "corpora/pairs/*.arrow"))
    cut_off(only(folder_of(cache, "crop"), "*.arrow"))
    done = mended(cache)
    assert [mend.kind for mend in done.mends] == ["corpus part", "view part"]
    assert outcomes(done) == {"identical"}
    assert_whole(cache, sound)


def test_a_view_of_a_corpus_that_stays_damaged_is_not_looked_at(cache: Path) -> None:
    shutil.rmtree(cache / "derived")
    cut_off(only(cache, "corpora/pairs/*.arrow"))
    only(folder_of(cache, "crop"), "*.arrow").unlink()
    done = mended(cache)
    assert outcomes(done) == {"not repaired"}
    (view,) = [mend for mend in done.mends if mend.kind == "view part"]
    assert "damaged" in view.detail


def test_damage_to_a_view_of_other_rows_is_left_to_gc(cache: Path, tmp_path: Path) -> None:
    other = build_views(tmp_path / "other", write_views_source(tmp_path), "crop", limit=100)
    shutil.rmtree(folder_of(cache, "crop"))
    shutil.copytree(folder_of(other.folder, "crop"), folder_of(cache, "crop"))
    cut_off(only(folder_of(cache, "crop"), "*.arrow"))
    (mend,) = mended(cache).mends
    assert mend.outcome == "not repaired"
    assert "gc" in mend.detail


def test_a_dry_run_says_so_and_writes_nothing(cache: Path) -> None:
    only(folder_of(cache, "crop"), "*.arrow").unlink()
    flip(folder_of(cache, "delete-one-word") / "recipe.json", 40, 1)
    before = content_of(cache)
    done = mended(cache, dry_run=True)
    assert outcomes(done) == {"identical"}
    assert len(done.mends) == 2
    assert content_of(cache) == before


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "no-such-kind"},
        {"parameters": {"share": "many"}},
        {"parameters": {"share": 1e308}},
        {"kind": "synonym", "parameters": {"share": 0.1, "lexicon": "no:1"}},
        {"kind": "column", "parameters": {"column": 5}},
        {"kind": "mask-fill"},
    ],
    ids=str,
)
def test_a_sealed_recipe_that_makes_no_sense_is_told_of(cache: Path, change: dict[str, object]) -> None:
    path = folder_of(cache, "delete-words-0.3-1") / "recipe.json"
    value = read_sealed_json(path)
    write_sealed_json(path, {**value, "recipe": {**value["recipe"], **change}})
    only(path.parent, "*.arrow").unlink()
    (mend,) = mended(cache).mends
    assert (mend.kind, mend.outcome) == ("view part", "not repaired")


def test_vectors_of_a_view_are_encoded_again_from_its_texts(cache: Path, sound: Path) -> None:
    shard = shards_of_views(Cache(sound))[0]
    path = only(cache, f"teachers/*/shards/{shard.name}.arrow")
    cut_off(path)
    done = mended(cache)
    assert outcomes(done) == {"identical"}
    assert done.rows_encoded == len(shard)
    assert_whole(cache, sound)


@pytest.mark.parametrize(
    "change", [{"parameters": {}}, {"kind": "column"}, {"parameters": {"x": 1}}], ids=str
)
def test_a_recipe_of_other_parameters_than_its_kind_has_is_damage(
    cache: Path, change: dict[str, object]
) -> None:
    path = folder_of(cache, "crop") / "recipe.json"
    value = read_sealed_json(path)
    write_sealed_json(path, {**value, "recipe": {**value["recipe"], **change}})
    (mend,) = mended(cache).mends
    assert (mend.kind, mend.outcome) == ("view recipe", "not repaired")


def test_texts_of_views_that_were_never_encoded_stay_so(cache: Path, sound: Path) -> None:
    # Nothing tells what was in the shard but that its texts have no vector.
    shard = shards_of_views(Cache(sound))[0]
    path = only(cache, f"teachers/*/shards/{shard.name}.arrow")
    shutil.rmtree(cache / "derived" / "index")
    cut_off(path)
    done = mended(cache)
    assert outcomes(done) == {"identical"}
    assert done.rows_encoded == len(shard)
    assert content_of(cache) == content_of(sound)


def test_the_command_asks_for_the_same_view_again() -> None:
    for spec, seed in (("crop:0.3*3", 7), ("x=column:b c", 0), ("delete-one-word", 0)):
        recipe = parse_views([spec], seed=seed)[-1]
        command = build_command("c", recipe)
        words = command.split(" --view ", 1)[1]
        assert words.endswith("--overwrite")
        typed = words.split(" --")[0].strip("'")
        assert parse_views([typed], seed=seed)[-1] == recipe
        assert ("--view-seed 7" in words) == (seed == 7)
    recipe = Recipe("bt", "back-translation", {"language": "de", "beams": 4}, None, 0, {"en-de": "a" * 64})
    assert "--view bt=back-translation:language=de,beams=4 --overwrite" in build_command("c", recipe)


def test_what_repair_made_is_a_view(cache: Path) -> None:
    before = Corpus(cache / "corpora" / "pairs").view("crop").texts()
    cut_off(only(folder_of(cache, "crop"), "*.arrow"))
    mended(cache)
    assert Corpus(cache / "corpora" / "pairs").view("crop").texts() == before


def test_a_newer_view_does_not_keep_its_corpus_from_being_mended(cache: Path) -> None:
    recipe = folder_of(cache, "crop") / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "version": 2})
    cut_off(only(folder_of(cache, "crop"), "*.arrow"))
    (folder_of(cache, "crop") / "what is new").write_text("?")
    newer = {path.name: path.read_bytes() for path in folder_of(cache, "crop").iterdir()}
    only(cache, "corpora/pairs/*.arrow").unlink()
    only(folder_of(cache, "delete-one-word"), "*.arrow").unlink()
    done = mended(cache, quarantine=True)
    left = {mend.path: mend.detail for mend in done.left}
    assert all(path.startswith("corpora/pairs/views/crop/") for path in left)
    assert set(left.values()) == {"upgrade embedcache: a newer one wrote here"}
    assert len(done.mends) == len(left) + 2
    assert {path.name: path.read_bytes() for path in folder_of(cache, "crop").iterdir()} == newer


def test_views_of_a_newer_corpus_are_left_alone(cache: Path) -> None:
    description = cache / "corpora" / "pairs" / "corpus.json"
    write_sealed_json(description, {**read_sealed_json(description), "version": 3})
    flip(folder_of(cache, "crop") / "recipe.json", 40, 1)
    (folder_of(cache, "crop") / "what is new").write_text("?")
    before = content_of(cache)
    assert outcomes(mended(cache, quarantine=True)) == {"not repaired"}
    assert content_of(cache) == before
