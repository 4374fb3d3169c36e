from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from distill.cli.main import cli
from distill.config import RunConfig
from distill.config_sources import load_config
from distill.errors import ConfigError
from distill.evaluation.suites import SUITES
from distill.finetune_config import FinetuneConfig
from distill.recipe import FOLDER, Recipe, find_recipe, recipes

ALL = recipes()
ROWS = 500_000


def completed(recipe: Recipe) -> RunConfig | FinetuneConfig:
    if recipe.kind == "run":
        return load_config(flags={"cache": "c"}, recipe=recipe.config)
    text = {"sentences": "s.txt"} if "unsup" in recipe.name else {"triples": "t.tsv"}
    return load_config(None, (), {"start": "m", **text}, FinetuneConfig, recipe=recipe.config)


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_is_a_configuration_that_can_be_run(name):
    recipe = ALL[name]
    config = completed(recipe)
    assert config.resolved(ROWS).training.epochs == recipe.config["training"]["epochs"]
    assert recipe.about.figures
    assert all(0 < figure < 101 for figure in recipe.about.figures.values())
    # What the user's own places are is left to the user.
    assert not {"cache", "corpus", "out", "seed", "start", "triples"} & set(recipe.config)


def test_there_is_a_recipe_for_every_row_of_the_tables():
    papers = {name.partition("/")[0] for name in ALL}
    assert papers == {path.stem for path in FOLDER.glob("*.yaml")}
    assert papers == {"congen", "distilcse", "reaugkd", "simcse", "simtde"}
    assert len([name for name in ALL if name.startswith("congen/")]) == 12
    for student in ("bert-base", "tinybert-l6", "tinybert-l4"):
        assert {f"distilcse/{student}-{row}" for row in ("kd", "ckd", "stage2")} <= set(ALL)
    assert len([name for name in ALL if name.startswith("simtde/")]) == 9
    assert len([name for name in ALL if name.startswith("reaugkd/")]) == 6


def test_every_recipe_names_the_suite_of_its_figures():
    suites = {name: recipe.about.suite for name, recipe in ALL.items()}
    # ReAugKD's are accuracies of classifiers, which no suite measures.
    assert all((suite is None) == name.startswith("reaugkd/") for name, suite in suites.items())
    assert set(suites.values()) - {None} <= set(SUITES)
    assert suites["simtde/entities-64"] == "entities"
    assert suites["simtde/small"] == suites["congen/bert-tiny"] == "sts"
    relative = {name for name, recipe in ALL.items() if recipe.about.relative}
    assert relative == {"simtde/entities-64", "simtde/entities-32"}


def test_the_rows_of_reaugkd_average_to_those_of_its_table():
    figures = [recipe.about.figures for name, recipe in ALL.items() if name.startswith("reaugkd/")]
    averages = {"teacher": 82.25, "student": 79.32, "kd": 79.72, "rkd-kd": 80.03}
    averages |= {"reaugkd": 81.39, "with-retrieval": 81.76}
    for row, average in averages.items():
        assert sum(one[row] for one in figures) / len(figures) == pytest.approx(average, abs=0.011), row


@pytest.mark.parametrize(
    ("name", "tau", "teacher_tau", "queue", "lr", "figure"),
    [
        ("bert-tiny", 0.05, 0.05, 16384, 5e-4, 76.85),
        ("tinybert-l4", 0.05, 0.05, 65536, 1e-4, 78.54),
        ("minilm-l3", 0.07, 0.05, 16384, 5e-4, 78.22),
        ("roberta-base", 0.1, 0.1, 1024, 5e-5, 79.78),
    ],
)
def test_the_settings_are_those_of_the_table(name, tau, teacher_tau, queue, lr, figure):
    recipe = ALL[f"congen/{name}"]
    config = completed(recipe)
    loss = config.loss
    assert (loss.name, loss.tau, loss.teacher_tau, loss.queue) == ("congen", tau, teacher_tau, queue)
    assert config.optimizer.lr == lr
    assert (config.optimizer.betas, config.optimizer.schedule, config.optimizer.warmup) == (
        (0.9, 0.999),
        "linear",
        0.1,
    )
    assert (config.student.head, config.student.max_length) == ("tanh", 128)
    assert (config.training.batch_size, config.training.epochs, config.evaluation.every) == (128, 20, 512)
    assert recipe.about.figures["congen"] == figure
    assert recipe.about.figures["teacher"] == 78.9


