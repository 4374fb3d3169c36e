"""What a command says while it works: rates and time left, on a terminal at once, in a log now and then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embedcache.build_report import BuildProgress
from embedcache.check.progress import CheckProgress
from embedcache.cli import progress as progress_module
from embedcache.cli.build import build_progress
from embedcache.cli.progress import build_line, check_line, progress_line, ticker, watched
from embedcache.cli.tables import bars, print_table, size
from embedcache.sizes import counted


class Clock:
    """Stands for the time module; moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_a_line_tells_rate_and_time_left() -> None:
    assert progress_line("copy", 1000, 10, 4000) == "copy 1,000/4,000 rows, 100 rows/s, 0:00:30 left"
    assert progress_line("copy", 1000, 10) == "copy 1,000 rows, 100 rows/s"
    assert progress_line("copy", 0, 0, 5, "shards") == "copy 0/5 shards"
    assert progress_line("copy", 0, 1, 5, "shards") == "copy 0/5 shards, 0 shards/s"
    assert progress_line("read", 3000, 1e-6) == "read 3,000 rows"
    assert progress_line("student", 1000, 10, 4000, "") == "student 1,000/4,000, 100/s, 0:00:30 left"


def test_no_time_left_is_shown_where_the_rate_does_not_tell_it() -> None:
    waiting = CheckProgress("send", total_files=14, total_bytes=63_600, seconds=10.0)
    assert check_line(waiting) == "send 0/14, 0 B of 63.6 kB, 0 B/s"
    assert check_line(replace(waiting, bytes=600)) == "send 0/14, 600 B of 63.6 kB, 60 B/s, 1,050 s left"
    assert progress_line("copy", 1, 1000, 10**9) == "copy 1/1,000,000,000 rows, 0 rows/s"


def test_one_is_no_plural() -> None:
    assert [counted(n, "row") for n in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ticker() as show:
        for second in range(100):
            clock.now = 1000.0 + second
            show(f"second {second}")
    assert capsys.readouterr().err.splitlines() == ["second 30", "second 60", "second 90"]


def test_each_step_has_a_rate_of_its_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with watched("shards") as on_step:
        on_step("read", 0, 100)
        clock.now += 40
        on_step("read", 80, 100)
        on_step("write", 0, 100)
        clock.now += 40
        on_step("write", 40, 100)
    assert capsys.readouterr().err.splitlines() == [
        "read 80/100 shards, 2 shards/s, 0:00:10 left",
        "write 40/100 shards, 1 shards/s, 0:01:00 left",
    ]


def test_a_build_is_described_by_phase(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    busy = {"read": 1.0, "tokenise": 1.0, "encode": 7.0, "write": 1.0}
    encode = BuildProgress("encode", 100, 400, 5000, 10.0, busy)
    assert build_line(encode) == (
        "encode 100/400 rows, 10 rows/s, 0:00:30 left, 500 tokens/s, "
        "read 10% tokenise 10% encode 70% write 10%"
    )
    assert build_line(BuildProgress("read", 50, 0, 0, 10.0)) == "read 50 rows, 5 rows/s"
    carried = BuildProgress("carry over", 50, 100, 0, 10.0)
    assert build_line(carried) == "carry over 50/100 rows, 5 rows/s, 0:00:10 left"
    with build_progress() as on_progress:
        clock.now += 31
        on_progress(carried)
    assert capsys.readouterr().err.splitlines() == [build_line(carried)]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (5e9, "5.0 GB"),
        (7.2e15, "7,200.0 TB"),
    ],
)
def test_sizes_are_in_powers_of_ten(count: float, shown: str) -> None:
    assert size(count) == shown


def test_a_narrow_table_breaks_what_is_long_before_digests_and_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("manifest", "when", "files", "size", "signed by", "message")
    row = (
        "dee1bf511351",
        "2026-11-23T15:03:20Z",
        "6",
        "443.0 kB",
        "SHA256:" + "x" * 43,
        "a long message " * 4,
    )

    def shown(width: int) -> str:
        monkeypatch.setattr("embedcache.cli.tables.WIDTH_WITHOUT_TERMINAL", width)
        print_table(columns, [row])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= width
        # Nothing is cut off, however narrow it is.
        cells = zip(*(line.split("│")[1:-1] for line in out.splitlines() if "│" in line), strict=True)
        assert ["".join("".join(cell).split()) for cell in cells] == ["".join(one.split()) for one in row]
        return out

    assert all(one in shown(100) for one in (*row[:4], "signed by"))
    assert all(one in shown(80) for one in (row[0], "6", "443.0 kB", "signed by"))
    shown(50)


def test_the_longest_bar_is_of_the_largest_count() -> None:
    table = bars("title", [("a", 10), ("b", 5), ("c", 0)])
    labels, drawn, counts = (list(column.cells) for column in table.columns)
    assert [len(bar) for bar in drawn] == [40, 20, 0]
    assert (labels, counts) == (["a", "b", "c"], ["10", "5", "0"])
    assert bars("nothing", [("a", 0)]).row_count == 1
    assert bars("none", []).row_count == 0
