"""Verify and repair with real weights: the same bytes come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from flat_build import build

from embedcache.live import Computing
from embedcache.repair import repair
from embedcache.testing import sentences
from embedcache.verify import verify

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize(("store", "compute_dtype"), [("arrow", "float32"), ("lmdb", "bfloat16")])
def test_a_damaged_cache_of_minilm_comes_back(tmp_path: Path, store: str, compute_dtype: str) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(sentences(150, seed=4)), encoding="utf-8")
    settings = {"store": store, "compute_dtype": compute_dtype, "device": "cpu", "threads": 1}
    cache = build(source, teacher="minilm-l6", cache=tmp_path / "cache", shard_rows=64, **settings).folder
    patterns = ("teachers/*/shards/*.arrow" if store == "arrow" else "teachers/*/*.mdb", "teachers/*/names/*")
    before = {path: path.read_bytes() for path in (min(cache.glob(pattern)) for pattern in patterns)}
    for path, data in before.items():
        middle = len(data) // 2
        path.write_bytes(data[:middle] + b"?!" + data[middle + 2 :])
    assert len(verify(cache).damage) == 2
    done = repair(cache, computing=Computing(device="cpu", threads=1))
    assert done.left == []
    assert done.rows_encoded <= 64
    assert verify(cache).findings == ()
    if store == "arrow":
        assert {path: path.read_bytes() for path in before} == before
