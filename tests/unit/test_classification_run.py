"""Classifiers that are distilled from the logits of a cache, in whole runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from classification_helpers import (
    LABELS,
    TEXTS,
    add_projection,
    labelled_cache,
    labelled_file,
    small_teach,
    write_rows,
)
from click.testing import CliRunner
from distill_helpers import build, metrics, open_dataset, small_run
from safetensors.torch import load_file
from training_children import Command, launch

from distill.cli.main import cli
from distill.cli.progress import print_run
from distill.data.collate import Batch
from distill.data.source import Share
from distill.errors import ConfigError, DataError
from distill.losses.base import LossBatch
from distill.reaugkd.head import LabelHead
from distill.reaugkd.soft_labels import open_soft_labels
from distill.training.intermediate import ClassOutputs
from distill.training.train import resume
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, tiny_encoder

LOSSES = {
    "kd": {"loss": "kd", "teacher": "animals"},
    "rkd-kd": {"loss": "rkd-kd", "teacher": "animals"},
    "reaugkd": {"loss": "reaugkd", "teacher": "animals.projected"},
}
SMALL = {"held_out": 40, "batch_size": 32, "lr": 3e-3, "epochs": 2}


class KilledError(Exception):
    """Stand-in for the end of a process."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Path:
    """The folder of a taught classifier, the teacher."""
    folder = tmp_path_factory.mktemp("taught")
    encoder = tiny_encoder(folder / "tiny", layers=2)
    run = small_teach(encoder, labelled_file(folder), folder / "run", text="text", epochs=6, dropout=0.0)
    return Path(shutil.copytree(run.best, folder / "animals"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory, taught) -> Path:
    """A cache of labelled texts with the teacher's vectors, logits and projected vectors."""
    folder = tmp_path_factory.mktemp("cache")
    add_projection(labelled_cache(labelled_file(folder), taught, folder / "cache"), "animals", 8)
    return folder / "cache"


@pytest.fixture(scope="module")
def runs(cache, tmp_path_factory):
    """A finished run of each loss, by name; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: small_run(cache, folder / name, **SMALL, **settings) for name, settings in LOSSES.items()}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{path.parent.name}.{name}": value for path in files for name, value in load_file(path).items()}


def held_out(folder: Path) -> list[str]:
    return [json.loads(line) for line in (folder / "held_out.txt").read_text().splitlines()]


def answers(folder: Path, texts: list[str]) -> list[str]:
    """Labels of texts by a classifier's folder, from its files alone."""
    head = ClassifierHead.read(folder)
    logits = head.logits(encode_texts(load_teacher(folder, device="cpu"), texts))
    return [head.labels[place] for place in logits.argmax(axis=1)]


def agreement(said: list[str], wanted: list[str]) -> object:
    return pytest.approx(np.mean([one == other for one, other in zip(said, wanted, strict=True)]), abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_student_is_a_classifier_and_scored_as_one(runs, cache, capsys, name):
    run, label_of = runs[name], dict(zip(TEXTS, LABELS, strict=True))
    texts = held_out(run.folder)
    right = agreement(answers(run.best, texts), [label_of[text] for text in texts])
    assert run.scores["held_out_accuracy"] == run.result.best_score == right
    assert set(run.scores) == {"held_out_accuracy", "held_out_f1"}
    modules = [type(module).__name__ for module in load_teacher(run.best, device="cpu").model]
    # The projection has another width than the student; a classifier reads vectors of their own length.
    assert modules == ["Transformer", "Pooling", *(["Dense"] if name == "reaugkd" else [])]
    kept = ClassifierHead.read(run.best)
    assert kept.weight.shape == (2, 8 if name == "reaugkd" else 16)
    assert kept.reads == "texts"
    untrained = LabelHead(("animal", "none"), kept.dimension, seed=0)
    assert not np.allclose(kept.weight, untrained.weight.detach().numpy())
    record = json.loads((run.folder / "run.json").read_text())
    assert record["labels"] == ["animal", "none"]
    assert record["in_target_space"] is (name != "kd")
    card = (run.best / "README.md").read_text()
    assert "held_out_f1" in card
    assert "text-classification" in card
    print_run(run)
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{100 * run.scores['held_out_f1']:.2f} macro F1" in printed
    # A base is proposed to who was trained to ask one.
    assert (f"distill kb build {run.folder} --cache {cache}" in printed) is (name == "reaugkd")


def test_from_soft_labels_alone_a_student_learns_the_answers_of_the_teacher(taught, tmp_path):
    """Its corpus has no labels, and it keeps its own width."""
    labelled_cache(labelled_file(tmp_path), taught, tmp_path / "cache", label_column=None)
    narrow = tiny_encoder(tmp_path / "narrow", layers=1, dimension=12, seed=4)
    settings = {**SMALL, **LOSSES["kd"], "epochs": 20, "lr": 3e-2, "student": str(narrow)}
    with pytest.raises(ConfigError, match=r"loss\.soft: "):
        small_run(tmp_path / "cache", tmp_path / "run", **settings)
    run = small_run(tmp_path / "cache", tmp_path / "run", **settings, soft=1.0)
    assert ClassifierHead.read(run.best).dimension == 12
    said, wanted = (dict(zip(TEXTS, answers(one, TEXTS), strict=True)) for one in (run.best, taught))
    texts = held_out(run.folder)
    known = agreement([said[text] for text in texts], [wanted[text] for text in texts])
    assert run.scores["held_out_agreement"] == known
    assert len(set(wanted.values())) == 2
    assert np.mean([said[text] == wanted[text] for text in TEXTS]) > 0.9


def test_layers_of_the_live_teacher_train_a_classifier(cache, tmp_path):
    settings = {**SMALL, "epochs": 1, "teacher": "online:animals", "student": "layers:2"}
    for name in ("pkd", "tinybert"):
        run = small_run(cache, tmp_path / name, **settings, loss=name)
        assert ClassifierHead.read(run.best).dimension == 16
        assert set(run.scores) == {"held_out_accuracy", "held_out_f1"}
    with pytest.raises(ConfigError, match="as wide as its teacher"):
        small_run(cache, tmp_path / "narrow", **{**settings, "student": "narrow:h=8,layers=2"}, loss="pkd")
    with pytest.raises(ConfigError, match=r"teacher.online"):
        small_run(cache, tmp_path / "cached", **{**settings, "teacher": "animals"}, loss="tinybert")


# --- what is refused ---


def test_a_teacher_without_logits_is_refused_with_the_command_to_run(taught, tmp_path):
    file = labelled_file(tmp_path)
    build(file, taught, tmp_path / "cache", text_column="text", label_column="label")
    with pytest.raises(DataError, match="output logits"):
        small_run(tmp_path / "cache", tmp_path / "run", loss="kd", teacher="animals")


def test_labels_that_the_teacher_does_not_know_are_named(taught, tmp_path):
    rows = [("stone" if n == 3 else label, TEXTS[n]) for n, label in enumerate(LABELS)]
    labelled_cache(write_rows(tmp_path / "rows.tsv", rows, ("label", "text")), taught, tmp_path / "cache")
    with pytest.raises(DataError, match=r"1 of 240 rows .*'stone'"):
        small_run(tmp_path / "cache", tmp_path / "run", **SMALL, **LOSSES["kd"])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({**LOSSES["kd"], "head": "linear", "drop_head": True}, "student.drop_head"),
        ({**LOSSES["kd"], "dev_rows": ["split=dev"]}, "evaluation.rows"),
        ({**LOSSES["kd"], "dev_label": "b"}, "evaluation.label"),
        ({"loss": "mse", "teacher": "animals", "dev_rows": ["split=dev"]}, "evaluation.rows"),
        ({"loss": "mse", "teacher": "animals", "dev_label": "kind"}, "evaluation.label"),
    ],
)
def test_settings_that_a_run_has_no_use_for_are_refused(cache, tmp_path, settings, key):
    with pytest.raises(ConfigError, match=rf"^{key}[ :]"):
        small_run(cache, tmp_path / "run", **SMALL, **settings)


