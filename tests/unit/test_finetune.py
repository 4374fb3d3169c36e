"""Fine-tuning: the objective, what it starts from, what it writes and refuses, and how it is gone on with."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from contrast_helpers import CODES, run_process, steps
from distill_helpers import TEXTS, metrics, small_run
from safetensors.torch import load_file, save_file

import distill
from distill.cli.main import cli
from distill.cli.progress import print_finetune
from distill.config.finetune import FinetuneConfig
from distill.data.collate import Batch
from distill.data.source import Share
from distill.data.triples import Triples, TripleSource, read_triples
from distill.errors import CheckpointError, ConfigError, DataError, StudentError
from distill.record import read_record
from distill.training.contrastive import Contrast, InfoNCE, nearest_selector, no_negatives
from distill.training.finetune import finetune_config, resume_finetune
from distill.training.run import resume
from embedcache.teacher.load import load_teacher
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]

NOUNS = ["cat", "dog", "man", "woman", "child", "bird", "horse", "train"]


def similar(count: int = 60) -> list[tuple[str, str, str]]:
    """Rows whose positive shares the words of its anchor, and whose hard negative those of another."""
    return [
        (TEXTS[number], " ".join(reversed(TEXTS[number].split())), TEXTS[number + count])
        for number in range(count)
    ]


def write(path, rows, header=("anchor", "positive", "negative")):
    path.write_text(
        "\n".join("\t".join(row) for row in [header[: len(rows[0])], *rows]) + "\n", encoding="utf-8"
    )
    return path


@pytest.fixture(scope="session")
def triples(tmp_path_factory):
    """A file of 60 triples."""
    return write(tmp_path_factory.mktemp("triples") / "some.tsv", similar())


@pytest.fixture(scope="session")
def sentences_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences") / "few.txt"
    path.write_text("\n".join(TEXTS[:40]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def stage1(built_cache, tmp_path_factory):
    """A finished run of ``distill run``; not to be changed."""
    return small_run(built_cache, tmp_path_factory.mktemp("stage1") / "first", student="layers:1")


def small(start, out, **settings):
    defaults = {"epochs": 2, "batch_size": 16, "mixed_precision": "no", "device": "cpu", "threads": 1}
    return distill.finetune(start, out=out, **{**defaults, **settings})


def weights(run):
    return load_file(run.best / "model.safetensors")


def encode(folder, texts):
    from sentence_transformers import SentenceTransformer

    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(texts))


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


def test_leaving_out_changes_nothing_where_no_text_repeats():
    vectors = vectors_of(6, 3)
    rows = np.arange(18).reshape(6, 3)
    batch = batch_of(list(range(6)), 3)
    masked, plain = (Contrast(InfoNCE(0.1), codes).loss(vectors, batch, Share()) for codes in (rows, None))
    assert masked == plain


def test_what_is_no_negative_is_told_text_by_text():
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
    words = [f"the {noun} {number}" for number in range(2) for noun in NOUNS]
    held_out = Triples("t", (words, [f"{word} too" for word in words], [f"no {word}" for word in words]))
    selector = nearest_selector(held_out, tokenizer)
    assert selector is not None
    n = len(words)
    right = np.concatenate([np.eye(n), np.eye(n), -np.eye(n)]).astype(np.float32)
    assert selector.score(lambda texts: right) == 1.0
    wrong = right.copy()
    wrong[2 * n : 2 * n + 4] = right[:4]
    wrong[n : n + 4] *= -1
    assert selector.score(lambda texts: wrong) == (n - 4) / n
    assert selector.score(lambda texts: np.ones_like(right)) == 0.0
    assert np.isnan(selector.score(lambda texts: right * np.nan))
    assert nearest_selector(held_out.take(np.arange(9)), tokenizer) is None


def test_of_many_held_out_rows_a_part_is_scored(tokenizer, monkeypatch):
    monkeypatch.setattr("distill.training.contrastive._MOST_HELD_OUT", 20)
    texts = [f"cat {number}" for number in range(50)]
    selector = nearest_selector(Triples("t", (texts, texts)), tokenizer)
    assert selector is not None
    assert selector.left_out.shape == (17, 17)


# --- a whole run ---


@pytest.fixture(scope="session")
def finished(stage1, triples, tmp_path_factory):
    """A fine-tuned run; not to be changed."""
    out = tmp_path_factory.mktemp("finetuned") / "second"
    return small(stage1.folder, out, triples=triples, epochs=12, lr=3e-3, held_out=20, eval_every=3)


def test_the_student_learns_to_find_positives(finished):
    scores = [line["held_out_accuracy"] for line in metrics(finished.folder) if "held_out_accuracy" in line]
    assert max(scores) == finished.result.best_score
    assert max(scores) > scores[0] + 0.1
    assert finished.rows == 40
    assert finished.result.steps == 12 * 3


def test_the_folder_says_what_both_stages_were(finished, stage1, triples):
    record = json.loads((finished.folder / "run.json").read_text())
    before = json.loads((stage1.folder / "run.json").read_text())
    assert record["kind"] == "finetune"
    assert record["start"]["run"] == str(stage1.folder.resolve())
    first = read_record(stage1.folder)
    assert (record["start"]["setting"], record["start"]["seeds"]) == (first.setting, first.seeds)
    assert record["seeds"] == [*first.seeds, finished.config.seed]
    assert record["stage1"] == before
    for key in ("teacher", "teachers", "targets", "cache", "student"):
        assert record[key] == before[key]
    assert record["corpus"]["name"] == "some"
    assert (record["rows"], record["held_out"], record["in_dev"]) == (40, 20, None)
    assert record["result"]["best_step"] == finished.result.best_step
    assert {path.name for path in finished.folder.iterdir()} == {
        "best",
        "config.yaml",
        "held_out.txt",
        "metrics.jsonl",
        "run.json",
    }
    card = (finished.best / "README.md").read_text()
    for fact in ("distilled from tiny", "infonce", "some", "held_out_accuracy", "Distillation before it"):
        assert fact in card
    for path in finished.best.rglob("*"):
        assert path.is_dir() or str(triples.parent).encode() not in path.read_bytes()


def test_texts_that_were_trained_on_are_not_called_held_out(finished, stage1, triples):
    texts = [json.loads(line) for line in (finished.folder / "held_out.txt").read_text().splitlines()]
    before = [json.loads(line) for line in (stage1.folder / "held_out.txt").read_text().splitlines()]
    assert 0 < len(texts) < len(before)
    assert set(texts) <= set(before)
    rows = read_triples(triples).split(20, seed=0)[0]
    assert set(before) - set(texts) == set(before) & set(rows.texts())


def test_the_weights_move_and_the_start_stays(stage1, triples, tmp_path):
    before = {path: path.read_bytes() for path in stage1.folder.rglob("*") if path.is_file()}
    run = small(stage1.folder, tmp_path / "a", triples=triples)
    again = small(stage1.best, tmp_path / "b", triples=triples)
    other = small(stage1.folder, tmp_path / "c", triples=triples, seed=1)
    assert all(path.read_bytes() == content for path, content in before.items())
    first, same, third, start = weights(run), weights(again), weights(other), weights(stage1)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)
    assert any(not torch.equal(first[name], start[name]) for name in first)
    # Both stages give vectors of length one, as the teacher does.
    np.testing.assert_allclose(np.linalg.norm(encode(run.best, TEXTS[:3]), axis=1), 1, atol=1e-5)


def test_a_run_is_evaluated_beside_the_teacher_of_its_first_stage(finished, tmp_path):
    rows = [f"x\t{number % 6}\t{TEXTS[number]}\t{TEXTS[-number - 1]}" for number in range(30)]
    (tmp_path / "stsb_test.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n")
    result = distill.evaluate(finished.folder, suite="sts", data=tmp_path).to_json()
    assert "tiny" in json.dumps(result)
    fidelity = distill.evaluate(finished.folder, suite="fidelity").to_json()
    assert "tiny" in json.dumps(fidelity)


def test_a_plain_start_has_no_teacher_and_is_evaluated_without(teacher_folder, triples, tmp_path):
    run = small(teacher_folder, tmp_path / "run", triples=triples)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["teacher"] is None
    assert record["stage1"] is None
    rows = [f"x\t{number % 6}\t{TEXTS[number]}\t{TEXTS[-number - 1]}" for number in range(30)]
    (tmp_path / "stsb_test.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n")
    scores = json.dumps(distill.evaluate(run.folder, suite="sts", data=tmp_path).to_json())
    assert '"retention": null' in scores
    card = (run.best / "README.md").read_text()
    assert "fine-tuned from tiny" in card
    assert "- distilled" not in card


def test_a_plain_transformers_folder_is_pooled_as_one_says(tmp_path, triples):
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    mean = small(plain, tmp_path / "mean", triples=triples, epochs=1)
    cls = small(plain, tmp_path / "cls", triples=triples, epochs=1, pooling="cls")
    assert "mean" in (mean.best / "1_Pooling" / "config.json").read_text()
    assert '"cls"' in (cls.best / "1_Pooling" / "config.json").read_text()
    assert np.abs(encode(mean.best, TEXTS[:3]) - encode(cls.best, TEXTS[:3])).max() > 1e-3


def test_a_head_is_added_trained_and_kept_or_dropped(tmp_path, sentences_file):
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    options = {"sentences": sentences_file, "pooling": "cls", "head": "tanh", "lr": 1e-3}
    kept = small(plain, tmp_path / "kept", **options)
    dropped = small(plain, tmp_path / "dropped", **options, drop_head=True)
    assert (kept.best / "2_Dense").is_dir()
    assert not (dropped.best / "2_Dense").exists()
    # The head is trained along in both: the encoders are one.
    a, b = weights(kept), weights(dropped)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert np.abs(encode(kept.best, TEXTS[:3])).max() <= 1
    assert "tanh, dropped after training" in (dropped.best / "README.md").read_text()
    assert dropped.parameters == kept.parameters - (16 * 16 + 16)
    assert f"| parameters | {dropped.parameters:,} |" in (dropped.best / "README.md").read_text()


def test_a_head_is_put_before_the_scaling_of_the_start(stage1, triples, tmp_path):
    run = small(stage1.folder, tmp_path / "run", triples=triples, head="linear")
    np.testing.assert_allclose(np.linalg.norm(encode(run.best, TEXTS[:3]), axis=1), 1, atol=1e-5)
    assert (run.best / "2_Dense").is_dir()


def test_weights_that_the_start_lacks_are_the_same_in_every_attempt(triples, tmp_path):
    """A pooler that nobody trains is drawn at random, and saved with the rest."""
    bare = tiny_encoder(tmp_path / "bare", layers=1, plain=True, seed=9)
    path = bare / "model.safetensors"
    held = {name: tensor for name, tensor in load_file(path).items() if "pooler" not in name}
    save_file(held, path, {"format": "pt"})
    runs = []
    for number in range(2):
        torch.manual_seed(number)
        runs.append(weights(small(bare, tmp_path / str(number), triples=triples, pooling="mean")))
    assert any("pooler" in name for name in runs[0])
    assert runs[0].keys() == runs[1].keys()
    assert [name for name in runs[0] if not torch.equal(runs[0][name], runs[1][name])] == []


def test_the_length_while_training_is_not_that_of_the_student(stage1, triples, tmp_path):
    lengths = []

    def source(*arguments: object, **settings: object):
        found = TripleSource(*arguments, **settings)
        lengths.append(int(found.lengths.max()))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distill.training.finetune.TripleSource", source)
        whole = small(stage1.folder, tmp_path / "whole", triples=triples)
        short = small(stage1.folder, tmp_path / "short", triples=triples, max_length=6)
    assert lengths[0] > 6 == lengths[1]
    own = load_teacher(stage1.best, device="cpu").contract.max_length
    assert [load_teacher(run.best, device="cpu").contract.max_length for run in (whole, short)] == [own, own]
    first, second = encode(short.best, [" ".join(TEXTS[:2]), " ".join([TEXTS[0], TEXTS[2]])])
    assert np.abs(first - second).max() > 1e-4, "what follows the first words has a part in the vector"
    with pytest.raises(StudentError, match=rf"student\.max_length {own + 1}: .* takes at most {own} tokens"):
        small(stage1.folder, tmp_path / "long", triples=triples, max_length=own + 1)


def test_what_a_dropped_head_of_the_first_stage_leaves_is_remembered(built_cache, triples, tmp_path):
    first = small_run(built_cache, tmp_path / "first", head="linear", drop_head=True)
    run = small(first.folder, tmp_path / "second", triples=triples, epochs=1)
    assert json.loads((run.folder / "run.json").read_text())["in_target_space"] is False
    assert run.parameters == first.parameters
    scores = distill.evaluate(run.folder, suite="fidelity").models[-1].scores
    assert scores.cosine_mean is None


def test_a_warm_up_that_outlasts_the_run_is_refused_before_anything_is_loaded(
    stage1, triples, tmp_path, monkeypatch
):
    def never(*arguments: object, **settings: object):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("distill.training.finetune.open_student", never)
    with pytest.raises(ConfigError, match=r"optimizer\.warmup: 8 steps of warm-up in a run of 8 steps"):
        small(stage1.folder, tmp_path / "run", triples=triples, warmup=8)


def test_sentences_are_told_apart_under_dropout(teacher_folder, sentences_file, tmp_path):
    run = small(teacher_folder, tmp_path / "run", sentences=sentences_file, lr=3e-3, epochs=10, dropout=0.3)
    losses = [line["loss"] for line in metrics(run.folder) if "loss" in line]
    # A text and itself under another dropout are not one vector, or there were nothing to lose.
    assert run.result.best_score is None
    assert losses[0] > 1e-3
    assert run.config.evaluation.held_out == 0


def test_dropout_draws_anew_for_the_second_of_a_pair(teacher_folder):
    from distill.students.build import forward, open_student

    model, _ = open_student(str(teacher_folder), dropout=0.2)
    ids = torch.tensor([[2, 5, 6, 3]] * 2)
    model.train()
    first, second = forward(model, ids, torch.ones_like(ids))
    assert not torch.equal(first, second)
    model.eval()
    first, second = forward(model, ids, torch.ones_like(ids))
    torch.testing.assert_close(first, second)


def test_pairs_need_no_hard_negatives(teacher_folder, tmp_path):
    pairs = write(tmp_path / "pairs.tsv", [row[:2] for row in similar()])
    run = small(teacher_folder, tmp_path / "run", triples=pairs, held_out=20, lr=3e-3, epochs=6)
    assert run.result.best_score is not None
    assert run.rows == 40


def test_a_development_set_chooses_and_its_texts_among_the_triples_are_counted(
    teacher_folder, triples, tmp_path
):
    rows = [f"dev\t{number % 6}\t{TEXTS[number].upper()}!\t{TEXTS[150]}" for number in range(12)]
    dev = tmp_path / "dev.tsv"
    dev.write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n")
    run = small(teacher_folder, tmp_path / "run", triples=triples, dev=dev)
    assert run.in_dev == 12
    assert run.rows == 60
    assert "dev_spearman" in (run.folder / "metrics.jsonl").read_text()
    assert json.loads((run.folder / "run.json").read_text())["in_dev"] == 12
    assert "| rows with a text of the development set | 12 |" in (run.best / "README.md").read_text()
    dev.rename(tmp_path / "test.tsv")
    with pytest.raises(ConfigError, match="looks like a test set"):
        small(teacher_folder, tmp_path / "other", triples=triples, dev=tmp_path / "test.tsv")


# --- resume ---


class KilledError(Exception):
    pass


@pytest.mark.parametrize(("every", "stops"), [(1, range(1, 6)), (3, [2, 5]), (1000, [4])])
def test_a_run_killed_at_any_step_ends_as_one_that_was_not(stage1, triples, tmp_path, every, stops):
    options = {
        "triples": triples,
        "head": "linear",
        "held_out": 20,
        "eval_every": 2,
        "checkpoint_every": every,
        "tracking": {"log_every": 2},
    }
    whole = small(stage1.folder, tmp_path / "whole", **options)
    assert whole.result.steps == 6
    for stop in stops:
        out = tmp_path / f"killed-{stop}"

        def kill(progress, stop=stop):
            if progress.phase == "train" and progress.step == stop:
                raise KilledError

        with pytest.raises(KilledError):
            small(stage1.folder, out, **options, on_progress=kill)
        resumed = resume_finetune(out)
        assert resumed.resumed == (stop - 1) // every * every
        a, b = weights(whole), weights(resumed)
        assert all(torch.equal(a[name], b[name]) for name in a), stop
        assert load_file(whole.best / "2_Dense" / "model.safetensors")["linear.weight"].equal(
            load_file(resumed.best / "2_Dense" / "model.safetensors")["linear.weight"]
        )
        rates = {"rows_per_second"}
        first, second = (
            [{key: value for key, value in line.items() if key not in rates} for line in metrics(folder)]
            for folder in (whole.folder, out)
        )
        assert first == second
        assert (resumed.result.best_step, resumed.result.best_score) == (
            whole.result.best_step,
            whole.result.best_score,
        )


def interrupted(start, out, triples):
    def kill(progress):
        if progress.phase == "train" and progress.step == 2:
            raise KilledError

    with pytest.raises(KilledError):
        small(start, out, triples=triples, checkpoint_every=1, on_progress=kill)
    return out


def test_resume_refuses_what_is_not_its_own(finished, stage1, triples, tmp_path):
    with pytest.raises(CheckpointError, match="is finished"):
        resume_finetune(finished.folder)
    with pytest.raises(CheckpointError, match="holds no run"):
        resume_finetune(tmp_path)
    with pytest.raises(CheckpointError, match=r"'distill run --resume"):
        resume_finetune(stage1.folder)
    out = interrupted(stage1.folder, tmp_path / "run", triples)
    with pytest.raises(CheckpointError, match=r"'distill finetune --resume"):
        resume(out)
    with pytest.raises(ConfigError, match=r"interrupted; go on with 'distill finetune --resume"):
        small(stage1.folder, out, triples=triples)


def test_resume_refuses_other_triples_and_another_start(stage1, tmp_path):
    file = write(tmp_path / "t.tsv", similar())
    start = tmp_path / "start"
    shutil.copytree(stage1.best, start)
    out = interrupted(start, tmp_path / "run", file)
    write(file, similar()[::-1])
    with pytest.raises(CheckpointError, match="the run's corpus was"):
        resume_finetune(out)
    write(file, similar())
    shutil.rmtree(start)
    tiny_encoder(start, layers=1, seed=9)
    with pytest.raises(CheckpointError, match="the run's start was"):
        resume_finetune(out)


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one of triples and sentences is needed, neither is given"),
        ({"triples": "a", "sentences": "b"}, "both is given"),
        ({"triples": "a", "columns": ["x"]}, "x given, .* that of the positives is missing"),
        ({"sentences": "a", "columns": ["x", "y"]}, "x, y given, expected that of the sentences alone"),
        ({"triples": "a", "columns": ["x", "x"]}, "name each column once"),
        ({"sentences": "a", "dropout": 0.0}, "student.dropout: without dropout"),
        ({"sentences": "a", "held_out": 10}, "evaluation.held_out: sentences without positives"),
        ({"triples": "a", "drop_head": True}, "student.drop_head: no head is added"),
        ({"triples": "a", "tauu": 1}, "tauu: unknown key"),
        ({"triples": "a", "loss": {"tua": 1}}, "loss.tua: unknown key, did you mean loss.tau"),
        ({"triples": "a", "lr": None, "optimizer": {"lr": 0}}, "optimizer.lr: "),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(settings, message):
    with pytest.raises(ConfigError, match=message):
        distill.finetune("start", **settings)


@pytest.mark.parametrize(
    ("typed", "told", "never"),
    [
        (["--held-out", "59"], "--held-out: ", "evaluation.held_out"),
        (["--set", "evaluation.held_out=59"], "evaluation.held_out: ", "--held-out: "),
        (["--lr", "nan"], "--lr: ", "optimizer.lr"),
        (["--tau", "0.1", "--set", "loss.tua=1"], "loss.tua: unknown key, did you mean loss.tau?", "--tau"),
    ],
)
def test_an_error_names_what_was_typed(stage1, triples, tmp_path, typed, told, never):
    command = ["finetune", str(stage1.folder), "--triples", str(triples), "--device", "cpu"]
    result = CliRunner().invoke(cli, [*command, "--out", str(tmp_path / "out"), *typed])
    assert told in str(result.exception)
    assert never not in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_mistyped_run_is_no_hub_id(stage1, triples, tmp_path):
    typo = stage1.folder.with_name("frist")
    with pytest.raises(ConfigError, match=rf"^start: there is no .*frist: did you mean {stage1.folder}"):
        small(typo, tmp_path / "out", triples=triples)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("columns", "kind"), [(None, "triples"), (["anchor", "positive"], "pairs")])
def test_the_end_says_what_was_trained_on(stage1, triples, tmp_path, capsys, monkeypatch, columns, kind):
    monkeypatch.setenv("COLUMNS", "160")
    run = small(stage1.folder, tmp_path / "run", triples=triples, columns=columns, max_steps=1)
    print_finetune(run)
    shown = capsys.readouterr().out
    assert f"{run.rows} {kind}, at most 2 epochs and 1 steps" in shown
    assert "or pairs" not in shown


def test_nothing_is_written_where_something_is_refused(stage1, triples, tmp_path):
    out = tmp_path / "out"
    for settings, error in (
        ({"held_out": 59}, ConfigError),
        ({"patience": 2, "held_out": 0}, ConfigError),
        ({"warmup": 1000}, ConfigError),
        ({"max_length": 1000}, StudentError),
        ({"limit": 1}, DataError),
    ):
        with pytest.raises(error):
            small(stage1.folder, out, triples=triples, **settings)
        assert not out.exists()
    with pytest.raises(ConfigError, match="there is no folder or file"):
        small(tmp_path / "nowhere", out, triples=triples)
    with pytest.raises(ConfigError, match="is the run that the student comes from"):
        small(stage1.folder, stage1.folder, triples=triples, overwrite=True)
    assert stage1.best.is_dir()
    assert not out.exists()


def test_a_run_that_is_not_finished_is_no_start(built_cache, triples, tmp_path):
    def kill(progress):
        if progress.step == 2 and progress.phase == "train":
            raise KilledError

    with pytest.raises(KilledError):
        small_run(built_cache, tmp_path / "first", eval_every=1, on_progress=kill)
    with pytest.raises(ConfigError, match=r"is not finished; go on with it by 'distill run --resume"):
        small(tmp_path / "first", tmp_path / "second", triples=triples)


def test_a_finished_run_is_replaced_only_on_request(stage1, triples, tmp_path):
    first = small(stage1.folder, tmp_path / "run", triples=triples)
    with pytest.raises(ConfigError, match="holds a run already"):
        small(stage1.folder, tmp_path / "run", triples=triples)
    assert small(stage1.folder, tmp_path / "run", triples=triples, overwrite=True).folder == first.folder


def test_a_fine_tuned_run_may_be_fine_tuned_again(finished, sentences_file, tmp_path):
    run = small(finished.folder, tmp_path / "third", sentences=sentences_file)
    record = json.loads((run.folder / "run.json").read_text())
    assert record["teacher"]["name"] == "tiny"
    assert record["stage1"]["kind"] == "finetune"


# --- the configuration and the command ---


def test_the_defaults_are_the_papers():
    config = FinetuneConfig(start="x", triples="y")
    assert config.training.batch_size == 128
    assert (config.optimizer.lr, config.loss.tau, config.student.dropout) == (1e-5, 0.05, 0.1)
    resolved = config.resolved(33_000)
    assert (resolved.evaluation.held_out, resolved.evaluation.every) == (660, 125)
    assert resolved.training.epochs == 5
    assert config.resolved(499).evaluation.held_out == 0
    assert config.resolved(10**6).evaluation.held_out == 1000
    assert (
        config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"data": "d"})})
        .resolved(33_000)
        .evaluation.held_out
        == 0
    )


def test_the_written_configuration_runs_again_to_the_same_student(finished, tmp_path):
    from distill.config.sources import load_config

    config = load_config(
        FinetuneConfig, finished.folder / "config.yaml", options={"out": str(tmp_path / "b")}
    )
    again = finetune_config(config)
    a, b = weights(finished), weights(again)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_is_named_after_what_it_is_made_of(stage1, triples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(small(stage1.folder, None, triples=triples).folder) == "runs/first-some-finetune"


def test_the_command_trains_reports_and_resumes(stage1, triples, tmp_path):
    def call(*words: object):
        return CliRunner().invoke(cli, ["finetune", *map(str, words)], catch_exceptions=False)

    out = tmp_path / "run"
    small_words = ["--batch-size", "16", "--epochs", "1", "--device", "cpu", "--mixed-precision", "no"]
    done = call(stage1.folder, "--triples", triples, "--out", out, "--threads", "1", *small_words)
    assert done.exit_code == 0
    assert "60" in done.output
    assert "SentenceTransformer" in done.output
    done = call(
        stage1.folder,
        "--triples",
        triples,
        "--out",
        out,
        "--overwrite",
        "--json",
        "--threads",
        "1",
        "--recipe",
        "distilcse/bert-base-stage2",
        *small_words,
    )
    assert read_record(out).recipe == "distilcse/bert-base-stage2"
    assert json.loads(done.output[done.output.index("{") :])["rows"] == 60
    done = call(
        *("x", "--triples", "t", "--column", "a", "--column", "b", "--column", "c"),
        *("--set", "loss.duplicates=keep", "--dump-config"),
    )
    assert "duplicates: keep" in done.output
    assert "columns:\n- a\n- b\n- c\n" in done.output
    done = call("--resume", out, "--lr", "1")
    assert done.exit_code == 2
    assert "leave out --lr" in done.output
    with pytest.raises(CheckpointError, match="is finished"):
        call("--resume", out)
    with pytest.raises(ConfigError, match="start: missing"):
        call("--triples", triples)
    file = tmp_path / "a.yaml"
    file.write_text("optimizer: {warmup: 1000}\n")
    with pytest.raises(ConfigError, match=rf"set by {file}\): .*never reach the peak"):
        call(stage1.folder, "--triples", triples, "--config", file, "--out", tmp_path / "refused")


def test_a_fine_tuning_ends_after_the_steps_it_was_given(stage1, triples, tmp_path):
    run = small(stage1.folder, tmp_path / "run", triples=triples, epochs=None, max_steps=3)
    assert (run.result.steps, run.result.total_steps) == (3, 3)
    assert run.config.training.epochs == 1
    line = "| steps at most | 3 |"
    assert line in (run.best / "README.md").read_text(encoding="utf-8")
    again = small(stage1.folder, tmp_path / "again", triples=triples, epochs=None)
    assert again.config.training.epochs == 5
    assert line not in (again.best / "README.md").read_text(encoding="utf-8")
