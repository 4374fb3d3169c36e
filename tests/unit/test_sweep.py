"""Sweeps: what they train, skip, resume, rank and refuse."""

from __future__ import annotations

import csv
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS

from distill.cli.main import cli
from distill.config.models import RunConfig
from distill.config.sources import make_config
from distill.errors import ConfigError, TrainingError
from distill.record import RunRecord, TrainResult
from distill.sweep import run as runner
from distill.sweep.plan import PlannedRun, plan_runs
from distill.sweep.run import Outcome, SweepProgress, leaderboard, look, run_sweep
from distill.sweep.spec import Sweep, read_sweep

pytest_plugins = ["distill_fixtures"]

BASE: dict[str, Any] = {
    "student": {"spec": "layers:1"},
    "training": {"epochs": 1, "batch_size": 32, "mixed_precision": "no", "device": "cpu", "threads": 1},
    "evaluation": {"held_out": HELD_OUT},
}


def sweep_of(cache: Path, *vary: str, base: dict[str, Any] | None = None, **options: Any) -> Sweep:
    return read_sweep(vary=vary, settings={**BASE, "cache": str(cache), **(base or {})}, **options)


def file_of(folder: Path, text: str) -> Path:
    (folder / "sweep.yaml").write_text(text)
    return folder / "sweep.yaml"


def csv_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_values_are_yaml_and_keys_may_be_short():
    (block,) = read_sweep(
        vary=["loss=l2,ckd", "lr=3e-4,1e-3", "training.views=[a, b],[a, c]", "loss.tau=null,0.05"]
    ).blocks
    assert block == {
        "loss.name": ["l2", "ckd"],
        "optimizer.lr": [3e-4, 1e-3],
        "training.views": [["a", "b"], ["a", "c"]],
        "loss.tau": [None, 0.05],
    }


def test_a_students_spec_with_commas_is_one_value_in_quotes_and_refused_without():
    sweep = read_sweep(vary=['student="compact:e=128,layers=3",layers:3,runs/a=b/best'])
    assert sweep.blocks[0]["student.spec"] == ["compact:e=128,layers=3", "layers:3", "runs/a=b/best"]
    for text in ("student=compact:e=128,layers=3", "student.spec=layers:0,2,5"):
        with pytest.raises(ConfigError, match="--student"):
            read_sweep(vary=[text])


def test_blocks_keep_settings_with_the_losses_that_have_them(tmp_path):
    file = file_of(
        tmp_path,
        "base: {student: {spec: x, head: tanh}}\n"
        "vary:\n"
        "- {loss.name: [l2, mse], seed: [0, 1]}\n"
        "- {loss.name: [congen], loss.tau: [0.05, 0.07], seed: [0]}\n"
        "best_of: [loss.tau]\nmore_seeds: [1]\n",
    )
    sweep = read_sweep(file)
    found = [tuple(one.values()) for one in sweep.combinations()]
    assert found == [("l2", 0), ("l2", 1), ("mse", 0), ("mse", 1), ("congen", 0.05, 0), ("congen", 0.07, 0)]
    assert (sweep.keys, sweep.best_of, sweep.more_seeds) == (["loss.name", "loss.tau"], ("loss.tau",), (1,))
    # What is typed wins over the file.
    typed = read_sweep(
        file, ["seed=3,4"], {"cache": "c", "training": {"epochs": 2}}, students=["a", "b"], more_seeds=[7]
    )
    first = next(iter(typed.combinations()))
    assert first == {"loss.name": "l2", "seed": 3, "student.spec": "a"}
    assert typed.settings(first) == {
        "student": {"spec": "a", "head": "tanh"},
        "loss": {"name": "l2"},
        "seed": 3,
        "cache": "c",
        "training": {"epochs": 2},
    }
    assert typed.more_seeds == (7,)


