"""Verify and repair with real weights: the same file comes back, and the deep check knows its teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
from flat_build import build

from embedcache.check import repair, verify
from embedcache.doctor import examine
from embedcache.live import Computing
from embedcache.testing import sentences

pytestmark = pytest.mark.integration

ON_CPU = Computing(device="cpu", threads=1)


@pytest.mark.parametrize(("store", "compute_dtype"), [("arrow", "float32"), ("lmdb", "bfloat16")])
def test_a_damaged_cache_of_minilm_comes_back(tmp_path: Path, store: str, compute_dtype: str) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(sentences(150, seed=4)), encoding="utf-8")
    cache = build(
        source,
        teacher="minilm-l6",
        cache=tmp_path / "cache",
        store=store,
        compute_dtype=compute_dtype,
        device="cpu",
        threads=1,
        shard_rows=64,
    ).folder
    deep = examine(cache, deep=50, computing=ON_CPU).findings[-1]
    assert (deep.section, deep.level) == ("deep", "ok")
    assert f"now in {compute_dtype}" in deep.figure
    vectors = min(
        path for path in cache.glob("teachers/*/*/*.arrow" if store == "arrow" else "teachers/*/*.mdb")
    )
    names = min(cache.glob("teachers/*/names/*"))
    before = {path: path.read_bytes() for path in (vectors, names)}
    for path, data in before.items():
        middle = len(data) // 2
        path.write_bytes(data[:middle] + b"?!" + data[middle + 2 :])
    assert len(verify(cache).damage) == 2
    done = repair(cache, computing=ON_CPU)
    assert {mend.outcome for mend in done.mends} == {"identical"}
    assert done.rows_encoded <= 64
    assert verify(cache).findings == ()
    assert names.read_bytes() == before[names]
    if store == "arrow":
        assert vectors.read_bytes() == before[vectors]
