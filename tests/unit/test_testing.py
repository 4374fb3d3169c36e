"""Promises of the fake encoder that other tests rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(500)

BUILD_WITHOUT_TORCH = """
import json, sys
import embedcache
from embedcache.teacher.options import EncodeOptions
from embedcache.testing import FakeEncoder, fake_teacher
encoder, options = FakeEncoder(fake_teacher(12)), EncodeOptions(codec="float32")
cache = embedcache.build(sys.argv[1], teacher=encoder, cache=sys.argv[2], encode=options)
vectors = cache.lookup(open(sys.argv[1]).read().splitlines())
heavy = [name for name in ("torch", "transformers") if name in sys.modules]
print(json.dumps({"heavy": heavy, "vectors": vectors.tolist()}))
"""


@pytest.mark.parametrize("dimension", [1, 7, 384])
def test_a_unit_vector_depends_on_its_text_alone(dimension: int) -> None:
    vectors = FakeEncoder(fake_teacher(dimension)).encode(TEXTS).vectors
    assert (vectors.shape, vectors.dtype) == ((500, dimension), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(0).permutation(500)[:40]
    again = FakeEncoder(fake_teacher(dimension)).encode([TEXTS[i] for i in order]).vectors
    np.testing.assert_array_equal(again, vectors[order])


def test_the_vectors_are_the_same_in_every_version() -> None:
    found = FakeEncoder(fake_teacher(4)).encode(["a", "b"]).vectors
    expected = [
        [0.5703094, -0.33092028, 0.41541055, 0.62663627],
        [-0.01830766, -0.54312736, 0.72620404, 0.42107627],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_words_are_tokens_and_long_texts_are_truncated() -> None:
    encoder = FakeEncoder(fake_teacher(8, max_length=3))
    encoded = encoder.encode(["one", "one two three", "one two three four"])
    assert (encoded.tokens.tolist(), encoded.truncated.tolist()) == ([1, 3, 3], [False, False, True])
    windows = encoder.encode_windows([TEXTS[:100], TEXTS[100:150]])
    # No window is begun before it is wanted.
    assert [(len(one.vectors), encoder.rows_encoded) for one in windows] == [(100, 103), (50, 153)]


def test_a_build_with_it_needs_no_torch(tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(TEXTS[:20]))
    command = [sys.executable, "-c", BUILD_WITHOUT_TORCH, str(source), str(tmp_path / "cache")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["heavy"] == []
    here = FakeEncoder(fake_teacher(12)).encode(TEXTS[:20]).vectors
    np.testing.assert_array_equal(np.array(found["vectors"], dtype=np.float32), here)
