"""The targets of training rows: vectors of one or several teachers, joined by key."""

from __future__ import annotations

import numpy as np
import pytest
from distill_helpers import TEXTS, build, open_dataset

from distill.data import targets as targets_module
from distill.data.combination import Combination
from distill.data.targets import open_targets
from distill.errors import ConfigError, DataError
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.keys import key_array

pytest_plugins = ["distill_fixtures"]

BOTH = ["tiny", "other"]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def training_texts(dataset) -> list[str]:
    return dataset.corpus.texts(dataset.rows)


def all_targets(dataset) -> np.ndarray:
    return dataset.targets.gather(np.arange(len(dataset)))


def test_rows_of_two_teachers_are_joined_by_key(two_teachers):
    cache = Cache(two_teachers)
    dataset = open_dataset(cache, teacher=BOTH, weights=[1, 3], held_out=20)
    texts = training_texts(dataset)
    indices = np.random.default_rng(0).permutation(len(dataset))[:50]
    found = dataset.targets.gather(indices)
    picked = [texts[i] for i in indices]
    assert found.dtype == np.float32
    assert found.shape == (50, 24) == (50, dataset.targets.dimension)
    np.testing.assert_allclose(found[:, :16], 0.5 * unit(cache.lookup(picked, teacher="tiny")), atol=1e-6)
    np.testing.assert_allclose(
        found[:, 16:], np.sqrt(0.75) * unit(cache.lookup(picked, teacher="other")), atol=1e-6
    )
    assert (dataset.targets.lookup(key_array(picked)) == found).all()
    places = [positions.tolist() for positions in dataset.targets.positions]
    assert places[0] != places[1], "the stores have the same order, so a mix-up would go unseen"


@pytest.mark.parametrize("codec", ["float16", "float32"])
def test_one_teachers_vectors_are_as_stored_to_the_bit(tmp_path, second_folder, codec):
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS[:60]) + "\n", encoding="utf-8")
    cache = build(tmp_path / "rows.txt", second_folder, tmp_path / "cache", codec=codec)
    dataset = open_dataset(cache, held_out=5)
    found = all_targets(dataset)
    store = cache.store(cache.teacher().contract)
    stored = store.gather(store.locate(key_array(training_texts(dataset))))
    assert dataset.targets.combination is None
    assert found.dtype == stored.dtype == np.dtype(codec)
    assert found.tobytes() == stored.tobytes()
    assert np.abs(np.linalg.norm(found.astype(float), axis=1) - 1).max() > 0.1, "nothing was normalised"


def test_a_projection_is_fitted_on_a_seeded_sample_of_the_training_rows(two_teachers, monkeypatch):
    samples = []
    fitted = Combination.fitted

    def watched(self, sample, dimension):
        parts = list(sample)
        samples.append(np.concatenate(parts))
        return fitted(self, parts, dimension)

    monkeypatch.setattr(Combination, "fitted", watched)
    monkeypatch.setattr(targets_module, "SAMPLE_ROWS", 60)
    cache = Cache(two_teachers)
    whole = open_dataset(cache, teacher=BOTH, held_out=40)
    first, again, other = (
        open_dataset(cache, teacher=BOTH, target_dim=12, held_out=40, seed=seed).targets for seed in (0, 0, 1)
    )
    assert [len(sample) for sample in samples] == [60] * 3
    assert {row.tobytes() for row in samples[0]} < {row.tobytes() for row in all_targets(whole)}
    assert (samples[0] == samples[1]).all()
    assert not (samples[0] == samples[2]).all()
    assert (first.combination.projection == again.combination.projection).all()
    assert not (first.combination.projection == other.combination.projection).all()


def test_one_teacher_is_projected_as_well(two_teachers):
    cache = Cache(two_teachers)
    dataset = open_dataset(cache, teacher="other", target_dim=5)
    targets = all_targets(dataset)
    assert dataset.targets.dimension == targets.shape[1] == 5
    own = unit(cache.lookup(TEXTS, teacher="other"))
    assert np.corrcoef((targets @ targets.T).ravel(), (own @ own.T).ravel())[0, 1] > 0.9


def test_a_row_that_lacks_one_teachers_vector_is_refused(own_cache, tmp_path, second_folder):
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:150]) + "\n", encoding="utf-8")
    build(tmp_path / "few.txt", second_folder, own_cache)
    cache = Cache(own_cache)
    for held_out in (0, 60):
        with pytest.raises(
            DataError, match=r"10 of 160 texts of corpus 'texts' have no vector of teacher 'other'.*build"
        ):
            open_dataset(cache, corpus="texts", teacher=BOTH, held_out=held_out)
    assert len(open_dataset(cache, corpus="texts", teacher=BOTH, limit=150)) == 150
    assert len(open_dataset(cache, corpus="texts", teacher="tiny")) == 160


def test_a_teacher_under_two_names_is_one_teacher(own_cache):
    cache = Cache(own_cache)
    contract = cache.teacher("tiny").contract
    cache.register_teacher("twin", contract, {})
    for names in (["tiny", "twin"], ["tiny", contract.id[:12]]):
        with pytest.raises(ConfigError, match="name each once"):
            open_targets(cache, names)


def test_positions_past_four_bytes_take_eight(two_teachers):
    dataset = open_dataset(Cache(two_teachers), teacher="tiny")
    store = dataset.targets.stores[0]

    class Far:
        """The store, with its later half a long way behind the first."""

        def locate(self, keys):
            found = store.locate(keys)
            return np.where(found > 80, found + 2**33, found)

    parts = list(dataset.corpus.iter_keys())
    positions, missing = targets_module._locate(Far(), parts, dataset.rows)
    near, _ = targets_module._locate(store, parts, dataset.rows)
    assert missing == 0
    assert (positions.dtype, near.dtype) == (np.int64, np.uint32)
    assert positions.tolist() == Far().locate(parts[0]).tolist()
    assert (positions > 2**32).sum() == (near > 80).sum() > 10


@pytest.mark.parametrize(
    ("names", "weights", "target_dim", "error", "word"),
    [
        (BOTH, [1.0], None, ConfigError, "teacher_weights"),
        (BOTH, None, 25, ConfigError, "24 dimensions"),
        (["other"], None, 9, ConfigError, "8 dimensions"),
        ([*BOTH, "third"], None, None, InputError, "third"),
        ([None], None, None, InputError, "several teachers"),
    ],
)
def test_settings_that_do_not_fit_the_teachers_are_refused(
    two_teachers, names, weights, target_dim, error, word
):
    with pytest.raises(error, match=word):
        open_targets(Cache(two_teachers), names, weights, target_dim)