def test_a_recipe_lies_below_everything():
    sweep = read_sweep(vary=["loss=l2,congen"], settings={"cache": "c"}, recipe="congen/bert-mini")
    first, second = (make_config(RunConfig, sweep.settings(one)) for one in sweep.combinations())
    assert (first.loss.settings, second.loss.settings["tau"]) == ({}, 0.07)
    assert first.optimizer.lr == second.optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("vary: {queu: [1]}", "queu"),
        ("vary: {cache: [a, b]}", "place"),
        ("vary: {seed: []}", "values"),
        ("vary: []", "vary"),
        ("vary: {seed: 3}", "vary.0.seed"),
        ("vary: {seed: [1]}\nbase: {seed: 2}", "for all runs"),
        ("vary: {seed: [1]}\nbest_of: [loss.tau]", "loss.tau"),
        ("vary: {seed: [1]}\nmore_seeds: [2]", "--best-of"),
        ("vary: {seed: [1]}\nvaried: 3", "varied"),
        ("vary: {seed: [1]}\nrecipe: congen/none", "congen/none"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(tmp_path, text, noun):
    with pytest.raises(ConfigError, match=noun):
        read_sweep(file_of(tmp_path, text))


@pytest.mark.parametrize("vary", [["seed"], ["=1"], ["seed="], ["seed=[1"], []])
def test_vary_texts_that_cannot_be_read_are_refused(vary):
    with pytest.raises(ConfigError):
        read_sweep(vary=vary)


def test_the_name_of_a_run_is_what_it_depends_on(built_cache, tmp_path, teacher_folder):
    def names(**base: Any) -> list[str]:
        return [
            run.name
            for run in plan_runs(sweep_of(built_cache, "loss=l2,mse", "seed=0,1", base=base), tmp_path)
        ]

    first = names()
    assert len(set(first)) == 4
    assert [name.rpartition("-")[0] for name in first][:2] == ["layers_1-l2-seed0", "layers_1-l2-seed1"]
    assert names(training={**BASE["training"], "threads": 2}) == first
    assert names(out="elsewhere", tracking={"log_every": 3}) == first
    for other in ({"optimizer": {"lr": 1e-3}}, {"training": {**BASE["training"], "max_steps": 3}}):
        assert not set(names(**other)) & set(first)
    # A student is its weights, wherever its folder lies.
    folder = shutil.copytree(teacher_folder, tmp_path / "a" / "student")
    named = names(student={"spec": str(folder)})
    moved = shutil.copytree(folder, tmp_path / "b" / "student")
    (moved / "README.md").write_text("a card is no weight")
    assert names(student={"spec": str(moved)}) == named
    (moved / "added.bin").write_bytes(b"other weights")
    assert not set(names(student={"spec": str(moved)})) & set(named)


def test_a_run_that_two_blocks_ask_for_is_run_once(built_cache, tmp_path):
    file = file_of(tmp_path, "vary:\n- {loss.name: [l2, mse]}\n- {loss.name: [l2], optimizer.lr: [7.0e-4]}\n")
    runs = plan_runs(read_sweep(file, settings={**BASE, "cache": str(built_cache)}), tmp_path)
    assert [(run.config.loss.name, run.steps) for run in runs] == [("l2", 5), ("mse", 5)]


def test_a_learned_temperature_is_told_from_a_loss_without_one(built_cache, tmp_path):
    file = file_of(
        tmp_path,
        "vary:\n- {loss.name: [l2]}\n- {loss.name: [ckd], loss.tau: [null, 0.05], loss.queue: [64]}\n",
    )
    runs = plan_runs(read_sweep(file, settings={**BASE, "cache": str(built_cache)}), tmp_path)
    assert [run.varied["loss.tau"] for run in runs] == ["-", "learned", "0.05"]


@pytest.mark.parametrize(
    ("base", "noun"),
    [
        ({"loss": {"tau": 0.05}}, "loss.tau"),
        ({"optimizer": {"warmup": 5000}}, "optimizer.warmup"),
        ({"student": {"spec": "layers:9"}}, "layers"),
        ({"student": {"spec": "no-such-folder/no-such-student"}}, "no-such-student"),
        ({"training": {**BASE["training"], "device": "cuda:77"}}, "training.device"),
        ({"evaluation": {"held_out": 0, "patience": 3}}, "evaluation.patience"),
        ({"evaluation": {"data": "gone.tsv"}}, "gone.tsv"),
    ],
)
def test_what_a_run_would_fail_of_is_told_before_the_first(built_cache, tmp_path, base, noun):
    with pytest.raises(ConfigError, match=noun) as caught:
        run_sweep(sweep_of(built_cache, "loss=l2,mse", base=base), tmp_path / "out")
    assert " of 2 runs)" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_launcher_and_an_unknown_suite_are_refused_before_the_first(built_cache, tmp_path, monkeypatch):
    with pytest.raises(Exception, match="glue"):
        run_sweep(sweep_of(built_cache, "seed=0,1"), tmp_path / "out", suite="glue")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="expected one"):
        run_sweep(sweep_of(built_cache, "seed=0,1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def swept(built_cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, run_sweep(sweep_of(built_cache, "loss=l2,mse", "seed=0,1"), out)


def test_every_run_is_trained_and_the_best_mean_comes_first(swept):
    out, result = swept
    assert [outcome.status for outcome in result.outcomes] == ["finished"] * 4
    by_loss: dict[str, list[float]] = {}
    for outcome in result.outcomes:
        record = json.loads((outcome.run.folder / "run.json").read_text())
        by_loss.setdefault(record["loss"], []).append(100 * record["result"]["best_score"])
    ranked = sorted(by_loss, key=lambda loss: -statistics.fmean(by_loss[loss]))
    assert [row.varied["loss.name"] for row in result.rows] == ranked
    for row, line in zip(result.rows, csv_of(out / "leaderboard.csv"), strict=True):
        scores = by_loss[row.varied["loss.name"]]
        assert (row.dev.mean, row.dev.std) == pytest.approx(
            (statistics.fmean(scores), statistics.stdev(scores))
        )
        assert (line["loss.name"], line["runs"]) == (row.varied["loss.name"], "2")
        assert float(line["dev_std"]) == pytest.approx(row.dev.std, abs=1e-4)
    assert [line["seed"] for line in csv_of(out / "runs.csv")] == ["0", "1", "0", "1"]


def test_the_same_sweep_again_trains_nothing_and_one_that_grows_only_what_is_new(
    swept, built_cache, monkeypatch
):
    out, before = swept
    trained: list[str] = []
    monkeypatch.setattr(runner, "_train", lambda run, **_: trained.append(run.config.loss.name))
    words = [
        "sweep",
        "--cache",
        str(built_cache),
        "--out",
        str(out),
        "--vary",
        "loss=l2,mse",
        "--vary",
        "seed=0,1",
    ]
    words += [
        f"--set={group}.{key}={value}"
        for group, keys in BASE.items()
        for key, value in keys.items()
        if value != "no"
    ]
    words.append("--set=training.mixed_precision='no'")
    shown = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "nothing to do" in shown.stderr
    assert trained == []
    grown = run_sweep(sweep_of(built_cache, "seed=0,1", "loss=l2,mse,cosine"), out)
    assert trained == ["cosine", "cosine"]
    assert {one.run.name for one in before.outcomes} < {one.run.name for one in grown.outcomes}


def interrupted(sweep: Sweep, out: Path, step: int = 3) -> PlannedRun:
    """Interrupt the first run of a sweep, and return it."""

    def stop(progress: SweepProgress) -> None:
        if progress.train.phase == "train" and progress.train.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, out, on_progress=stop)
    run = plan_runs(sweep, out)[0]
    assert look(run).status == "interrupted"
    return run


def test_an_interrupted_run_is_resumed_to_the_same_weights(built_cache, tmp_path):
    recipe = "distilcse/bert-base-kd"
    sweep = sweep_of(built_cache, "loss=mse", "training.checkpoint_every=1", recipe=recipe)
    interrupted(sweep, tmp_path / "a")
    seen = []
    result = run_sweep(sweep, tmp_path / "a", on_progress=lambda progress: seen.append(progress.train))
    assert min(train.step for train in seen if train.phase == "train") > 2
    whole = run_sweep(sweep, tmp_path / "b")
    weights = [one.outcomes[0].run.folder / "best" / "model.safetensors" for one in (result, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert result.outcomes[0].record.recipe == recipe


def test_a_run_whose_checkpoint_is_damaged_is_trained_again_and_says_so(built_cache, tmp_path):
    sweep = sweep_of(built_cache, "loss=l2", "training.checkpoint_every=1")
    run = interrupted(sweep, tmp_path)
    (run.folder / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    (outcome,) = run_sweep(sweep, tmp_path).outcomes
    assert outcome.status == "finished"
    assert "checkpoint" in outcome.note


def test_a_run_that_fails_is_listed_and_the_others_go_on(built_cache, tmp_path, monkeypatch):
    train = runner._train

    def fail(run: PlannedRun, **options: Any) -> str | None:
        if run.config.loss.name == "l2":
            raise TrainingError("the loss became nan")
        return train(run, **options)

    words = ["sweep", "--cache", str(built_cache), "--vary", "loss=l2,mse", "--out", str(tmp_path)]
    words += ["--student", "layers:1", "--set", "training.epochs=1", "--threads", "1", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_train", fail)
        done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, TrainingError)
    assert done.exception.exit_code == 1
    assert "the loss became nan" in done.stdout
    found = {line["loss.name"]: (line["status"], line["error"]) for line in csv_of(tmp_path / "runs.csv")}
    assert found == {"l2": ("failed", "the loss became nan"), "mse": ("finished", "")}
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0


def test_a_dry_run_shows_the_runs_and_trains_none(built_cache, tmp_path):
    words = [
        "sweep",
        "--cache",
        str(built_cache),
        "--vary",
        "loss=l2,mse",
        "--out",
        str(tmp_path / "out"),
        "--dry-run",
    ]
    words += ["--student", "layers:1", "--set", "training.epochs=2", "--set", "evaluation.held_out=30"]
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)
    assert [(one["loss.name"], one["status"], one["steps"]) for one in found] == [
        ("l2", "open", 4),
        ("mse", "open", 4),
    ]
    assert "8 steps" in CliRunner().invoke(cli, words, catch_exceptions=False).stdout
    assert not (tmp_path / "out").exists()


def test_finished_students_are_evaluated_beside_their_teacher(swept, built_cache, tmp_path):
    rows = [f"a\t{number % 5}\t{TEXTS[number]}\t{TEXTS[number + 7]}" for number in range(40)]
    (tmp_path / "stsb_test.tsv").write_text(
        "subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n", encoding="utf-8"
    )
    result = run_sweep(sweep_of(built_cache, "loss=l2,mse", "seed=0,1"), swept[0], suite="sts", data=tmp_path)
    assert result.trained == 0
    assert all(
        outcome.retention and (outcome.run.folder / "eval-sts.json").is_file() for outcome in result.outcomes
    )
    for row in result.rows:
        figures = [one.suite for one in result.outcomes if one.run.varied == row.varied]
        assert (row.suite.mean, row.suite.n) == (pytest.approx(statistics.fmean(figures)), 2)


def outcome_of(dev: float | None, **varied: Any) -> Outcome:
    seed = varied.pop("seed", 0)
    config = make_config(RunConfig, {"cache": "c", "seed": seed})
    shown = {key.replace("_", "."): str(value) for key, value in varied.items()}
    run = PlannedRun(Path(f"x{seed}"), config, shown, shown, str(shown), 1, 1)
    if dev is None:
        return Outcome(run, "open")
    result = TrainResult(
        steps=1, total_steps=1, best_step=1, best_score=dev / 100, final_loss=0, seconds=1, rows_per_second=1
    )
    return Outcome(run, "finished", RunRecord.model_construct(result=result, parameters=1))


def test_the_best_of_a_key_is_chosen_by_the_mean_development_score():
    sweep = read_sweep(vary=["loss=a,b", "loss.tau=1,2", "seed=0,1"], best_of=["loss.tau"])
    scores = {
        ("a", 1, 0): 70,
        ("a", 1, 1): 60,
        ("a", 2, 0): 66,
        ("a", 2, 1): 67,
        ("b", 1, 0): 50,
        ("b", 2, 0): None,
    }
    outcomes = [
        outcome_of(dev, loss_name=loss, loss_tau=tau, seed=seed) for (loss, tau, seed), dev in scores.items()
    ]
    rows = leaderboard(sweep, outcomes, outcomes)
    assert [(*row.varied.values(), row.finished, row.chosen) for row in rows] == [
        ("a", "2", 2, True),
        ("a", "1", 2, False),
        ("b", "1", 1, True),
        ("b", "2", 0, False),
    ]
    assert (rows[0].dev.mean, rows[2].dev.std) == (pytest.approx(66.5), None)
    # The choice is not made again when further seeds of it are run.
    later = [*outcomes, outcome_of(0, loss_name="a", loss_tau=2, seed=5)]
    assert {str(row.varied) for row in leaderboard(sweep, later, outcomes) if row.chosen} == {
        str(row.varied) for row in rows if row.chosen
    }


def test_more_seeds_are_run_with_the_chosen_only(built_cache, tmp_path):
    sweep = sweep_of(built_cache, "lr=1e-3,1e-5", "seed=0", best_of=["lr"], more_seeds=[1])
    result = run_sweep(sweep, tmp_path)
    assert sorted((row.chosen, row.finished) for row in result.rows) == [(False, 1), (True, 2)]
    assert run_sweep(sweep, tmp_path).trained == 0


SWEEPS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_of_the_papers_can_be_run(file):
    # SimTDE's tables are of students; all others are run with any student.
    own = file.stem.startswith("simtde")
    sweep = read_sweep(file, settings={"cache": "c"}, students=[] if own else ["a", "b"])
    configs = [
        make_config(RunConfig, sweep.settings(varied)).resolved(1_000_000) for varied in sweep.combinations()
    ]
    students = {config.student.spec for config in configs}
    assert len(students) >= 2 if own else students == {"a", "b"}
    assert len({config.to_yaml() for config in configs}) == len(configs) >= 4
    # Nothing in it is a path of one machine.
    assert "/" not in str(sweep.base) + str(sweep.blocks)
