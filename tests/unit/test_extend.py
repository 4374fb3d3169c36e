"""The page on extensions: its files are written, and its commands run on a tiny cache."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from distill_helpers import HELD_OUT

from distill.cli.main import cli

pytest_plugins = ["distill_fixtures"]

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
SMALL = f"--device cpu --threads 1 --epochs 1 --batch-size 32 --held-out {HELD_OUT} --mixed-precision no"


@pytest.fixture
def place(built_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files and a tiny cache, as the current directory."""
    for kind, text in BLOCKS:
        first, rest = text.split("\n", 1)
        if kind in ("python", "text"):
            path = tmp_path / first.removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(rest, encoding="utf-8")
    (tmp_path / "cache").symlink_to(built_cache)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def do(command: str) -> str:
    words = shlex.split(command)
    assert words[0] == "distill"
    done = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def command_of(word: str) -> str:
    (found,) = [command for command in COMMANDS if word in command]
    return found


def test_a_loss_outside_the_package_trains_with_its_settings(place: Path) -> None:
    from distill.losses.registry import get_loss

    do(f"{command_of('huber.py')} {SMALL}")
    assert "delta: 0.5" in (place / "runs" / "huber" / "config.yaml").read_text(encoding="utf-8")
    assert (get_loss("views.py:TwoViews").views, get_loss("huber.py:Huber").views) == (2, 1)


def test_a_student_kind_outside_the_package_is_trained_and_noted(place: Path) -> None:
    do(f"{command_of('ends.py')} {SMALL}")
    record = json.loads((place / "runs" / "ends" / "run.json").read_text(encoding="utf-8"))
    assert "layers [0, 2, 3] of 4" in record["notes"]
    config = json.loads((place / "runs" / "ends" / "best" / "config.json").read_text(encoding="utf-8"))
    assert config["num_hidden_layers"] == 3


def test_a_task_outside_the_package_scores_a_model(place: Path) -> None:
    from distill.evaluation.task import get_suite

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([[text.count("cat"), text.count("old"), 1] for text in texts], np.float32)

    result = get_suite("triplets.py:triplets").run(encode, place / "data", None)
    assert result.figures["triplets"].value == 100
