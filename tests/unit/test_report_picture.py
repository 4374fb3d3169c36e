"""The picture of retention over size and speed: what it draws, and that it stands by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from report_helpers import TEACHER_SETS, keep_latency, make_run

from distill.cli.main import cli
from distill.errors import DataError
from distill.report import collect_report
from distill.report.charts import fronts, picture
from distill.report.charts.fronts import Point
from distill.report.charts.picture import front_picture

STUDENTS = {"compact:e=64,layers=2": (5_560_000, 0.99), "static:dim=256": (7_910_000, 0.86)}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number, (student, (parameters, share)) in enumerate(STUDENTS.items()):
        sets = {name: figure * share for name, figure in TEACHER_SETS.items()}
        make_run(
            tmp_path / "runs" / f"r{number}", student=student, loss="mse", sets=sets, parameters=parameters
        )
    return tmp_path / "runs"


def picture_of(runs: Path) -> str:
    return front_picture(collect_report(runs, queries=0))


def written(svg: str) -> list[str]:
    """Return what the outlined letters of the picture say."""
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_model_is_in_the_key_with_its_size_and_retention(runs):
    said = written(picture_of(runs))
    for words in ("compact:e=64,layers=2", "5.56 M", "99.00 %", "static:dim=256", "7.91 M", "86.00 %"):
        assert words in said
    assert {"minilm-l6", "22.71 M", "teacher"} <= set(said)
    # In the panel and in the key.
    assert [said.count(letter) for letter in ("T", "A", "B")] == [2, 2, 2]


def test_speed_is_drawn_where_all_were_timed(runs):
    unit = "sentences a second, one at a time on a CPU (logarithmic)"
    keep_latency(runs / "r0", 10.0)
    assert unit not in written(picture_of(runs))
    keep_latency(runs / "r1", 1.0)
    said = written(picture_of(runs))
    assert unit in said
    assert said.count("A") == 3


def test_picture_and_page_place_the_same_letters_at_the_same_cost(runs, monkeypatch):
    # In batches they would stand in another order.
    keep_latency(runs / "r0", 10.0, in_batches=0.1)
    keep_latency(runs / "r1", 1.0, in_batches=0.9)
    drawn: list[dict[str, float]] = []

    def draw(axes: object, points: Sequence[Point], *, small: bool) -> None:
        drawn.append({point.key: point.cost for point in points})

    for module in (picture, fronts):
        monkeypatch.setattr(module, "draw_front", draw)
    picture_of(runs)
    fronts.front_charts(collect_report(runs, queries=0))
    sizes, speeds, *of_the_page = drawn
    assert [pytest.approx(sizes), pytest.approx(speeds)] == of_the_page
    assert speeds == {"T": 25.0, "A": 100.0, "B": 1000.0}


def test_it_stands_by_itself(runs):
    svg = picture_of(runs)
    ElementTree.fromstring(svg.encode())  # noqa: S314 - it was drawn here
    assert "var(" not in svg
    assert "<text" not in svg
    assert not re.search(r"href=\"(?!#)", svg)
    # Grey and black, and nothing of the page's placeholders.
    colours = set(re.findall(r"#[0-9a-f]{6}", svg))
    assert all(len({one[1:3], one[3:5], one[5:7]}) == 1 for one in colours)
    assert picture_of(runs) == svg


def test_students_without_a_teacher_are_not_drawn(tmp_path):
    for seed, share in enumerate((0.9, 0.8)):
        sets = {name: figure * share for name, figure in TEACHER_SETS.items()}
        make_run(tmp_path / str(seed), student=str(seed), sets=sets, teacher_sets=None)
    with pytest.raises(DataError, match="retention and size are known of 0 models"):
        picture_of(tmp_path)


def test_a_report_is_written_as_a_picture(runs, tmp_path):
    out = tmp_path / "front.svg"
    done = CliRunner().invoke(cli, ["report", str(runs), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    assert out.read_text(encoding="utf-8") == picture_of(runs)