# --- a step ---


def test_a_step_sees_the_logits_and_labels_of_its_own_rows(cache):
    opened = Cache(cache)
    logits = opened.lookup(TEXTS, "animals.logits")
    # The logits are found by vectors and by a projection of them.
    for name in ("animals", "animals.projected"):
        dataset = open_dataset(opened, teacher=name, held_out=40)
        rows = np.concatenate([dataset.rows, dataset.held_out])
        soft = open_soft_labels(opened, dataset.teacher, dataset.corpus, dataset.view, rows)
        assert (soft.teacher.name, soft.names) == ("animals.logits", ("animal", "none"))
        assert soft.rows.tolist() == list(range(240))
        np.testing.assert_array_equal(soft.logits, logits)
    assert soft.places(np.array([9, 2], dtype=np.uint32)).tolist() == [9, 2]
    outputs = ClassOutputs(LabelHead(soft.names, 5, seed=1), soft)
    rows = torch.tensor([7, 200, 3, 90, 12])
    nothing = torch.zeros(2, 1, dtype=torch.int64)
    batch = Batch(nothing, nothing, 1, rows, torch.empty(5, 0), 3, 2)
    vectors = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    own = outputs.add(LossBatch((vectors,), torch.zeros(2, 1), torch.zeros(5, 1)), batch, Share()).classes
    np.testing.assert_array_equal(own.targets, logits[[90, 12]])
    assert [soft.names[place] for place in own.labels] == [LABELS[90], LABELS[12]]
    torch.testing.assert_close(own.students, outputs.head(vectors))
    # A loss that compares rows with each other has all of the step's, of all processes.
    whole = outputs.add(LossBatch.alone((torch.zeros(5, 5),), torch.zeros(5, 1)), batch, Share()).classes
    np.testing.assert_array_equal(whole.targets, logits[rows.numpy()])
    assert outputs.state_dict().keys() == {"head.weight", "head.bias"}


