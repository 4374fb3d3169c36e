"""Students of a sweep beside their teacher: retention, size, speed, and the picture of them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS, build

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import evaluate, runner
from distill.evaluation.latency import LatencyTask
from distill.evaluation.stopwatch import Timing
from distill.sweep.runner import SweepResult, run_sweep
from distill.sweep.scores import SuiteChoice
from distill.sweep.spec import SweepSpec, make_spec
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]

BASE: dict[str, Any] = {
    "training": {"epochs": 1, "batch_size": 32, "mixed_precision": "no", "device": "cpu", "threads": 1},
    "evaluation": {"held_out": HELD_OUT},
}


def spec_of(cache: Path, *students: str, **base: Any) -> SweepSpec:
    return make_spec(vary=["loss=mse"], settings={**BASE, "cache": str(cache), **base}, students=students)


@pytest.fixture(scope="module")
def sts_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs that share the more words the higher their score; the cache holds one side."""
    folder = tmp_path_factory.mktemp("sts")
    rows = []
    for number in range(30):
        first, other = TEXTS[number].split(), TEXTS[number + 40].split()
        shared = number % 5 * len(first) // 4
        second = " ".join(["so", *first[:shared], *other[shared:]])
        rows.append(f"a\t{number % 5}\t{TEXTS[number]}\t{second}")
    lines = "subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n"
    (folder / "stsb_test.tsv").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def suite(sts_data: Path) -> SuiteChoice:
    return SuiteChoice("sts", sts_data)


