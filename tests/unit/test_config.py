from __future__ import annotations

from typing import Any

import pytest
import yaml

from distill.cli.train import run_command
from distill.config import RunConfig
from distill.config_sources import SHORT_KEYS, describe_keys, load_config
from distill.errors import ConfigError
from distill.losses.registry import LOSSES


def config(**flags: object) -> RunConfig:
    return load_config(flags={"cache": "c", **flags})


def value_at(settings: RunConfig, path: str) -> Any:
    value: Any = settings
    for part in path.split("."):
        value = getattr(value, part)
    return value


def paths(tree: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in tree.items():
        found += paths(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return found


def test_every_problem_is_reported_at_once_with_its_path():
    bad = {
        "stduent.spec": "layers:2",
        "training.epochs": 0,
        "training.epoch": 3,
        "loss.name": "kl",
        "optimizer.betas": [0.9, 2.0],
        "evaluation.held_out": -1,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(flags=bad)
    message = str(caught.value)
    for part in (
        "cache: missing (give --cache DIR)",
        "stduent: unknown key",
        "training.epochs: ",
        "(found 0)",
        "training.epoch: unknown key, did you mean training.epochs?",
        "loss.name: ",
        "(found 'kl')",
        "optimizer.betas.1: ",
        "evaluation.held_out: ",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.lr=1E-5", 1e-5),
        ("optimizer.lr=null", None),
        ("training.epochs=5", 5),
        ("tracking.tensorboard=true", True),
        ("overwrite=false", False),
        ("corpus=null", None),
        ("corpus=nli", "nli"),
        ('corpus="123"', "123"),
        ('corpus="1e5"', "1e5"),
        ("corpus=nan", "nan"),
        ("optimizer.lr=.5e1", 5.0),
        ("out=a=b", "a=b"),
        ("student.spec=layers:first:2", "layers:first:2"),
        ("optimizer.betas=[0.8, 0.9]", (0.8, 0.9)),
    ],
)
def test_assignments_are_read_as_yaml(assignment, expected):
    path = assignment.partition("=")[0]
    before = config(corpus="x", overwrite=True)
    found = value_at(load_config(None, ["cache=c", "corpus=x", "overwrite=true", assignment]), path)
    assert found == expected
    assert type(found) is type(expected)
    if expected is not None or path == "corpus":
        assert found != value_at(before, path)


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("training.epochs", "expected the form a.b=v"),
        ("=3", "expected the form a.b=v"),
        ("cache.x=1", "cache is 'c', not a group"),
        ("optimizer.lr=[", "no YAML value"),
        ("optimizer.lr=.inf", "optimizer.lr"),
        ("optimizer.lr=.nan", "optimizer.lr"),
        ("optimizer.lr=fast", "optimizer.lr"),
        ("optimizer.warmup=-1", "optimizer.warmup"),
        ("training.batch_size=1.5", "training.batch_size"),
        ("loss.name=[mse]", "loss.name"),
        ("seed=9223372036854775808", "seed"),
    ],
)
def test_assignments_that_cannot_be_used_are_refused(assignment, told):
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["cache=c", assignment])
    assert told in str(caught.value)


def test_flags_win_over_assignments_over_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "cache: c\nseed: 1\nout: a\ntraining: {epochs: 1, batch_size: 16}\noptimizer: {lr: 3.0e-4}\n"
    )
    found = load_config(
        file,
        ["training.epochs=2", "seed=2", "out=b"],
        {"training.epochs": 3, "seed": None, "out": "c", "loss.name": "ckd"},
    )
    assert (found.training.epochs, found.seed, found.training.batch_size) == (3, 2, 16)
    assert found.out == "c"
    assert (found.optimizer.lr, found.loss.name) == (3e-4, "ckd")


def test_a_later_assignment_wins():
    assert load_config(None, ["cache=c", "seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no configuration file"),
        ("- a\n- b\n", "holds a list"),
        ("", "holds nothing"),
        ("a: [", "not readable as YAML"),
        ("student: layers:3", "student"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, content, told):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=told) as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("resolve", [False, True])
def test_yaml_reads_back_to_the_same_configuration(tmp_path, resolve):
    settings = config(
        **{"optimizer.lr": 3e-7, "optimizer.betas": (0.1, 0.2), "out": "a: b #c", "loss.name": "ckd"}
    )
    settings = settings.resolved(1234) if resolve else settings
    file = tmp_path / "run.yaml"
    file.write_text(settings.to_yaml(), encoding="utf-8")
    assert load_config(file) == settings
    assert load_config(file, ["seed=1"]) != settings


def test_a_configuration_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="frozen"):
        config().seed = 3  # type: ignore[misc]


