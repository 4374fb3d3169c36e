from __future__ import annotations

import csv
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS
from sentence_transformers import SentenceTransformer

from distill.cli.main import cli
from distill.config.models import RunConfig
from distill.config.sources import load_config, make_config
from distill.errors import ConfigError, TrainingError
from distill.evaluation.spread import Score
from distill.layout import BEST
from distill.students import static
from distill.sweep import plan, runner
from distill.sweep.leaderboard import chosen_settings, leaderboard, write_tables
from distill.sweep.plan import PlannedRun, plan_runs, value_at
from distill.sweep.runner import Outcome, run_sweep
from distill.sweep.scores import SuiteChoice
from distill.sweep.spec import SweepSpec, make_spec, with_seeds
from embedcache.fsio import canonical_json

pytest_plugins = ["distill_fixtures"]

BASE: dict[str, Any] = {
    "student": {"spec": "layers:1"},
    "training": {"epochs": 1, "batch_size": 32, "mixed_precision": "no", "device": "cpu", "threads": 1},
    "evaluation": {"held_out": HELD_OUT},
}


def spec_of(cache: Path, *vary: str, **options: Any) -> SweepSpec:
    return make_spec(vary=vary, settings={**BASE, "cache": str(cache)}, **options)


def file_of(folder: Path, text: str) -> Path:
    (folder / "sweep.yaml").write_text(text)
    return folder / "sweep.yaml"


def test_values_are_yaml_and_keys_may_be_short():
    spec = make_spec(vary=["loss=l2,ckd", "lr=3e-4,1e-3", "training.views=[a, b],[a, c]", "tau=null,0.05"])
    (block,) = spec.blocks
    assert block == {
        "loss.name": ["l2", "ckd"],
        "optimizer.lr": [3e-4, 1e-3],
        "training.views": [["a", "b"], ["a", "c"]],
        "loss.tau": [None, 0.05],
    }
    assert len(list(spec.combinations())) == 16


def test_blocks_keep_settings_with_the_losses_that_have_them(tmp_path):
    file = file_of(
        tmp_path,
        "base: {student: {spec: x}}\n"
        "vary:\n"
        "- {loss.name: [l2, mse], seed: [0, 1]}\n"
        "- {loss.name: [congen], tau: [0.05, 0.07], seed: [0]}\n"
        "best_of: [tau]\nmore_seeds: [1]\n",
    )
    spec = make_spec(file)
    found = [tuple(one.values()) for one in spec.combinations()]
    assert found == [("l2", 0), ("l2", 1), ("mse", 0), ("mse", 1), ("congen", 0.05, 0), ("congen", 0.07, 0)]
    assert spec.keys == ["loss.name", "loss.tau", "seed"]
    assert (spec.best_of, spec.more_seeds) == (("loss.tau",), (1,))


def test_what_is_given_wins_over_the_file(tmp_path):
    file = file_of(tmp_path, "base: {student: {spec: x, head: tanh}, loss: {name: l2}}\nvary: {seed: [0]}\n")
    spec = make_spec(
        file, ["seed=3,4", "loss=mse"], {"cache": "c", "training": {"epochs": 2}}, students=["a", "b"]
    )
    assert next(iter(spec.combinations())) == {"seed": 3, "loss.name": "mse", "student.spec": "a"}
    assert spec.settings({"student.spec": "a"}) == {
        "student": {"spec": "a", "head": "tanh"},
        "loss": {},
        "cache": "c",
        "training": {"epochs": 2},
    }