# --- going on, and several processes ---


def test_resumed_it_is_the_same_classifier(cache, runs, tmp_path):
    def kill(progress):
        if progress.phase == "train" and progress.step == 5:
            raise KilledError

    settings = {**SMALL, **LOSSES["reaugkd"]}
    with pytest.raises(KilledError):
        small_run(cache, tmp_path / "run", **settings, checkpoint_every=2, on_progress=kill)
    run = resume(tmp_path / "run")
    assert run.resumed == 4
    found, whole = tensors(run.best), tensors(runs["reaugkd"].best)
    assert found.keys() == whole.keys()
    assert [key for key in found if not torch.equal(found[key], whole[key])] == []
    assert run.scores == runs["reaugkd"].scores


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reaugkd", "rkd-kd"])
def test_two_processes_train_as_one(cache, tmp_path, name):
    for processes in (1, 2):
        arguments = [
            "run",
            "--cache",
            str(cache),
            "--student",
            "layers:1",
            "--out",
            str(tmp_path / str(processes)),
        ]
        arguments += ["--loss", name, "--teacher", LOSSES[name]["teacher"], "--epochs", "2", "--lr", "3e-3"]
        arguments += ["--batch-size", "32", "--held-out", "47", "--mixed-precision", "no", "--device", "cpu"]
        arguments += ["--threads", "1", "--set", "tracking.log_every=1"]
        output = tmp_path / f"output-{processes}"
        ended = launch(Command(arguments), output, processes)
        assert ended == [0] * processes, (output / "0.txt").read_text()
    one, two = (
        np.array([line["loss"] for line in metrics(tmp_path / count) if "loss" in line]) for count in "12"
    )
    # With 193 rows in batches of 32, the last step of an epoch has one row for two processes.
    assert len(one) == 14
    np.testing.assert_allclose(two, one, atol=1e-5, rtol=0)
    first, second = tensors(tmp_path / "1" / "best"), tensors(tmp_path / "2" / "best")
    for key, value in first.items():
        if not key.endswith("key.bias"):
            torch.testing.assert_close(second[key], value, atol=1e-4, rtol=0)


