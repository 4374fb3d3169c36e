"""Pipelines: steps that run, are skipped, resumed and refused, and files that are protected."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT, TEXTS
from flat_build import build
from suite_helpers import write_pairs, write_tsv

import distill.export
import embedcache.building.build
from distill.cli.main import cli
from distill.digests import folder_digest
from distill.errors import ConfigError
from distill.pipeline import STATE, read_pipeline, run_pipeline
from distill.steps import BuildSettings, Watch
from embedcache.cache import Cache

pytest_plugins = ["distill_fixtures"]

TRAINING = {"max_steps": 3, "batch_size": 16, "device": "cpu", "threads": 1, "mixed_precision": "no"}


def write(folder: Path, steps: dict[str, Any]) -> Path:
    file = folder / "steps.yaml"
    file.write_text(yaml.safe_dump({"out": "all", **steps}), encoding="utf-8")
    return file


@pytest.fixture
def steps(tmp_path, teacher_folder) -> dict[str, Any]:
    """A whole pipeline over a tiny teacher, with all the files it reads."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:120]) + "\n", encoding="utf-8")
    (tmp_path / "sts").mkdir()
    write_pairs(tmp_path / "sts" / "stsb_test.tsv")
    triples = [TEXTS[number : number + 3] for number in range(60)]
    write_tsv(tmp_path / "triples.tsv", "anchor positive negative", triples)
    shutil.copytree(teacher_folder, tmp_path / "teacher")
    teacher = {"teacher": "teacher", "device": "cpu", "compute_dtype": "float32"}
    return {
        "build": {"sources": "te*.txt", "name": "texts", **teacher},
        "run": {
            "student": {"spec": "layers:1"},
            "training": dict(TRAINING),
            "evaluation": {"held_out": HELD_OUT},
        },
        "finetune": {"triples": "triples.tsv", "training": dict(TRAINING), "evaluation": {"held_out": 10}},
        "eval": {"suite": "sts", "data": "sts", "device": "cpu"},
        "export": {"to": "onnx"},
    }


@pytest.fixture
def exported(monkeypatch) -> list[str]:
    """Models that were exported; a file stands for the export."""
    calls: list[str] = []

    def export(model: str, out: Path, **options: Any) -> None:
        calls.append(model)
        out.mkdir(exist_ok=options["overwrite"])
        (out / "model.onnx").write_bytes(folder_digest(Path(model) / "best").encode())

    monkeypatch.setattr(distill.export, "export_onnx", export)
    return calls


def done(file: Path, start: str | None = None, **options: Any) -> dict[str, str]:
    return run_pipeline(file, start=start, **options)


def plan(file: Path) -> dict[str, str]:
    lines: list[str] = []
    done(file, dry_run=True, say=lines.append)
    return {line.partition(":")[0]: line for line in lines}


SKIPPED = dict.fromkeys(("build", "run", "finetune", "eval", "export"), "skip")
DONE = dict.fromkeys(SKIPPED, "done")


def test_unchanged_steps_are_skipped_and_changed_ones_run(tmp_path, steps, exported, monkeypatch):
    """Paths are relative to the file, wherever the command is called from."""
    file, out = write(tmp_path, steps), tmp_path / "all"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert done(Path("../steps.yaml")) == DONE
    assert list(Path().iterdir()) == []
    assert Cache(out / "cache").corpus_names() == ["texts"]
    results = json.loads((out / "eval-sts.json").read_text())
    assert [model["name"] for model in results["models"]][-2:] == ["run", "finetune"]
    assert [Path(model).name for model in exported] == ["finetune"]
    # Where it is computed changes nothing.
    steps["run"]["training"]["threads"] = 2
    assert done(write(tmp_path, steps)) == SKIPPED

    # A setting of a late step leaves the early ones alone.
    steps["finetune"]["loss"] = {"tau": 0.1}
    found = plan(write(tmp_path, steps))
    assert "loss.tau: 0.05 -> 0.1" in found["finetune"]
    assert "skipped" in found["run"]
    assert done(file) == {**SKIPPED, "finetune": "done", "eval": "done", "export": "done"}

    # The content of files counts, and outputs that are gone are made again.
    write_pairs(tmp_path / "sts" / "stsb_test.tsv", count=21)
    assert done(file) == {**SKIPPED, "eval": "done"}
    (out / "eval-sts.json").unlink()
    assert done(file) == {**SKIPPED, "eval": "done"}
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:130]) + "\n", encoding="utf-8")
    assert "texts.txt" in plan(file)["build"]
    assert done(file) == DONE
    assert len(Cache(out / "cache").corpus("texts")) == 130
    (tmp_path / "teacher" / "more.bin").write_bytes(b"other weights")
    assert "teacher" in plan(file)["build"]


def test_starting_in_the_middle_leaves_the_rest_alone(tmp_path, steps):
    del steps["export"], steps["eval"]
    file = write(tmp_path, steps)
    with pytest.raises(ConfigError, match="build"):
        done(file, start="finetune")
    done(file)
    before = folder_digest(tmp_path / "all" / "run" / "best")
    steps["run"]["optimizer"] = {"lr": 1e-3}
    file = write(tmp_path, steps)
    assert done(file, start="finetune") == {"build": "skip", "run": "skip", "finetune": "done"}
    assert folder_digest(tmp_path / "all" / "run" / "best") == before
    # What was left alone is still to be done.
    assert done(file) == {"build": "skip", "run": "done", "finetune": "done"}
    with pytest.raises(ConfigError, match="finetune"):
        done(file, start="export")
    assert set(done(file, again=True).values()) == {"done"}


