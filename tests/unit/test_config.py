"""Configurations: every problem is reported with its key, sources in their order, and identity."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path
from typing import Any

import pytest
import yaml

import distill
from distill.config.base import keys
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.sources import full_key, keyword_options, load_config
from distill.config.tree import flat
from distill.errors import ConfigError
from distill.losses.registry import get_loss
from distill.students.spec import default_loss

MODELS = (RunConfig, FinetuneConfig)


def config(**options: object) -> RunConfig:
    return load_config(RunConfig, options={"cache": "c", **options})


def values(settings: RunConfig) -> dict[str, Any]:
    return dict(flat(settings.model_dump()))


def test_every_problem_is_reported_at_once_with_its_key():
    bad = {
        "stduent.spec": "layers:2",
        "training.epochs": 0,
        "training.epoch": 3,
        "optimizer.betas": [0.9, 2.0],
        "evaluation.held_out": -1,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, options=bad)
    found = {problem.key: str(problem) for problem in caught.value.problems}
    assert found.keys() == {
        *("cache", "stduent", "training.epochs", "training.epoch"),
        *("optimizer.betas.1", "evaluation.held_out"),
    }
    assert "did you mean training.epochs?" in found["training.epoch"]
    assert "found 0" in found["training.epochs"]
    assert all(text in str(caught.value) for text in found.values())
    assert "\n" not in str(caught.value)


def test_a_value_in_place_of_keys_is_refused_with_their_form(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("cache: ./cache\nstudent: layers:3\nloss: ckd\n")
    with pytest.raises(ConfigError, match=r"student: \{spec: .*loss: \{name: "):
        load_config(RunConfig, path)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.lr=.5e1", 5.0),
        ("optimizer.lr=null", None),
        ("training.epochs=5", 5),
        ("tracking.log_every=7", 7),
        ("corpus=nli", "nli"),
        ('corpus="123"', "123"),
        ('corpus="1e5"', "1e5"),
        ("out=a=b", "a=b"),
        ("student.spec=layers:first:2", "layers:first:2"),
        ("optimizer.betas=[0.8, 0.9]", (0.8, 0.9)),
        ("loss.alpha=1e-1", 0.1),
    ],
)
def test_assignments_are_read_as_yaml(assignment, expected):
    found = values(load_config(RunConfig, None, ["cache=c", "corpus=x", assignment]))
    value = found[assignment.partition("=")[0]]
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("training.epochs", None),
        ("=3", None),
        ("optimizer.lr=[", None),
        ("cache.x=1", "cache.x"),
        ("optimizer.lr=.nan", "optimizer.lr"),
        ("optimizer.lr=.inf", "optimizer.lr"),
        ("optimizer.warmup=-1", "optimizer.warmup"),
        ("training.batch_size=1.5", "training.batch_size"),
        ("loss.name=[mse]", "loss.name"),
        ("student=layers:3", "student"),
        ("seed=9223372036854775808", "seed"),
    ],
)
def test_assignments_that_cannot_be_used_are_refused(assignment, key):
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, None, ["cache=c", assignment])
    assert caught.value.key == key


def test_options_win_over_assignments_over_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("cache: c\nseed: 1\ntraining: {epochs: 1, batch_size: 16}\nloss: {name: ckd, tau: 1}\n")
    options = {"training.epochs": 3, "seed": None, "loss.tau": 0.5}
    found = values(load_config(RunConfig, file, ["training.epochs=2", "seed=2", "seed=3"], options))
    assert [found[key] for key in ("training.epochs", "seed", "training.batch_size")] == [3, 3, 16]
    assert (found["loss.name"], found["loss.tau"]) == ("ckd", 0.5)


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "", "a: ["])
def test_files_that_cannot_be_used_are_refused(tmp_path, content):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(RunConfig, file)


@pytest.mark.parametrize("rows", [None, 1234])
def test_yaml_reads_back_to_the_same_configuration(tmp_path, rows):
    settings = config(
        **{"optimizer.lr": 3e-7, "optimizer.betas": (0.1, 0.2), "out": "a: b", "loss.name": "ckd"}
    )
    settings = settings if rows is None else settings.resolved(rows)
    file = tmp_path / "run.yaml"
    file.write_text(settings.to_yaml(), encoding="utf-8")
    assert load_config(RunConfig, file) == settings
    assert load_config(RunConfig, file, ["seed=1"]) != settings
    written = yaml.safe_load(settings.to_yaml())
    assert list(written)[:2] == ["cache", "corpus"]
    assert written["optimizer"]["betas"] == [0.1, 0.2]


@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_described_and_options_are_unique(model):
    known = keys(model)
    assert all(len(key.text) >= 5 for key in known)
    options = [key.option for key in known if key.option]
    assert len(options) == len(set(options))
    assert all(full_key(model, key.word) == key.path for key in known if key.word)


@pytest.mark.parametrize(
    ("rows", "epochs", "held_out"),
    [
        *((10_000_000, 3, 1000), (200_000, 3, 1000), (100_000, 6, 1000)),
        *((30_000, 20, 600), (20_000, 20, 400), (499, 20, 0)),
    ],
)
def test_small_corpora_are_seen_more_often(rows, epochs, held_out):
    found = config().resolved(rows)
    assert found.training.epochs == epochs
    assert found.evaluation.held_out == held_out


@pytest.mark.parametrize("loss", ["mse", "kd"])
def test_the_loss_decides_unset_options(loss):
    found = config(**{"loss.name": loss}).resolved(1000)
    assert (found.optimizer.lr, found.training.batch_size) == (get_loss(loss).lr, get_loss(loss).batch_size)
    assert found.loss.settings == get_loss(loss).defaults


@pytest.mark.parametrize("spec", ["layers:3", "compact:e=16", "static:dim=8", "narrow:h=8", "bert-tiny"])
def test_the_kind_of_student_decides_the_loss_unless_it_is_given(spec):
    chosen = config(**{"student.spec": spec, "loss.duplicates": "keep"}).loss
    assert (chosen.name, chosen.settings) == (default_loss(spec), {"duplicates": "keep"})
    assert config(**{"student.spec": spec, "loss.name": "seed"}).loss.name == "seed"


def test_a_run_is_evaluated_about_twenty_times():
    assert config().resolved(200_000).evaluation.every == -(-(3 * 1555) // 20)
    # 300 steps are evaluated every 50, 46 steps four times.
    assert config(**{"training.max_steps": 300}).resolved(200_000).evaluation.every == 50
    assert config(**{"training.max_steps": 46}).resolved(200_000).evaluation.every == 12


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"teacher": ["a", "b"], "teacher_weights": [1, 0]}, "teacher_weights.1"),
        ({"target_dim": 0}, "target_dim"),
        ({"training.where": ""}, "training.where"),
        ({"stream.limit": "much"}, "stream.limit"),
    ],
)
def test_values_that_do_not_fit_are_refused(options, key):
    with pytest.raises(ConfigError) as caught:
        config(**options)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("function", "model"), [(distill.run, RunConfig), (distill.finetune, FinetuneConfig)]
)
def test_the_help_of_a_training_lists_every_setting_with_type_default_and_text(function, model):
    parameters = inspect.signature(function).parameters
    page = pydoc.render_doc(function, renderer=pydoc.plaintext)
    left = {key.path for key in keys(model)}
    for name in parameters.keys() - {"on_progress", "progress"}:
        left.discard("student.spec" if name == "student" else full_key(model, name))
    assert left <= {"loss.name", "loss.settings"}
    key = next(key for key in keys(model) if key.path == "training.batch_size")
    assert f"batch_size (int | None): {key.text}" in page
    assert "batch_size: 'int | None' = None" in page
    assert parameters["warmup"].default == model.model_fields["optimizer"].default.warmup


def test_a_single_word_stands_for_a_list_of_one():
    assert keyword_options(RunConfig, {"view": "crop"}) == {"training.views": ["crop"]}


def test_keywords_are_short_names_keys_or_groups():
    given = {"lr": 0.1, "training.epochs": 2, "student": {"head": "tanh"}, "eps": 1e-6, "cache": Path("c")}
    assert keyword_options(RunConfig, given) == {
        "optimizer.lr": 0.1,
        "training.epochs": 2,
        "student.head": "tanh",
        "optimizer.eps": 1e-6,
        "cache": "c",
    }
    assert full_key(RunConfig, "loss.tau") == "loss.tau"


# Changes of a setting, and whether another run comes out.
CHANGES = [
    (RunConfig, {"cache": "elsewhere"}, False),
    (RunConfig, {"teacher_model": "m"}, False),
    (RunConfig, {"out": "elsewhere"}, False),
    (RunConfig, {"overwrite": True}, False),
    (RunConfig, {"seed": 1}, False),
    (RunConfig, {"training.device": "cuda"}, False),
    (RunConfig, {"training.threads": 3}, False),
    (RunConfig, {"training.checkpoint_every": 3}, False),
    (RunConfig, {"tracking.log_every": 3}, False),
    (RunConfig, {"tracking.log_with": ["wandb"]}, False),
    (RunConfig, {"stream.mirror": "elsewhere"}, False),
    (RunConfig, {"stream.require_signature": "keys"}, False),
    (RunConfig, {"corpus": "nli"}, True),
    (RunConfig, {"teacher": "large"}, True),
    (RunConfig, {"stream.limit": "20GB"}, True),
    (RunConfig, {"training.mixed_precision": "no"}, True),
    (RunConfig, {"training.order": "bucketed"}, False),
    (RunConfig, {"training.order": "random"}, True),
    (RunConfig, {"training.views": ["crop"]}, True),
    (RunConfig, {"evaluation.patience": 3}, True),
    (RunConfig, {"evaluation.data": "dev.tsv"}, True),
    (RunConfig, {"evaluation.text": "body"}, True),
    (RunConfig, {"loss.tau": 0.3}, True),
    (FinetuneConfig, {"start": "runs/other"}, True),
    (FinetuneConfig, {"training.order": "random"}, True),
    (FinetuneConfig, {"out": "elsewhere"}, False),
]


@pytest.mark.parametrize(("model", "change", "differs"), CHANGES)
def test_only_settings_that_affect_the_result_are_in_the_identity(model, change, differs):
    base = {"cache": "c"} if model is RunConfig else {"start": "m", "triples": "t.tsv"}
    before, after = (load_config(model, options={**base, **more}).identity_digest() for more in ({}, change))
    assert (before != after) is differs


def test_from_python_a_problem_names_the_argument(tmp_path):
    with pytest.raises(ConfigError, match=r"evaluation\.data \(dev\): expected the path of a file"):
        distill.run(tmp_path, dev={"text": [1]})
    with pytest.raises(ConfigError, match=r"optimizer\.lr \(lr\): "):
        distill.run(tmp_path, lr="high")
    with pytest.raises(ConfigError, match=r"did you mean lr\?"):
        distill.run(tmp_path, learning_rate=1e-3)
