"""A build with nothing to do and a look-up take no longer than promised, and memory does not grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gate_helpers import benchmark, load_benchmark

SCRIPT = benchmark("scale")
ROWS = 40_000


def test_nothing_to_do_and_lookup(tmp_path: Path) -> None:
    scale = load_benchmark("scale")
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
