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
from distill_helpers import build, metrics, small_run
from safetensors.torch import load_file
from training_children import Command, launch

from distill.cli.main import cli
from distill.cli.progress import print_run
from distill.data.collate import Batch
from distill.data.dataset import open_dataset
from distill.data.source import Share
from distill.errors import ConfigError, DataError
from distill.losses.base import LossBatch
from distill.reaugkd.head import LabelHead
from distill.reaugkd.soft_labels import SoftLabels, find_logits, open_soft_labels
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
    """Stands for whatever ends a process."""


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
    """What a reader of a classifier's folder makes of texts, from the files alone."""
    head = ClassifierHead.read(folder)
    logits = head.logits(encode_texts(load_teacher(folder, device="cpu"), texts))
    return [head.labels[place] for place in logits.argmax(axis=1)]


@pytest.mark.parametrize("name", LOSSES)
def test_a_base_is_proposed_to_who_was_trained_to_ask_one(runs, cache, capsys, name):
    print_run(runs[name])
    proposed = f"distill kb build {runs[name].folder} --cache {cache}" in capsys.readouterr().out
    assert proposed is (name == "reaugkd")


@pytest.mark.parametrize("name", LOSSES)
def test_the_student_is_a_classifier_and_scored_as_one(runs, name):
    run = runs[name]
    texts = held_out(run.folder)
    label_of = dict(zip(TEXTS, LABELS, strict=True))
    right = np.mean(
        [said == label_of[text] for said, text in zip(answers(run.best, texts), texts, strict=True)]
    )
    assert run.scores["held_out_accuracy"] == run.result.best_score == pytest.approx(right, abs=1e-9)
    assert set(run.scores) == {"held_out_accuracy", "held_out_f1"}
    modules = [type(module).__name__ for module in load_teacher(run.best, device="cpu").model]
    # The projection has another width than the student; a classifier reads vectors of their own length.
    assert modules == ["Transformer", "Pooling", *(["Dense"] if name == "reaugkd" else [])]
    kept = ClassifierHead.read(run.best)
    assert kept.weight.shape == (2, 8 if name == "reaugkd" else 16)
    assert kept.reads == "texts"
    record = json.loads((run.folder / "run.json").read_text())
    assert record["labels"] == ["animal", "none"]
    assert record["in_target_space"] is (name != "kd")
    card = (run.best / "README.md").read_text()
    assert "held_out_f1" in card
    assert "text-classification" in card


def test_each_loss_makes_another_student(runs):
    weights = [tensors(run.best)["best.weight"] for run in (runs["kd"], runs["rkd-kd"])]
    assert not torch.equal(*weights)
    first = LabelHead(("animal", "none"), 16, seed=0)
    assert not torch.allclose(weights[0], first.weight), "the classifier is trained"
    losses = [line["loss"] for line in metrics(runs["kd"].folder) if "loss" in line]
    assert losses[-1] < losses[0] or len(losses) == 1


def test_a_student_that_learns_says_what_the_teacher_says(cache, taught, tmp_path):
    settings = {**SMALL, "epochs": 20, "student": "layers:2", "soft": 1.0}
    run = small_run(cache, tmp_path / "run", **{**settings, **LOSSES["kd"]})
    said, wanted = answers(run.best, TEXTS), answers(taught, TEXTS)
    assert len(set(wanted)) == 2
    assert np.mean([one == other for one, other in zip(said, wanted, strict=True)]) > 0.9


def test_for_soft_labels_alone_a_student_keeps_its_width(cache, tmp_path):
    narrow = tiny_encoder(tmp_path / "narrow", layers=1, dimension=8, seed=4)
    kd = small_run(cache, tmp_path / "kd", **SMALL, **LOSSES["kd"] | {"student": str(narrow)})
    relations = small_run(cache, tmp_path / "rkd", **SMALL, **LOSSES["rkd-kd"] | {"student": str(narrow)})
    assert ClassifierHead.read(kd.best).dimension == 8
    assert ClassifierHead.read(relations.best).dimension == 16


def test_the_corpus_s_labels_count_as_asked(cache, runs, tmp_path):
    hard = small_run(cache, tmp_path / "run", **SMALL, **LOSSES["kd"], soft=0.0)
    assert not torch.equal(tensors(hard.best)["best.weight"], tensors(runs["kd"].best)["best.weight"])


def test_both_scores_are_printed(runs, capsys):
    run = runs["kd"]
    print_run(run)
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{100 * run.scores['held_out_accuracy']:.2f} % right" in printed
    assert f"{100 * run.scores['held_out_f1']:.2f} macro F1" in printed
    assert "Spearman" not in printed


