"""Recipes: valid configurations with the settings and figures of their papers."""

from __future__ import annotations

import json
import re
import runpy
from fnmatch import filter as fnmatch_filter
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from distill.cli.main import cli
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.recipes import FOLDER, Recipe, find_recipe, paper_rows, recipes
from distill.config.sources import load_config
from distill.errors import ConfigError
from distill.evaluation.task import suites

ALL = recipes()
ROWS = 500_000
DOCS = Path(__file__).resolve().parents[2] / "docs"
STUDENTS = (
    "BERT-Tiny|BERT-Mini|TinyBERT-L4|MiniLM-L3|MiniLM-L6|BERT-Small|MiniLM-L12|TinyBERT-L6|BERT-base|"
    "RoBERTa-base"
)
METHODS = "Teacher|Sup-SimCSE|Unsup-SimCSE|L2|Dual-L2|SKD|CKD|ConGen"
SIMCSE = "SimCSE-RoBERTa-Large|Sentence-T5|SimCSE-RoBERTa-base|SimCSE-BERT-base|SimCSE-Tiny-L6|SimCSE-Tiny-L4"
PRINTED = {
    ("congen", 1): METHODS,
    ("congen", 2): METHODS,
    ("congen", 3): "BSL|L2|Dual-L2|ConGen|Multilingual-MiniLM-L12|Multilingual-DistilBERT",
    ("congen", 4): "Teacher|BERT-Tiny|TinyBERT-L4|MiniLM-L12|TinyBERT-L6|BERT-base",
    ("congen", 5): "BERT-Tiny|TinyBERT-L4|MiniLM-L12|BERT-base",
    ("congen", 6): "EN→DE→EN (Google NMT)|EN→DE→EN (MBart)|MLM 15%|Synonym replacement|Crop 10%|"
    "Word deletion 10%|Delete one word",
    ("congen", 7): f"{STUDENTS}|Multilingual-DistilBERT|Multilingual-MiniLM-L12",
    ("congen", 8): "τ^T 0.1|τ^T 0.05|τ^T 0.01",
    ("congen", 9): STUDENTS,
    ("congen", 10): STUDENTS,
    ("congen", 11): STUDENTS,
    ("congen", 12): "Query",
    ("distilcse", 1): "Teacher|*-BERT-base|*-Tiny-L6|*-Tiny-L4",
    ("distilcse", 2): f"{SIMCSE}|KD-BERT-base|CKD-BERT-base|DistilCSE-KD-BERT-base|DistilCSE-CKD-BERT-base|"
    "KD-Tiny-L6|CKD-Tiny-L6|DistilCSE-KD-Tiny-L6|DistilCSE-CKD-Tiny-L6|KD-Tiny-L4|CKD-Tiny-L4|"
    "DistilCSE-KD-Tiny-L4|DistilCSE-CKD-Tiny-L4",
    ("distilcse", 3): "BERT-base|TinyBERT|SimCSE",
    ("distilcse", 4): "SimCSE-RoBERTa-Large|KD-BERT-base|KD-Tiny-L6|KD-Tiny-L4",
    ("distilcse", 5): f"{SIMCSE}|DistilCSE-KD-BERT-base|DistilCSE-CKD-BERT-base|DistilCSE-KD-Tiny-L6|"
    "DistilCSE-CKD-Tiny-L6|DistilCSE-KD-Tiny-L4|DistilCSE-CKD-Tiny-L4",
    ("simtde", 1): "SBERT-base|SBERT-base-flow|SBERT-base-whitening|TENC-mutual|SimCSE-BERT-base|"
    "SimTDE-384-L3(768):base|SimTDE-128-L3(384):small",
    ("simtde", 2): "Tchr:SimCSE-768-L12(768)|LRN-KD-768-L2(768)|LMX-KD-384-L12(384)|SimTDE-384-L3(768):base|"
    "- encoding layer reduction|+ hidden states distillation|- token embedding loss|"
    "Tchr:MiniLM-384-L6(384)|SimTDE-128-L3(384):small",
    ("simtde", 3): "Tchr:BertTiny-128-L2(128)|SimTDE-64-L2(128)|SimTDE-32-L2(128)",
    ("simtde", 4): "SimCSE-BERT-base-768-L12(768)|LMX-KD: BERT-base-384-L12(384)|"
    "MiniLM: BERT-base-384-L6(384)|SimTDE-384-L3(768):base|SimTDE-128-L3(384):small",
    (
        "reaugkd",
        1,
    ): "BERT-Base (teacher)|BERT-6L (student)|KD|PKD|TinyBERT w/o DA|RCO|TAKD|RKD|DML|ProKT|SFTN|"
    "MetaDistil|ReAugKD|ReAugKD w/o retrieval|CoLA|QNLI|QQP|RTE|SST-2|MRPC",
    ("reaugkd", 2): "ReAugKD w/o retrieval|ReAugKD (k=5)|ReAugKD (k=10)|ReAugKD (k=15)|ReAugKD (k=20)",
    ("reaugkd", 3): "RoBERTa-large|Pretraining Distillation|ReAugKD|ReAugKD w/o retrieval",
}
"""The rows of the papers' tables, as they are printed."""


