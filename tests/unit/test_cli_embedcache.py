"""What info, ls and teachers print."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from embedcache.cli.main import cli, main
from embedcache.teacher.aliases import ALIASES
from embedcache.testing import sentences

TEXTS = sentences(20)
COMMANDS = sorted(cli.commands)


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


class Shell:
    """Runs ``embedcache`` in this process, as its console script would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *self.capsys.readouterr())


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS, "", TEXTS[0]]))
    # A file written just now may change again unseen, and is not trusted to be the same later.
    an_hour_ago = path.stat().st_mtime - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    return path


def assert_one_line(outcome: Outcome, code: int, *parts: str) -> None:
    assert outcome.code == code
    assert outcome.out == ""
    assert re.match(r"embedcache( [a-z]+)?: ", outcome.err)
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    for part in parts:
        assert part in outcome.err


def test_teachers_lists_the_aliases(shell: Shell) -> None:
    found = json.loads(shell("teachers", "--json").out)
    assert set(found) == set(ALIASES)
    assert {
        "minilm-l6",
        "simcse-roberta-large",
        "unsup-simcse-roberta-large",
        "simcse-bert-base",
        "unsup-simcse-bert-base",
        "mpnet-base",
        "bge-small",
        "e5-small",
    } <= set(found)
    assert set(found["e5-small"]) >= {"model_id", "dimension", "pooling", "licence", "prompt"}
    table = shell("teachers").out
    for name, alias in ALIASES.items():
        assert name in table
        assert alias.model_id in table