def test_a_recipe_lies_below_everything():
    spec = make_spec(vary=["loss=l2,congen"], settings={"cache": "c"}, recipe="congen/bert-mini")
    first, second = (make_config(RunConfig, spec.settings(one)) for one in spec.combinations())
    assert (first.loss.settings.get("tau"), second.loss.settings["tau"]) == (None, 0.07)
    assert first.optimizer.lr == second.optimizer.lr == 3e-4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vary: {loss.nam: [l2]}", "loss.nam: unknown key, did you mean loss.name?"),
        ("vary: {los: [l2]}", "los: unknown key, did you mean loss?"),
        ("vary: {queu: [1]}", "queu: unknown key, did you mean queue?"),
        ("vary: {log_evry: [1]}", "log_evry: unknown key, did you mean tracking.log_every?"),
        ("vary: {cach: [a]}", "cach: unknown key"),
        ("vary: {cache: [a, b]}", "cache: names a place"),
        ("vary: {seed: []}", "seed: no values"),
        ("vary: []", "vary"),
        ("vary: {seed: 3}", "vary.0.seed"),
        ("vary: {seed: [1]}\nbase: {seed: 2}", "seed: is varied, and set"),
        ("vary: {seed: [1]}\nbest_of: [loss.tau]", "best_of: loss.tau is not varied"),
        ("vary: {seed: [1]}\nmore_seeds: [2]", "give --best-of KEY too"),
        ("vary: {seed: [1]}\nvaried: 3", "varied: unknown key"),
        ("vary: {seed: [1]}\nrecipe: congen/none", "no recipe 'congen/none'"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        make_spec(file_of(tmp_path, text))
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["seed", "=1", "seed=", "seed=[1"])
def test_vary_texts_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigError, match="--vary"):
        make_spec(vary=[text])


@pytest.mark.parametrize(
    "text",
    ["student.spec=compact:e=128,layers=3", "student=static:dim=8,vocab=90", "student.spec=layers:0,2,5"],
)
def test_a_students_spec_that_is_cut_at_its_commas_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"in double quotes, as in --vary .* or give each student by --student"
    ):
        make_spec(vary=[text])


def test_a_students_spec_in_quotes_is_one_value():
    spec = make_spec(vary=['student.spec="compact:e=128,layers=3",layers:3,runs/a=b/best,minilm-l3'])
    assert spec.blocks[0]["student.spec"] == [
        "compact:e=128,layers=3",
        "layers:3",
        "runs/a=b/best",
        "minilm-l3",
    ]


def test_nothing_varied_is_refused():
    with pytest.raises(ConfigError, match="nothing is varied"):
        make_spec()


def test_the_name_of_a_run_is_what_it_depends_on(built_cache, tmp_path):
    def names(**base: Any) -> list[str]:
        spec = make_spec(
            vary=["loss=l2,mse", "seed=0,1"],
            settings={**BASE, "cache": str(built_cache), **base},
        )
        return [run.name for run in plan_runs(spec, tmp_path)]

    first = names()
    assert len(set(first)) == 4
    assert [name.rpartition("-")[0] for name in first][:2] == ["layers_1-l2-seed0", "layers_1-l2-seed1"]
    assert names(training={**BASE["training"], "threads": 2}) == first
    assert names(out="elsewhere", tracking={"log_every": 3}) == first
    assert not set(names(optimizer={"lr": 1e-3})) & set(first)
    assert not set(names(training={**BASE["training"], "limit": 100})) & set(first)
    assert not set(names(training={**BASE["training"], "max_steps": 3})) & set(first)