def run_of(name: str, **options: object) -> RunConfig:
    return load_config(RunConfig, options={"cache": "c", **options}, recipe=find_recipe(name))


def completed(recipe: Recipe) -> RunConfig | FinetuneConfig:
    if recipe.kind == "run":
        return run_of(recipe.name)
    text = {"sentences": "s.txt"} if "unsup" in recipe.name else {"triples": "t.tsv"}
    return load_config(FinetuneConfig, options={"start": "m", **text}, recipe=recipe)


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_is_a_configuration_that_can_be_run(name):
    recipe = ALL[name]
    config = completed(recipe)
    resolved = config.resolved(ROWS, 0) if isinstance(config, FinetuneConfig) else config.resolved(ROWS)
    assert resolved.training.epochs == recipe.config["training"]["epochs"]
    # The papers shuffle rows; batches of like length are this tool's.
    assert resolved.training.order == "random"
    assert recipe.about.figures
    assert all(0 < figure < 101 for figure in recipe.about.figures.values())
    # The user's own places are left to the user.
    assert not {"cache", "corpus", "out", "seed", "start", "triples"} & set(recipe.config)
    assert recipe.about.suite is None or recipe.about.suite in suites()


def test_there_is_a_recipe_for_every_row_of_the_tables():
    counts = {
        path.stem: sum(name.startswith(f"{path.stem}/") for name in ALL) for path in FOLDER.glob("*.yaml")
    }
    assert counts == {"congen": 12, "distilcse": 12, "reaugkd": 8, "simcse": 2, "simtde": 10}


def tables_of(text: str) -> tuple[set[int], str]:
    """Return the numbers of "Tables 1, 3 and 5 to 7, row", and the row; of figures no numbers."""
    found = re.fullmatch(r"Tables? ((?:\d+(?:, | and | to )?)+), (.+)", text)
    if found is None:
        return set(), text
    ranges = [list(map(int, one.split(" to "))) for one in re.split(r", | and ", found[1])]
    return {number for ends in ranges for number in range(ends[0], ends[-1] + 1)}, found[2]


def test_every_row_of_every_table_runs_or_has_a_reason():
    covered = [(row.paper, *tables_of(row.table)) for row in paper_rows()]
    missing = [
        (*table, name)
        for table, names in PRINTED.items()
        for name in names.split("|")
        if not any(p == table[0] and table[1] in n and fnmatch(name, system) for p, n, system in covered)
    ]
    assert missing == []
    assert {row.how for row in paper_rows()} >= {name for name in ALL if not name.startswith("simcse/")}
    for row in paper_rows():
        begin = re.split(r"[ ,;]", row.how)[0]
        assert not begin.startswith(f"{row.paper}/") or fnmatch_filter(ALL, begin), row


def test_the_page_of_the_papers_is_current():
    page = runpy.run_path(str(DOCS / "generate_papers.py"))["render"]()
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_the_rows_of_reaugkd_average_to_those_of_its_table():
    figures = [one.about.figures for one in ALL.values() if one.about.figures.keys() >= {"rkd-kd", "takd"}]
    assert len(figures) == 6
    averages = {"teacher": 82.25, "student": 79.32, "kd": 79.72, "rkd-kd": 80.03}
    averages |= {"reaugkd": 81.39, "with-retrieval": 81.76, "pkd": 79.75, "tinybert": 79.82, "rco": 79.67}
    averages |= {"takd": 79.83, "dml": 79.77, "prokt": 80.15, "sftn": 79.80, "metadistil": 81.42}
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
    config = run_of(recipe.name)
    assert config.loss.name == "congen"
    assert {"tau": tau, "teacher_tau": teacher_tau, "queue": queue}.items() <= config.loss.settings.items()
    assert config.optimizer.lr == lr
    assert (config.optimizer.betas, config.optimizer.schedule) == ((0.9, 0.999), "linear")
    assert (config.student.head, config.student.max_length) == ("tanh", 128)
    assert (config.training.batch_size, config.training.epochs, config.evaluation.every) == (128, 20, 512)
    assert (recipe.about.figures["congen"], recipe.about.figures["teacher"]) == (figure, 78.9)


