"""Golden caches: their builds, their folder, and the content of a cache byte for byte."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from building import build
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.projection import extend, write_derived
from embedcache.testing import fake_teacher

GOLDEN = Path(__file__).parent / "golden"
SOURCES, MODEL, VECTORS = GOLDEN / "sources", GOLDEN / "model", GOLDEN / "vectors"
CACHES = ("fake", "real")

DIMENSION = 8
SHARD_ROWS = 256
"""Two shards of the larger corpus, the first with just enough rows for a codebook."""

TEACHERS: dict[str, dict[str, Any]] = {
    "halves": {"seed": 0, "codec": "float16"},
    "exact": {"seed": 1, "codec": "float32"},
    "bytes": {"seed": 2, "codec": "int8"},
    "coded": {"seed": 3, "codec": "pq"},
    "boxed": {"seed": 4, "codec": "float16", "store": "lmdb"},
    # The weights of the first one, cut off earlier.
    "short": {"seed": 0, "max_length": 5},
}
READ_ONLY = {"short", "coded"}
"""Teachers whose shards today's builds cut otherwise: rows were once carried over from another contract, and
codebooks learnt from the first rows of a corpus."""
PROJECTED, PROJECTION_OF = "half", "exact"
WORDS_COLUMNS = {"text_column": "text", "id_column": "id", "label_column": "label"}
PAIR_COLUMNS = {"text_column": "first", "text2_column": "second"}
VIEWS, EMBEDDED = ["crop", "delete-words", "column:other"], ["crop"]
REAL = {
    **PAIR_COLUMNS,
    "compute_dtype": "float32",
    "codec": "float32",
    "threads": 1,
}


def load_benchmark(name: str) -> ModuleType:
    """Import a script of ``benchmarks``."""
    spec = importlib.util.spec_from_file_location(name, benchmark(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def benchmark(name: str) -> Path:
    """Return the path of a script of ``benchmarks``."""
    return Path(__file__).parents[2] / "benchmarks" / f"{name}.py"


def golden() -> dict[str, Any]:
    """Return what was recorded of the golden caches."""
    found: dict[str, Any] = json.loads((GOLDEN / "golden.json").read_text("utf-8"))
    return found


def build_fake(cache: Path) -> list[Cache]:
    """Build the golden cache of fake teachers, or build it again; return the result of each build."""
    done = []
    for name, settings in TEACHERS.items():
        kept = {key: value for key, value in settings.items() if key in ("codec", "store")}
        made = {key: value for key, value in settings.items() if key not in kept}
        teacher = fake_teacher(DIMENSION, name=name, **made)
        views = {"views": VIEWS, "embed": EMBEDDED} if name == "halves" else {}
        done += [
            build(
                SOURCES / "words.jsonl",
                cache,
                teacher,
                shard_rows=SHARD_ROWS,
                **WORDS_COLUMNS,
                **views,
                **kept,
            ),
            build(SOURCES / "lines.txt", cache, teacher, **kept),
        ]
        if name == "halves":
            done.append(build(SOURCES / "pairs.tsv", cache, teacher, **PAIR_COLUMNS, **kept))
    project(cache)
    return done


def project(cache: Path) -> None:
    """Add the teacher whose vectors are a projection of another's."""
    opened = Cache(cache)
    matrix = (np.arange(4 * DIMENSION).reshape(4, DIMENSION) % 5 - 2).astype(np.float32)
    teacher = write_derived(opened, opened.teacher(PROJECTION_OF), PROJECTED, matrix, "for the gate")
    extend(opened, teacher, opened.corpus("words"))


def build_real(cache: Path) -> list[Cache]:
    """Build the golden cache of the small real model, or build it again; return the result of each build."""
    outputs: list[dict[str, Any]] = [{"token_embeddings": True}, {"output": "logits"}]
    return [build(SOURCES / "pairs.tsv", cache, MODEL, **REAL, **output) for output in outputs]


def copied(name: str, folder: Path) -> Path:
    """Copy a golden cache into ``folder`` and return where it lies."""
    return Path(shutil.copytree(GOLDEN / name, folder / name))


def recorded_vectors(teacher: str) -> NDArray[np.float32]:
    """Return the recorded vectors of a teacher's texts, float32 of shape (rows, d)."""
    found: NDArray[np.float32] = np.load(VECTORS / f"{teacher}.npy")
    return found