def test_runs_from_before_there_was_max_steps_keep_their_names(built_cache, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(plan, "canonical_json", lambda facts: seen.append(facts) or canonical_json(facts))
    plan_runs(spec_of(built_cache, "seed=0"), tmp_path)
    named_by = [facts["training"] for facts in seen if "seed" in facts]
    assert named_by
    assert not any("max_steps" in training for training in named_by)


def test_a_run_that_two_blocks_ask_for_is_run_once(built_cache, tmp_path):
    file = file_of(tmp_path, "vary:\n- {loss.name: [l2, mse]}\n- {loss.name: [l2], optimizer.lr: [7.0e-4]}\n")
    spec = make_spec(file, settings={**BASE, "cache": str(built_cache)})
    runs = plan_runs(spec, tmp_path)
    assert [run.config.loss.name for run in runs] == ["l2", "mse"]
    assert runs[0].steps == 5
    assert value_at(runs[0].config, "training.epochs") == 1


def test_steps_may_be_varied(built_cache, tmp_path):
    """And a sweep knows how much work they are."""
    runs = plan_runs(spec_of(built_cache, "max_steps=2,3"), tmp_path)
    assert [(run.steps, run.work) for run in runs] == [(2, 64), (3, 96)]


def test_whatever_cannot_be_run_is_told_before_anything_is(built_cache, tmp_path):
    spec = spec_of(built_cache, "loss=l2,congen", "tau=0.05", "seed=0,1")
    with pytest.raises(ConfigError) as caught:
        run_sweep(spec, tmp_path / "out")
    message = str(caught.value)
    assert "loss.tau: the loss l2 takes no settings" in message
    assert "two views" in message
    assert "(2 of 4 runs)" in message
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def swept(built_cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, run_sweep(spec_of(built_cache, "loss=l2,mse", "seed=0,1"), out)


def test_every_run_is_trained_and_the_best_comes_first(swept):
    out, result = swept
    assert [outcome.status for outcome in result.outcomes] == ["finished"] * 4
    assert result.failed == []
    by_loss: dict[str, list[float]] = {}
    for outcome in result.outcomes:
        record = json.loads((outcome.run.folder / "run.json").read_text())
        by_loss.setdefault(record["loss"], []).append(100 * record["result"]["best_score"])
    means = {loss: statistics.fmean(scores) for loss, scores in by_loss.items()}
    assert [row.varied["loss.name"] for row in result.rows] == sorted(means, key=means.get, reverse=True)
    for row in result.rows:
        scores = by_loss[row.varied["loss.name"]]
        assert row.dev == Score(
            pytest.approx(statistics.fmean(scores)), pytest.approx(statistics.stdev(scores)), 2
        )
    with (out / "leaderboard.csv").open() as file:
        board = list(csv.DictReader(file))
    assert [(line["loss.name"], line["runs"]) for line in board] == [
        (row.varied["loss.name"], "2") for row in result.rows
    ]
    assert float(board[0]["dev_std"]) == pytest.approx(result.rows[0].dev.std, abs=1e-4)
    with (out / "runs.csv").open() as file:
        assert [line["seed"] for line in csv.DictReader(file)] == ["0", "1", "0", "1"]


def test_the_same_sweep_again_trains_nothing_and_says_so(swept, built_cache, tmp_path, monkeypatch):
    out, before = swept
    monkeypatch.setattr(runner, "_train", lambda *_, **__: pytest.fail("a run was trained again"))
    after = run_sweep(spec_of(built_cache, "loss=l2,mse", "seed=0,1"), out)
    assert after.rows == before.rows
    assert (before.worked_on, after.worked_on) == (4, 0)
    file = file_of(
        tmp_path, yaml.safe_dump({"base": BASE, "vary": {"loss.name": ["l2", "mse"], "seed": [0, 1]}})
    )
    words = ["sweep", str(file), "--cache", str(built_cache), "--out", str(out)]
    shown = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "4 runs, all finished before; nothing to do" in shown.stderr


def test_a_sweep_that_grows_keeps_what_it_has(swept, built_cache, monkeypatch):
    out, before = swept
    trained = []
    monkeypatch.setattr(runner, "_train", lambda run, **_: trained.append(run.config.loss.name))
    settings = {**BASE, "cache": str(built_cache), "student": {}}
    spec = make_spec(vary=["seed=0,1", "loss=l2,mse,cosine"], settings=settings, students=["layers:1"])
    grown = run_sweep(spec, out)
    assert trained == ["cosine", "cosine"]
    assert grown.worked_on == 2
    there = {outcome.run.name for outcome in grown.outcomes}
    assert {outcome.run.name for outcome in before.outcomes} < there


def test_an_interrupted_run_is_gone_on_with(built_cache, tmp_path):
    spec = spec_of(built_cache, "loss=l2", "training.checkpoint_every=1")

    def stop(progress):
        if progress.train.phase == "train" and progress.train.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, tmp_path, on_progress=stop)
    (run,) = plan_runs(spec, tmp_path)
    assert runner.look(run).status == "interrupted"
    seen = []
    result = run_sweep(spec, tmp_path, on_progress=lambda progress: seen.append(progress.train))
    assert result.outcomes[0].status == "finished"
    assert min(train.step for train in seen if train.phase == "train") > 2
    whole = run_sweep(spec, tmp_path.with_name("whole"))
    assert whole.outcomes[0].dev == result.outcomes[0].dev
    weights = [one.outcomes[0].run.folder / "best" / "model.safetensors" for one in (result, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_recipe_is_written_down_and_no_part_of_the_name(built_cache, tmp_path):
    recipe = "distilcse/bert-base-kd"
    spec = spec_of(built_cache, "loss=mse", "training.checkpoint_every=1", recipe=recipe)
    assert [run.name for run in plan_runs(replace(spec, recipe_name=None), tmp_path)] == [
        run.name for run in plan_runs(spec, tmp_path)
    ]

    def stop(progress):
        if progress.train.phase == "train" and progress.train.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, tmp_path, on_progress=stop)
    (run,) = plan_runs(spec, tmp_path)
    for _ in range(2):
        assert json.loads((run.folder / "run.json").read_text())["recipe"] == recipe
        run_sweep(spec, tmp_path)
    assert runner.look(run).status == "finished"


def test_a_run_whose_checkpoint_is_damaged_is_trained_anew_and_says_so(built_cache, tmp_path):
    spec = spec_of(built_cache, "loss=l2", "training.checkpoint_every=1")

    def stop(progress):
        if progress.train.phase == "train" and progress.train.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, tmp_path, on_progress=stop)
    (run,) = plan_runs(spec, tmp_path)
    (run.folder / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    (outcome,) = run_sweep(spec, tmp_path).outcomes
    assert outcome.status == "finished"
    assert "trained anew" in outcome.note
    assert "checkpoint.safetensors is no checkpoint" in outcome.note
    (again,) = run_sweep(spec, tmp_path).outcomes
    assert again.note is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer": {"warmup": 5000}}, "optimizer.warmup: 5000 steps of warm-up in a run of 5 steps"),
        ({"student": {"spec": "layers:1", "drop_head": True}}, "student.drop_head"),
        ({"student": {"spec": "layers:9"}}, "layers"),
        ({"student": {"spec": "no-such-folder/no-such-student"}}, "no-such-student"),
        ({"training": {**BASE["training"], "device": "cuda:77"}}, "training.device"),
        ({"evaluation": {"held_out": 0, "patience": 3}}, "evaluation.patience"),
    ],
)
def test_what_every_run_would_fail_of_is_told_before_the_first(built_cache, tmp_path, settings, told):
    spec = make_spec(vary=["loss=l2,mse"], settings={**BASE, "cache": str(built_cache), **settings})
    with pytest.raises(ConfigError) as caught:
        run_sweep(spec, tmp_path / "out")
    assert told in str(caught.value)
    assert "(2 of 2 runs)" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_student_is_looked_at_once_and_not_for_finished_runs(swept, built_cache, tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(plan, "prepare_student", lambda _, config, dataset, **how: looked.append(config))
    plan_runs(spec_of(built_cache, "loss=l2,mse", "seed=0,1"), tmp_path)
    assert len(looked) == 1
    plan_runs(spec_of(built_cache, "loss=l2,mse", "seed=0,1"), swept[0])
    assert len(looked) == 1


def test_static_students_are_looked_at_without_the_teachers_vectors(built_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(static, "_token_vectors", lambda *_: pytest.fail("the teacher was run"))
    settings = {**BASE, "cache": str(built_cache), "student": {}}
    good = make_spec(
        vary=["loss=mse"], settings=settings, students=["static:dim=8", "static:dim=8,vocab=110"]
    )
    assert len(plan_runs(good, tmp_path)) == 2
    bad = make_spec(vary=["loss=mse"], settings=settings, students=["static:dim=8", "static:dim=8,vocab=9"])
    with pytest.raises(ConfigError, match=r"vocab=9: .* \(1 of 2 runs\)"):
        plan_runs(bad, tmp_path)
    monkeypatch.undo()
    (first, _) = run_sweep(good, tmp_path / "out").outcomes
    weights = SentenceTransformer(str(first.run.folder / BEST), device="cpu")[0].embedding.weight
    assert bool(weights.any()), "a student on trial was trained"


def test_a_changed_student_is_another_run(built_cache, tmp_path, teacher_folder):
    student = tmp_path / "student"
    shutil.copytree(teacher_folder, student)

    def name(folder: Path) -> str:
        spec = make_spec(
            vary=["loss=l2"],
            settings={**BASE, "cache": str(built_cache), "student": {}},
            students=[str(folder)],
        )
        return plan_runs(spec, tmp_path / "out")[0].name

    first = name(student)
    (tmp_path / "elsewhere").mkdir()
    student = student.rename(tmp_path / "elsewhere" / "student")
    assert name(student) == first
    (student / "README.md").write_text("a card is no weight")
    assert name(student) == first
    (student / "added.bin").write_bytes(b"other weights")
    assert name(student) != first


def test_a_student_that_a_run_has_trained_is_called_as_the_run(built_cache, tmp_path, teacher_folder):
    shutil.copytree(teacher_folder, tmp_path / "simcse" / "best")
    settings = {**BASE, "cache": str(built_cache), "student": {}}
    spec = make_spec(vary=["loss=l2"], settings=settings, students=[str(tmp_path / "simcse" / "best")])
    (run,) = plan_runs(spec, tmp_path / "out")
    assert run.name.startswith("simcse-l2-")


def test_a_learned_temperature_is_not_shown_as_none(built_cache, tmp_path):
    file = file_of(
        tmp_path,
        "vary:\n- {loss.name: [l2]}\n- {loss.name: [ckd], loss.tau: [null, 0.05], loss.queue: [64]}\n",
    )
    spec = make_spec(file, settings={**BASE, "cache": str(built_cache)})
    runs = plan_runs(spec, tmp_path / "out")
    assert [(run.varied["loss.name"], run.varied["loss.tau"]) for run in runs] == [
        ("l2", None),
        ("ckd", "learned"),
        ("ckd", 0.05),
    ]
    # What is trained, and repeated with further seeds, is what was asked for.
    assert runs[1].config.loss.settings.get("tau") is runs[1].given["loss.tau"] is None
    outcomes = [Outcome(run, "finished", {"best_score": 0.5}) for run in runs]
    write_tables(tmp_path, outcomes, spec)
    with (tmp_path / "leaderboard.csv").open() as table:
        assert [line["loss.tau"] for line in csv.DictReader(table)] == ["", "learned", "0.05"]


def test_a_launcher_is_refused(built_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="a sweep is done by one process, and 2 were started") as caught:
        run_sweep(spec_of(built_cache, "seed=0,1"), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_listed_and_the_rest_goes_on(built_cache, tmp_path, monkeypatch):
    train = runner._train

    def fail(run: PlannedRun, **options: Any) -> None:
        if run.config.loss.name == "l2":
            raise TrainingError("the loss became nan")
        train(run, **options)

    monkeypatch.setattr(runner, "_train", fail)
    words = ["sweep", "--cache", str(built_cache), "--vary", "loss=l2,mse", "--out", str(tmp_path)]
    words += ["--student", "layers:1", "--set", "training.epochs=1", "--threads", "1", "--device", "cpu"]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, TrainingError)
    assert done.exception.exit_code == 1
    assert "1 of 2 runs failed" in str(done.exception)
    assert "the loss became nan" in done.stdout
    with (tmp_path / "runs.csv").open() as file:
        found = {line["run"].split("-")[1]: (line["status"], line["error"]) for line in csv.DictReader(file)}
    assert found == {"l2": ("failed", "the loss became nan"), "mse": ("finished", "")}
    monkeypatch.setattr(runner, "_train", train)
    again = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert again.exit_code == 0
    assert "layers_1" not in again.stdout.replace("runs.csv", "")


def test_a_dry_run_shows_the_runs_and_trains_none(built_cache, tmp_path):
    words = ["sweep", "--cache", str(built_cache), "--vary", "loss=l2,mse", "--out", str(tmp_path / "out")]
    words += ["--student", "layers:1", "--set", "training.epochs=2", "--set", "evaluation.held_out=30"]
    shown = CliRunner().invoke(cli, [*words, "--dry-run", "--json"], catch_exceptions=False)
    assert [
        (one["varied"]["loss.name"], one["status"], one["steps"]) for one in json.loads(shown.stdout)
    ] == [
        ("l2", "open", 4),
        ("mse", "open", 4),
    ]
    assert not (tmp_path / "out").exists()
    assert "8 steps to do" in CliRunner().invoke(cli, [*words, "--dry-run"], catch_exceptions=False).stdout


@pytest.fixture
def sts_data(tmp_path) -> Path:
    folder = tmp_path / "sts"
    folder.mkdir()
    rows = [f"a\t{number % 5}\t{TEXTS[number]}\t{TEXTS[number + 7]}" for number in range(40)]
    lines = "subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n"
    (folder / "stsb_test.tsv").write_text(lines, encoding="utf-8")
    return folder


def test_students_are_evaluated_once(swept, built_cache, sts_data, monkeypatch):
    out, _ = swept
    spec, suite = spec_of(built_cache, "loss=l2,mse", "seed=0,1"), SuiteChoice("sts", sts_data)
    result = run_sweep(spec, out, suite=suite)
    for outcome in result.outcomes:
        kept = json.loads((outcome.run.folder / "eval-sts.json").read_text())
        assert [model["role"] for model in kept["result"]["models"]] == ["teacher", "model"]
        assert outcome.scores == kept["scores"]
        assert outcome.scores["average"] == outcome.scores["stsb"]
    assert all(row.suite is not None and row.suite.n == 2 for row in result.rows)
    monkeypatch.setattr(runner, "evaluate_run", lambda *_: pytest.fail("evaluated again"))
    assert run_sweep(spec, out, suite=suite).rows == result.rows
    # Other data, other scores.
    with (sts_data / "stsb_test.tsv").open("a", encoding="utf-8") as file:
        file.write(f"a\t3\t{TEXTS[50]}\t{TEXTS[60]}\n")
    with pytest.raises(pytest.fail.Exception):
        run_sweep(spec, out, suite=SuiteChoice("sts", sts_data))


@pytest.mark.parametrize(
    ("suite", "told"),
    [
        (SuiteChoice("glue"), "choose one of"),
        (SuiteChoice("sts"), "--data DIR"),
        (SuiteChoice("sts", Path("nowhere")), "no such file"),
    ],
)
def test_a_suite_that_cannot_be_run_is_refused(suite, told):
    with pytest.raises(ConfigError, match=told):
        suite.check()


def outcome_of(dev: float | None, **varied: Any) -> Outcome:
    config = load_config(RunConfig, options={"cache": "c"})
    run = PlannedRun("-".join(map(str, varied.values())), Path("x"), config, varied, varied, 1, 1)
    result = None if dev is None else {"best_score": dev / 100}
    return Outcome(run, "open" if dev is None else "finished", result)


def test_the_best_of_a_key_is_chosen_by_the_mean_development_score():
    spec = make_spec(vary=["loss=a,b", "tau=1,2", "seed=0,1"], best_of=["tau"])
    keys = ("loss.name", "loss.tau", "seed")
    scores = {
        ("a", 1, 0): 70,
        ("a", 1, 1): 60,
        ("a", 2, 0): 66,
        ("a", 2, 1): 67,
        ("b", 1, 0): 50,
        ("b", 2, 0): 40,
    }
    outcomes = [outcome_of(dev, **dict(zip(keys, values, strict=True))) for values, dev in scores.items()]
    rows = leaderboard(outcomes, spec)
    assert [(r.varied["loss.name"], r.varied["loss.tau"]) for r in rows] == [
        ("a", 2),
        ("a", 1),
        ("b", 1),
        ("b", 2),
    ]
    assert [r.chosen for r in rows] == [True, False, True, False]
    assert (rows[0].dev.mean, rows[0].dev.n) == (pytest.approx(66.5), 2)
    assert rows[2].dev.std is None
    chosen = [
        {key: value for key, value in one.items() if key != "seed"} for one in chosen_settings(outcomes, spec)
    ]
    assert chosen == [{"loss.name": "a", "loss.tau": 2}, {"loss.name": "b", "loss.tau": 1}]
    more = with_seeds(replace(spec, more_seeds=(5, 6)), chosen_settings(outcomes, spec))
    assert [tuple(one.values()) for one in more.combinations()] == [
        ("a", 2, 5),
        ("a", 2, 6),
        ("b", 1, 5),
        ("b", 1, 6),
    ]


def test_a_choice_is_not_changed_by_the_seeds_that_follow_it():
    spec = make_spec(vary=["tau=1,2", "seed=0"], best_of=["tau"])
    first = [outcome_of(70, **{"loss.tau": 1, "seed": 0}), outcome_of(69, **{"loss.tau": 2, "seed": 0})]
    outcomes = [*first, outcome_of(10, **{"loss.tau": 1, "seed": 1})]
    rows = {row.varied["loss.tau"]: row for row in leaderboard(outcomes, spec, first)}
    assert rows[1].chosen
    assert not rows[2].chosen
    assert rows[1].dev.mean == pytest.approx(40)


def test_what_has_no_score_yet_stands_last():
    spec = make_spec(vary=["loss=a,b"])
    rows = leaderboard([outcome_of(None, **{"loss.name": "a"}), outcome_of(5, **{"loss.name": "b"})], spec)
    assert [(row.varied["loss.name"], row.finished, row.planned) for row in rows] == [
        ("b", 1, 1),
        ("a", 0, 1),
    ]


def test_more_seeds_are_run_with_the_chosen_only(built_cache, tmp_path):
    spec = spec_of(built_cache, "lr=1e-3,1e-5", "seed=0", best_of=["lr"], more_seeds=[1])
    result = run_sweep(spec, tmp_path)
    assert len(result.outcomes) == 3
    (chosen,) = [row for row in result.rows if row.chosen]
    assert (chosen.finished, chosen.dev.n) == (2, 2)
    assert {row.finished for row in result.rows if not row.chosen} == {1}


SWEEPS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_of_the_papers_can_be_run(file):
    # SimTDE's tables are of students; all others are run with whatever student is asked for.
    own = file.stem.startswith("simtde")
    spec = make_spec(file, settings={"cache": "c"}, students=[] if own else ["a", "b"])
    configs = [
        make_config(RunConfig, spec.settings(varied)).resolved(1_000_000) for varied in spec.combinations()
    ]
    students = {config.student.spec for config in configs}
    assert len(students) >= 2 if own else students == {"a", "b"}
    assert len({config.to_yaml() for config in configs}) == len(configs)
    # With the seeds that only the chosen ones are run with.
    assert len(configs) * (1 + len(spec.more_seeds)) >= (6 if own else 10)
    # Nothing in it is a place on somebody's machine.
    assert "/" not in str(spec.base) + str(spec.blocks)


def test_there_is_a_sweep_for_every_table():
    stems = {path.stem for path in SWEEPS}
    congen = {f"congen_{what}" for what in ("losses", "alpha", "views", "queue", "multilingual")}
    simtde = {f"simtde_{what}" for what in ("entities", "front", "table2", "table2_base")}
    assert stems == congen | simtde | {"distilcse_losses", "distilcse_scale", "reaugkd"}
