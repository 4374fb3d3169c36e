"""Views in housekeeping: what they need is kept, what is left of them goes, a removal may be cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cache_with_views import (
    NAMES,
    TEXTS,
    age,
    build_all,
    build_views,
    shards_of_views,
    write_views_source,
)
from check_helpers import content_of, run
from click.testing import CliRunner
from kill_helpers import cut_off_at

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import sealed, spelled_json
from embedcache.housekeeping import collect_garbage, remove_corpus, remove_view
from embedcache.verify import verify


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    return build_all(folder / "cache", folder).folder


@pytest.fixture
def cache(sound: Path, tmp_path: Path) -> Cache:
    copied = Cache(shutil.copytree(sound, tmp_path / "cache"))
    age(copied.folder, 100)
    return copied


def folder_of(cache: Cache, view: str) -> Path:
    return cache.folder / "corpora" / "pairs" / "views" / view


def collected(cache: Cache, **settings: object) -> dict[str, str]:
    """Collect garbage; return file or folder, relative to the cache -> why it went."""
    found = collect_garbage(cache, **settings)  # type: ignore[arg-type]
    return {Path(one.path).relative_to(cache.folder).as_posix(): one.reason for one in found}


def write_tokens_of(cache: Cache, name: str, digest: str) -> Path:
    folder = cache.derived_folder / "tokens" / name
    folder.mkdir(parents=True)
    (folder / "tokens.json").write_bytes(spelled_json(sealed({"corpus": digest})))
    age(folder, 100)
    return folder


def test_nothing_of_views_in_use_is_garbage(cache: Cache, sound: Path) -> None:
    kept = [
        write_tokens_of(cache, f"{number}" * 32, texts.info.digest)
        for number, texts in enumerate((cache.corpus(), cache.corpus().view("crop")))
    ]
    gone = write_tokens_of(cache, "9" * 32, "0" * 64)
    assert collected(cache, unused_vectors=True) == {
        f"derived/tokens/{'9' * 32}": "token arrays of a corpus that is gone"
    }
    assert [folder.exists() for folder in (*kept, gone)] == [True, True, False]
    assert content_of(cache.folder) == content_of(sound)
    assert verify(cache.folder).damage == []


def test_vectors_go_with_the_view_that_they_were_for(cache: Cache) -> None:
    shards = {shard.where for shard in shards_of_views(cache)}
    assert shards
    # Others have some texts in common with it.
    for name in NAMES:
        remove_view(cache, name)
    age(cache.folder, 100)
    why = collected(cache, unused_vectors=True)
    assert {f"{cache.folder}/{path}" for path in why} == shards
    assert set(why.values()) == {"none of its texts is in a corpus or a view"}
    assert cache.lookup(TEXTS).shape == (len(TEXTS), 16)


def test_a_view_that_was_built_meanwhile_keeps_its_vectors(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Path(shutil.copytree(folder_of(cache, "crop"), tmp_path / "spare"))
    for name in NAMES:
        remove_view(cache, name)
    age(cache.folder, 100)

    def build_again(step: str, path: Path) -> None:
        if step == "remove" and path.parent.name == "shards" and spare.exists():
            shutil.copytree(spare, folder_of(cache, "crop"))
            shutil.rmtree(spare)

    monkeypatch.setattr(fsio, "on_write_step", build_again)
    assert collected(cache, unused_vectors=True) == {}
    view = cache.corpus().view("crop")
    assert cache.lookup(view.texts()).shape == (len(TEXTS), 16)


def test_unused_vectors_of_a_damaged_view_are_not_judged(cache: Cache) -> None:
    (folder_of(cache, "crop") / "recipe.json").write_text("{")
    before = content_of(cache.folder)
    with pytest.raises(CorruptCacheError, match=r"recipe\.json is damaged.*repair"):
        collect_garbage(cache, unused_vectors=True)
    assert content_of(cache.folder) == before


def write_draft(folder: Path, number: int) -> Path:
    """Write what a killed build leaves of a view that a model makes."""
    folder.mkdir(exist_ok=True)
    path = folder / f".tmp-draft-{number}.json"
    path.write_text("[]")
    return path


def test_a_view_that_was_never_finished_goes_as_a_whole(cache: Cache) -> None:
    (folder_of(cache, "crop") / "recipe.json").unlink()
    write_draft(folder_of(cache, "crop"), 0)
    age(folder_of(cache, "crop"), 30)
    path = "corpora/pairs/views/crop"
    assert collected(cache, dry_run=True) == {path: "a view that was never finished"}
    assert (cache.folder / path).exists()
    assert collected(cache) == {path: "a view that was never finished"}
    assert not (cache.folder / path).exists()
    assert cache.corpus().view_names() == [name for name in NAMES if name != "crop"]
    assert verify(cache.folder).findings == ()


def test_old_drafts_stay_as_long_as_somebody_adds_to_them(cache: Cache) -> None:
    folder = folder_of(cache, "new")
    old = write_draft(folder, 0)
    age(folder, 30)
    write_draft(folder, 1)
    assert collected(cache) == {}
    assert old.exists()
    age(folder, 30)
    assert list(collected(cache)) == ["corpora/pairs/views/new"]


def test_drafts_of_a_finished_view_and_parts_it_does_not_name_go(cache: Cache) -> None:
    folder = folder_of(cache, "crop")
    write_draft(folder, 0)
    (folder / f"{'0' * 64}.arrow").write_bytes(b"old")
    age(folder, 30)
    why = collected(cache)
    assert sorted(why.values()) == ["a part of a view that was replaced", "left by a crash"]
    assert all(path.startswith("corpora/pairs/views/crop/") for path in why)
    assert verify(cache.folder).findings == ()


def test_a_view_of_other_rows_goes_and_a_young_one_stays(cache: Cache, tmp_path: Path) -> None:
    other = build_views(tmp_path / "other", write_views_source(tmp_path), "crop", limit=100)
    shutil.rmtree(folder_of(cache, "crop"))
    shutil.copytree(other.folder / "corpora" / "pairs" / "views" / "crop", folder_of(cache, "crop"))
    (folder_of(cache, "crop") / "recipe.json").touch()
    assert collected(cache) == {}
    age(folder_of(cache, "crop"), 30)
    reason = "a view of rows that its corpus has no longer"
    assert collected(cache) == {"corpora/pairs/views/crop": reason}
    assert verify(cache.folder).findings == ()


def test_a_folder_that_can_be_no_view_is_left_alone(cache: Cache) -> None:
    strange = folder_of(cache, "original")
    strange.mkdir()
    (strange / "notes.txt").write_text("mine")
    age(strange, 30)
    assert collected(cache) == {}


def test_a_removed_view_is_gone_and_its_vectors_are_not(cache: Cache) -> None:
    texts = cache.corpus().view("crop").texts()
    size = sum(path.stat().st_size for path in folder_of(cache, "crop").iterdir())
    assert remove_view(cache, "crop") == size
    assert not folder_of(cache, "crop").exists()
    assert cache.lookup(texts).shape == (len(TEXTS), 16)
    with pytest.raises(InputError, match="no view 'crop' of corpus 'pairs': it has column-french, del"):
        remove_view(cache, "crop")
    assert verify(cache.folder).damage == []


def test_damaged_views_can_be_removed(cache: Cache) -> None:
    (folder_of(cache, "crop") / "recipe.json").write_text("{")
    (folder_of(cache, "mask-fill") / "corpus.json").unlink()
    for name in NAMES:
        remove_view(cache, name)
    assert cache.corpus().view_names() == []
    assert not folder_of(cache, "crop").parent.exists()


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
@pytest.mark.parametrize("what", ["view", "corpus"])
def test_a_removal_cut_off_anywhere_leaves_no_half_and_gc_finishes_it(
    cache: Cache, what: str, stop: int
) -> None:
    with cut_off_at(stop):
        remove_view(cache, "crop") if what == "view" else remove_corpus(cache, "pairs")
    if stop == 1:
        assert cache.corpus().view("crop").texts()
        return
    assert what == "corpus" or "crop" not in cache.corpus().view_names()
    assert what == "view" or cache.corpus_names() == []
    if what == "view":
        assert verify(cache.folder).damage == []
    collect_garbage(cache, hours=0)
    assert not folder_of(cache, "crop").exists()
    assert (cache.folder / "corpora" / "pairs").exists() == (what == "view")
    assert verify(cache.folder).damage == []


def test_gc_deletes_the_recipe_of_a_view_first(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = build_views(tmp_path / "other", write_views_source(tmp_path), "crop", limit=100)
    shutil.rmtree(folder_of(cache, "crop"))
    shutil.copytree(other.folder / "corpora" / "pairs" / "views" / "crop", folder_of(cache, "crop"))
    age(cache.folder, 30)

    def cut_off(step: str, path: Path) -> None:
        if step != "remove":
            return
        assert path.name == "recipe.json"
        monkeypatch.undo()
        path.unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(fsio, "on_write_step", cut_off)
    with pytest.raises(KeyboardInterrupt):
        collect_garbage(cache)
    assert Corpus(cache.corpora_folder / "pairs").view_names() == [name for name in NAMES if name != "crop"]
    assert verify(cache.folder).damage == []


def test_views_are_removed_from_the_command_line(cache: Cache) -> None:
    code, shown = run("rm", "view", "crop", "--cache", cache.folder)
    assert (code, "nothing was removed" in shown) == (1, True)
    assert "crop" in cache.corpus().view_names()
    code, shown = run("rm", "view", "crop", "--cache", cache.folder, "--corpus", "pairs", "--yes")
    assert code == 0
    assert "removed view 'crop' of corpus 'pairs':" in shown
    assert "crop" not in cache.corpus().view_names()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (("view", "nosuch"), "no view 'nosuch' of corpus 'pairs': it has column-french, crop,"),
        (("view", "original"), "'embedcache rm corpus pairs' removes it as a whole; its views are column-"),
        (("corpus", "nosuch"), "no corpus 'nosuch'"),
        (("teacher", "nosuch"), "no teacher 'nosuch'"),
    ],
)
def test_what_is_not_there_is_told_before_anybody_is_asked(
    cache: Cache, what: tuple[str, str], told: str
) -> None:
    done = CliRunner().invoke(cli, ["rm", *what, "--cache", str(cache.folder)], input="y\n")
    assert isinstance(done.exception, InputError)
    assert told in str(done.exception)
    assert "remove" not in done.output, "it was asked about"


def test_a_view_that_is_damaged_can_be_removed_by_name(cache: Cache) -> None:
    (folder_of(cache, "crop") / "recipe.json").write_text("{")
    run("rm", "view", "crop", "--cache", cache.folder, "--yes")
    assert not folder_of(cache, "crop").exists()