@pytest.fixture(scope="module")
def cache(built_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that takes what is encoded for evaluations."""
    folder = tmp_path_factory.mktemp("front") / "cache"
    shutil.copytree(built_cache, folder)
    return folder


@pytest.fixture(scope="module")
def swept(
    cache: Path, suite: SuiteChoice, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, SweepResult]:
    out = tmp_path_factory.mktemp("sweep")
    return out, run_sweep(spec_of(cache, "layers:1", "layers:2"), out, suite=suite)


def kept_of(result: SweepResult, suite: str = "sts") -> list[dict[str, Any]]:
    return [
        json.loads((outcome.run.folder / f"eval-{suite}.json").read_text()) for outcome in result.outcomes
    ]


def test_students_stand_beside_the_teacher_that_the_cache_holds(swept, cache, sts_data):
    _, result = swept
    said = evaluate(f"cache:{cache}", suite="sts", data=sts_data)
    (report,) = said.models
    (teacher,) = result.teachers
    assert teacher.scores is not None
    assert teacher.scores["average"] == pytest.approx(report.to_json()["average"])
    assert (teacher.parameters, teacher.megabytes) == (report.parameters, report.megabytes)
    assert (teacher.name, teacher.retention, teacher.speed) == (report.name, 100.0, None)
    for row, kept in zip(
        sorted(result.rows, key=lambda row: row.parameters),
        sorted(kept_of(result), key=lambda kept: kept["result"]["models"][-1]["parameters"]),
        strict=True,
    ):
        whole, own = kept["result"]["models"]
        assert whole["role"] == "teacher"
        assert row.retention.mean == pytest.approx(100 * row.suite.mean / report.scores.headline, abs=1e-2)
        assert row.retention.mean == pytest.approx(own["retention"], abs=1e-2)
        assert (row.parameters, row.megabytes) == (own["parameters"], own["megabytes"])
    first, second = result.rows
    assert first.retention.mean != second.retention.mean
    assert first.parameters != second.parameters


def test_tables_have_size_and_retention(swept):
    out, result = swept
    with (out / "leaderboard.csv").open() as file:
        board = list(csv.DictReader(file))
    assert [float(line["retention_mean"]) for line in board] == pytest.approx(
        [row.retention.mean for row in result.rows], abs=1e-4
    )
    assert [int(line["parameters"]) for line in board] == [row.parameters for row in result.rows]
    with (out / "runs.csv").open() as file:
        runs = {line["run"]: line for line in csv.DictReader(file)}
    for outcome in result.outcomes:
        assert float(runs[outcome.run.name]["retention"]) == pytest.approx(
            outcome.measured.retention, abs=1e-4
        )
        assert runs[outcome.run.name]["sentences_per_second_32"] == ""


def test_a_sweep_that_grows_does_not_encode_the_teacher_again(swept, cache, suite, monkeypatch, tmp_path):
    out = tmp_path / "grown"
    shutil.copytree(swept[0], out)
    monkeypatch.setattr(runner, "teacher_subject", lambda *_, **__: pytest.fail("the teacher was encoded"))
    same = run_sweep(spec_of(cache, "layers:1", "layers:2"), out, suite=suite)
    assert (same.rows, same.teachers, same.worked_on) == (swept[1].rows, swept[1].teachers, 0)
    grown = run_sweep(spec_of(cache, "layers:1", "layers:2", "layers:3"), out, suite=suite)
    assert grown.worked_on == 1
    assert len([row for row in grown.rows if row.retention is not None]) == 3
    assert all(len(kept["result"]["models"]) == 2 for kept in kept_of(grown))


def test_speed_is_measured_when_asked_for_and_drawn(swept, cache, suite, sts_data, monkeypatch, tmp_path):
    out = tmp_path / "timed"
    shutil.copytree(swept[0], out)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(BASE), encoding="utf-8")
    words = ["sweep", "--cache", str(cache), "--vary", "loss=mse", "--out", str(out), "--config", str(config)]
    words += ["--student", "layers:1", "--student", "layers:2", "--suite", "sts", "--data", str(sts_data)]
    picture = tmp_path / "front.svg"
    shown = CliRunner().invoke(
        cli, [*words, "--speed", "--plot", str(picture), "--json"], catch_exceptions=False
    )
    found = json.loads(shown.stdout)
    (teacher,) = found["teachers"]
    speeds = [row["sentences_per_second"] for row in found["leaderboard"]] + [teacher["speed"]]
    assert all(one["single"] > 0 and one["batch"] > 0 for one in speeds)
    drawn = picture.read_text()
    assert "<!-- parameters, millions -->" in drawn
    assert "<!-- sentences a second, one at a time on a CPU -->" in drawn
    # A report draws the same, without the cache.
    again = tmp_path / "again.svg"
    CliRunner().invoke(cli, ["report", str(out), "--out", str(again)], catch_exceptions=False)
    # The names of clip paths hash the last bits of what the layout comes to, which are not always the same.
    named = re.compile(r"#?p[0-9a-f]{10}\b")
    assert named.sub("p", again.read_text()) == named.sub("p", drawn)
    # What was timed is shown, and nothing timed anew, until that is asked for.
    plain = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "nothing to do" in plain.stderr
    assert "sent./s" in plain.stdout
    assert "teacher tiny: sts" in plain.stdout
    timing = Timing([4.0] * 3, 1.0, 2.0, [2.0] * 3, 1.0)
    monkeypatch.setattr(LatencyTask, "_in_own_process", lambda *_: timing)
    anew = run_sweep(spec_of(cache, "layers:1", "layers:2"), out, suite=suite, time_on=sts_data)
    known = [row.speed for row in anew.rows] + [one.speed for one in anew.teachers]
    assert [(one.single, one.batch) for one in known] == [(15.0, 30.0)] * 3
    assert anew.worked_on == 2


def test_seeds_of_a_setting_are_timed_once(cache, sts_data, monkeypatch, tmp_path):
    timed: list[str] = []

    def time(task: LatencyTask, model: Any, *_: object) -> Timing:
        timed.append(model.name)
        return Timing([4.0], 1.0, 2.0, [2.0], 1.0)

    monkeypatch.setattr(LatencyTask, "_in_own_process", time)
    settings = {**BASE, "cache": str(cache), "student": {"spec": "layers:1"}}
    spec = make_spec(vary=["loss=mse", "seed=0,1"], settings=settings)
    result = run_sweep(spec, tmp_path, time_on=sts_data)
    assert timed == ["tiny", result.outcomes[0].run.name]
    (row,) = result.rows
    assert row.speed is not None
    assert row.retention is None


def test_sentences_to_time_on_are_looked_for_before_anything_is_trained(cache, tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match=r"no stsb_test\.tsv"):
        run_sweep(spec_of(cache, "layers:1"), tmp_path / "out", time_on=tmp_path / "data")
    assert not (tmp_path / "out").exists()


def test_a_teacher_that_is_gone_costs_the_retention_alone(suite, tmp_path):
    teacher = tiny_encoder(tmp_path / "gone", layers=2)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(corpus, teacher, tmp_path / "cache")
    spec = spec_of(tmp_path / "cache", "layers:1")
    run_sweep(spec, tmp_path / "out")
    teacher.rename(tmp_path / "elsewhere")
    result = run_sweep(spec, tmp_path / "out", suite=suite)
    (row,) = result.rows
    assert row.suite is not None
    assert row.retention is None
    (note,) = result.notes
    assert note.startswith("no retention: ")
    assert result.failed == []


def test_projected_targets_have_a_retention_of_their_own(cache, suite, tmp_path):
    result = run_sweep(spec_of(cache, "layers:1", target_dim=8), tmp_path, suite=suite)
    (row,) = result.rows
    (teacher,) = result.teachers
    assert row.retention.mean == pytest.approx(100 * row.suite.mean / teacher.scores["average"], abs=1e-2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--speed"], "give their folder by --data"),
        (["--plot", "front.svg"], "give --suite too"),
        (["--plot", "front.png", "--suite", "fidelity"], "name it FILE.svg"),
    ],
)
def test_what_cannot_be_measured_or_drawn_is_refused(cache, tmp_path, words, told):
    base = ["sweep", "--cache", str(cache), "--vary", "seed=0", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, [*base, *words])
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
