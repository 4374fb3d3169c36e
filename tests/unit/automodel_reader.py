"""Reader of the teacher folder of NeMo Automodel, written from the description of its format."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np


def read_teacher(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, dict[str, int]]]]:
    """Return the index of a folder, and the matrix and rows by hash of ``queries`` and ``docs``."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    assert isinstance(json.loads((folder / "manifest.json").read_text(encoding="utf-8")), dict)
    sides = {}
    for name, side in (("queries", "query"), ("docs", "doc")):
        matrix = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        rows = index[f"{side}_hashes"]
        assert matrix.shape == (index[f"num_{name}"], index["dim"])
        assert matrix.dtype == np.dtype(index["dtype"])
        assert sorted(rows.values()) == list(range(len(matrix)))
        sides[name] = (matrix, rows)
    return index, sides


def vectors_in(side: tuple[np.ndarray, dict[str, int]], texts: list[str]) -> np.ndarray:
    """Return the vectors of texts, float32 of shape (n, d)."""
    matrix, rows = side
    return matrix[[rows[sha256(text.encode("utf-8")).hexdigest()] for text in texts]].astype(np.float32)
