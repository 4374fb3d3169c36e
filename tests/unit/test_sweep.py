"""Sweeps: runs that are trained, skipped, resumed, ranked and refused."""

from __future__ import annotations

import csv
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT
from suite_helpers import write_pairs

from distill import sweep as module
from distill.cli.main import cli
from distill.config.models import RunConfig
from distill.config.sources import make_config
from distill.config.sweep import Sweep, read_sweep
from distill.errors import ConfigError, DataError, TrainingError
from distill.record import read_record
from distill.sweep import SweepRun, choose, leaderboard, plan_runs, run_sweep

pytest_plugins = ["distill_fixtures"]

BASE: dict[str, Any] = {
    "student": {"spec": "layers:1"},
    "training": {"max_steps": 3, "batch_size": 32, "mixed_precision": "no", "device": "cpu", "threads": 1},
    "evaluation": {"held_out": HELD_OUT},
}


def sweep_of(cache: Path, *vary: str, base: dict[str, Any] | None = None, **options: Any) -> Sweep:
    return read_sweep(vary=vary, settings={**BASE, "cache": str(cache), **(base or {})}, **options)


def blocks_of(cache: Path, folder: Path, *blocks: dict[str, list[Any]]) -> Sweep:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump({"vary": list(blocks)}))
    return read_sweep(file, settings={**BASE, "cache": str(cache)})


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_values_are_yaml_and_keys_may_be_short():
    vary = ["loss=l2,ckd", "lr=3e-4,1e-3", "training.views=[a, b],[a, c]", "loss.tau=null,0.05"]
    (block,) = read_sweep(vary=[*vary, 'student="compact:e=128,layers=3",layers:3']).vary
    assert block == {
        "loss.name": ["l2", "ckd"],
        "optimizer.lr": [3e-4, 1e-3],
        "training.views": [["a", "b"], ["a", "c"]],
        "loss.tau": [None, 0.05],
        "student.spec": ["compact:e=128,layers=3", "layers:3"],
    }


