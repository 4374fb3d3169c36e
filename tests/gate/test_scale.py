"""A build with nothing to do and a look-up take no longer than promised, and memory does not grow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"
ROWS = 40_000


def load_benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_to_do_and_lookup(tmp_path: Path) -> None:
    scale = load_benchmark()
    setting = scale.Setting(str(tmp_path), ROWS, 8, "float16", "arrow", 128)
    scale.write_source(setting)
    assert scale.build(setting)["encoded"] == ROWS
    # The limits are those of 10 million rows; a busy machine may take some of the difference.
    assert scale.restart(setting)["seconds"] < scale.RESTART_LIMIT_S / 10
    assert scale.lookup(setting)["median ms"] < scale.LOOKUP_LIMIT_MS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_rows() -> None:
    command = [sys.executable, str(SCRIPT), "--rows", "10_000_000", "--small", "100_000", "--dimension", "32"]
    assert subprocess.run(command, check=False).returncode == 0
