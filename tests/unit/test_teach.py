"""Teaching a classifier: what it learns, writes and refuses, and how it is gone on with."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from classification_helpers import LABELS, SPLITS, TEXTS, labelled_file, small_teach, write_rows
from click.testing import CliRunner
from distill_helpers import metrics
from safetensors.torch import load_file

from distill.classification.teach import resume_teach
from distill.cli.main import cli
from distill.cli.progress import print_teach
from distill.errors import CheckpointError, ConfigError, DataError, StudentError
from distill.evaluation.contamination import contamination
from distill.training.start import default_out
from embedcache.pairs import join_pair
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, tiny_encoder

DEV = {"rows": ["split=train"], "dev_rows": ["split=dev"]}


class KilledError(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A sentence encoder with vectors of length one; not to be changed."""
    return tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny", layers=2, dimension=32)


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    return labelled_file(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def taught(encoder, animals, tmp_path_factory):
    """A finished teaching; not to be changed."""
    out = tmp_path_factory.mktemp("taught") / "run"
    return small_teach(encoder, animals, out, **DEV, epochs=25, lr=5e-3, dropout=0.0, text="text")


def tensors(folder):
    found = load_file(folder / "model.safetensors")
    return {**found, **load_file(folder / "classifier.safetensors")}


def assert_alike(first, second):
    one, two = tensors(first), tensors(second)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def predictions(folder, texts):
    """What a reader of the folder makes of texts, from the files alone."""
    head = ClassifierHead.read(folder)
    logits = head.logits(encode_texts(load_teacher(folder, device="cpu"), texts))
    return [head.labels[place] for place in logits.argmax(axis=1)]


def test_it_learns_and_its_score_is_that_of_the_folder(taught):
    dev = [number for number, split in enumerate(SPLITS) if split == "dev"]
    found = predictions(taught.best, [TEXTS[number] for number in dev])
    right = np.mean([said == LABELS[number] for said, number in zip(found, dev, strict=True)])
    assert taught.result.best_score == pytest.approx(right, abs=1e-9)
    commonest = max(LABELS.count(label) for label in set(LABELS)) / len(LABELS)
    assert right > commonest + 0.15
    assert taught.scores == {"dev_accuracy": taught.result.best_score, "dev_f1": taught.scores["dev_f1"]}
    assert 0 < taught.scores["dev_f1"] != taught.result.best_score
    assert max(line.get("dev_accuracy", 0) for line in metrics(taught.folder)) == taught.result.best_score


def test_the_folder_is_an_ordinary_model_whose_vectors_have_their_own_length(taught):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(taught.best), device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    lengths = np.linalg.norm(model.encode(TEXTS[:5]), axis=1)
    assert np.abs(lengths - 1).min() > 0.1
    assert ClassifierHead.read(taught.best).labels == ("animal", "none")


def test_the_folder_says_what_it_was_taught_with(taught, animals, encoder):
    record = json.loads((taught.folder / "run.json").read_text())
    assert (record["kind"], record["labels"], record["teacher"]) == ("teach", ["animal", "none"], None)
    assert (record["rows"], record["held_out"], record["in_dev"]) == (SPLITS.count("train"), 0, 0)
    assert record["dev"]["rows"] == ["split=dev"]
    assert record["scores"] == taught.scores
    assert record["start"]["contract_id"] == load_teacher(encoder, device="cpu").contract.id
    names = {path.name for path in taught.folder.iterdir()}
    assert names == {"best", "config.yaml", "metrics.jsonl", "run.json"}
    card = (taught.best / "README.md").read_text()
    for fact in (
        "animal, none",
        "dev_f1",
        record["loss"],
        "text-classification",
    ):
        assert fact in card
    assert str(animals.parent) not in card


def test_without_development_rows_a_share_is_held_out(encoder, animals, tmp_path):
    runs = [small_teach(encoder, animals, tmp_path / str(n), text="text", seed=n // 2) for n in range(3)]
    assert runs[0].rows == len(TEXTS) - 24
    assert runs[0].scored == 24
    held_out = [json.loads(line) for line in (runs[0].folder / "held_out.txt").read_text().splitlines()]
    assert len(held_out) == 24
    assert set(held_out) < set(TEXTS)
    assert set(runs[0].scores) == {"held_out_accuracy", "held_out_f1"}
    assert runs[0].in_dev is None
    assert_alike(runs[0].best, runs[1].best)
    first, third = tensors(runs[0].best), tensors(runs[2].best)
    assert not torch.equal(first["weight"], third["weight"])
    assert (runs[2].folder / "held_out.txt").read_text() != (runs[0].folder / "held_out.txt").read_text()


def test_with_no_share_the_last_state_is_kept(encoder, animals, tmp_path):
    run = small_teach(encoder, animals, tmp_path / "run", text="text", dev_share=0)
    assert (run.rows, run.scored, run.scores, run.result.best_score) == (len(TEXTS), 0, {}, None)
    with pytest.raises(ConfigError, match=r"evaluation\.patience: 2 without a new best"):
        small_teach(encoder, animals, tmp_path / "other", text="text", dev_share=0, patience=2)


def test_layers_are_kept_as_asked(encoder, animals, tmp_path):
    run = small_teach(encoder, animals, tmp_path / "run", text="text", layers="last:1", max_steps=1, lr=1e-9)
    assert json.loads((run.best / "config.json").read_text())["num_hidden_layers"] == 1
    whole, cut = load_file(encoder / "model.safetensors"), load_file(run.best / "model.safetensors")
    name = "encoder.layer.{}.output.dense.weight"
    torch.testing.assert_close(cut[name.format(0)], whole[name.format(1)], atol=1e-6, rtol=0)
    assert (cut[name.format(0)] - whole[name.format(0)]).abs().max() > 1e-3
    with pytest.raises(StudentError, match="has 2 layers"):
        small_teach(encoder, animals, tmp_path / "other", text="text", layers="last:5")


def test_of_pairs_the_second_text_counts(encoder, tmp_path):
    rows = [(label, "the river", text) for label, text in zip(LABELS, TEXTS, strict=True)]
    file = write_rows(tmp_path / "pairs.tsv", rows, ("label", "first", "second"))
    columns = {"text": "first", "text2": "second"}
    run = small_teach(encoder, file, tmp_path / "run", **columns, epochs=12, lr=4e-3, dropout=0.0)
    found = predictions(run.best, [join_pair("the river", text) for text in TEXTS])
    right = np.mean([said == label for said, label in zip(found, LABELS, strict=True)])
    assert right > LABELS.count("none") / len(LABELS) + 0.15
    assert len({*predictions(run.best, ["the river"] * 3)}) == 1
    assert ClassifierHead.read(run.best).reads == "pairs"


def test_what_it_was_taught_with_is_found_again(taught, animals):
    of_split = {name: [text for text, of in zip(TEXTS, SPLITS, strict=True) if of == name] for name in SPLITS}
    only = {name: sorted({*of} - {*of_split["train"]}) for name, of in of_split.items() if name != "train"}
    items = {"train": [(text,) for text in of_split["train"]]}
    items |= {name: [(text,) for text in of] for name, of in only.items()}
    seen = contamination(items, taught.folder)
    assert {name: one.sentences_seen for name, one in seen.items()} == {
        "train": len({*of_split["train"]}),
        **dict.fromkeys(only, 0),
    }


def test_a_run_is_taught_further(taught, animals, tmp_path):
    run = small_teach(taught.folder, animals, tmp_path / "run", **DEV, text="text", epochs=1)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["start"]["run"] == str(taught.folder.resolve())
    with pytest.raises(ConfigError, match="is the run that the model comes from"):
        small_teach(taught.folder, animals, taught.folder, **DEV, text="text", overwrite=True)


# --- resume ---


def interrupted(encoder, animals, out, step, **settings):
    def kill(progress):
        if progress.phase == "train" and progress.step == step:
            raise KilledError

    with pytest.raises(KilledError):
        small_teach(encoder, animals, out, checkpoint_every=1, on_progress=kill, **settings)
    return out


@pytest.mark.parametrize("step", [2, 15])
def test_resumed_it_is_the_same_classifier(encoder, animals, tmp_path, step):
    settings = {**DEV, "text": "text", "eval_every": 5}
    whole = small_teach(encoder, animals, tmp_path / "whole", **settings)
    out = interrupted(encoder, animals, tmp_path / "cut", step, **settings)
    run = resume_teach(out)
    assert 0 < run.resumed <= step
    assert_alike(run.best, whole.best)
    assert run.scores == whole.scores
    assert [line.get("dev_f1") for line in metrics(out)] == [
        line.get("dev_f1") for line in metrics(whole.folder)
    ]


def test_resume_refuses_other_rows_and_other_commands(encoder, animals, taught, tmp_path):
    file = tmp_path / "animals.tsv"
    shutil.copyfile(animals, file)
    out = interrupted(encoder, file, tmp_path / "run", 2, text="text")
    file.write_text(file.read_text() + "train\tnone\tone more text\n")
    with pytest.raises(CheckpointError, match="the run's corpus was"):
        resume_teach(out)
    with pytest.raises(CheckpointError, match="is finished"):
        resume_teach(taught.folder)
    result = CliRunner().invoke(cli, ["finetune", "--resume", str(out)])
    assert "distill teach --resume" in str(result.exception)


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"dev_rows": ["split=test"]}, ConfigError, "rows of a test set"),
        ({"dev": "some_test.tsv"}, ConfigError, "looks like a test set"),
        ({**DEV, "dev_share": 0.2}, ConfigError, r"evaluation\.share: a development set is given"),
        ({"rows": ["label=none"]}, DataError, "'none' alone"),
        ({"rows": ["split=train", "label=none"], "label": "split"}, DataError, "'train' alone"),
        (
            {"dev_share": 0.01},
            DataError,
            r"evaluation\.share: 0\.01 of the texts: 2 labelled rows to choose a checkpoint by.*larger share",
        ),
        ({"max_length": 65}, StudentError, "takes at most 64 tokens"),
        ({"epoch": 3}, ConfigError, r"epoch: unknown key, did you mean epochs"),
    ],
)
def test_what_cannot_be_taught_is_named_before_anything_is_written(
    encoder, animals, tmp_path, settings, error, words
):
    with pytest.raises(error, match=words):
        small_teach(encoder, animals, tmp_path / "run", text="text", **settings)
    assert not (tmp_path / "run").exists()


