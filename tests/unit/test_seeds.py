"""Models that differ by their seed alone: which are one group, and what is said over them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from evaluation_helpers import letters_model, write_rows
from rich.console import Console

from distill.evaluation import model as model_module
from distill.evaluation.old_init import EvaluatedModel, evaluate, evaluate_suites
from distill.evaluation.old_table import render
from distill.evaluation.result import EvaluationResult
from distill.evaluation.seeds import group_names
from distill.evaluation.setting import read_setting

PAIRS = (
    "a | 5.0 | a red apple | a red apple!",
    "a | 3.0 | a red apple | a green pear",
    "a | 0.0 | zzz qqq | a green pear",
    "a | 4.5 | a dog runs | a dog ran",
    "a | 1.0 | a dog runs | the sky",
    "a | 2.5 | men sing | men shout",
)


def run_of(folder: Path, seed: int, *, loss: str = "mse") -> Path:
    (folder / "best").mkdir(parents=True)
    (folder / "best" / "model.safetensors").write_bytes(folder.name.encode())
    record = {"teacher": {"name": "big", "spec": "org/big"}, "corpus": {"name": "c", "digest": "d"}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    config = {"loss": {"name": loss}, "seed": seed, "out": str(folder), "training": {"threads": seed}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for stem in ("stsb_test", "sts12_test"):
        write_rows(folder, stem, "subset | score | sentence1 | sentence2", *PAIRS)
    return folder


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    def load(folder: object, name: str | None, *_: object) -> EvaluatedModel:
        who = name or str(folder).rpartition("/")[2]
        plain = letters_model(who)
        noise = 0.0 if who == "big" else 1.0 + sum(map(ord, who)) % 7

        def encode(texts: list[str]) -> np.ndarray:
            drawn = np.random.default_rng(sum(map(ord, who))).standard_normal((len(texts), 26))
            return plain.encode(texts) + 0.3 * noise * drawn

        return EvaluatedModel(who, 1000, 4.0, 26, encode)

    monkeypatch.setattr(model_module, "_load_torch", load)


def shown(result: EvaluationResult, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render([result]))
    return console.file.getvalue()


def test_runs_that_differ_in_the_seed_alone_have_mean_and_deviation_of_every_figure(tmp_path, data):
    seeds = [run_of(tmp_path / f"mse-seed{seed}", seed) for seed in range(3)]
    other = run_of(tmp_path / "ckd-seed0", 0, loss="ckd")
    result = evaluate([*seeds, other], data=data, bootstrap=20)
    (spread,) = result.over_seeds
    assert spread.models == ("mse-seed0", "mse-seed1", "mse-seed2")
    assert spread.seeds == (0, 1, 2)
    of_seeds = [result[name] for name in spread.models]
    for name in ("sts12", "stsb"):
        figures = [report.scores.sets[name].value for report in of_seeds]
        assert spread.sets[name].mean == pytest.approx(np.mean(figures))
        assert spread.sets[name].std == pytest.approx(np.std(figures, ddof=1))
        assert spread.sets[name].std > 0
    facts = result.to_json()["over_seeds"]
    assert isinstance(facts, list)
    assert facts[0]["average"]["mean"] == pytest.approx(
        np.mean([report.scores.headline for report in of_seeds]), abs=1e-4
    )
    assert facts[0]["retention"]["std"] == pytest.approx(
        np.std([report.retention for report in of_seeds], ddof=1), abs=1e-4
    )
    assert facts[0]["average"]["n"] == 3
    text = shown(result)
    # One line in the table of sets, and one in that of models, each below the models' lines.
    assert text.count("mse: mean ±") == 2
    assert text.index("mse: mean ±") > text.index("ckd-seed0")
    assert f"{spread.sets['stsb'].mean:.2f}" in text
    assert str(spread.retention) in text


def test_the_teacher_and_single_runs_have_none(tmp_path, data):
    runs = [run_of(tmp_path / "a-seed0", 0), run_of(tmp_path / "b-seed1", 1, loss="ckd")]
    result = evaluate([*runs, letters_model("plain"), letters_model("plain")], data=data, bootstrap=0)
    assert result.over_seeds == ()
    assert result.to_json()["over_seeds"] == []
    assert "mean ±" not in shown(result)


def test_a_seed_counts_once(tmp_path, data):
    first, second = run_of(tmp_path / "one" / "x", 0), run_of(tmp_path / "two" / "x", 0)
    result = evaluate([first, second], data=data, bootstrap=0)
    assert result.over_seeds == ()
    assert any("of the same settings and seed as x" in note for note in result.notes)
    third = run_of(tmp_path / "y", 1)
    (spread,) = evaluate([first, second, third, first / "best"], data=data, bootstrap=0).over_seeds
    assert spread.seeds == (0, 1)
    assert spread.sets["stsb"].n == 2


def test_groups_have_a_name_that_tells_them_apart(tmp_path, data):
    runs = [
        run_of(tmp_path / loss / f"seed{seed}", seed, loss=loss) for loss in ("mse", "ckd") for seed in (0, 1)
    ]
    assert [one.name for one in evaluate(runs, data=data, bootstrap=0).over_seeds] == ["mse", "ckd"]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ([["x/mse-seed0", "x/mse-seed1"]], ["mse"]),
        ([["x/seed0/mse", "x/seed1/mse"]], ["mse"]),
        ([["x/mse/seed0", "x/mse/seed1"], ["x/ckd/seed_0", "x/ckd/seed_1"]], ["mse", "ckd"]),
        ([["x/a/seed0", "x/b/seed1"]], ["a/seed0"]),
        ([["x/r0", "x/r1"]], ["r0"]),
        ([["x/a/mse-seed0"], ["x/b/mse-seed0"], ["x/l2"]], ["a/mse-seed0", "b/mse-seed0", "l2"]),
        # One folder more than the other two ends of their paths have in common.
        ([["x/a/mse/seed0"], ["x/b/mse/seed0"]], ["a/mse/seed0", "b/mse/seed0"]),
    ],
)
def test_names_of_groups(groups, names):
    assert group_names([[Path(folder) for folder in group] for group in groups]) == names


def test_a_fine_tuning_has_the_seeds_of_both_its_stages(tmp_path):
    first = [run_of(tmp_path / f"first-seed{seed}", seed) for seed in (0, 1)]

    def second(name: str, seed: int, **start: object) -> Path:
        folder = run_of(tmp_path / name, seed, loss="infonce")
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**record, "kind": "finetune", "start": start}))
        return folder

    # Older records name the folder alone.
    old = [read_setting(second(f"old{n}", 0, run=str(first[n]), contract_id=str(n))) for n in (0, 1)]
    before = read_setting(first[1])
    new = read_setting(second("new", 0, run="/gone", contract_id="1", **before.to_json()))
    assert [setting.seeds for setting in old] == [(0, 0), (1, 0)]
    assert [setting.seed for setting in old] == [0, "1+0"]
    assert new == old[1]
    assert old[0].digest == old[1].digest
    gone = read_setting(second("gone", 0, run="/gone", contract_id="1"))
    assert gone.seeds == (0,)
    assert gone.digest != new.digest
    other = read_setting(run_of(tmp_path / "other", 0, loss="ckd"))
    assert read_setting(second("else", 0, run="/gone", **other.to_json())).digest != new.digest


@pytest.mark.parametrize(
    ("stream", "order", "is_same"),
    [
        ({"mirror": "/there"}, None, True),
        ({"limit": None, "require_signature": None}, None, True),
        # Everything fitted into the limit, so the order was that of a run without one.
        ({"limit": 10**9}, None, True),
        ({"limit": 10**9}, "digest", False),
        ({"require_signature": "key.pub"}, None, False),
    ],
)
def test_how_vectors_came_tells_runs_apart_only_where_it_changes_the_student(
    tmp_path, stream, order, is_same
):
    plain, streamed = run_of(tmp_path / "plain", 0), run_of(tmp_path / "streamed", 0)
    record = json.loads((streamed / "run.json").read_text())
    (streamed / "run.json").write_text(json.dumps({**record, "order": order}))
    config = yaml.safe_load((streamed / "config.yaml").read_text())
    (streamed / "config.yaml").write_text(yaml.safe_dump({**config, "stream": stream}))
    assert (read_setting(plain).digest == read_setting(streamed).digest) is is_same


def test_runs_without_a_readable_configuration_are_no_group(tmp_path, data):
    runs = [run_of(tmp_path / f"r{seed}", seed) for seed in range(2)]
    (runs[1] / "config.yaml").write_text("seed: [", encoding="utf-8")
    assert evaluate(runs, data=data, bootstrap=0).over_seeds == ()


def test_what_is_kept_gives_the_same_spread(tmp_path, data):
    runs = [run_of(tmp_path / f"r-seed{seed}", seed) for seed in range(2)]
    new = evaluate(runs, data=data, bootstrap=0, keep=True)
    old = evaluate(runs, data=data, bootstrap=0, keep=True)
    assert any("--again" in note for note in old.notes)
    assert new.over_seeds == old.over_seeds != ()


def test_suites_without_sets_have_the_spread_of_their_figures(tmp_path, data):
    runs = [run_of(tmp_path / f"r-seed{seed}", seed) for seed in range(2)]
    _, geometry = evaluate_suites(runs, suites=["sts", "geometry"], data=data, bootstrap=0)
    (spread,) = geometry.over_seeds
    assert set(spread.figures) == {"alignment", "uniformity", "anisotropy", "effective rank"}
    figures = [report.scores.uniformity for report in geometry.models if report.role != "teacher"]
    assert spread.figures["uniformity"].mean == pytest.approx(np.mean(figures))
    assert spread.retention is None
    assert "figures" in spread.to_json()
    assert "average" not in spread.to_json()
    assert spread.figures["uniformity"].text(".4f") in shown(geometry)


def test_many_sets_have_a_row_each(tmp_path, data, monkeypatch):
    monkeypatch.setattr("distill.evaluation.old_table._MOST_COLUMNS", 1)
    runs = [run_of(tmp_path / f"r-seed{seed}", seed) for seed in range(2)]
    result = evaluate(runs, data=data, bootstrap=20)
    (spread,) = result.over_seeds
    assert str(spread.sets["stsb"]) in shown(result)


def test_a_narrow_terminal_has_a_row_for_each_set(tmp_path, data, monkeypatch):
    monkeypatch.setattr("distill.evaluation.old_table._LEAST_WIDTH", 40)
    runs = [run_of(tmp_path / f"r-seed{seed}", seed) for seed in range(2)]
    result = evaluate(runs, data=data, bootstrap=20)
    wide, narrow = (shown(result, width).partition("sts: models")[0] for width in (160, 80))
    in_one_line = [
        any("STS12" in line and "STS-B" in line for line in text.splitlines()) for text in (wide, narrow)
    ]
    assert in_one_line == [True, False]
    # One row for each of teacher, two runs, and their mean.
    assert narrow.count("STS-B") == 4
    # There is no room for the intervals of further measures.
    assert wide.count("pearson") == 6
    assert narrow.count("pearson") == 1
