"""The dataset of a run: distinct texts, their cached vectors, and held-out rows."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from distill_helpers import TEXTS, build, open_dataset

from distill.data.sampler import permutation
from distill.errors import DataError
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.testing import sentences

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory, teacher_folder):
    """A cache of 100 rows, every third a repetition of the first texts."""
    folder = tmp_path_factory.mktemp("repeated")
    rows = [TEXTS[i // 3] if i % 3 == 2 else TEXTS[i] for i in range(100)]
    (folder / "rows.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return rows, build(folder / "rows.txt", teacher_folder, folder / "cache", shard_rows=16)


def training_texts(dataset) -> list[str]:
    return texts_of(dataset, dataset.rows)


def texts_of(dataset, rows) -> list[str]:
    return dataset.corpus.texts(rows)


def test_repeated_texts_are_trained_on_once_and_counted(repeated):
    rows, cache = repeated
    dataset = open_dataset(cache)
    texts = training_texts(dataset)
    assert sorted(texts) == sorted(set(rows))
    assert all(rows.index(text) == row for text, row in zip(texts, dataset.rows.tolist(), strict=True))


def test_positions_lead_to_the_vectors_of_the_rows(repeated):
    _, cache = repeated
    dataset = open_dataset(cache, held_out=10)
    stored = dataset.targets.gather(np.arange(len(dataset)))
    expected = cache.lookup(training_texts(dataset))
    assert (stored == expected).all()
    assert not (np.roll(stored, 1, axis=0) == expected).all(axis=1).any()


def test_held_out_texts_are_never_trained_on(repeated):
    rows, cache = repeated
    dataset = open_dataset(cache, held_out=20)
    held_out = set(texts_of(dataset, dataset.held_out))
    assert len(held_out) == 20
    assert held_out.isdisjoint(training_texts(dataset))
    assert held_out | set(training_texts(dataset)) == set(rows)


def test_missing_vectors_are_refused_with_the_command_to_run(own_cache, tmp_path, teacher_folder):
    (tmp_path / "more.txt").write_text("\n".join(TEXTS[:20] + sentences(7, seed=99)) + "\n", encoding="utf-8")
    build(tmp_path / "more.txt", teacher_folder, tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "corpora" / "more", own_cache / "corpora" / "more")
    cache = Cache(own_cache)
    with pytest.raises(DataError, match=r"7 of 27 texts of corpus 'more'.*embedcache build"):
        open_dataset(cache, corpus="more")
    assert len(open_dataset(cache, corpus="more", limit=20)) == 20


def test_the_held_out_rows_are_the_first_of_a_permutation_of_their_own(built_cache):
    dataset = open_dataset(Cache(built_cache), held_out=30, seed=4)
    shuffled = permutation(len(TEXTS), 4, 2**31 - 1)
    assert dataset.held_out.tolist() == sorted(shuffled[:30].tolist())
    assert dataset.rows.tolist() == sorted(shuffled[30:].tolist())


class TestWhere:
    def test_only_rows_that_satisfy_it_are_trained_on_or_held_out(self, repeated):
        rows, cache = repeated
        dataset = open_dataset(cache, where="row >= 20 AND row < 70", held_out=10)
        wanted = list(dict.fromkeys(rows[20:70]))
        assert dataset.selected == 50
        assert sorted(training_texts(dataset) + texts_of(dataset, dataset.held_out)) == sorted(wanted)
        assert len(dataset.held_out) == 10
        assert (
            dataset.targets.gather(np.arange(len(dataset))) == cache.lookup(training_texts(dataset))
        ).all()

    def test_a_text_whose_first_row_is_left_out_is_trained_on_all_the_same(self, repeated):
        rows, cache = repeated
        again = next(row for row in range(50, 100) if rows[row] in rows[:50])
        dataset = open_dataset(cache, where=f"row = {again} OR row = 99")
        assert again in dataset.rows.tolist()
        assert rows.index(rows[again]) not in dataset.rows.tolist()

    def test_limit_counts_selected_rows(self, repeated):
        rows, cache = repeated
        dataset = open_dataset(cache, where="row >= 30", limit=5)
        assert training_texts(dataset) == list(dict.fromkeys(rows[30:]))[:5]

    def test_the_tokens_it_speaks_of_are_the_first_teachers(self, two_teachers):
        cache = Cache(two_teachers)
        both = {"teacher": ["tiny", "other"]}
        assert 0 < open_dataset(cache, where="tokens > 12", **both).selected < len(TEXTS)

    def test_a_corpus_of_several_parts_is_selected_from_as_one(self, tmp_path, teacher_folder, monkeypatch):
        monkeypatch.setattr("embedcache.corpus.part.PART_ROWS", 16)
        (tmp_path / "rows.txt").write_text("\n".join(TEXTS[:90]) + "\n", encoding="utf-8")
        cache = build(tmp_path / "rows.txt", teacher_folder, tmp_path / "cache", shard_rows=16)
        assert len(list(cache.corpus().iter_keys())) > 1
        dataset = open_dataset(cache, where="row % 3 = 1")
        assert dataset.rows.tolist() == list(range(1, 90, 3))
        assert (dataset.targets.gather(np.arange(30)) == cache.lookup(TEXTS[1:90:3])).all()

    def test_nothing_selected_is_refused(self, built_cache):
        with pytest.raises(DataError, match=r"no row of the 160 of corpus 'texts' satisfies 'row < 0'"):
            open_dataset(Cache(built_cache), where="row < 0")

    def test_an_invalid_predicate_is_refused(self, built_cache):
        with pytest.raises(InputError):
            open_dataset(Cache(built_cache), where="nothing_like_it = 3")

    def test_too_few_selected_to_hold_out_are_counted_as_selected(self, built_cache):
        with pytest.raises(DataError, match="12 distinct texts among the rows selected; 10 held out"):
            open_dataset(Cache(built_cache), where="row < 12", held_out=10)


def test_missing_vectors_of_a_view_are_refused_with_its_option(tmp_path, teacher_folder):
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:40]) + "\n", encoding="utf-8")
    cache = build(tmp_path / "few.txt", teacher_folder, tmp_path / "cache", views=["delete-one-word"])
    distinct = len(set(cache.corpus().view("delete-one-word").texts(range(40))))
    with pytest.raises(DataError, match=rf"of {distinct} texts .*embed delete-one-word"):
        open_dataset(cache, view="delete-one-word", held_out=5, queue=20)
