"""``embedcache`` run in this process, as its console script runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from embedcache.cli.main import main


class Outcome(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON that it printed."""
        return json.loads(self.out)


Shell = Callable[..., Outcome]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that runs the command with some words."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["embedcache", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Outcome(int(stop.value.code or 0), *capsys.readouterr())

    return run