def test_an_interrupted_training_is_resumed(tmp_path, steps):
    del steps["eval"], steps["export"]
    steps["run"]["recipe"] = "distilcse/bert-base-kd"
    for step in ("run", "finetune"):
        steps[step]["training"]["checkpoint_every"] = 1
        file, folder = write(tmp_path, steps), tmp_path / "all" / step

        def stop(progress: Any, folder: Path = folder) -> None:
            if progress.phase == "train" and progress.step == 2 and folder.is_dir():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            done(file, watch=Watch(train=stop))
        assert "not finished" in plan(file)[step]
    seen: list[Any] = []
    assert done(file, watch=Watch(train=seen.append)) == {"build": "skip", "run": "skip", "finetune": "done"}
    assert min(one.step for one in seen if one.phase == "train") > 1
    record = json.loads((tmp_path / "all" / "run" / "run.json").read_text())
    assert record["recipe"] == "distilcse/bert-base-kd"


def test_foreign_corpora_and_runs_are_not_replaced(tmp_path, steps, teacher_folder):
    (tmp_path / "others.txt").write_text("\n".join(TEXTS[:140]) + "\n", encoding="utf-8")
    build(tmp_path / "others.txt", teacher=str(teacher_folder), cache=tmp_path / "cache", name="shared")
    digest = Cache(tmp_path / "cache").corpus("shared").info.digest
    file = write(tmp_path, {"build": {**steps["build"], "cache": "cache", "name": "shared"}})
    for _ in range(2):
        with pytest.raises(Exception, match="shared"):
            done(file)
        assert Cache(tmp_path / "cache").corpus("shared").info.digest == digest
    run = {"run": {**steps["run"], "cache": "cache", "out": "theirs"}}
    done(write(tmp_path, run))
    before = folder_digest(tmp_path / "theirs")
    other = write(tmp_path, {**run, "out": "another"})
    for _ in range(2):
        with pytest.raises(ConfigError, match="theirs"):
            done(other)
        assert folder_digest(tmp_path / "theirs") == before


def test_a_dry_run_writes_nothing_and_a_damaged_state_is_an_error(tmp_path, steps, monkeypatch):
    file = write(tmp_path, steps)
    before = sorted(tmp_path.rglob("*"))
    shown = CliRunner().invoke(cli, ["pipeline", str(file), "--dry-run"], catch_exceptions=False)
    assert "build: not done yet" in shown.stdout
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / STATE).write_text("{}")
    with pytest.raises(ConfigError, match=STATE):
        done(file)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="expected one"):
        done(file)


def test_all_mistakes_are_reported_at_once(tmp_path, steps):
    steps["build"] |= {"source": "x.txt", "limit": "many"}
    steps["run"]["loss"] = {"name": "mse", "tau": 0.1}
    steps["finetune"] = {"triples": "no-triples.tsv"}
    steps["eval"] = [
        {"suite": "glue"},
        {"data": "no-sts"},
        {"data": "sts"},
        {"data": "all/run/held_out.txt", "name": "x"},
        {},
        {"suite": "all"},
        {"suite": "fidelity"},
    ]
    steps |= {"exports": {}, "export": {"to": "tflite"}}
    file = write(tmp_path, steps)
    with pytest.raises(ConfigError) as caught:
        read_pipeline(file)
    parts = ["exports: unknown step", "build.source:", "build.limit:", "run.loss.tau", "finetune.triples"]
    parts += ["eval.0.suite", "eval.1.data", "eval.2.name", "eval.4: ", "eval.5: ", "export.to"]
    assert [part for part in parts if part not in str(caught.value)] == []
    # A step makes the one, and the other reads what a run held out.
    assert "held_out.txt" not in str(caught.value)
    assert "eval.6" not in str(caught.value)
    # Files of the steps before the first one are not looked for.
    with pytest.raises(ConfigError) as caught:
        read_pipeline(file, "eval")
    assert "finetune.triples" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n", "run: 3\n", "out: x\n", "", "eval: {suite: sts}\n"])
def test_files_other_than_pipelines_are_refused(tmp_path, text):
    (tmp_path / "steps.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_pipeline(tmp_path / "steps.yaml")


def test_a_step_takes_missing_settings_from_earlier_steps(tmp_path):
    (tmp_path / "t.tsv").touch()
    (tmp_path / "c1.txt").touch()
    file = tmp_path / "small.yaml"
    file.write_text(
        "build: {sources: 'c*.txt', teacher: minilm-l6, translators: {en-de: mine}}\n"
        "run: {recipe: congen/bert-tiny, training: {epochs: 2}, student: {spec: mine}}\n"
        "finetune: {recipe: distilcse/tinybert-l4-stage2, triples: t.tsv, out: trained}\n"
        "eval:\n- {models: [trained, mine/other], data: t.tsv}\n"
        "- {suite: [sts, fidelity], data: .}\n- {suite: all, data: .}\n"
        "export:\n  int8: true\n"
    )
    built, run, finetune, first, second, third, export = read_pipeline(file)[1]
    assert run.config.cache == built.config.cache == "small/cache"
    assert (run.config.loss.name, run.config.training.epochs, run.recipe) == ("congen", 2, "congen/bert-tiny")
    assert (finetune.config.start, finetune.config.out) == ("small/run", "trained")
    assert first.config.models == ["trained", "mine/other"]
    assert second.config.models == third.config.models == ["small/run", "trained"]
    places = [step.place.name for step in (first, second, third, export)]
    assert places == ["eval-sts.json", "eval-sts-fidelity.json", "eval-all.json", "export"]
    assert export.config.model == "trained"


def test_the_keys_of_build_are_its_arguments():
    names = set(BuildSettings.model_fields) - {"sources", "prompt_name"}
    settings = {name: "skip" if name == "on_bad" else "1" for name in names}
    known = inspect.signature(embedcache.building.build.build).parameters
    assert set(embedcache.building.build.grouped(settings)) <= set(known)
