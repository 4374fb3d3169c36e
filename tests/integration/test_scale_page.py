"""docs/scale.md: the commands that need no cluster, and its figures."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from building import write_lines

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.codecs import CODEC_NAMES, get_codec, pq
from embedcache.testing import sentences

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
TEXTS = sentences(120, seed=11)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the sentences and the teacher of the page, which is a tiny one here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm-l6").symlink_to(tiny_teacher)
    write_lines(tmp_path / "sentences.txt", TEXTS)


def run(script: str, **variables: str) -> None:
    """Run the commands of a script in this process; there are two parts, and the remote is a folder."""
    script = script.replace("/64", "/2").replace("s3://team/teachers", "./remote")
    script = script.replace("--teacher minilm-l6", "--teacher ./minilm-l6")
    for name, value in variables.items():
        script = script.replace(name, value)
    for line in script.splitlines():
        if words := shlex.split(line, comments=True):
            assert words[0] == "embedcache"
            # Anything but a return, such as SystemExit for exit code 1, fails the test.
            cli.main(words[1:], "embedcache", standalone_mode=False)


def is_whole(cache: str) -> bool:
    opened = Cache(cache)
    return bool(opened.lookup(TEXTS).shape == (len(TEXTS), 16))


@pytest.mark.slow
def test_one_machine_parts_and_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.building.dry_run.PROBE_SECONDS", 0.01)
    one, parts, slurm, _ = blocks("bash")
    run(one)
    run(parts)
    for number in "12":
        run(slurm, **{"$SLURM_ARRAY_TASK_ID": number})
    assert all(map(is_whole, ("cache", "pair", "shared", "slurm")))
    # Two processes have the vectors of one.
    np.testing.assert_allclose(Cache("pair").lookup(TEXTS), Cache("cache").lookup(TEXTS), atol=1e-3)


def test_kubernetes_and_skypilot() -> None:
    job, task = (yaml.safe_load(block) for block in blocks("yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["completions"] == 64
    for number in "12":
        run(container["args"][0], **{"$((JOB_COMPLETION_INDEX + 1))": number})
    look, *commands = task["run"].splitlines()
    assert 'then from="--remote $REMOTE"' in look
    for number in "12":
        origin = "--remote ./remote" if number == "2" else ""
        own = {"$PART": number, "$from": origin, "$REMOTE": "./remote", "./own": f"./{number}"}
        run("\n".join(commands), **own)
    run("embedcache pull ./remote --cache pulled")
    assert is_whole("kubernetes")
    assert is_whole("pulled")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a cluster of this machine alone")
def test_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    # Actors run this source.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        run(blocks("bash")[3])
    finally:
        ray.shutdown()
    assert is_whole("ray")


def test_bytes_a_row_are_those_of_the_codecs() -> None:
    table = re.findall(r"^\| (384|768|1,024) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(table) == 3

    def width(codec: str, dimension: int) -> Any:
        return pq.stored_width(dimension) if codec == pq.NAME else get_codec(codec).bytes_per_row(dimension)

    for dimension, row in table:
        counts = [width(codec, int(dimension.replace(",", ""))) + 16 + 4 + 1 / 8 for codec in CODEC_NAMES]
        assert row.replace(",", "").split(" | ") == [f"{count:.0f}" for count in counts]