# --- the development file ---


@pytest.fixture(scope="module")
def renamed(tmp_path_factory, taught) -> tuple[Path, Path]:
    """A cache and the file it was built from, whose columns have names of their own."""
    folder = tmp_path_factory.mktemp("renamed")
    rows = [("dev" if n % 4 == 0 else "train", LABELS[n], TEXTS[n], f"note {n}") for n in range(len(TEXTS))]
    file = write_rows(folder / "rows.tsv", rows, ("split", "kind", "body", "remark"))
    # A file that was written just now may change again without a trace, and no build notes where it lies.
    os.utime(file, (time.time() - 60,) * 2)
    columns = {"text_column": "body", "label_column": "kind", "rows": ["split=train"]}
    labelled_cache(file, taught, folder / "cache", **columns)
    return folder / "cache", file


DEV = {**SMALL, **LOSSES["kd"], "epochs": 1, "held_out": 0, "dev_rows": ["split=dev"]}


def test_a_development_file_of_labelled_rows_chooses_by_the_columns_of_the_corpus(renamed, tmp_path):
    cache, file = renamed
    run = small_run(cache, tmp_path / "run", **DEV, dev=file)
    evaluation = run.config.evaluation
    assert (evaluation.text, evaluation.text2, evaluation.label) == ("body", None, "kind")
    said = answers(run.best, TEXTS[::4])
    assert run.scores["dev_accuracy"] == agreement(said, LABELS[::4])
    assert json.loads((run.folder / "run.json").read_text())["dev"]["rows"] == ["split=dev"]
    # What was found is written down: the run does not hang on what a cache remembers.
    assert "  text: body" in (run.folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="test set"):
        small_run(cache, tmp_path / "other", **{**DEV, "dev_rows": ["split=test"]}, dev=file)
    with pytest.raises(ConfigError, match=r"evaluation\.text2 \(dev_text2\): "):
        small_run(cache, tmp_path / "other", **DEV, dev=file, dev_text2="remark")


def test_another_file_has_its_columns_named_or_usual_ones(renamed, cache, tmp_path):
    rows = [("dev", LABELS[n], TEXTS[n], TEXTS[0]) for n in range(40)]
    other = write_rows(tmp_path / "other.tsv", rows, ("split", "stars", "said", "text"))
    for given, option in (({}, "dev_text "), ({"dev_text": "said"}, "dev_label ")):
        with pytest.raises(InputError, match=option):
            small_run(renamed[0], tmp_path / "run", **DEV, **given, dev=other)
    named = {"dev": other, "dev_text": "said", "dev_label": "stars"}
    with pytest.raises(DataError, match=r"split=val.*dev_rows"):
        small_run(renamed[0], tmp_path / "run", **{**DEV, "dev_rows": ["split=val"]}, **named)
    run = small_run(renamed[0], tmp_path / "run", **DEV, **named)
    assert run.scores["dev_accuracy"] == agreement(answers(run.best, TEXTS[:40]), LABELS[:40])
    usual = write_rows(tmp_path / "usual.tsv", [row[:3] for row in rows], ("split", "label", "text"))
    assert "dev_accuracy" in small_run(cache, tmp_path / "usual", **DEV, dev=usual).scores


def test_the_command_takes_rows_and_columns_of_the_development_file(cache):
    given = ["--dev-rows", "split=dev", "--dev-text", "body", "--dev-text2", "more", "--dev-label", "kind"]
    result = CliRunner().invoke(
        cli, ["run", "--cache", str(cache), "--loss", "kd", *given, "--dump-config"], catch_exceptions=False
    )
    wanted = {"rows": ["split=dev"], "text": "body", "text2": "more", "label": "kind"}
    assert wanted.items() <= yaml.safe_load(result.output)["evaluation"].items()