@pytest.mark.parametrize(
    ("student", "figure"), [("bert-base", 81.95), ("tinybert-l6", 81.75), ("tinybert-l4", 79.2)]
)
def test_kd_on_sentences_of_nli_has_the_settings_of_the_larger_corpus(student, figure):
    large, small = ALL[f"distilcse/{student}-kd"], ALL[f"distilcse/{student}-kd-nli"]
    assert small.config == large.config
    assert small.about.figures == {"teacher": 83.76, "kd": figure}


def test_all_others_win_over_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("training: {epochs: 3, batch_size: 64}\noptimizer: {lr: 1.0e-3}\n")
    options = {"cache": "c", "student.spec": "b"}
    recipe = find_recipe("congen/minilm-l3")
    config = load_config(RunConfig, file, ["training.epochs=4", "student.spec=a"], options, recipe)
    assert (config.training.epochs, config.training.batch_size) == (4, 64)
    assert (config.optimizer.lr, config.optimizer.warmup) == (1e-3, 0.1)
    assert (config.student.spec, config.student.head) == ("b", "tanh")


def test_with_another_loss_the_recipes_own_settings_of_it_go():
    name = "congen/minilm-l3"
    assert run_of(name, **{"loss.name": "l2"}).loss.settings == {}
    assert run_of(name, **{"loss.name": "disco-ckd"}).loss.settings == {"tau": 0.07, "queue": 16384}
    # The temperature of similarities is not that of soft labels.
    assert run_of("reaugkd/sst2", **{"loss.name": "kd"}).loss.settings == {}
    # A setting that the user gives is never dropped in silence.
    with pytest.raises(ConfigError, match=r"loss\.alpha"):
        run_of(name, **{"loss.name": "l2", "loss.alpha": 0.3}).resolved(ROWS)


def test_settings_of_a_recipe_that_cannot_apply_to_the_student_go():
    name = "distilcse/tinybert-l4-ckd"
    assert run_of(name).student.pooling == "pooler"
    assert run_of(name, **{"student.spec": "layers:3"}).student.pooling is None
    assert run_of(name, **{"student.head": "none"}).student.drop_head is False
    assert run_of(name, **{"student.spec": "layers:3", "student.pooling": "cls"}).student.pooling == "cls"


@pytest.mark.parametrize(
    ("name", "kind", "near"),
    [
        ("congen/minilm-3", None, "congen/minilm-l3"),
        ("sup", None, "simcse/sup"),
        ("simcse/sup", "run", "finetune"),
    ],
)
def test_recipes_that_cannot_be_used_are_refused(name, kind, near):
    with pytest.raises(ConfigError, match=near):
        find_recipe(name, kind)


def listed(*words: str) -> str:
    shown = CliRunner().invoke(
        cli, ["list", "recipes", *words], env={"COLUMNS": "160"}, catch_exceptions=False
    )
    return shown.stdout


def test_recipes_are_listed_and_one_is_a_configuration_file(tmp_path):
    assert all(name in listed("--all") for name in ALL)
    shown = [name for name in ALL if name in listed()]
    assert shown == [name for name, one in recipes().items() if one.status == "runs here"] != []
    assert list(json.loads(listed("simcse", "--json"))) == ["simcse/unsup", "simcse/sup"]
    quoted = json.loads(listed("congen, Table 3, BSL", "--json"))["congen, Table 3, BSL"]
    assert (quoted["status"], bool(quoted["how"])) == ("quoted", True)
    assert yaml.safe_load(listed("congen/bert-tiny"))["about"]["figures"]["l2"] == 73.32
    file = tmp_path / "tiny.yaml"
    file.write_text(listed("congen/bert-tiny", "--config"))
    commands = (["--config", str(file)], ["--recipe", "congen/bert-tiny"])
    first, second = (
        CliRunner().invoke(cli, ["run", "--cache", "c", *words, "--dump-config"], catch_exceptions=False)
        for words in commands
    )
    assert first.stdout == second.stdout
    assert "tau: 0.05" in first.stdout
