from __future__ import annotations

import shutil

import numpy as np
import pytest
from distill_helpers import TEXTS, build

from distill.data.dataset import open_dataset
from distill.errors import DataError
from embedcache.cache import Cache
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
    return dataset.corpus.texts(dataset.rows)


def test_repeated_texts_are_trained_on_once_and_counted(repeated):
    rows, cache = repeated
    dataset = open_dataset(cache)
    texts = training_texts(dataset)
    assert sorted(texts) == sorted(set(rows))
    assert dataset.duplicates == len(rows) - len(set(rows)) > 20
    assert all(rows.index(text) == row for text, row in zip(texts, dataset.rows.tolist(), strict=True))


def test_positions_lead_to_the_vectors_of_the_rows(repeated):
    _, cache = repeated
    dataset = open_dataset(cache, held_out=10)
    stored = dataset.store.gather(dataset.positions)
    expected = cache.lookup(training_texts(dataset))
    assert (stored == expected).all()
    assert not (np.roll(stored, 1, axis=0) == expected).all(axis=1).any()


def test_held_out_texts_are_never_trained_on(repeated):
    rows, cache = repeated
    dataset = open_dataset(cache, held_out=20)
    held_out = set(dataset.corpus.texts(dataset.held_out))
    assert len(held_out) == 20
    assert held_out.isdisjoint(training_texts(dataset))
    assert held_out | set(training_texts(dataset)) == set(rows)


def test_the_seed_chooses_the_held_out_rows(built_cache):
    cache = Cache(built_cache)
    first, again, other = (open_dataset(cache, held_out=30, seed=seed).held_out for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert first.tolist() != list(range(30))


def test_limit_keeps_the_first_distinct_rows(repeated):
    rows, cache = repeated
    dataset = open_dataset(cache, limit=40, held_out=4)
    used = set(training_texts(dataset)) | set(dataset.corpus.texts(dataset.held_out))
    assert used == set(list(dict.fromkeys(rows))[:40])
    assert len(dataset) == 36


def test_missing_vectors_are_refused_with_what_to_run(own_cache, tmp_path, teacher_folder):
    (tmp_path / "more.txt").write_text("\n".join(TEXTS[:20] + sentences(7, seed=99)) + "\n", encoding="utf-8")
    build(tmp_path / "more.txt", teacher_folder, tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "corpora" / "more", own_cache / "corpora" / "more")
    cache = Cache(own_cache)
    with pytest.raises(DataError, match=r"7 of 27 texts of corpus 'more'.*embedcache build"):
        open_dataset(cache, corpus="more")
    assert len(open_dataset(cache, corpus="more", limit=20)) == 20


def test_holding_out_more_than_half_is_refused(built_cache):
    cache = Cache(built_cache)
    half = len(TEXTS) // 2
    assert len(open_dataset(cache, held_out=half)) == half
    with pytest.raises(DataError, match=rf"{len(TEXTS)} distinct texts; {half + 1} held out"):
        open_dataset(cache, held_out=half + 1)
