"""Promises of the fake encoder that other tests rely on."""

from __future__ import annotations

import numpy as np

from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(500)


def test_a_unit_vector_depends_on_its_text_alone() -> None:
    vectors = FakeEncoder(fake_teacher(7)).encode(TEXTS).vectors
    assert (vectors.shape, vectors.dtype) == ((500, 7), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(0).permutation(500)[:40]
    again = FakeEncoder(fake_teacher(7)).encode([TEXTS[i] for i in order]).vectors
    np.testing.assert_array_equal(again, vectors[order])


def test_the_vectors_are_the_same_in_every_version() -> None:
    found = FakeEncoder(fake_teacher(4)).encode(["a", "b"]).vectors
    expected = [
        [0.5703094, -0.33092028, 0.41541055, 0.62663627],
        [-0.01830766, -0.54312736, 0.72620404, 0.42107627],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