def test_all_others_win_over_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("training: {epochs: 3, batch_size: 64}\noptimizer: {lr: 1.0e-3}\n")
    recipe = find_recipe("congen/minilm-l3").config
    config = load_config(
        file, ["training.epochs=4", "student.spec=a"], {"cache": "c", "student.spec": "b"}, recipe=recipe
    )
    assert (config.training.epochs, config.training.batch_size) == (4, 64)
    assert (config.optimizer.lr, config.optimizer.warmup) == (1e-3, 0.1)
    assert (config.student.spec, config.student.head) == ("b", "tanh")


def test_with_another_loss_the_recipes_own_settings_of_it_go():
    recipe = find_recipe("congen/minilm-l3").config
    plain = load_config(flags={"cache": "c", "loss.name": "l2"}, recipe=recipe)
    assert plain.loss.model_dump(exclude_none=True) == {"name": "l2"}
    disco = load_config(flags={"cache": "c", "loss.name": "disco-ckd"}, recipe=recipe)
    assert disco.loss.model_dump(exclude_none=True) == {"name": "disco-ckd", "tau": 0.07, "queue": 16384}
    # What the user gives is never dropped in silence.
    given = load_config(flags={"cache": "c", "loss.name": "l2", "loss.alpha": 0.3}, recipe=recipe)
    with pytest.raises(ConfigError, match=r"loss\.alpha"):
        given.resolved(ROWS)
    assert recipe["loss"]["alpha"] == 0.5


def test_what_of_a_recipe_cannot_apply_to_the_student_goes():
    recipe = find_recipe("distilcse/tinybert-l4-ckd").config
    layers = load_config(flags={"cache": "c", "student.spec": "layers:3"}, recipe=recipe)
    assert (layers.student.pooling, layers.student.drop_head) == (None, True)
    bare = load_config(flags={"cache": "c", "student.head": "none"}, recipe=recipe)
    assert (bare.student.pooling, bare.student.drop_head) == ("pooler", False)
    # What the user gives is never dropped in silence.
    flags = {"cache": "c", "student.spec": "layers:3", "student.pooling": "cls"}
    assert load_config(flags=flags, recipe=recipe).student.pooling == "cls"
    assert recipe["student"]["pooling"] == "pooler"


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("congen/minilm-13", "run", "did you mean congen/minilm-l3"),
        ("minilm-l6", None, "congen/minilm-l6"),
        ("nothing like it", "run", "'distill recipes' lists all"),
        ("simcse/sup", "run", "is for 'distill finetune'"),
        ("congen/bert-tiny", "finetune", "is for 'distill run'"),
    ],
)
def test_a_recipe_that_is_not_there_is_refused(name, kind, told):
    with pytest.raises(ConfigError) as caught:
        find_recipe(name, kind)
    assert told in str(caught.value)


def test_the_list_names_all_of_them():
    shown = CliRunner().invoke(cli, ["recipes"], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert all(name in shown.stdout for name in ALL)
    of_one_paper = CliRunner().invoke(cli, ["recipes", "simcse", "--json"], catch_exceptions=False)
    assert [one["name"] for one in json.loads(of_one_paper.stdout)] == ["simcse/unsup", "simcse/sup"]


def test_one_recipe_is_printed_whole_and_its_configuration_is_a_file(tmp_path):
    shown = CliRunner().invoke(cli, ["recipes", "congen/bert-tiny"], catch_exceptions=False)
    assert yaml.safe_load(shown.stdout)["about"]["figures"]["l2"] == 73.32
    config = CliRunner().invoke(cli, ["recipes", "congen/bert-tiny", "--config"], catch_exceptions=False)
    (tmp_path / "tiny.yaml").write_text(config.stdout)
    by_file = ["run", "--cache", "c", "--config", str(tmp_path / "tiny.yaml"), "--dump-config"]
    by_name = ["run", "--cache", "c", "--recipe", "congen/bert-tiny", "--dump-config"]
    first, second = (CliRunner().invoke(cli, words, catch_exceptions=False) for words in (by_file, by_name))
    assert first.stdout == second.stdout
    assert "tau: 0.05" in first.stdout
