"""The benchmark of ReAugKD does not go on with a projection of another width than it is asked for."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from embedcache.cache import Cache
from embedcache.projection import write_derived
from embedcache.testing import example_contract

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "reaugkd.py"
WIDTH, NARROW = 12, 5


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_reaugkd", FILE)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("width", "dim", "told"),
    [
        (NARROW, NARROW, None),
        (WIDTH, None, None),
        (WIDTH, WIDTH, None),
        (NARROW, None, "is 5 wide, without --dim it would be 12, the teacher's: give another --out"),
        (WIDTH, NARROW, "is 12 wide, --dim 5: give another --out"),
        (NARROW, 6, "is 5 wide, --dim 6: give another --out"),
    ],
)
def test_a_projection_of_another_width_ends_it(benchmark, tmp_path, monkeypatch, width, dim, told):
    cache = Cache.create(tmp_path / "cache")
    teacher = cache.register_teacher(benchmark.TEACHER, example_contract(WIDTH), {})
    write_derived(cache, teacher, benchmark.PROJECTED, np.eye(WIDTH, dtype=np.float32)[:width], "by hand")
    monkeypatch.setattr(benchmark, "command", lambda *words: pytest.fail(f"nothing is to be done: {words}"))
    task = benchmark.Task(tmp_path / "task.tsv", tmp_path, False, Namespace(dim=dim))
    if told is None:
        benchmark.build(task, tmp_path / "teacher", cache.folder)
    else:
        with pytest.raises(SystemExit, match=told):
            benchmark.build(task, tmp_path / "teacher", cache.folder)