def test_blocks_keep_settings_with_their_losses_what_is_typed_wins_and_a_recipe_lies_below(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "base: {student: {spec: x, head: tanh}}\n"
        "vary:\n"
        "- {loss.name: [l2, mse], seed: [0, 1]}\n"
        "- {loss.name: [congen], loss.tau: [0.05, 0.07], seed: [0]}\n"
        "best_of: [loss.tau]\nmore_seeds: [1]\n",
    )
    sweep = read_sweep(file)
    found = [tuple(one.values()) for one in sweep.combinations()]
    assert found == [("l2", 0), ("l2", 1), ("mse", 0), ("mse", 1), ("congen", 0.05, 0), ("congen", 0.07, 0)]
    assert (sweep.keys, sweep.best_of, sweep.more_seeds) == (["loss.name", "loss.tau"], ["loss.tau"], [1])
    settings = {"cache": "c", "training": {"epochs": 2}}
    typed = read_sweep(file, ["seed=3,4"], settings, students=["a", "b"], more_seeds=["7"])
    first = next(iter(typed.combinations()))
    assert typed.settings(first) == {
        "student": {"spec": "a", "head": "tanh"},
        "loss": {"name": "l2"},
        "seed": 3,
        **settings,
    }
    assert typed.more_seeds == [7]
    low = read_sweep(vary=["loss=l2,congen"], settings={"cache": "c"}, recipe="congen/bert-mini")
    first, second = (make_config(RunConfig, low.settings(one)) for one in low.combinations())
    assert (first.loss.settings, second.loss.settings["tau"]) == ({}, 0.07)
    assert first.optimizer.lr == second.optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("vary: {queu: [1]}", "queu"),
        ("vary: {cache: [a, b]}", "cache"),
        ("vary: {seed: []}", "seed"),
        ("vary: {seed: [1]}\nbase: {seed: 2}", "seed"),
        ("vary: {seed: [1]}\nbest_of: [loss.tau]", "loss.tau"),
        ("vary: {seed: [1]}\nvaried: 3", "varied"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(tmp_path, text, noun):
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(ConfigError, match=noun):
        read_sweep(tmp_path / "sweep.yaml")
    for vary in ("seed", "seed=", "seed=[1"):
        with pytest.raises(ConfigError, match="vary"):
            read_sweep(vary=[vary])


def test_the_name_of_a_run_follows_from_its_settings(built_cache, tmp_path, teacher_folder):
    def names(**base: Any) -> list[str]:
        return [run.name for run in plan_runs(sweep_of(built_cache, "seed=0,1", base=base), tmp_path)]

    first = names()
    assert [name.rpartition("-")[0] for name in first] == ["layers_1-mse-seed0", "layers_1-mse-seed1"]
    assert names(tracking={"log_every": 3}, training={**BASE["training"], "threads": 2}) == first
    assert not set(names(optimizer={"lr": 1e-3})) & set(first)
    # A student is its weights, wherever its folder lies.
    folder = shutil.copytree(teacher_folder, tmp_path / "a" / "student")
    named = names(student={"spec": str(folder)})
    moved = shutil.copytree(folder, tmp_path / "b" / "student")
    assert names(student={"spec": str(moved)}) == named
    (moved / "added.bin").write_bytes(b"other weights")
    assert not set(names(student={"spec": str(moved)})) & set(named)


def test_each_run_is_planned_once_with_the_settings_its_loss_takes(built_cache, tmp_path):
    blocks = (
        {"loss.name": ["l2", "mse"]},
        {"loss.name": ["l2"], "optimizer.lr": [7e-4]},
        {"loss.name": ["ckd"], "loss.tau": [None, 0.05], "loss.queue": [64]},
    )
    runs = plan_runs(blocks_of(built_cache, tmp_path, *blocks), tmp_path)
    found = [(run.config.loss.name, run.steps, run.varied["loss.tau"]) for run in runs]
    assert found == [("l2", 3, "-"), ("mse", 3, "-"), ("ckd", 3, "none"), ("ckd", 3, "0.05")]


def test_mistakes_in_runs_are_reported_before_the_first(built_cache, tmp_path, monkeypatch):
    problems: dict[str, dict[str, list[Any]]] = {
        "loss.tau": {"loss.tau": [0.05]},
        "optimizer.warmup": {"optimizer.warmup": [5000]},
        "no-such-student": {"student.spec": ["no-such-folder/no-such-student"]},
        "layers:9": {"student.spec": ["layers:9"]},
        "training.device": {"training.device": ["cuda:77"]},
        "gone.tsv": {"evaluation.data": ["gone.tsv"]},
    }
    sweep = Sweep(base={"cache": str(built_cache)}, vary=[{"loss.name": ["l2"]}, *problems.values()])
    with pytest.raises(ConfigError) as caught:
        run_sweep(sweep, tmp_path / "out")
    assert [noun for noun in problems if noun not in str(caught.value)] == []
    for suite, wanted in (("glue", "glue"), ("sts", "data=DIR")):
        with pytest.raises(DataError, match=wanted):
            run_sweep(sweep_of(built_cache, "seed=0,1"), tmp_path / "out", suite=suite)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="expected one"):
        run_sweep(sweep_of(built_cache, "seed=0,1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def swept(built_cache, tmp_path_factory):
    out, data = tmp_path_factory.mktemp("sweep"), tmp_path_factory.mktemp("data")
    write_pairs(data / "stsb_test.tsv")
    return out, run_sweep(sweep_of(built_cache, "loss=l2,mse", "seed=0,1"), out, suite="sts", data=data)


def test_every_run_is_trained_and_evaluated_and_the_best_mean_comes_first(swept):
    out, runs = swept
    assert [(run.status, run.trained) for run in runs] == [("finished", True)] * 4
    by_loss: dict[str, list[SweepRun]] = {}
    for run in runs:
        record = json.loads((run.folder / "run.json").read_text())
        assert run.scores["dev"] == 100 * record["result"]["best_score"]
        assert (run.folder / "eval-sts.json").is_file()
        by_loss.setdefault(record["loss"], []).append(run)
    board, written = leaderboard(runs), table(out / "leaderboard.csv")
    assert [line["dev"] for line in board] == sorted((line["dev"] for line in board), reverse=True)
    for line, row in zip(board, written, strict=True):
        assert (line["runs"], row["runs"], row["loss.name"]) == (2, "2", line["loss.name"])
        for name in ("dev", "suite", "retention"):
            scores = [run.scores[name] for run in by_loss[line["loss.name"]]]
            assert line[name] == pytest.approx(statistics.fmean(scores))
            assert line[f"{name}_std"] == pytest.approx(statistics.stdev(scores))
            assert float(row[f"{name}_std"]) == pytest.approx(line[f"{name}_std"], abs=1e-4)
    assert [line["seed"] for line in table(out / "runs.csv")] == ["0", "1", "0", "1"]


def words_of(cache: Path, out: Path, *more: str) -> list[str]:
    values = {"training.max_steps": 3, "training.batch_size": 32, "training.mixed_precision": "no"}
    values["evaluation.held_out"] = HELD_OUT
    words = [
        "sweep",
        "--cache",
        cache,
        "--out",
        out,
        "--student",
        "layers:1",
        "--threads",
        1,
        "--device",
        "cpu",
    ]
    return [*map(str, words), *(f"--set={key}={value}" for key, value in values.items()), *more]


@pytest.fixture
def trained(swept, monkeypatch) -> list[str]:
    """Losses of runs that were trained; a record scored by the learning rate stands for a training."""
    record = read_record(swept[1][0].folder)
    losses: list[str] = []

    def complete(config: RunConfig, *_: Any, **__: Any) -> None:
        losses.append(config.loss.name)
        result = record.result.model_copy(update={"best_score": config.optimizer.lr})
        Path(config.out).mkdir(parents=True)
        record.model_copy(update={"result": result}).write(Path(config.out))

    monkeypatch.setattr(module, "complete", complete)
    return losses


def test_a_sweep_that_grows_trains_only_the_new_runs(swept, built_cache, trained, tmp_path):
    out = shutil.copytree(swept[0], tmp_path / "sweep")
    words = words_of(built_cache, out, "--vary", "seed=0,1", "--vary", "loss=l2,mse", "--json")
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert [line["runs"] for line in json.loads(done.stdout)["leaderboard"]] == [2, 2]
    assert trained == []
    grown = run_sweep(sweep_of(built_cache, "seed=0,1", "loss=l2,mse,cosine"), out)
    assert trained == ["cosine", "cosine"]
    assert {run.name for run in swept[1]} < {run.name for run in grown}


def test_more_seeds_are_run_with_the_chosen_only(built_cache, tmp_path, trained):
    sweep = sweep_of(built_cache, "lr=1e-3,1e-5", "seed=0", best_of=["lr"], more_seeds=[1])
    board = leaderboard(run_sweep(sweep, tmp_path))
    found = [(line["optimizer.lr"], line["chosen"], line["runs"]) for line in board]
    assert found == [("0.001", True, 2), ("1e-05", False, 1)]
    assert not any(run.trained for run in run_sweep(sweep, tmp_path))
    assert len(trained) == 3


def test_a_run_that_fails_is_listed_and_the_others_go_on(built_cache, tmp_path, trained, monkeypatch):
    complete = module.complete

    def fail(config: RunConfig, *args: Any, **options: Any) -> Any:
        if config.loss.name == "l2":
            raise TrainingError("the loss became nan")
        return complete(config, *args, **options)

    words = words_of(built_cache, tmp_path, "--vary", "loss=l2,mse")
    with monkeypatch.context() as patch:
        patch.setattr(module, "complete", fail)
        done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, TrainingError)
    assert done.exception.exit_code == 1
    assert "the loss became nan" in done.stdout
    found = {line["loss.name"]: (line["status"], line["error"]) for line in table(tmp_path / "runs.csv")}
    assert found == {"l2": ("failed", "the loss became nan"), "mse": ("finished", "")}
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    assert trained == ["mse", "l2"]


def test_an_interrupted_run_is_resumed_or_trained_again_if_its_checkpoint_is_damaged(built_cache, tmp_path):
    recipe = "distilcse/bert-base-kd"
    sweep = sweep_of(built_cache, "training.checkpoint_every=1", recipe=recipe)

    def run(stop: int | None = None) -> tuple[list[int], list[str]]:
        steps, notes = [], []

        def on_progress(run: SweepRun, train: Any) -> None:
            if train.phase == "train":
                steps.append(train.step)
            notes.append(train.text)
            if train.phase == "train" and train.step == stop:
                raise KeyboardInterrupt

        (one,) = run_sweep(sweep, tmp_path, on_progress=on_progress)
        assert (one.status, one.record.recipe) == ("finished", recipe)
        return steps, [note for note in notes if note]

    with pytest.raises(KeyboardInterrupt):
        run(stop=2)
    (planned,) = plan_runs(sweep, tmp_path)
    assert planned.status == "interrupted"
    copy = shutil.copytree(planned.folder, tmp_path / "copy")
    assert min(run()[0]) > 1
    shutil.rmtree(planned.folder)
    (copy / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    copy.rename(planned.folder)
    steps, notes = run()
    assert steps[0] == 1
    assert any("checkpoint" in note for note in notes)


def test_a_dry_run_shows_the_runs_and_trains_none(built_cache, tmp_path):
    words = words_of(built_cache, tmp_path / "out", "--vary", "loss=l2,mse", "--dry-run")
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)
    shown = [(one["loss.name"], one["status"], one["steps"]) for one in found]
    assert shown == [("l2", "open", 3), ("mse", "open", 3)]
    assert "6 steps" in CliRunner().invoke(cli, words, catch_exceptions=False).stdout
    assert not (tmp_path / "out").exists()


def made_up(loss: str, tau: int, seed: int, dev: float | None) -> SweepRun:
    config = make_config(RunConfig, {"cache": "c", "seed": seed})
    varied = {"loss.name": loss, "loss.tau": str(tau)}
    run = SweepRun(Path(f"no/{seed}"), config, varied, varied, str(varied), 1)
    run.scores = {} if dev is None else {"dev": dev}
    return run


def test_the_best_of_a_key_is_chosen_by_the_mean_development_score():
    sweep = read_sweep(vary=["loss=a,b", "loss.tau=1,2", "seed=0,1"], best_of=["loss.tau"])
    scores = [
        ("a", 1, 0, 70),
        ("a", 1, 1, 60),
        ("a", 2, 0, 66),
        ("a", 2, 1, 67),
        ("b", 1, 0, 50),
        ("b", 2, 0, None),
    ]
    runs = [made_up(*one) for one in scores]
    choose(sweep, runs)
    board = [
        (line["loss.name"], line["loss.tau"], line["planned"], line["chosen"]) for line in leaderboard(runs)
    ]
    assert board == [("a", "2", 2, True), ("a", "1", 2, False), ("b", "1", 1, True), ("b", "2", 1, False)]


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


def test_the_command_takes_the_settings_that_run_takes(built_cache, tmp_path):
    words = ["sweep", "--cache", str(built_cache), "--student", "layers:1", "--vary", "seed=0,1"]
    more = ["--corpus", "none", "--teacher", "none", "--epochs", "2", "--lr", "1e-3", "--dry-run"]
    result = CliRunner().invoke(cli, [*words, *more, "--out", str(tmp_path / "s")])
    assert "no corpus 'none'" in str(result.exception)
