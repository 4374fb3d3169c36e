"""docs/scale.md: the commands that need no cluster, and its figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from building import write_lines

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, get_codec, pq
from embedcache.testing import sentences

pytestmark = pytest.mark.integration
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
TEXTS = sentences(120, seed=11)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The command runs this source, also in actors.
    (tmp_path / "bin").mkdir()
    command = f'#!/bin/sh\nexec "{sys.executable}" -m embedcache "$@"\n'
    (tmp_path / "bin" / "embedcache").write_text(command)
    (tmp_path / "bin" / "embedcache").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    write_lines(tmp_path / "sentences.txt", TEXTS)


def run(script: str, **environment: str) -> None:
    small = script.replace("/64", "/2").replace("s3://team/teachers", "./remote")
    subprocess.run(["/bin/bash", "-ec", small], check=True, env={**os.environ, **environment})


def is_whole(cache: str) -> bool:
    opened = Cache(cache)
    return bool(opened.lookup(TEXTS).shape == (len(TEXTS), 384))


def test_one_machine_parts_and_slurm() -> None:
    one, parts, slurm, _ = blocks("bash")
    run(one)
    run(parts)
    for number in "12":
        run(slurm, SLURM_ARRAY_TASK_ID=number)
    assert all(map(is_whole, ("cache", "pair", "shared", "slurm")))


@pytest.mark.slow
def test_kubernetes_and_skypilot() -> None:
    job, task = (yaml.safe_load(block) for block in blocks("yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["completions"] == 64
    for number in "01":
        run(container["args"][0], JOB_COMPLETION_INDEX=number)
    for number in "12":
        run(f"rm -rf own; {task['run']}", PART=number, REMOTE="./remote")
    run("embedcache pull ./remote --cache pulled")
    assert is_whole("kubernetes")
    assert is_whole("pulled")


@pytest.mark.skipif(sys.platform != "linux", reason="a cluster of this machine alone")
def test_ray() -> None:
    pytest.importorskip("ray")
    run(blocks("bash")[3])
    assert is_whole("ray")


def test_bytes_a_row_are_those_of_the_codecs() -> None:
    table = re.findall(r"^\| (384|768|1,024) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(table) == 3

    def width(codec: str, dimension: int) -> Any:
        return pq.stored_width(dimension) if codec == pq.NAME else get_codec(codec).bytes_per_row(dimension)

    for dimension, row in table:
        counts = [width(codec, int(dimension.replace(",", ""))) + 16 + 4 + 1 / 8 for codec in CODEC_NAMES]
        assert row.replace(",", "").split(" | ") == [f"{count:.0f}" for count in counts]