def test_a_development_file_of_labelled_rows_chooses(cache, tmp_path):
    rows = [("dev" if n % 2 else "rest", LABELS[n], TEXTS[n]) for n in range(60)]
    dev = write_rows(tmp_path / "dev.tsv", rows, ("split", "label", "text"))
    settings = {**SMALL, **LOSSES["kd"], "dev": dev, "dev_rows": ["split=dev"]}
    run = small_run(cache, tmp_path / "run", **settings)
    chosen = [n for n in range(60) if n % 2]
    said = answers(run.best, [TEXTS[n] for n in chosen])
    right = np.mean([one == LABELS[n] for one, n in zip(said, chosen, strict=True)])
    assert run.scores["dev_accuracy"] == pytest.approx(right, abs=1e-9)
    assert json.loads((run.folder / "run.json").read_text())["dev"]["rows"] == ["split=dev"]
    with pytest.raises(ConfigError, match="rows of a test set"):
        small_run(cache, tmp_path / "other", **settings | {"dev_rows": ["split=test"]})
    with pytest.raises(ConfigError, match=r"evaluation\.rows: .* the loss mse makes no classifier"):
        small_run(cache, tmp_path / "other", teacher="animals", dev_rows=["split=dev"])


# --- what is asked of the cache ---


def test_the_logits_are_found_by_vectors_and_by_a_projection_of_them(cache):
    opened = Cache(cache)
    for name in ("animals", "animals.projected"):
        found, labels = find_logits(opened, opened.teacher(name))
        assert (found.name, labels) == ("animals.logits", ("animal", "none"))


def test_a_teacher_without_logits_is_refused_with_what_to_run(taught, tmp_path):
    file = labelled_file(tmp_path)
    build(file, taught, tmp_path / "cache", text_column="text", label_column="label")
    with pytest.raises(
        DataError, match=r"logits of teacher 'animals' .* holds none: .*--output embedding,logits"
    ):
        small_run(tmp_path / "cache", tmp_path / "run", loss="kd", teacher="animals")


def test_a_corpus_without_labels_teaches_by_soft_labels_alone(taught, tmp_path):
    file = labelled_file(tmp_path)
    labelled_cache(file, taught, tmp_path / "cache", label_column=None)
    with pytest.raises(ConfigError, match=r"loss\.soft: .* build it with --label-column"):
        small_run(tmp_path / "cache", tmp_path / "run", **SMALL, **LOSSES["kd"])
    run = small_run(tmp_path / "cache", tmp_path / "run", **SMALL, **LOSSES["kd"], soft=1.0)
    texts = held_out(run.folder)
    said, wanted = answers(run.best, texts), answers(taught, texts)
    agreement = np.mean([one == other for one, other in zip(said, wanted, strict=True)])
    assert run.scores["held_out_agreement"] == pytest.approx(agreement, abs=1e-9)


def test_labels_that_the_teacher_does_not_know_are_named(taught, tmp_path):
    rows = [("stone" if n == 3 else label, TEXTS[n]) for n, label in enumerate(LABELS)]
    file = write_rows(tmp_path / "rows.tsv", rows, ("label", "text"))
    labelled_cache(file, taught, tmp_path / "cache")
    with pytest.raises(DataError, match=r"corpus 'rows': 1 of 240 rows .*'stone'; it knows 'animal', 'none'"):
        small_run(tmp_path / "cache", tmp_path / "run", **SMALL, **LOSSES["kd"])


def test_a_head_that_a_classifier_reads_is_not_dropped(cache, tmp_path):
    with pytest.raises(ConfigError, match=r"student\.drop_head: .* loss kd"):
        small_run(cache, tmp_path / "run", **SMALL, **LOSSES["kd"], head="linear", drop_head=True)


# --- a step ---


def test_a_step_sees_the_logits_and_labels_of_its_own_rows(cache):
    opened = Cache(cache)
    dataset = open_dataset(opened, teacher="animals", held_out=40)
    rows = np.concatenate([dataset.rows, dataset.held_out])
    soft = open_soft_labels(opened, dataset.teacher, dataset.corpus, dataset.view, rows)
    assert soft.rows.tolist() == list(range(240))
    logits = opened.lookup(TEXTS, "animals.logits")
    np.testing.assert_array_equal(soft.logits, logits)
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


def test_rows_that_are_not_trained_on_take_no_room():
    soft = SoftLabels(None, ("a", "b"), np.array([2, 5, 9]), np.zeros((3, 2), np.float32), None)
    assert soft.places(np.array([9, 2], dtype=np.uint32)).tolist() == [2, 0]


# --- going on, and several processes ---


@pytest.mark.parametrize("name", LOSSES)
def test_resumed_it_is_the_same_classifier(cache, runs, tmp_path, name):
    def kill(progress):
        if progress.phase == "train" and progress.step == 5:
            raise KilledError

    settings = {**SMALL, **LOSSES[name]}
    with pytest.raises(KilledError):
        small_run(cache, tmp_path / "run", **settings, checkpoint_every=2, on_progress=kill)
    run = resume(tmp_path / "run")
    assert run.resumed == 4
    found, whole = tensors(run.best), tensors(runs[name].best)
    assert found.keys() == whole.keys()
    assert [key for key in found if not torch.equal(found[key], whole[key])] == []
    assert run.scores == runs[name].scores