def test_a_label_of_the_development_rows_that_training_lacks_is_named(encoder, animals, tmp_path):
    rows = [("plant", "a tree"), *((label, text) for label, text in zip(LABELS, TEXTS, strict=True))]
    dev = write_rows(tmp_path / "dev.tsv", rows, ("label", "text"))
    with pytest.raises(DataError, match=r"the development rows: 1 of 241 rows .*'plant'"):
        small_teach(encoder, animals, tmp_path / "run", text="text", dev=dev)


def test_texts_of_the_development_file_are_counted_among_those_trained_on(encoder, animals, tmp_path):
    rows = [(LABELS[number], TEXTS[number].upper()) for number in range(12)]
    dev = write_rows(tmp_path / "dev.tsv", rows, ("label", "text"))
    run = small_teach(encoder, animals, tmp_path / "run", text="text", dev=dev, epochs=1)
    assert (run.in_dev, run.scored, run.rows) == (12, 12, len(TEXTS))


# --- the command ---


def test_the_command_teaches_and_prints_both_scores(encoder, animals, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["teach", str(encoder), "--train", str(animals), "--text", "text", "--rows", "split=train"]
    arguments += ["--dev-rows", "split=dev", "--out", str(out), "--epochs", "1", "--device", "cpu"]
    result = CliRunner().invoke(cli, [*arguments, "--threads", "1", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["labels"] == ["animal", "none"]
    assert set(facts["scores"]) == {"dev_accuracy", "dev_f1"}
    run = small_teach(encoder, animals, tmp_path / "again", **DEV, text="text", epochs=1)
    print_teach(run)
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{100 * run.scores['dev_accuracy']:.2f} % right" in printed
    assert f"{100 * run.scores['dev_f1']:.2f} macro F1" in printed
    assert f"on {SPLITS.count('dev')} development rows" in printed
    assert f"none: {run.balance.split()[1]}" in printed


def test_the_command_says_what_is_missing():
    result = CliRunner().invoke(cli, ["teach"])
    assert isinstance(result.exception, ConfigError)
    assert "start: missing" in str(result.exception)
    assert "data: missing" in str(result.exception)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--dev-rows", "split=test"], "split=test are the rows of a test set"),
        (["--dev", "some_test.tsv"], "--dev: some_test.tsv looks like a test set"),
        (["--dev-rows", "split=none"], "change --dev-rows"),
        (["--dev-rows", "split=dev", "--dev-share", "0.5"], "--dev-share: a development set is given"),
        (["--dev-share", "0.01"], "0.01 of the texts: 2 labelled rows"),
        (["--set", "evaluation.share=0.01"], "evaluation.share: 0.01 of the texts: 2 labelled rows"),
        (["--lr", "nan"], "--lr: "),
    ],
)
def test_an_error_names_what_was_typed(encoder, animals, tmp_path, typed, told):
    command = ["teach", str(encoder), "--train", str(animals), "--text", "text", "--device", "cpu"]
    result = CliRunner().invoke(cli, [*command, "--out", str(tmp_path / "run"), *typed])
    assert told in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_a_start_that_is_not_there_is_told_by_the_name_of_its_argument(animals, tmp_path):
    command = ["teach", str(tmp_path / "missing"), "--train", str(animals)]
    assert str(CliRunner().invoke(cli, command).exception).startswith("MODEL: there is no folder")


def test_a_run_that_nobody_names_is_called_by_what_it_is_of(taught):
    assert default_out("minilm-l3", "/films/sst2.train.tsv", "teach") == "runs/minilm-l3-sst2-teach"
    # Of a run its folder, not that of its best student.
    assert default_out(str(taught.best), "more.tsv", "finetune") == "runs/run-more-finetune"
