"""Fine-tuning on triples, pairs, sentences and labels: learning, files, resumption and refusals."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from classification_helpers import LABELS, SPLITS, labelled_file, small_teach, write_rows
from classification_helpers import TEXTS as LABELLED
from click.testing import CliRunner
from contrast_helpers import CODES, run_process, steps
from distill_helpers import TEXTS, metrics, small_run
from safetensors.torch import load_file, save_file

import distill
from distill.cli.main import cli
from distill.cli.progress import print_run
from distill.config.finetune import FinetuneConfig
from distill.config.recipes import find_recipe
from distill.config.sources import load_config
from distill.data.collate import Batch
from distill.data.source import Share
from distill.data.triples import Triples, TripleSource, read_triples
from distill.errors import CheckpointError, ConfigError, DataError, StudentError
from distill.evaluation.contamination import contamination
from distill.record import read_record
from distill.training.finetuning import open_finetuning
from distill.training.objectives import Contrast, InfoNCE, no_negatives
from distill.training.selection import nearest_selector
from embedcache.errors import InputError
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, tiny_encoder

pytest_plugins = ["distill_fixtures"]

DEV = {"rows": ["split=train"], "dev_rows": ["split=dev"]}


class KilledError(Exception):
    """Stand-in for the end of a process."""


def similar(count: int = 60) -> list[tuple[str, str, str]]:
    """Rows whose positive shares the words of its anchor, and whose hard negative those of another."""
    return [
        (TEXTS[number], " ".join(reversed(TEXTS[number].split())), TEXTS[number + count])
        for number in range(count)
    ]


def triples_file(path, rows):
    return write_rows(path, rows, ("anchor", "positive", "negative")[: len(rows[0])])


@pytest.fixture(scope="module")
def given(built_cache, tmp_path_factory):
    """Files, a plain encoder, a run of ``distill run``, and two runs of ``distill finetune`` after them."""
    folder = tmp_path_factory.mktemp("given")
    triples = triples_file(folder / "some.tsv", similar())
    sentences = folder / "few.txt"
    sentences.write_text("\n".join(TEXTS[:40]) + "\n", encoding="utf-8")
    labels, encoder = labelled_file(folder), tiny_encoder(folder / "encoder", layers=2, dimension=32)
    stage1 = small_run(built_cache, folder / "first", student="layers:1")
    learnt = small(
        stage1.folder, folder / "second", triples=triples, epochs=12, lr=3e-3, held_out=20, eval_every=3
    )
    taught = small_teach(
        encoder, labels, folder / "taught", **DEV, epochs=25, lr=5e-3, dropout=0.0, text="text"
    )
    return SimpleNamespace(
        triples=triples,
        sentences=sentences,
        labels=labels,
        encoder=encoder,
        stage1=stage1,
        learnt=learnt,
        taught=taught,
    )


def small(start, out, **settings):
    defaults = {"epochs": 2, "batch_size": 16, "mixed_precision": "no", "device": "cpu", "threads": 1}
    return distill.finetune(start, out=out, **{**defaults, **settings})


def weights(run):
    """All tensors of the student, its head and its classifier."""
    return {
        f"{file.relative_to(run.best)} {name}": tensor
        for file in sorted(run.best.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same(first, second):
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def encode(folder, texts):
    from sentence_transformers import SentenceTransformer

    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(texts))


def predictions(folder, texts):
    """The labels that a reader of the folder gives to texts, from the files alone."""
    head = ClassifierHead.read(folder)
    logits = head.logits(encode_texts(load_teacher(folder, device="cpu"), texts))
    return [head.labels[place] for place in logits.argmax(axis=1)]


def held_out_texts(run):
    return [json.loads(line) for line in (run.folder / "held_out.txt").read_text().splitlines()]


# --- the objective ---


def reference(anchors, positives, negatives, tau, codes=None):
    """The loss of each row in float64, by loops."""
    losses = []
    for i, anchor in enumerate(anchors):
        terms = []
        for j in range(len(anchors)):
            for column, vectors in ((1, positives), (2, negatives)):
                if vectors is None:
                    continue
                if codes is not None and (column, j) != (1, i):
                    mine = {codes[i][0]} | {row[1] for row in codes if row[0] == codes[i][0]}
                    if codes[j][column] in mine:
                        continue
                cosine = anchor @ vectors[j] / (anchor.norm() * vectors[j].norm())
                terms.append(torch.exp(cosine / tau))
                if (column, j) == (1, i):
                    own = terms[-1]
        losses.append(-torch.log(own / torch.stack(terms).sum()))
    return torch.stack(losses)


def vectors_of(rows, texts, seed=0, width=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows * texts, width, generator=generator)


def batch_of(rows, texts):
    empty = torch.zeros(len(rows) * texts, 1, dtype=torch.int64)
    return Batch(empty, empty, texts, torch.tensor(rows), torch.empty(len(rows), 0), 0, len(rows))


@pytest.mark.parametrize("tau", [0.05, 1.0])
@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_that_of_the_formula_in_value_and_gradient(tau, texts, masked):
    rows = [5, 3, 0, 1, 2, 4]
    vectors = vectors_of(6, texts).requires_grad_()
    contrast = Contrast(InfoNCE(tau), CODES[:, :texts] if masked else None)
    loss = contrast.loss(vectors, batch_of(rows, texts), Share())
    (gradient,) = torch.autograd.grad(loss, vectors)

    exact = vectors.detach().double().requires_grad_()
    parts = [*exact.chunk(texts), None][:3]
    wanted = reference(*parts, tau, CODES[rows].tolist() if masked else None).mean()
    (wanted_gradient,) = torch.autograd.grad(wanted, exact)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=1e-4, atol=1e-6)
    # Every text moves: anchors, positives and hard negatives alike.
    assert (gradient.norm(dim=1) > 0).all()


@pytest.mark.parametrize("recipe", ["distilcse/tinybert-l4-stage2", None])
def test_stage_two_of_distilcse_is_its_equation_7(given, tmp_path, recipe):
    """Two of 20 triples repeat an anchor; without the recipe, its other positive is no negative."""
    rows = similar(20)
    rows[18:] = [(rows[2][0], *rows[18][1:]), (rows[5][0], *rows[19][1:])]
    file = triples_file(tmp_path / "repeats.tsv", rows)
    options = {"start": str(given.encoder), "triples": str(file), "out": str(tmp_path / "run")}
    options |= {"student.dropout": 0.0, "training.max_steps": 1, "training.batch_size": 20}
    options |= {"training.mixed_precision": "no", "training.device": "cpu", "training.threads": 1}
    found = None if recipe is None else find_recipe(recipe)
    run = distill.train(load_config(FinetuneConfig, options=options, recipe=found))
    vectors = [
        torch.from_numpy(encode(given.encoder, list(column))).double() for column in zip(*rows, strict=True)
    ]
    codes = read_triples(file).codes().tolist()
    formula, masked = (reference(*vectors, 0.05, known).mean().item() for known in (None, codes))
    assert formula > masked + 1e-3
    assert run.result.final_loss == pytest.approx(masked if recipe is None else formula, rel=1e-5)


def test_false_negatives_are_found_text_by_text():
    codes = torch.from_numpy(CODES)
    found = no_negatives(codes[:, 0], codes[:, 1], codes[:, 1:].T.reshape(-1))
    assert found.nonzero().tolist() == [
        [0, 3],  # the other positive of the same anchor
        [1, 6 + 4],  # its positive as another row's hard negative
        [2, 1],  # itself, as another row's positive
        [2, 6 + 4],
        [3, 0],
    ]


def test_two_processes_take_the_steps_of_one(tmp_path):
    torch.multiprocessing.spawn(run_process, args=(str(tmp_path),), nprocs=2)
    found = torch.load(tmp_path / "means.pt", weights_only=True)
    for mean, (loss, gradient) in zip(found, steps(Share()), strict=True):
        assert mean[0].item() == pytest.approx(loss, abs=1e-6)
        torch.testing.assert_close(mean[1:], gradient.reshape(-1), rtol=1e-5, atol=1e-6)


def test_the_selector_counts_anchors_whose_positive_is_strictly_nearest(tokenizer):
    words = [f"the {noun} {number}" for number in range(2) for noun in ("cat", "dog", "man", "bird", "child")]
    held_out = Triples("t", (words, [f"{word} too" for word in words], [f"no {word}" for word in words]))
    selector = nearest_selector(held_out, tokenizer)
    n = len(words)

    def score(vectors):
        return selector.score(lambda texts: vectors)[selector.name]

    right = np.concatenate([np.eye(n), np.eye(n), -np.eye(n)]).astype(np.float32)
    wrong = right.copy()
    wrong[2 * n : 2 * n + 4] = right[:4]
    wrong[n : n + 4] *= -1
    assert [score(right), score(np.ones_like(right))] == [1.0, 0.0]
    assert score(wrong) == pytest.approx((n - 4) / n)
    assert np.isnan(score(right * np.nan))
    assert nearest_selector(held_out.take(np.arange(9)), tokenizer) is None


# --- what is learnt ---


def test_the_student_learns_to_find_positives(given):
    name = "held_out_retrieval_accuracy"
    scores = [line[name] for line in metrics(given.learnt.folder) if name in line]
    assert max(scores) == given.learnt.result.best_score > scores[0] + 0.1
    assert (given.learnt.record.rows, given.learnt.result.steps) == (40, 12 * 3)
    assert given.learnt.result.selected_by == name
    np.testing.assert_allclose(np.linalg.norm(encode(given.learnt.best, TEXTS[:3]), axis=1), 1, atol=1e-5)


def test_a_classifier_learns_and_its_score_is_that_of_its_folder(given):
    taught = given.taught
    dev = [number for number, split in enumerate(SPLITS) if split == "dev"]
    found = predictions(taught.best, [LABELLED[number] for number in dev])
    right = np.mean([said == LABELS[number] for said, number in zip(found, dev, strict=True)])
    assert taught.result.best_score == pytest.approx(right, abs=1e-9)
    assert right > max(LABELS.count(label) for label in set(LABELS)) / len(LABELS) + 0.15
    assert set(taught.scores) == {"dev_accuracy", "dev_f1"}
    # The encoder is an ordinary model whose vectors have their own length.
    assert np.abs(np.linalg.norm(encode(taught.best, LABELLED[:5]), axis=1) - 1).min() > 0.1
    assert ClassifierHead.read(taught.best).labels == ("animal", "none")


def test_sentences_are_distinguished_under_dropout(given, tmp_path):
    run = small(given.encoder, tmp_path / "run", sentences=given.sentences, lr=3e-3, epochs=10, dropout=0.3)
    losses = [line["loss"] for line in metrics(run.folder) if "loss" in line]
    # A text and itself under another dropout are not one vector, or there were nothing to lose.
    assert (run.result.best_score, run.config.evaluation.held_out) == (None, 0)
    assert losses[0] > 1e-3


@pytest.mark.parametrize("kind", ["triples", "labels"])
def test_runs_of_one_seed_are_equal_and_the_start_stays(given, tmp_path, kind):
    before = {path: path.read_bytes() for path in given.stage1.folder.rglob("*") if path.is_file()}
    files = {"triples": {"triples": given.triples}, "labels": {"labels": given.labels, "text": "text"}}[kind]
    run, best = given.stage1.folder, given.stage1.best
    starts = [(run, 0, "bucketed"), (best, 0, "bucketed"), (run, 1, "bucketed"), (run, 0, "random")]
    runs = [
        small(start, tmp_path / str(number), **files, seed=seed, order=order, epochs=1, held_out=20)
        for number, (start, seed, order) in enumerate(starts)
    ]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert_same(runs[0], runs[1])
    first, *others = (weights(runs[number]) for number in (0, 2, 3))
    assert all(any(not torch.equal(first[name], other[name]) for name in first) for other in others)
    assert held_out_texts(runs[0]) == held_out_texts(runs[1]) == held_out_texts(runs[3])
    if kind == "labels":
        assert held_out_texts(runs[0]) != held_out_texts(runs[2])
        assert len(held_out_texts(runs[0])) == runs[0].record.held_out == 20


# --- the student ---


def test_a_head_is_added_trained_and_kept_or_dropped(tmp_path, given):
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    options = {"sentences": given.sentences, "pooling": "cls", "head": "tanh", "lr": 1e-3}
    kept = small(plain, tmp_path / "kept", **options)
    dropped = small(plain, tmp_path / "dropped", **options, drop_head=True)
    assert '"cls"' in (kept.best / "1_Pooling" / "config.json").read_text()
    assert not (dropped.best / "2_Dense").exists()
    # The head is trained along in both: the encoders are one.
    a, b = weights(kept), weights(dropped)
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert np.abs(encode(kept.best, TEXTS[:3])).max() <= 1
    assert dropped.parameters == kept.parameters - (16 * 16 + 16)


def test_weights_that_the_start_lacks_are_the_same_in_every_attempt(given, tmp_path):
    """An untrained pooler is drawn at random, and saved with the rest."""
    bare = tiny_encoder(tmp_path / "bare", layers=1, plain=True, seed=9)
    path = bare / "model.safetensors"
    held = {name: tensor for name, tensor in load_file(path).items() if "pooler" not in name}
    save_file(held, path, {"format": "pt"})
    runs = []
    for number in range(2):
        torch.manual_seed(number)
        runs.append(small(bare, tmp_path / str(number), triples=given.triples, epochs=1))
    assert any("pooler" in name for name in weights(runs[0]))
    assert_same(*runs)


def test_the_length_in_training_is_not_that_of_the_student(given, tmp_path, monkeypatch):
    lengths = []

    def source(*arguments: object, **settings: object):
        found = TripleSource(*arguments, **settings)
        lengths.append(int(found.lengths.max()))
        return found

    monkeypatch.setattr("distill.training.finetuning.TripleSource", source)
    own = load_teacher(given.stage1.best, device="cpu").contract.max_length
    for number, length in enumerate((None, 6)):
        run = small(given.stage1.folder, tmp_path / str(number), triples=given.triples, max_length=length)
        assert load_teacher(run.best, device="cpu").contract.max_length == own
    assert lengths[0] > 6 == lengths[1]
    with pytest.raises(StudentError, match=rf"student\.max_length: .*{own + 1}.* at most {own}|{own + 1}"):
        small(given.stage1.folder, tmp_path / "long", triples=given.triples, max_length=own + 1)


# --- the folder ---


def test_the_folder_records_both_stages(given):
    record, before = read_record(given.learnt.folder), read_record(given.stage1.folder)
    assert (record.kind, record.stage1) == ("finetune", before)
    assert record.start.run == str(given.stage1.folder.resolve())
    assert (record.start.setting, record.seeds) == (before.setting, [*before.seeds, 0])
    for key in ("teachers", "targets", "cache", "student"):
        assert getattr(record, key) == getattr(before, key)
    assert (record.corpus.name, record.rows, record.held_out, record.in_dev) == ("some", 40, 20, None)
    names = {"best", "config.yaml", "held_out.txt", "metrics.jsonl", "run.json"}
    assert {path.name for path in given.learnt.folder.iterdir()} - {".lock"} == names
    card = (given.learnt.best / "README.md").read_text()
    for fact in ("distilled from tiny", "infonce", "some", "retrieval_accuracy", "Distillation before it"):
        assert fact in card
    for path in given.learnt.best.rglob("*"):
        assert path.is_dir() or str(given.triples.parent).encode() not in path.read_bytes()


def test_the_folder_of_a_classifier_records_its_training_data(given):
    record, start = read_record(given.taught.folder), load_teacher(given.encoder, device="cpu").contract.id
    assert (record.kind, record.labels, record.teacher) == ("finetune", ["animal", "none"], None)
    assert (record.rows, record.held_out, record.in_dev) == (SPLITS.count("train"), 0, 0)
    assert (record.dev.rows, record.start.contract_id) == (["split=dev"], start)
    trained = [text for text, split in zip(LABELLED, SPLITS, strict=True) if split == "train"]
    texts = {"trained": [(text,) for text in trained], "others": [("Of this nothing was learnt.",)]}
    seen = contamination(texts, given.taught.folder)
    assert seen["trained"].sentences_seen == seen["trained"].sentences > 0
    assert seen["others"].sentences_seen == 0
    card = (given.taught.best / "README.md").read_text()
    for fact in ("animal, none", "dev_f1", "cross-entropy", "text-classification"):
        assert fact in card


def test_texts_that_were_trained_on_are_not_called_held_out(given):
    texts, before = held_out_texts(given.learnt), held_out_texts(given.stage1)
    assert 0 < len(texts) < len(before)
    rows = read_triples(given.triples).split(20, seed=0)[0]
    assert set(before) - set(texts) == set(before) & set(rows.distinct_texts())


def test_texts_of_the_development_set_are_counted_among_those_trained_on(given, tmp_path):
    pairs = [("dev", number % 6, TEXTS[number].upper() + "!", TEXTS[150]) for number in range(12)]
    dev = write_rows(tmp_path / "dev.tsv", pairs, ("subset", "score", "sentence1", "sentence2"))
    run = small(given.encoder, tmp_path / "run", triples=given.triples, dev=dev)
    assert (run.record.in_dev, run.record.rows, run.result.selected_by) == (12, 60, "dev_spearman")
    rows = [(LABELS[number], LABELLED[number].upper()) for number in range(12)]
    labelled = write_rows(tmp_path / "labelled.tsv", rows, ("label", "text"))
    run = small_teach(given.encoder, given.labels, tmp_path / "c", text="text", dev=labelled, epochs=1)
    assert (run.record.in_dev, run.record.rows) == (12, len(LABELLED))


# --- resume ---


def kill_at(step):
    def kill(progress):
        if progress.phase == "train" and progress.step == step:
            raise KilledError

    return kill


@pytest.mark.parametrize(
    ("kind", "every", "stops"),
    [("triples", 1, range(1, 6)), ("labels", 3, [5, 15])],
)
def test_a_run_killed_at_any_step_ends_as_one_that_was_not(given, tmp_path, kind, every, stops):
    options = {"eval_every": 2, "checkpoint_every": every, "tracking": {"log_every": 2}, "held_out": 20}
    if kind == "triples":
        start, options = given.stage1.folder, {**options, "triples": given.triples, "head": "linear"}
    else:
        start, options = given.encoder, {**options, "labels": given.labels, "text": "text"}
    whole = small(start, tmp_path / "whole", **options)
    for stop in stops:
        out = tmp_path / f"killed-{stop}"
        with pytest.raises(KilledError):
            small(start, out, **options, on_progress=kill_at(stop))
        resumed = distill.resume(out)
        assert resumed.resumed == (stop - 1) // every * every
        assert_same(whole, resumed)
        logged = [
            [{key: value for key, value in line.items() if key != "rows_per_second"} for line in metrics(run)]
            for run in (whole.folder, out)
        ]
        assert logged[0] == logged[1]
        assert resumed.scores == whole.scores


def test_resume_refuses_other_data_and_another_start(given, tmp_path):
    file, start = triples_file(tmp_path / "t.tsv", similar()), tmp_path / "start"
    shutil.copytree(given.stage1.best, start)
    with pytest.raises(KilledError):
        small(start, tmp_path / "run", triples=file, checkpoint_every=1, on_progress=kill_at(2))
    with pytest.raises(ConfigError, match="resume"):
        small(start, tmp_path / "run", triples=file)
    triples_file(file, similar()[::-1])
    with pytest.raises(CheckpointError, match="corpus"):
        distill.resume(tmp_path / "run")
    triples_file(file, similar())
    shutil.rmtree(start)
    tiny_encoder(start, layers=1, seed=9)
    with pytest.raises(CheckpointError, match="start"):
        distill.resume(tmp_path / "run")
    with pytest.raises(ConfigError, match="is not finished"):
        small(tmp_path / "run", tmp_path / "next", triples=file)
    with pytest.raises(CheckpointError, match="is finished"):
        distill.resume(given.learnt.folder)


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one of triples, sentences and labels"),
        ({"triples": "a", "labels": "b"}, "triples and labels"),
        ({"triples": "a", "columns": ["x"]}, "columns"),
        ({"sentences": "a", "columns": ["x", "y"]}, "columns"),
        ({"triples": "a", "dev_rows": ["split=dev"]}, r"evaluation\.rows: not for triples"),
        ({"labels": "a", "columns": ["x"]}, "columns: not for labels"),
        ({"labels": "a", "dev": "b", "held_out": 0.2}, "development set"),
        ({"sentences": "a", "dropout": 0.0}, "dropout"),
        ({"sentences": "a", "held_out": 10}, "held_out"),
        ({"triples": "a", "loss": {"tua": 1}}, r"loss\.tau"),
        ({"triples": "a", "optimizer": {"lr": 0}}, r"optimizer\.lr "),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(settings, message):
    with pytest.raises(ConfigError, match=message):
        distill.finetune("start", **settings)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"held_out": 59}, ConfigError, "held_out"),
        ({"patience": 2, "held_out": 0}, ConfigError, "patience"),
        ({"warmup": 1000}, ConfigError, "warmup"),
        ({"max_length": 1000}, StudentError, "max_length"),
        ({"limit": 1}, DataError, "1 usable rows"),
        ({"dev": "missing.tsv"}, InputError, "does not exist"),
        ({"labels": {"dev_rows": ["split=test"]}}, ConfigError, "test set"),
        ({"labels": {"dev_rows": ["split=dev"]}}, ConfigError, "trained on as well.*rows split=train"),
        ({"labels": {"rows": ["label=none"]}}, DataError, "'none' alone"),
        ({"labels": {"held_out": 0.01}}, DataError, "2 labelled rows"),
        ({"labels": {"held_out": 0, "patience": 2}}, ConfigError, "patience"),
        ({"labels": {"max_length": 65}}, StudentError, "64 tokens"),
    ],
)
def test_nothing_is_written_where_something_is_refused(given, tmp_path, settings, error, words):
    of_labels = settings.get("labels")
    files = {"triples": given.triples} if of_labels is None else {"labels": given.labels, "text": "text"}
    with pytest.raises(error, match=words):
        small(given.encoder, tmp_path / "out", **files, **(settings if of_labels is None else of_labels))
    assert not (tmp_path / "out").exists()


def test_a_label_that_training_lacks_is_named(given, tmp_path):
    rows = [("plant", "a tree"), *((label, text) for label, text in zip(LABELS, LABELLED, strict=True))]
    dev = write_rows(tmp_path / "dev.tsv", rows, ("label", "text"))
    with pytest.raises(DataError, match=r"1 of 241 rows .*'plant'"):
        small_teach(given.encoder, given.labels, tmp_path / "run", text="text", dev=dev)


def test_a_start_is_neither_mistyped_nor_replaced(given, tmp_path):
    typo = given.stage1.folder.with_name("frist")
    with pytest.raises(ConfigError, match=f"start: .*did you mean {given.stage1.folder}"):
        small(typo, tmp_path / "out", triples=given.triples)
    with pytest.raises(ConfigError, match="the student comes from"):
        small(given.stage1.folder, given.stage1.folder, triples=given.triples, overwrite=True)
    with pytest.raises(ConfigError, match="overwrite"):
        small(given.stage1.folder, given.learnt.folder, triples=given.triples)
    assert given.stage1.best.is_dir()


# --- the configuration and the command ---


def test_the_defaults_are_the_papers():
    config = FinetuneConfig(start="x", triples="y")
    assert (config.loss.tau, config.student.dropout) == (0.05, 0.1)
    counts = [config.count_held_out(rows) for rows in (499, 33_000, 10**6)]
    assert counts == [0, 660, 1000]
    resolved = config.resolved(33_000 - 660, 660)
    assert (resolved.training.epochs, resolved.training.batch_size, resolved.optimizer.lr) == (5, 128, 1e-5)
    assert (resolved.evaluation.held_out, resolved.evaluation.every) == (660, 125)
    labels = FinetuneConfig(start="x", labels="y")
    assert labels.count_held_out(900) == 90
    resolved = labels.resolved(67_000, 0)
    assert (resolved.training.epochs, resolved.training.batch_size, resolved.optimizer.lr) == (3, 32, 2e-5)


def test_rows_of_few_anchors_are_held_out_by_anchors_and_trained_as_long_as_asked(given, tmp_path):
    file = triples_file(tmp_path / "pairs.tsv", [(f"anchor {n % 20}", f"positive {n}") for n in range(600)])
    settings = {"start": str(given.encoder), "triples": str(file)}
    with open_finetuning(FinetuneConfig(**settings)) as task:
        assert (len(task.rows), task.held_out) == (600, None)
    settings |= {"training": {"max_steps": 10, "batch_size": 100}, "evaluation": {"held_out": 10}}
    with open_finetuning(FinetuneConfig(**settings)) as task:
        assert len(task.rows) == len(task.held_out) == 300
        assert task.config.training.count_steps(300) == 10


def test_the_written_configuration_runs_again_to_the_same_student(given, tmp_path):
    run, out = given.learnt, tmp_path / "again"
    config = load_config(FinetuneConfig, run.folder / "config.yaml", options={"out": str(out)})
    assert config.identity() == run.config.identity()
    assert_same(run, distill.train(config))


def test_the_command_trains_reports_and_resumes(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    words = ["--epochs", "1", "--device", "cpu", "--mixed-precision", "no", "--threads", "1"]

    def call(*more: object):
        return CliRunner().invoke(cli, ["finetune", *map(str, more)], catch_exceptions=False)

    recipe = ["--recipe", "distilcse/bert-base-stage2", "--batch-size", "16"]
    done = call(given.stage1.folder, "--triples", given.triples, *words, *recipe, "--json")
    out = tmp_path / "runs" / "first-some-finetune"
    assert json.loads(done.output[done.output.index("{") :])["rows"] == 60
    assert read_record(out).recipe == "distilcse/bert-base-stage2"
    done = call(given.encoder, "--labels", given.labels, "--text", "text", "--out", "b", *words)
    for word in ("% right on held-out rows", "macro F1", "animal:", "distill predict"):
        assert word in done.output
    done = call(
        given.encoder, "--labels", given.labels, "--text", "text", "--text2", "text", "--out", "c", *words
    )
    assert "--text2" in done.output
    done = call("--resume", out, "--lr", "1")
    assert (done.exit_code, "--lr" in done.output) == (2, True)
    with pytest.raises(CheckpointError, match="is finished"):
        call("--resume", out)
    print_run(given.learnt)
    assert "40 rows" in capsys.readouterr().out