@pytest.mark.parametrize("name", ["reaugkd", pytest.param("rkd-kd", marks=pytest.mark.slow)])
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
        assert launch(Command(arguments), output, processes) == [0] * processes, (
            output / "0.txt"
        ).read_text()
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


def test_the_command_takes_rows_and_columns_of_the_development_file(cache, tmp_path):
    given = ["--dev-rows", "split=dev", "--dev-text", "body", "--dev-text2", "more", "--dev-label", "kind"]
    result = CliRunner().invoke(
        cli, ["run", "--cache", str(cache), "--loss", "kd", *given, "--dump-config"], catch_exceptions=False
    )
    assert "  rows:\n  - split=dev\n  text: body\n  text2: more\n  label: kind\n" in result.output


# --- the columns of the development file ---


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


DEV = {**SMALL, "epochs": 1, "held_out": 0, "loss": "kd", "teacher": "animals", "dev_rows": ["split=dev"]}


def test_the_file_that_the_corpus_was_built_from_needs_no_columns(renamed, tmp_path):
    cache, file = renamed
    run = small_run(cache, tmp_path / "run", **DEV, dev=file)
    evaluation = run.config.evaluation
    assert (evaluation.text, evaluation.text2, evaluation.label) == ("body", None, "kind")
    dev = [n for n in range(len(TEXTS)) if n % 4 == 0]
    said = answers(run.best, [TEXTS[n] for n in dev])
    right = np.mean([one == LABELS[n] for one, n in zip(said, dev, strict=True)])
    assert run.scores["dev_accuracy"] == pytest.approx(right, abs=1e-9)
    # What was found is written down: the run does not hang on what a cache remembers.
    assert "  text: body" in (run.folder / "config.yaml").read_text()


def test_another_file_has_its_columns_named(renamed, tmp_path):
    cache, _ = renamed
    rows = [("dev", LABELS[n], TEXTS[n], TEXTS[0]) for n in range(40)]
    other = write_rows(tmp_path / "other.tsv", rows, ("split", "stars", "said", "text"))
    with pytest.raises(InputError, match=r"no column 'body'.*--dev-text "):
        small_run(cache, tmp_path / "run", **DEV, dev=other)
    with pytest.raises(InputError, match=r"no column 'kind'.*--dev-label "):
        small_run(cache, tmp_path / "run", **DEV, dev=other, dev_text="said")
    given = {**DEV, "dev_rows": ["split=val"], "dev_text": "said", "dev_label": "stars"}
    with pytest.raises(DataError, match=r"split=val.*--dev-rows"):
        small_run(cache, tmp_path / "run", **given, dev=other)
    run = small_run(cache, tmp_path / "run", **DEV, dev=other, dev_text="said", dev_label="stars")
    said = answers(run.best, TEXTS[:40])
    right = np.mean([one == label for one, label in zip(said, LABELS, strict=False)])
    assert run.scores["dev_accuracy"] == pytest.approx(right, abs=1e-9)


def test_where_nobody_knows_how_the_corpus_was_built_usual_names_are_taken(renamed, tmp_path):
    cache = Path(shutil.copytree(renamed[0], tmp_path / "cache"))
    shutil.rmtree(cache / "derived" / "sources")
    rows = [("dev", LABELS[n], TEXTS[n]) for n in range(40)]
    usual = write_rows(tmp_path / "usual.tsv", rows, ("split", "label", "text"))
    run = small_run(cache, tmp_path / "run", **DEV, dev=usual)
    assert (run.config.evaluation.text, run.config.evaluation.label) == (None, "label")
    assert "dev_accuracy" in run.scores


def test_columns_of_a_file_that_is_not_there_are_refused(cache, renamed, tmp_path):
    with pytest.raises(ConfigError, match=r"evaluation\.text, evaluation\.label: .* give --dev FILE"):
        small_run(cache, tmp_path / "run", **SMALL, **LOSSES["kd"], dev_text="a", dev_label="b")
    with pytest.raises(ConfigError, match=r"evaluation\.rows: .* give --dev FILE"):
        small_run(cache, tmp_path / "run", **SMALL, **LOSSES["kd"], dev_rows=["split=dev"])
    with pytest.raises(ConfigError, match=r"evaluation\.text2: .* corpus 'rows' is of single texts"):
        small_run(renamed[0], tmp_path / "run", **DEV, dev=renamed[1], dev_text2="remark")
    with pytest.raises(ConfigError, match=r"evaluation\.label: .* the loss mse makes no classifier"):
        small_run(cache, tmp_path / "run", teacher="animals", dev_label="kind")
