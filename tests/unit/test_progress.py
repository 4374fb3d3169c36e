"""Progress of the Python interface: a line where somebody watches, and none in scripts and logs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import embedcache
from embedcache.progress import NO_PROGRESS, LineProgress, shown
from embedcache.testing import FakeEncoder, fake_teacher


class Stream(io.StringIO):
    """Standard error of a terminal, or of something else."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


Cell = type("OutStream", (Stream,), {"__module__": "ipykernel.iostream"})


def built(folder: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch, **options: object) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    teacher = FakeEncoder(fake_teacher(16))
    embedcache.build(["a text", "another"], teacher=teacher, cache=folder / "k", **options)
    return stream.getvalue()


def test_a_build_from_python_shows_a_line_on_a_terminal_and_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for number, stream in enumerate((Stream(True), Cell(False))):
        line = ("rows", "load teacher")[number]  # the last on the terminal, the first in a cell
        assert line in built(tmp_path / str(number), stream, monkeypatch)
        assert (
            built(tmp_path / f"quiet{number}", type(stream)(stream.terminal), monkeypatch, progress=False)
            == ""
        )
    assert built(tmp_path / "log", Stream(False), monkeypatch) == ""


def test_a_progress_that_is_given_is_the_one_used() -> None:
    given = LineProgress(lambda line: None)
    for progress, expected in ((given, given), (False, NO_PROGRESS), (None, NO_PROGRESS)):
        with shown(progress) as found:
            assert found is expected


def test_a_line_in_a_notebook_is_written_over_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(False)
    monkeypatch.setattr("sys.stderr", cell)
    monkeypatch.setattr("embedcache.progress._NOTEBOOK_SECONDS", 0.0)
    with shown(None) as progress:
        progress.phase("encode", 3)
        progress.advance(2)
        progress.advance(1)
    lines = cell.getvalue().split("\r")
    assert "encode 2/3 rows" in lines[1]
    assert "encode 3/3 rows" in lines[2]
    assert lines[-1] == ""
    assert not lines[-2].strip()
