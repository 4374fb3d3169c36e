"""The tutorial as it is committed: executed in order, without traces of the machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"
TEXT = NOTEBOOK.read_text(encoding="utf-8")
CELLS = json.loads(TEXT)["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_tutorial_is_committed_executed_with_its_figure():
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert not [one for one in outputs if one["output_type"] == "error" or one.get("name") == "stderr"]
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 1


def test_the_tutorial_has_no_traces_of_the_machine():
    assert not re.search(r"(?<![\w.])/(?:home|root|Users|mnt|tmp|work|var)/", TEXT)
    assert all(set(cell["metadata"]) <= {"tags"} for cell in CELLS)
    assert len(NOTEBOOK.read_bytes()) < 200_000


def test_the_tutorial_explains_each_noun_once():
    prose = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    nouns = ["cache", "corpus", "teacher", "store", "student", "run"]
    assert sorted(re.findall(r"\*\*(\w+)\*\*", prose)) == sorted(nouns)
    for target in re.findall(r"\]\(([^)#:]+)", prose):
        assert (NOTEBOOK.parent / target).exists(), target
