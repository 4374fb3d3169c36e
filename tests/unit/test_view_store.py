"""Views in a cache: beside the corpus, a function of it, killed without harm, never of other rows."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import corpus_helpers
import numpy as np
import pytest
from corpus_helpers import IDS, LABELS, TEXTS, content, stored

from embedcache import fsio
from embedcache.corpus import view_store
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.drafts import Drafts, remove_drafts
from embedcache.corpus.view_store import MakeRows, remove_view, stale_views, store_view
from embedcache.errors import CorruptCacheError, InputError, StorageError
from embedcache.keys import key_array
from embedcache.views.edits import edit_maker
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import Recipe, parse_views


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_helpers.small_parts(monkeypatch)
    monkeypatch.setattr(view_store, "CHUNK_ROWS", 3)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return stored(tmp_path / "corpora", TEXTS, IDS, LABELS)


def recipe_of(spec: str, seed: int = 0) -> Recipe:
    (recipe,) = parse_views([spec], seed=seed)
    return recipe


def by(make: Callable[[Sequence[str]], list[Made]]) -> MakeRows:
    return lambda first_row, texts: make(texts)


def crop(corpus: Corpus, *, seed: int = 0, spec: str = "crop", **settings: Any) -> tuple[View, bool]:
    recipe = recipe_of(spec, seed)
    return store_view(corpus, recipe, by(edit_maker(recipe)), **settings)


def never(first_row: int, texts: list[str]) -> list[Made]:
    raise AssertionError("made again")


def test_a_view_is_read_as_a_corpus_is(corpus: Corpus) -> None:
    before = content(corpus.folder)
    view, was_there = crop(corpus)
    assert not was_there
    expected = [
        text if isinstance(new, Kept) else new
        for text, new in zip(TEXTS, edit_maker(recipe_of("crop"))(TEXTS), strict=True)
    ]
    opened = Corpus(corpus.folder).view("crop")
    assert opened.texts() == view.texts() == expected != TEXTS
    assert [text for part in opened.iter_texts() for text in part] == expected
    assert (opened.keys() == key_array(expected)).all()
    rows = np.array([9, 0, 4])
    assert opened.texts(rows) == [expected[row] for row in rows]
    assert (opened.keys_of(rows) == key_array([expected[row] for row in rows])).all()
    assert len(opened) == len(corpus)
    assert opened.info.digest != corpus.info.digest
    assert opened.recipe == recipe_of("crop")
    assert opened.record.of == corpus.info.digest
    # The corpus is what it was, to the byte.
    assert {
        path: data for path, data in content(corpus.folder).items() if not path.startswith("views/")
    } == before
    assert Corpus(corpus.folder).info.digest == corpus.info.digest


def test_views_are_listed_by_name(corpus: Corpus) -> None:
    assert corpus.view_names() == []
    for spec in ("delete-words", "b=crop", "a=crop:0.5"):
        crop(corpus, spec=spec)
    assert corpus.view_names() == ["a", "b", "delete-words"]


def test_what_became_of_the_rows_is_counted(corpus: Corpus) -> None:
    def make(first_row: int, texts: list[str]) -> list[Made]:
        made: list[Made] = [
            Kept.EMPTY_CELL,
            *(text if text == TEXTS[1] else text + "!" for text in texts[1:]),
        ]
        return made

    view, _ = store_view(corpus, recipe_of("column:x"), make)
    assert view.record.counts == {"changed": 4, "empty cell": 5, "unchanged": 1}
    assert view.texts()[:3] == [TEXTS[0], TEXTS[1], TEXTS[2] + "!"]


def test_the_same_again_writes_nothing_and_makes_nothing(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    crop(corpus)
    before = content(corpus.folder)
    monkeypatch.setattr(fsio, "on_write_step", Failing(0))
    view, was_there = store_view(corpus, recipe_of("crop"), never)
    assert was_there
    assert content(corpus.folder) == before
    assert view.texts() == Corpus(corpus.folder).view("crop").texts()


def test_another_recipe_of_the_same_name_is_refused_or_replaces(corpus: Corpus) -> None:
    crop(corpus)
    before = content(corpus.folder)
    with pytest.raises(InputError, match=r"another view called 'crop' \(seed 0, not 1\).*--replace-views"):
        crop(corpus, seed=1)
    assert content(corpus.folder) == before
    view, was_there = crop(corpus, seed=1, replace=True)
    assert not was_there
    assert view.recipe.seed == 1
    # Nothing of the old one is left.
    fresh = stored(corpus.folder.parent.parent / "fresh", TEXTS, IDS, LABELS)
    crop(fresh, seed=1)
    assert content(corpus.folder) == content(fresh.folder)


def test_a_column_is_read_again_and_what_changed_is_noticed(corpus: Corpus) -> None:
    recipe = recipe_of("column:fr")
    cells = {"": "old"}

    def make(first_row: int, texts: list[str]) -> list[Made]:
        return [f"{cells['']} {text}" for text in texts]

    store_view(corpus, recipe, make)
    before = content(corpus.folder)
    _, was_there = store_view(corpus, recipe, make)
    assert was_there
    cells[""] = "new"
    with pytest.raises(
        InputError, match=r"holds other texts than column 'fr' of the source now.*--replace-views"
    ):
        store_view(corpus, recipe, make)
    assert content(corpus.folder) == before
    view, was_there = store_view(corpus, recipe, make, replace=True)
    assert not was_there
    assert view.texts()[0] == f"new {TEXTS[0]}"


def test_a_view_of_other_rows_is_refused_and_made_anew(tmp_path: Path, corpus: Corpus) -> None:
    crop(corpus)
    crop(corpus, spec="kept=crop")
    changed = stored(tmp_path / "corpora", TEXTS[::-1], replace=True)
    assert stale_views(changed) == ["crop", "kept"]
    with pytest.raises(InputError, match=r"was made of other rows than corpus 'corpus' has now.*build"):
        changed.view("crop")
    remove_view(changed, "kept")
    assert changed.view_names() == ["crop"]
    assert not (changed.folder / "views" / "kept").exists()
    view, was_there = crop(changed, seed=5)
    assert not was_there
    assert view.record.of == changed.info.digest
    assert stale_views(changed) == []


def test_the_same_rows_with_other_labels_are_another_state(tmp_path: Path, corpus: Corpus) -> None:
    crop(corpus)
    changed = stored(tmp_path / "corpora", TEXTS, IDS, LABELS[::-1], replace=True)
    assert stale_views(changed) == ["crop"]


def test_there_is_no_view_that_was_not_made(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="no view 'crop': it has none; add one"):
        corpus.view("crop")
    crop(corpus, spec="a=crop")
    with pytest.raises(InputError, match="it has a; add one"):
        corpus.view("crop")
    with pytest.raises(InputError, match=r"no view '\.\./a'"):
        corpus.view("../a")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["recipe.json", "corpus.json", "*.arrow"])
@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_damage_is_found_and_replacing_mends_it(corpus: Corpus, name: str, damage: str) -> None:
    crop(corpus)
    before = content(corpus.folder)
    path = sorted((corpus.folder / "views" / "crop").glob(name))[0]
    flip(path) if damage == "flip" else path.unlink()
    if (name, damage) == ("recipe.json", "gone"):
        assert corpus.view_names() == []
    elif (name, damage) != ("*.arrow", "flip"):
        with pytest.raises(CorruptCacheError, match=r"crop.*--replace-views") as caught:
            corpus.view("crop").texts()
        assert f"--cache {corpus.folder.parent.parent}'" in str(caught.value)
    crop(corpus, replace=True)
    assert content(corpus.folder) == before


def test_a_missing_part_is_made_again_without_being_asked(corpus: Corpus) -> None:
    crop(corpus)
    before = content(corpus.folder)
    next((corpus.folder / "views" / "crop").glob("*.arrow")).unlink()
    crop(corpus)
    assert content(corpus.folder) == before


def test_rows_of_one_recipe_never_go_by_the_name_of_another(corpus: Corpus) -> None:
    crop(corpus, spec="x=crop")
    crop(corpus, spec="y=delete-words")
    views = corpus.folder / "views"
    recipe = (views / "x" / "recipe.json").read_bytes()
    shutil.rmtree(views / "x")
    shutil.copytree(views / "y", views / "x")
    with pytest.raises(CorruptCacheError, match="describes a view called 'y'"):
        corpus.view("x")
    (views / "x" / "recipe.json").write_bytes(recipe)
    with pytest.raises(CorruptCacheError, match="describes a corpus called 'y'"):
        corpus.view("x")


class Failing:
    """Fails at a step of writing, and counts them."""

    def __init__(self, after: int, error: BaseException | None = None) -> None:
        self.left, self.steps = after, 0
        self.error = error or OSError(errno.ENOSPC, "No space left on device")

    def __call__(self, step: str, path: Path) -> None:
        self.steps += 1
        if self.left == 0:
            raise self.error
        self.left -= 1


class Kill(BaseException):
    """Stands for SIGKILL: nothing cleans up after it that would not after a real one."""


@pytest.mark.parametrize(
    ("error", "keep_drafts"), [(OSError(errno.ENOSPC, "full"), True), (KeyboardInterrupt(), False)]
)
def test_killed_at_any_step_of_writing_the_same_call_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, keep_drafts: bool
) -> None:
    whole = stored(tmp_path / "whole", TEXTS[-6:])
    counting = Failing(-1)
    monkeypatch.setattr(fsio, "on_write_step", counting)
    crop(whole, keep_drafts=keep_drafts)
    assert counting.steps > 10
    for step in range(counting.steps):
        corpus = stored(tmp_path / "cut" / str(step), TEXTS[-6:])
        monkeypatch.setattr(fsio, "on_write_step", Failing(step, error))
        with pytest.raises((StorageError, KeyboardInterrupt)):
            crop(corpus, keep_drafts=keep_drafts)
        monkeypatch.setattr(fsio, "on_write_step", None)
        # Until it is complete it is not there.
        if corpus.view_names():
            assert corpus.view("crop").texts() == whole.view("crop").texts()
        crop(corpus, keep_drafts=keep_drafts)
        assert content(corpus.folder) == content(whole.folder)


@pytest.mark.parametrize("step", range(0, 40, 3))
def test_killed_while_it_is_replaced_a_view_is_the_old_the_new_or_not_there(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    old = crop(corpus)[0].texts()
    monkeypatch.setattr(fsio, "on_write_step", Failing(step))
    with suppress(StorageError):
        crop(corpus, seed=1, replace=True)
    monkeypatch.setattr(fsio, "on_write_step", None)
    seen = {one.recipe.seed: one.texts() for one in map(corpus.view, corpus.view_names())}
    new = crop(corpus, seed=1, replace=True)[0].texts()
    assert seen in ({}, {0: old}, {1: new})


def test_what_a_model_made_before_a_kill_is_not_made_again(corpus: Corpus) -> None:
    recipe, seen = recipe_of("crop"), []
    maker = edit_maker(recipe)

    def dying(first_row: int, texts: list[str]) -> list[Made]:
        if first_row >= 6:
            raise Kill
        return make(first_row, texts)

    def make(first_row: int, texts: list[str]) -> list[Made]:
        seen.append(first_row)
        return maker(texts)

    with pytest.raises(Kill):
        store_view(corpus, recipe, dying, keep_drafts=True)
    done = list(seen)
    assert done
    assert corpus.view_names() == []
    view, _ = store_view(corpus, recipe, make, keep_drafts=True)
    assert len(seen) == len(set(seen))
    assert not list(view.folder.glob(".tmp-*"))
    fresh = stored(corpus.folder.parent.parent / "fresh", TEXTS, IDS, LABELS)
    crop(fresh)
    assert content(corpus.folder) == content(fresh.folder)


def test_drafts_of_another_recipe_or_damaged_ones_are_not_read(tmp_path: Path) -> None:
    made: list[Made] = ["a", Kept.EMPTY_OUTPUT, "ü\n🐈"]
    drafts = Drafts(tmp_path, "1" * 64)
    drafts.write(0, made)
    drafts.write(10, ["b"])
    assert drafts.read(0, 3) == made
    assert drafts.read(10, 1) == ["b"]
    assert drafts.read(1, 3) is None
    assert drafts.read(0, 2) is None
    assert Drafts(tmp_path, "2" * 64).read(0, 3) is None
    for path in tmp_path.glob(".tmp-draft-*-0-*"):
        path.write_bytes(path.read_bytes().replace(b'"a"', b'"x"'))
    assert drafts.read(0, 3) is None
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_chunks_end_does_not_show(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crop(corpus)
    other = stored(tmp_path / "other", TEXTS, IDS, LABELS)
    monkeypatch.setattr(view_store, "CHUNK_ROWS", 4096)
    crop(other)
    assert content(corpus.folder) == content(other.folder)


def test_a_corpus_inside_links_is_no_view(corpus: Corpus, tmp_path: Path) -> None:
    crop(corpus)
    folder = corpus.folder / "views" / "crop"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCacheError, match="symbolic link"):
        corpus.view("crop")


@pytest.fixture(autouse=True)
def no_leftover_hooks() -> Iterator[None]:
    yield
    fsio.on_write_step = None
