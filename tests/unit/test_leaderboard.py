"""Kept evaluations side by side: what is one row, what is averaged, and what is left out and told of."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from distill.cli.main import cli
from distill.digests import model_digest
from distill.errors import DataError
from distill.evaluation.kept import Noted, new_kept, place_of, write_kept
from distill.evaluation.leaderboard import make_board
from distill.evaluation.leaderboard_table import render, to_csv
from distill.evaluation.result import ModelReport
from distill.evaluation.scores import SetScore, SetScores
from distill.evaluation.setting import read_setting


def report(figures: dict[str, float], retention: float | None, **facts: Any) -> ModelReport:
    sets = {name: SetScore(name.upper(), "spearman", value, 10) for name, value in figures.items()}
    return ModelReport("m", "model", 1_000_000, 4.0, 16, None, SetScores(sets, 7), retention, facts)


def run_of(
    folder: Path,
    seed: int,
    figures: dict[str, float],
    *,
    sentences: str = "s",
    suite: str = "sts",
    **options: Any,
) -> Path:
    (folder / "best").mkdir(parents=True)
    (folder / "best" / "model.safetensors").write_bytes(folder.name.encode())
    settings = {"loss": {"name": options.get("loss", "mse")}, "training": {"threads": seed, "epochs": 1}}
    config = {**settings, "seed": seed, "out": str(folder), "evaluation": {"data": f"{seed}/dev.tsv"}}
    record = {
        "version": 1,
        "corpus": {"name": "c", "digest": "d"},
        "teachers": [{"contract_id": "t"}],
        "dev": {"name": "dev.tsv", "sha256": "x"},
        "start": options.get("start"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps(record))
    asked = options.get("settings", "{}")
    keep(folder, suite, figures, sentences, options.get("retention"), asked, **options.get("facts", {}))
    return folder


def keep(
    folder: Path,
    suite: str,
    figures: dict[str, float],
    sentences: str,
    retention: float | None,
    settings: str = "{}",
    **facts: Any,
) -> None:
    one = report(figures, retention, **facts)
    digest = {"student": str(model_digest(str(folder))), "sentences": sentences, "settings": settings}
    write_kept(folder, new_kept(suite, digest, None, {"models": [one.to_json()]}, Noted(one), None))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run_of(tmp_path / "sweep" / "runs" / "mse-seed0", 0, {"stsb": 80.0, "sickr": 70.0}, retention=95.0)
    run_of(tmp_path / "sweep" / "runs" / "mse-seed1", 1, {"stsb": 82.0, "sickr": 70.0}, retention=96.0)
    run_of(tmp_path / "ckd-seed0", 0, {"stsb": 84.0, "sickr": 74.0}, loss="ckd")
    return tmp_path


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs):
    board = make_board([runs])
    assert [row.name for row in board.rows] == ["ckd", "mse"]
    best, second = board.rows
    assert second.seeds == (0, 1)
    column = second.suites["sts"]
    assert (column.score.mean, column.score.n) == (75.5, 2)
    assert column.score.std == pytest.approx(0.5**0.5)
    assert column.sets["stsb"].mean == 81.0
    assert column.sets["sickr"].std == 0.0
    assert column.retention is not None
    assert column.retention.mean == 95.5
    # A single run has no spread.
    assert best.suites["sts"].score.std is None
    assert best.suites["sts"].retention is None
    assert (second.parameters, second.megabytes) == (1_000_000, 4.0)
    assert board.notes == ()


def test_a_kept_evaluation_that_cannot_be_read_is_named(runs):
    place_of(runs / "ckd-seed0", "sts").write_text("{}", encoding="utf-8")
    board = make_board([runs])
    assert [row.name for row in board.rows] == ["mse"]
    assert any("ckd-seed0: eval-sts.json cannot be read" in note for note in board.notes)


def test_a_copy_of_a_run_does_not_make_the_spread_small(runs):
    run_of(runs / "copy-seed1", 1, {"stsb": 82.0, "sickr": 70.0})
    board = make_board([runs])
    assert sum(len(row.runs) for row in board.rows) == 3
    assert any("of the same settings and seed" in note for note in board.notes)


def test_what_was_evaluated_on_other_sentences_is_named_and_not_ranked(runs):
    run_of(runs / "odd", 0, {"stsb": 99.0}, loss="rkd", sentences="other")
    board = make_board([runs])
    assert [row.name for row in board.rows] == ["ckd", "mse"]
    assert any("than most: odd" in note for note in board.notes)


def test_what_was_timed_on_another_machine_is_named_and_not_ranked(tmp_path):
    for name, machine in (("one", "[2]"), ("two", "[2]"), ("quick", "[64]")):
        run_of(tmp_path / name, 0, {"stsb": 80.0}, loss=name, settings=machine)
    board = make_board([tmp_path])
    assert [row.name for row in board.rows] == ["one", "two"]
    assert any("than most: quick" in note for note in board.notes)


def test_an_evaluation_of_weights_that_have_changed_is_left_out(runs):
    (runs / "ckd-seed0" / "best" / "model.safetensors").write_bytes(b"trained on")
    board = make_board([runs])
    assert [row.name for row in board.rows] == ["mse"]
    assert any("ckd-seed0" in note and "has changed" in note for note in board.notes)


def test_second_stages_of_seeds_of_one_first_stage_are_one_row(runs):
    first = runs / "sweep" / "runs"
    for seed in (0, 1):
        start = {"run": str(first / f"mse-seed{seed}"), "contract_id": f"weights {seed}"}
        run_of(runs / f"stage2-seed{seed}", seed, {"stsb": 85.0 + seed}, loss="infonce", start=start)
    other = {"run": str(runs / "ckd-seed0"), "contract_id": "others"}
    run_of(runs / "stage2-ckd", 2, {"stsb": 60.0}, loss="infonce", start=other)
    board = make_board([runs])
    by_name = {row.name: row for row in board.rows}
    assert by_name["stage2"].seeds == (0, 1)
    # Its first stage had another seed.
    assert by_name["stage2-ckd"].seeds == ("0+2",)


def test_second_stages_of_one_seed_after_first_stages_of_two_are_two_seeds(runs):
    first = runs / "sweep" / "runs"
    for seed in (0, 1):
        start = {"run": str(first / f"mse-seed{seed}"), "contract_id": f"weights {seed}"}
        run_of(runs / "infonce" / f"of-seed{seed}", 0, {"stsb": 85.0 + seed}, loss="infonce", start=start)
    board = make_board([runs])
    row = next(row for row in board.rows if "of" in row.name)
    assert row.seeds == (0, "1+0")
    assert (row.suites["sts"].score.mean, row.suites["sts"].score.n) == (85.5, 2)
    assert board.notes == ()
    # The same where the records say what the first stages were, and their folders are gone.
    for seed in (0, 1):
        place = runs / "infonce" / f"of-seed{seed}" / "run.json"
        record = json.loads(place.read_text())
        setting = read_setting(first / f"mse-seed{seed}")
        assert setting is not None
        record["start"] = {**record["start"], "run": "/gone", **setting.to_json()}
        place.write_text(json.dumps(record))
    assert next(row for row in make_board([runs]).rows if "of" in row.name) == row


def test_of_two_runs_of_a_seed_each_suite_takes_the_first_that_it_has(runs):
    board = make_board([runs])
    copy = run_of(runs / "copy-seed1", 1, {"stsb": 82.0, "sickr": 70.0})
    keep(copy, "transfer", {"mr": 70.0}, "s", None)
    # Sorted before its like, and evaluated on other sentences.
    odd = run_of(runs / "a-seed0", 0, {"stsb": 99.0}, loss="ckd", sentences="other")
    found = make_board([runs])
    mse = next(row for row in found.rows if copy in row.runs)
    assert any("transfer is of 1 of its 2 seeds" in note for note in found.notes)
    assert mse.suites["transfer"].score.mean == 70.0
    assert mse.suites["sts"].score.n == 2
    ckd = next(row for row in found.rows if runs / "ckd-seed0" in row.runs)
    assert odd not in ckd.runs
    assert ckd.suites["sts"] == board.rows[0].suites["sts"]


def test_runs_called_by_their_seed_alone_have_the_name_of_their_folder(tmp_path):
    for loss in ("mse", "ckd"):
        for seed in (0, 1):
            run_of(tmp_path / loss / f"seed{seed}", seed, {"stsb": 80.0 + seed}, loss=loss)
    assert {row.name for row in make_board([tmp_path]).rows} == {"mse", "ckd"}


def test_suites_are_columns_and_may_be_chosen(runs):
    keep(runs / "ckd-seed0", "transfer", {"mr": 70.0}, "s", None)
    board = make_board([runs])
    assert board.suites == ("sts", "transfer")
    assert "transfer" not in board.rows[1].suites
    only = make_board([runs], ["transfer"])
    assert [row.name for row in only.rows] == ["ckd"]
    with pytest.raises(DataError, match="no evaluation by nli is kept"):
        make_board([runs], ["nli"])
    with pytest.raises(DataError, match="no folder"):
        make_board([runs / "nosuch"])


def test_rows_of_one_name_are_told_apart_by_folder(runs):
    run_of(runs / "a" / "mse", 0, {"stsb": 1.0}, loss="skd")
    run_of(runs / "b" / "mse", 0, {"stsb": 2.0}, loss="rkd")
    assert len({row.name for row in make_board([runs]).rows}) == 4


def test_sets_that_chose_a_checkpoint_are_in_the_board(runs):
    run_of(
        runs / "chosen",
        0,
        {"stsb": 90.0},
        loss="l2",
        facts={"selected_on": [{"set": "stsb", "pairs": 3, "of": 9}]},
    )
    board = make_board([runs])
    assert board.rows[0].suites["sts"].selected_on == ("stsb",)
    assert board.rows[1].suites["sts"].selected_on == ()
    assert board.notes == ("chosen: SELECTED ON TEST PAIRS of stsb (sts); such figures are too good",)


def test_a_few_test_pairs_among_those_that_chose_are_no_mark(runs):
    few = [{"set": "sts12", "pairs": 8, "of": 100}]
    run_of(runs / "usual", 0, {"stsb": 90.0}, loss="l2", facts={"selected_on": few})
    board = make_board([runs])
    assert board.rows[0].suites["sts"].selected_on == ()
    assert board.notes == ()


def test_table_csv_and_json_say_the_same(runs, tmp_path):
    keep(runs / "ckd-seed0", "transfer", {"mr": 70.0}, "s", None)
    csv_file, out = tmp_path / "board.csv", tmp_path / "board.json"
    command = ["leaderboard", str(runs), "--csv", str(csv_file), "--out", str(out)]
    result = CliRunner().invoke(cli, [*command, "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts == json.loads(out.read_text(encoding="utf-8"))
    mse = facts["rows"][1]
    assert mse["suites"]["sts"]["score"] == {"mean": 75.5, "std": 0.7071, "n": 2}
    lines = list(csv.DictReader(io.StringIO(csv_file.read_text(encoding="utf-8"))))
    assert [line["name"] for line in lines] == ["ckd", "mse"]
    assert lines[1]["sts mean"] == "75.5000"
    assert lines[1]["sts std"] == "0.7071"
    assert lines[1]["sts stsb mean"] == "81.0000"
    assert lines[1]["seeds"] == "0 1"
    assert lines[1]["transfer mean"] == ""
    assert lines[0]["sts std"] == ""
    board = make_board([runs])
    assert to_csv(board) == csv_file.read_text(encoding="utf-8")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(board))
    shown = console.export_text()
    assert "75.50 ± 0.71" in shown
    assert "95.50 ± 0.71" in shown
    assert "1.00 M" in shown
    plain = CliRunner().invoke(cli, ["leaderboard", str(runs), "--suite", "sts"])
    assert "75.50 ± 0.71" in plain.stdout
    assert "transfer" not in plain.stdout
