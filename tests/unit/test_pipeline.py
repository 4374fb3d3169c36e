from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS
from flat_build import build

import distill.export
import embedcache.building.build
from distill.cli.main import cli
from distill.digests import folder_digest
from distill.errors import ConfigError
from distill.evaluation.result import EvaluationResult
from distill.pipeline.digests import differences
from distill.pipeline.runner import STATE, run_pipeline
from distill.pipeline.spec import BuildSettings, EvalSettings, Pipeline, read_pipeline
from distill.pipeline.step import Watch
from distill.pipeline.steps import EvalStep
from embedcache.cache import Cache
from embedcache.corpus.readers import ReadOptions
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.views.plan import ViewOptions

pytest_plugins = ["distill_fixtures"]

CPU = {"device": "cpu", "threads": 1, "mixed_precision": "no"}


def write(folder: Path, steps: dict[str, Any]) -> Path:
    file = folder / "steps.yaml"
    file.write_text(yaml.safe_dump({"out": str(folder / "all"), **steps}), encoding="utf-8")
    return file


@pytest.fixture
def steps(tmp_path, teacher_folder) -> dict[str, Any]:
    """A whole pipeline over a tiny teacher, with all the files it reads."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:120]) + "\n", encoding="utf-8")
    data = tmp_path / "sts"
    data.mkdir()
    rows = [f"a\t{number % 5}\t{TEXTS[number]}\t{TEXTS[number + 7]}" for number in range(30)]
    (data / "stsb_test.tsv").write_text(
        "subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n", encoding="utf-8"
    )
    triples = ["\t".join(TEXTS[number : number + 3]) for number in range(60)]
    (tmp_path / "triples.tsv").write_text(
        "anchor\tpositive\tnegative\n" + "\n".join(triples) + "\n", encoding="utf-8"
    )
    return {
        "build": {
            "sources": str(tmp_path / "texts.txt"),
            "teacher": str(teacher_folder),
            "device": "cpu",
            "compute_dtype": "float32",
        },
        "run": {
            "student": {"spec": "layers:1"},
            "training": {"epochs": 1, "batch_size": 32, **CPU},
            "evaluation": {"held_out": HELD_OUT},
        },
        "finetune": {
            "triples": str(tmp_path / "triples.tsv"),
            "training": {"epochs": 1, "batch_size": 16, **CPU},
            "evaluation": {"held_out": 10},
        },
        "eval": {"suite": "sts", "data": str(data), "device": "cpu"},
        "export": {"to": "onnx"},
    }


@pytest.fixture
def exported(monkeypatch) -> list[str]:
    """Exporting takes long and has tests of its own: here a file stands for it."""
    calls: list[str] = []

    def export(model: str, out: str, **options: Any) -> None:
        calls.append(model)
        Path(out).mkdir(exist_ok=options["force"])
        (Path(out) / "model.onnx").write_bytes(folder_digest(Path(model) / "best").encode())

    monkeypatch.setattr(distill.export, "export_onnx", export)
    return calls


def done(file: Path, **options: Any) -> dict[str, str]:
    return {report.name: report.action for report in run_pipeline(read_pipeline(file), **options)}


def told(file: Path, **options: Any) -> dict[str, str]:
    return {report.name: str(report) for report in run_pipeline(read_pipeline(file), **options)}


SKIPPED = dict.fromkeys(("build", "run", "finetune", "eval", "export"), "skip")


def test_what_has_not_changed_is_skipped_and_what_has_is_done(tmp_path, steps, exported):
    file = write(tmp_path, steps)
    out = tmp_path / "all"
    assert done(file) == dict.fromkeys(SKIPPED, "done")
    assert Cache(out / "cache").corpus_names() == ["texts"]
    results = json.loads((out / "eval-sts.json").read_text())
    assert [model["name"] for model in results["models"]][-2:] == ["run", "finetune"]
    assert exported == [str(out / "finetune")]
    # What was found out is on the cards, and the students are still the same.
    for name in ("run", "finetune"):
        assert "### sts" in (out / name / "best" / "README.md").read_text(encoding="utf-8").splitlines()

    assert done(file) == SKIPPED

    # Where it is computed is no part of it.
    steps["run"]["training"]["threads"] = 2
    assert done(write(tmp_path, steps)) == SKIPPED

    # A setting of a late step leaves the early ones alone.
    steps["finetune"]["loss"] = {"tau": 0.1}
    plan = told(write(tmp_path, steps), dry_run=True)
    assert "loss.tau: 0.05 -> 0.1" in plan["finetune"]
    assert "skipped" in plan["run"]
    assert "depends on what finetune makes" in plan["eval"]
    assert done(file) == {**SKIPPED, "finetune": "done", "eval": "done", "export": "done"}

    # Whatever reads a file looks at what is in it.
    with (tmp_path / "sts" / "stsb_test.tsv").open("a", encoding="utf-8") as pairs:
        pairs.write(f"a\t3\t{TEXTS[50]}\t{TEXTS[60]}\n")
    assert done(file) == {**SKIPPED, "eval": "done"}

    # An output that is gone is made again, and nothing else where it is the same.
    (out / "eval-sts.json").unlink()
    assert "is not there" in told(file, dry_run=True)["eval"]
    assert done(file) == {**SKIPPED, "eval": "done"}

    # Other rows, other corpus, other student.
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:130]) + "\n", encoding="utf-8")
    assert "source texts.txt has changed" in told(file, dry_run=True)["build"]
    assert done(file) == dict.fromkeys(SKIPPED, "done")
    assert len(Cache(out / "cache").corpus("texts")) == 130


def test_starting_in_the_middle_leaves_the_rest_alone(tmp_path, steps, exported):
    del steps["export"]
    file = write(tmp_path, steps)
    with pytest.raises(ConfigError, match="the step build before it is not done"):
        done(file, start="finetune")
    done(file)
    before = folder_digest(tmp_path / "all" / "run" / "best")
    steps["run"]["optimizer"] = {"lr": 1e-3}
    file = write(tmp_path, steps)
    expected = {"build": "skip", "run": "skip", "finetune": "done", "eval": "done"}
    assert done(file, start="finetune") == expected
    assert folder_digest(tmp_path / "all" / "run" / "best") == before
    # What was left alone is still to be done.
    assert done(file)["run"] == "done"
    with pytest.raises(ConfigError, match="the pipeline has the steps build, run, finetune, eval"):
        done(file, start="export")
    assert done(file, force=True) == dict.fromkeys(expected, "done")


def test_an_interrupted_training_is_gone_on_with(tmp_path, steps):
    for name in ("finetune", "eval", "export"):
        del steps[name]
    steps["run"]["training"]["checkpoint_every"] = 1
    file = write(tmp_path, steps)

    def stop(progress):
        if progress.phase == "train" and progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done(file, watch=Watch(train=stop))
    assert "was not finished" in told(file, dry_run=True)["run"]
    seen = []
    found = done(file, watch=Watch(train=lambda p: seen.append((p.phase, p.step))))
    assert found == {"build": "skip", "run": "done"}
    assert min(step for phase, step in seen if phase == "train") > 1
    assert done(file) == {"build": "skip", "run": "skip"}


def test_recipes_are_written_down_and_their_names_change_nothing(tmp_path, steps):
    del steps["eval"], steps["export"]
    steps["run"]["recipe"] = "distilcse/bert-base-kd"
    steps["finetune"]["recipe"] = "distilcse/bert-base-stage2"
    steps["finetune"]["training"]["checkpoint_every"] = 1
    file = write(tmp_path, steps)

    def stop(progress):
        if progress.phase == "train" and progress.step == 2 and (tmp_path / "all" / "finetune").is_dir():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done(file, watch=Watch(train=stop))
    assert done(file)["finetune"] == "done"
    for name in ("run", "finetune"):
        record = json.loads((tmp_path / "all" / name / "run.json").read_text())
        assert record["recipe"] == steps[name]["recipe"]
    nameless = replace(read_pipeline(file), recipes={})
    assert {report.action for report in run_pipeline(nameless)} == {"skip"}


def test_what_others_have_there_is_not_replaced(tmp_path, steps, teacher_folder):
    for name in ("finetune", "eval", "export"):
        del steps[name]
    steps["build"] |= {"cache": str(tmp_path / "cache"), "name": "shared"}
    (tmp_path / "others.txt").write_text("\n".join(TEXTS[100:140]) + "\n", encoding="utf-8")
    build(tmp_path / "others.txt", teacher=str(teacher_folder), cache=tmp_path / "cache", name="shared")
    digest = Cache(tmp_path / "cache").corpus("shared").info.digest
    file = write(tmp_path, steps)
    for _ in range(2):
        with pytest.raises(Exception, match="shared"):
            done(file)
        assert Cache(tmp_path / "cache").corpus("shared").info.digest == digest


def test_a_dry_run_writes_nothing(tmp_path, steps):
    file = write(tmp_path, steps)
    before = sorted(tmp_path.rglob("*"))
    shown = CliRunner().invoke(cli, ["pipeline", str(file), "--dry-run"], catch_exceptions=False)
    assert "build: not done yet" in shown.stdout
    assert "starting" not in shown.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_state_is_told_of(tmp_path, steps):
    file = write(tmp_path, steps)
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / STATE).write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        done(file)


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    file = write(
        tmp_path,
        {
            "build": {"source": "x.txt", "limit": 0},
            "run": {"student": {"specs": "layers:3"}, "loss": {"name": "mse", "tau": 0.1}},
            "finetune": {"recipe": "simcse/none"},
            "eval": [{"suite": "glue"}, {"suite": "glue"}],
            "exports": {},
            "export": {"to": "tflite"},
        },
    )
    with pytest.raises(ConfigError) as caught:
        read_pipeline(file)
    message = str(caught.value)
    for part in (
        "exports: unknown step, did you mean export?",
        "build.sources: missing",
        "build.teacher: missing",
        "build.source: unknown key, did you mean sources?",
        "build.limit: ",
        "run.student.specs: unknown key, did you mean student.spec?",
        "finetune.recipe: no recipe 'simcse/none'",
        "eval.suite: no suite is called 'glue'",
        "eval.name: two of them write eval-glue.json",
        "export.to: ",
    ):
        assert part in message
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("suite", "suites", "file_name"),
    [
        ("sts", ["sts"], "eval-sts.json"),
        (["sts", "fidelity"], ["sts", "fidelity"], "eval-sts-fidelity.json"),
        ("all", None, "eval-all.json"),
    ],
    ids=str,
)
def test_an_evaluation_may_name_several_suites(tmp_path, steps, suite, suites, file_name):
    steps["eval"]["suite"] = suite
    (evaluation,) = read_pipeline(write(tmp_path, steps)).evaluations
    assert (evaluation.suites, evaluation.file_name) == (suites, file_name)


@pytest.mark.parametrize("suite", [[], ["sts", "glue"], ["sts", "all"]], ids=str)
def test_suites_that_are_not_there_are_refused(tmp_path, steps, suite):
    steps["eval"]["suite"] = suite
    with pytest.raises(ConfigError, match=r"eval\.suite: no suite is"):
        read_pipeline(write(tmp_path, steps))


def test_several_suites_are_written_to_one_file(tmp_path, monkeypatch):
    asked = {}

    def evaluate_suites(models, **settings):
        asked.update(settings, models=models)
        return [EvaluationResult("sts", ()), EvaluationResult("fidelity", ())]

    monkeypatch.setattr("distill.evaluation.runner.evaluate_suites", evaluate_suites)
    settings = EvalSettings(suite=["sts", "fidelity"], models=["org/model"])
    made = EvalStep((settings,), (), tmp_path).do(Watch(), {}, mine=False, unchanged=False)
    assert (asked["models"], asked["suites"], asked["keep"]) == (["org/model"], ["sts", "fidelity"], True)
    written = json.loads((tmp_path / "eval-sts-fidelity.json").read_text(encoding="utf-8"))
    assert [result["suite"] for result in written["results"]] == ["sts", "fidelity"]
    assert list(made) == ["content of eval-sts-fidelity.json"]


def test_views_and_files_that_are_not_there_are_told_with_the_rest(tmp_path, steps):
    steps["build"] |= {"sources": [str(tmp_path / "texts.txt"), "gone.txt"], "views": ["crop", "crp"]}
    steps["run"]["evaluation"]["data"] = "no-dev.tsv"
    steps["run"]["loss"] = {"name": "mse", "tau": 0.1}
    steps["finetune"]["triples"] = "no-triples.tsv"
    steps["eval"] = [
        {**steps["eval"], "data": "no-sts"},
        {"suite": "fidelity", "data": "all/run/held_out.txt"},
    ]
    file = write(tmp_path, steps)
    with pytest.raises(ConfigError) as caught:
        read_pipeline(file)
    message = str(caught.value)
    for part in (
        f"build.sources: {tmp_path / 'gone.txt'} does not exist",
        "build.views: unknown view 'crp'",
        f"run.evaluation.data: there is no {tmp_path / 'no-dev.tsv'}",
        "run.loss.tau: the loss mse takes",
        f"finetune.triples: there is no {tmp_path / 'no-triples.tsv'}",
        f"eval.0.data: there is no {tmp_path / 'no-sts'}",
    ):
        assert part in message
    # A step makes it.
    assert "held_out.txt" not in message
    assert not (tmp_path / "all").exists()
    # What the steps before read is not read again.
    with pytest.raises(ConfigError) as caught:
        read_pipeline(file, "eval")
    assert "eval.0.data: there is no" in str(caught.value)
    assert "build." not in str(caught.value)
    assert "triples" not in str(caught.value)


def test_views_that_nobody_makes_are_told(tmp_path, steps, built_cache):
    steps["build"] |= {"views": ["crop*2", "mine=delete-words"], "embed_views": ["crop-1", "crop-3"]}
    steps["run"]["training"]["views"] = ["original", "mine", "yours"]
    with pytest.raises(ConfigError) as caught:
        read_pipeline(write(tmp_path, steps))
    assert "build.embed_views: no view 'crop-3'; there will be original, crop-1, crop-2, mine" in str(
        caught.value
    )
    assert "run.training.views: no view 'yours'; there will be original, crop-1, crop-2, mine" in str(
        caught.value
    )
    steps["run"]["training"]["views"] = ["original", "mine"]
    steps["build"]["embed_views"] = ["crop-1"]
    read_pipeline(write(tmp_path, steps))
    # Those that lie in the cache already will do.
    run = {
        **steps["run"],
        "cache": str(built_cache),
        "training": {**steps["run"]["training"], "views": ["crop"]},
    }
    with pytest.raises(ConfigError, match=r"run\.training\.views: no view 'crop'; there will be original"):
        read_pipeline(write(tmp_path, {"run": run}))


def test_a_step_that_is_done_for_the_first_time_is_starting(tmp_path, steps):
    file = write(tmp_path, {"build": steps["build"]})
    shown = CliRunner().invoke(cli, ["pipeline", str(file)], catch_exceptions=False)
    assert "build: starting" in shown.stdout
    assert "not done yet" not in shown.stdout


def test_a_key_of_a_later_version_that_is_not_given_changes_nothing():
    assert differences({"a": "1"}, {"a": "1", "training.max_steps": "None"}) == []
    assert differences({"a": "1"}, {"a": "1", "training.max_steps": "5"}) == [
        "training.max_steps: is not there -> 5"
    ]


def test_settings_a_loss_has_no_use_for_are_told_before_the_cache_is_built(tmp_path):
    file = write(tmp_path, {"run": {"cache": "c", "loss": {"name": "mse", "tau": 0.1}}})
    with pytest.raises(ConfigError, match=r"run\.loss\.tau: the loss mse takes"):
        read_pipeline(file)


@pytest.mark.parametrize("text", ["- a\n", "run: 3\n", "out: x\n", ""])
def test_files_that_are_no_pipelines_are_refused(tmp_path, text):
    (tmp_path / "steps.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_pipeline(tmp_path / "steps.yaml")


def test_one_step_takes_from_another_what_it_does_not_say_itself(tmp_path):
    file = tmp_path / "small.yaml"
    for name in ("a.txt", "t.tsv"):
        (tmp_path / name).touch()
    file.write_text(
        "build: {sources: a.txt, teacher: minilm-l6}\n"
        "run: {recipe: congen/bert-tiny, training: {epochs: 2}}\n"
        "finetune: {recipe: distilcse/tinybert-l4-stage2, triples: t.tsv}\n"
        "export: {}\n"
    )
    found = read_pipeline(file)
    assert isinstance(found, Pipeline)
    assert found.run.cache == found.build.cache == str(tmp_path / "small" / "cache")
    assert (found.run.loss.name, found.run.training.epochs) == ("congen", 2)
    assert found.finetune.start == found.run.out == str(tmp_path / "small" / "run")
    assert found.export.model == found.finetune.out
    assert found.steps == ["build", "run", "finetune", "export"]


def test_the_keys_of_build_are_its_arguments():
    kinds = (ReadOptions, TeacherOptions, EncodeOptions, ViewOptions)
    renamed = {"seed": "view_seed", "embed": "embed_views", "spec": "teacher"}
    theirs = {renamed.get(one.name, one.name) for kind in kinds for one in fields(kind)}
    # A part of a corpus is nothing to train on.
    assert set(BuildSettings.model_fields) == theirs - {"part"} | {
        "sources",
        "cache",
        "teacher_name",
        "remote",
    }


def test_the_options_of_views_reach_the_build(tmp_path, steps, monkeypatch):
    class AskedError(Exception):
        """What the build was asked for is known."""

    asked = {}

    def ask(sources, **options):
        asked.update(options)
        raise AskedError

    monkeypatch.setattr(embedcache.building.build, "build", ask)
    for name in ("run", "finetune", "eval", "export"):
        del steps[name]
    steps["build"] |= {
        "views": ["translation:language=en"],
        "language": "de",
        "view_seed": 3,
        "mask_model": "m",
    }
    with pytest.raises(AskedError):
        done(write(tmp_path, steps))
    views = asked["views"]
    assert (views.views, views.language, views.seed, views.mask_model) == (
        ["translation:language=en"],
        "de",
        3,
        "m",
    )


def test_paths_are_relative_to_the_file_wherever_it_is_called_from(
    tmp_path, steps, exported, teacher_folder, monkeypatch
):
    project = tmp_path / "project"
    shutil.copytree(teacher_folder, project / "teacher")
    for name in ("texts.txt", "triples.tsv", "sts"):
        (tmp_path / name).rename(project / name)
    steps["build"] |= {"sources": "texts.txt", "teacher": "teacher"}
    steps["run"]["student"]["spec"] = "teacher"
    steps["finetune"]["triples"] = "triples.tsv"
    steps["eval"] |= {"data": "sts", "models": ["all/run", "./teacher"]}
    file = write(project, steps)
    file.write_text(file.read_text().replace(str(project / "all"), "all"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert done(Path("../project/steps.yaml")) == dict.fromkeys(SKIPPED, "done")
    assert list(elsewhere.iterdir()) == []
    assert (project / "all" / "finetune" / "best").is_dir()
    # What changed is what is in the files, and not where one stands.
    monkeypatch.chdir(project)
    assert done(Path("steps.yaml")) == SKIPPED
    assert done(file) == SKIPPED
    (project / "teacher" / "more.txt").write_text("other weights")
    assert "content of teacher has changed" in told(file, dry_run=True)["build"]


def test_names_that_are_no_folders_are_left_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("minilm-l6", "mine", "sts", "home"):
        (tmp_path / name).mkdir()
    whole = tmp_path / "b.txt"
    for place in (tmp_path / "home" / "a.txt", whole, tmp_path / "c1.txt"):
        place.write_text("A sentence.\n", encoding="utf-8")
    file = tmp_path / "small.yaml"
    file.write_text(
        f"build:\n  sources: ['~/a.txt', {whole}, 'c*.txt', '-']\n"
        "  teacher: minilm-l6\n  translators: {en-de: a/b}\n"
        "run: {student: {spec: mine}, out: trained}\n"
        "eval: {models: [trained, mine/other, ./other], data: sts}\n"
    )
    found = read_pipeline(file)
    sources = [str(Path.home() / "a.txt"), str(whole), str(tmp_path / "c*.txt"), "-"]
    assert (found.build.sources, found.build.teacher) == (sources, "minilm-l6")
    assert found.build.translators == {"en-de": "a/b"}
    assert (found.run.student.spec, found.run.out) == (str(tmp_path / "mine"), str(tmp_path / "trained"))
    assert found.evaluations[0].models == [str(tmp_path / "trained"), "mine/other", str(tmp_path / "other")]


@pytest.mark.parametrize("step", ["run", "finetune"])
def test_a_training_whose_checkpoint_is_damaged_is_begun_anew(tmp_path, steps, step):
    del steps["eval"], steps["export"]
    if step == "run":
        del steps["finetune"]
    steps[step]["training"]["checkpoint_every"] = 1
    file = write(tmp_path, steps)

    def stop(progress):
        if progress.phase == "train" and progress.step == 2 and (tmp_path / "all" / step).is_dir():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done(file, watch=Watch(train=stop))
    (tmp_path / "all" / step / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    said = []
    assert done(file, watch=Watch(say=said.append))[step] == "done"
    (line,) = said
    assert line.startswith(f"{step}: begun anew")
    assert set(done(file).values()) == {"skip"}


def test_a_launcher_is_refused(tmp_path, steps, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="a pipeline is done by one process, and 2 were started"):
        done(write(tmp_path, steps))
    assert not (tmp_path / "all").exists()


def test_differences_name_what_changed():
    before = {"a": "1", "content of x": "aa", "gone": "2", "same": "3"}
    now = {"a": "2", "content of x": "bb", "same": "3", "new": "4"}
    assert differences(before, now) == [
        "a: 1 -> 2",
        "content of x has changed",
        "gone: 2 -> is not there",
        "new: is not there -> 4",
    ]
