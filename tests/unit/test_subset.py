"""Parts of corpora: the same rows, views and labels, as a corpus that stands for itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from catalog_helpers import LABELS, TEXTS, add_corpus, add_view
from corpus_helpers import content, small_parts

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.catalog import choose_rows
from embedcache.check import verify
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.subset import LEFT_OUT, store_subset, subset_keys
from embedcache.corpus.view_store import store_view
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import Recipe


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache.create(tmp_path / "whole")
    news = add_corpus(cache, "news", TEXTS, ids=True, labels=LABELS)
    add_corpus(cache, "plain", TEXTS[:5])
    add_view(news, "crop")
    add_view(news, "other=delete-words:0.5")
    return cache


def test_a_part_has_the_rows_and_all_views_of_them(tmp_path: Path, cache: Cache) -> None:
    whole, target = cache.corpus("news"), Cache.create(tmp_path / "part")
    rows = np.array([3, 4, 17, 318, 319])
    part, was_there = store_subset(whole, rows, target.corpora_folder, "some")
    assert not was_there
    assert part.name == "some"
    assert part.info.digest != whole.info.digest
    assert part.texts() == [TEXTS[row] for row in rows]
    assert part.ids() == [f"id-{row}" for row in rows]
    assert part.labels() == [LABELS[row] for row in rows]
    assert part.column(0, "row").to_pylist() == [0, 1, 2, 3, 4]
    assert part.view_names() == ["crop", "other"]
    for view in part.views():
        before = whole.view(view.name)
        assert view.texts() == before.texts(rows)
        assert view.recipe == before.recipe
        assert view.record.of == part.info.digest != before.record.of
    assert part.info.skipped == {LEFT_OUT: len(TEXTS) - len(rows)}
    assert verify(target.folder).damage == []


def test_a_view_made_anew_of_the_part_is_the_same(tmp_path: Path, cache: Cache) -> None:
    rows = np.arange(0, 320, 3)
    part, _ = store_subset(cache.corpus("news"), rows, tmp_path / "one")
    anew = add_corpus(Cache.create(tmp_path / "two"), "news", [TEXTS[row] for row in rows])
    assert part.view("crop").texts() == add_view(anew, "crop").texts()
    assert part.view("crop").record.counts == anew.view("crop").record.counts


def test_every_row_gives_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, rows=7)
    whole = add_corpus(Cache.create(tmp_path / "cache"), "all", TEXTS[:20], ids=True)
    add_view(whole, "crop")
    part, _ = store_subset(whole, np.arange(20), tmp_path / "out", "all")
    assert content(part.folder) == content(whole.folder)
    assert len(part.parts) == 3


def test_a_second_time_nothing_is_written(tmp_path: Path, cache: Cache) -> None:
    rows = np.arange(10)
    store_subset(cache.corpus("news"), rows, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    part, was_there = store_subset(cache.corpus("news"), rows, tmp_path / "out")
    assert was_there
    assert len(part) == 10
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_a_part_of_a_part_is_a_part(tmp_path: Path, cache: Cache) -> None:
    whole = cache.corpus("news")
    half, _ = store_subset(whole, np.arange(0, 320, 2), tmp_path / "half")
    quarter, _ = store_subset(half, np.arange(0, 160, 2), tmp_path / "quarter")
    at_once, _ = store_subset(whole, np.arange(0, 320, 4), tmp_path / "once")
    assert content(quarter.folder) == content(at_once.folder)


def test_the_name_of_other_rows_is_not_taken(tmp_path: Path, cache: Cache) -> None:
    store_subset(cache.corpus("news"), np.arange(10), tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(InputError, match="it has 10 rows, this one has 11 rows"):
        store_subset(cache.corpus("news"), np.arange(11), tmp_path / "out")
    assert content(tmp_path / "out") == before
    part, _ = store_subset(cache.corpus("news"), np.arange(11), tmp_path / "out", replace=True)
    assert len(part) == len(part.view("crop")) == 11


@pytest.mark.parametrize("rows", [[], [2, 1], [1, 1]])
def test_rows_must_ascend(tmp_path: Path, cache: Cache, rows: list[int]) -> None:
    with pytest.raises(InputError, match=r"ascend|no row"):
        store_subset(cache.corpus("plain"), np.array(rows, dtype=np.int64), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"ascend|no row"):
        subset_keys(cache.corpus("plain"), np.array(rows, dtype=np.int64))


def test_a_row_that_is_not_there_is_an_error(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(IndexError, match="of 5"):
        store_subset(cache.corpus("plain"), np.array([4, 5]), tmp_path / "out")


def counts_of_part(folder: Path, made: list[Made], rows: list[int]) -> dict[str, int]:
    whole = add_corpus(Cache.create(folder / "cache"), "all", TEXTS[: len(made)])
    recipe = Recipe("column", "column", {"column": "french"})
    store_view(whole, recipe, lambda first_row, texts: made)
    part, _ = store_subset(whole, np.array(rows), folder / "out")
    return dict(part.view("column").record.counts)


def test_reasons_are_counted_where_they_are_known(tmp_path: Path) -> None:
    made: list[Made] = ["new", Kept.EMPTY_CELL, Kept.EMPTY_CELL, "newer"]
    assert counts_of_part(tmp_path, made, [0, 2]) == {"changed": 1, "empty cell": 1}


def test_reasons_that_are_not_known_are_not_made_up(tmp_path: Path) -> None:
    made: list[Made] = ["new", Kept.EMPTY_CELL, Kept.UNUSABLE_CELL, TEXTS[3]]
    assert counts_of_part(tmp_path, made, [0, 2, 3]) == {"changed": 1, "same text": 2}


def test_what_a_recipe_left_as_it_was_stays_unchanged(tmp_path: Path) -> None:
    assert counts_of_part(tmp_path, ["new", TEXTS[1], TEXTS[2]], [1, 2]) == {"unchanged": 2}


def test_keys_are_those_of_the_rows_and_their_views_once_each(cache: Cache) -> None:
    news = cache.corpus("news")
    rows = np.array([0, 5, 319])  # the last text repeats the first
    own, crop, other = subset_keys(news, rows)
    assert own.tolist() == key_array([TEXTS[0], TEXTS[5]]).tolist()
    expected = {*own.tolist()}
    for name in ("crop", "other"):
        expected |= {*key_array(news.view(name).texts(rows)).tolist()}
    found = [*own.tolist(), *crop.tolist(), *other.tolist()]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert len(subset_keys(news, rows, ["crop"])) == 2
    assert [len(keys) for keys in subset_keys(news, rows, [])] == [2]


def test_rows_are_chosen_by_number_condition_or_both(cache: Cache) -> None:
    assert choose_rows(cache, "news").tolist() == list(range(320))
    assert choose_rows(cache, "news", first=3).tolist() == [0, 1, 2]
    assert choose_rows(cache, "plain", first=1000).tolist() == [0, 1, 2, 3, 4]
    assert choose_rows(cache, "news", where="label = 2").tolist() == list(range(2, 320, 3))
    # Of the rows that the condition takes, as LIMIT counts them.
    assert choose_rows(cache, "news", first=2, where="label = 2").tolist() == [2, 5]
    with pytest.raises(InputError, match=r"--rows 0: expected at least 1"):
        choose_rows(cache, "news", first=0)
    with pytest.raises(InputError, match="holds for none of the 320 rows of corpus 'news'"):
        choose_rows(cache, "news", where="label = 7")


def test_killed_at_any_step_the_same_call_ends_it(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch, rows=50)
    whole, rows = cache.corpus("news"), np.arange(0, 320, 2)
    clean, _ = store_subset(whole, rows, tmp_path / "clean")
    kills = 0

    def kill_at(wanted: int) -> None:
        steps = 0

        def step(name: str, path: Path) -> None:
            nonlocal steps
            steps += 1
            if steps == wanted:
                raise KeyboardInterrupt

        monkeypatch.setattr(fsio, "on_write_step", step)

    for wanted in range(1, 1000, 13):
        kill_at(wanted)
        target = tmp_path / f"killed-{wanted}"
        try:
            store_subset(whole, rows, target)
            break
        except KeyboardInterrupt:
            kills += 1
        monkeypatch.setattr(fsio, "on_write_step", None)
        again, _ = store_subset(whole, rows, target)
        assert content(Corpus(again.folder).folder) == content(clean.folder)
    assert kills > 2


def test_progress_tells_of_the_corpus_and_each_view(tmp_path: Path, cache: Cache) -> None:
    told: list[tuple[str, int]] = []
    store_subset(
        cache.corpus("news"), np.arange(9), tmp_path / "out", on_rows=lambda *done: told.append(done)
    )
    assert ("corpus 'news'", 9) in told
    assert told[-1] == ("view 'other' of corpus 'news'", 9)
