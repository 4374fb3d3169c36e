"""A flip of any byte of any file is found by verify."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from damage import damage_finder
from gate_helpers import CACHES, copied

# Flips per file; every byte of a smaller file is flipped.
FLIPS = 30


@pytest.mark.parametrize(
    ("name", "flips"),
    [(name, FLIPS) for name in CACHES]
    + [pytest.param(name, None, marks=pytest.mark.slow) for name in CACHES],
)
def test_a_flipped_byte_is_found(tmp_path: Path, name: str, flips: int | None) -> None:
    cache, generator = copied(name, tmp_path), np.random.default_rng(0)
    is_damaged, missed = damage_finder(cache), []
    for path in sorted(cache.rglob("*")):
        file = path.relative_to(cache).as_posix()
        if not path.is_file() or is_damaged(file):
            assert not path.is_file(), f"{file} is damaged before anything was flipped"
            continue
        whole = path.read_bytes()
        for place in generator.permutation(len(whole))[:flips].tolist():
            flipped = bytearray(whole)
            flipped[place] ^= int(generator.integers(1, 256))
            path.write_bytes(flipped)
            if not is_damaged(file):
                missed.append((file, place))
        for other in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
            path.write_bytes(other)
            if not is_damaged(file):
                missed.append((file, len(other)))
        path.write_bytes(whole)
    assert missed == []