def test_every_key_is_described():
    described = dict(describe_keys())
    assert set(described) == set(paths(config().model_dump(mode="json")))
    assert all(len(text) >= 5 for text in described.values()), described
    assert len(described) > 30


def test_short_names_stand_for_keys_and_are_flags():
    flags = {option.name for option in run_command.params}
    keys = {path for path, _ in describe_keys()}
    assert set(SHORT_KEYS.values()) <= keys
    assert len(set(SHORT_KEYS.values())) == len(SHORT_KEYS)
    assert set(SHORT_KEYS) <= flags


@pytest.mark.parametrize(
    ("rows", "epochs", "held_out"),
    [
        (10_000_000, 3, 1000),
        (200_000, 3, 1000),
        (100_000, 6, 1000),
        (30_000, 20, 600),
        (20_000, 20, 400),
        (10, 20, 0),
    ],
)
def test_small_corpora_are_seen_more_often(rows, epochs, held_out):
    found = config().resolved(rows)
    assert found.training.epochs == epochs
    assert found.evaluation.held_out == held_out


@pytest.mark.parametrize("loss", ["mse", "cosine", "ckd"])
def test_the_loss_decides_what_was_left_open(loss):
    found = config(**{"loss.name": loss}).resolved(1000)
    assert found.optimizer.lr == LOSSES[loss].lr
    assert found.training.batch_size == LOSSES[loss].batch_size


def test_what_was_given_stays():
    given = {
        "optimizer.lr": 1e-3,
        "training.epochs": 1,
        "training.batch_size": 7,
        "evaluation.held_out": 0,
        "evaluation.every": 5,
    }
    found = config(**given).resolved(50_000)
    assert {path: value_at(found, path) for path in given} == given


def test_a_run_is_evaluated_about_twenty_times_but_not_all_the_time():
    assert config().resolved(200_000).evaluation.every == -(-(3 * 1555) // 20)
    assert config().resolved(500).evaluation.every == 50


def test_yaml_is_what_a_person_would_write():
    written = yaml.safe_load(config().to_yaml())
    assert list(written)[:3] == ["cache", "corpus", "teacher"]
    assert written["optimizer"]["betas"] == [0.9, 0.98]


def test_settings_of_another_loss_are_refused_not_ignored():
    config = load_config(flags={"cache": "c", "loss.name": "mse", "loss.tau": 0.05})
    with pytest.raises(ConfigError, match=r"loss\.tau: the loss mse takes no settings.*'distill losses'"):
        config.resolved(1000)
    assert load_config(flags={"cache": "c", "loss.name": "ckd"}).resolved(1000).loss.queue == 490
    assert load_config(flags={"cache": "c", "loss.name": "ckd"}).resolved(10**6).loss.queue == 65536
    assert (
        load_config(flags={"cache": "c", "loss.name": "ckd", "loss.queue": 0}).resolved(1000).loss.queue == 0
    )


def test_several_teachers_are_a_list_and_one_is_a_word():
    assert config(teacher="a").teacher == "a"
    found = config(teacher=["a", "b"], teacher_weights=[1, 0.5], target_dim=16)
    assert found.teacher == ["a", "b"]
    assert found.teacher_weights == [1.0, 0.5]
    assert yaml.safe_load(found.to_yaml())["teacher"] == ["a", "b"]
    assert load_config(None, ["cache=c", "teacher=[a, b]"]).teacher == ["a", "b"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"teacher": ["a", "b", "a"]}, "teacher: a more than once"),
        ({"teacher": []}, "teacher: an empty list"),
        ({"teacher": ["a", "b"], "teacher_weights": [1]}, "teacher_weights: 1 for 2 teachers"),
        ({"teacher": ["a", "b"], "teacher_weights": [1, 2, 3]}, "teacher_weights: 3 for 2 teachers"),
        ({"teacher": "a", "teacher_weights": [1]}, "teacher_weights: 1 for 1 teacher;"),
        ({"teacher_weights": [1]}, "teacher_weights: 1 for 1 teacher;"),
        ({"teacher": ["a", "b"], "teacher_weights": [1, 0]}, "teacher_weights.1: "),
        ({"teacher": ["a", "b"], "teacher_weights": [1, -2]}, "teacher_weights.1: "),
        ({"target_dim": 0}, "target_dim: "),
        ({"training.where": ""}, "training.where: "),
    ],
)
def test_teachers_and_weights_that_do_not_fit_are_refused(flags, told):
    with pytest.raises(ConfigError) as caught:
        config(**flags)
    assert told in str(caught.value)
    assert "Value error" not in str(caught.value)
