"""SimTDE's losses in whole runs: token embeddings from the cache, layers of the live teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS, build, metrics, small_run
from safetensors.torch import load_file
from torch import nn

from distill.data.collate import Batch
from distill.data.source import Share
from distill.errors import ConfigError, StudentError
from distill.losses.base import LossBatch
from distill.students.build import build_student
from distill.students.spec import StudentOptions
from distill.training import preparation as objective_setup
from distill.training.intermediate import HiddenStates, TokenEmbeddings, choose_layers
from distill.training.train import resume
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.teacher.inference import use_short_attention
from embedcache.teacher.load import load_by_contract, load_teacher
from embedcache.teacher.token_table import token_table_of
from embedcache.teacher.tokenize import fast_tokenizer

pytest_plugins = ["distill_fixtures"]

COMPACT = "compact:e=8,layers=2"
NARROW = "narrow:h=8,layers=2"
ALONE = Share(0, 1)
CPU = torch.device("cpu")
STOPPABLE = {"epochs": 2, "eval_every": 2, "checkpoint_every": 2, "lr": 0.01}


class Stop(Exception):  # noqa: N818 - it is not an error
    """Stand-in for the end of a process."""


def stop_at_3(progress) -> None:
    if progress.phase == "train" and progress.step == 3:
        raise Stop


@pytest.fixture(scope="module")
def with_table(tmp_path_factory, teacher_folder) -> Path:
    """A cache that holds the teacher's token embeddings as well."""
    folder = tmp_path_factory.mktemp("table")
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, folder / "cache", token_embeddings=True)
    return folder / "cache"


@pytest.fixture
def live(teacher_folder):
    return load_teacher(teacher_folder, device="cpu")


def student_of(teacher, spec: str = COMPACT, count_tokens=None, **settings):
    options = StudentOptions(count_tokens=count_tokens)
    return build_student(spec, teacher.contract, lambda: teacher, options, **settings)


def batch_of(model, texts: list[str]) -> Batch:
    features = model.preprocess(texts)
    mask = features["attention_mask"]
    rows = torch.arange(len(texts))
    targets = torch.zeros(len(texts), 16)
    return Batch(features["input_ids"], mask, 1, rows, targets, 0, len(texts), int(mask.sum()))


def step_of(batch: Batch) -> LossBatch:
    return LossBatch.alone((batch.targets.clone().requires_grad_(),), batch.targets)


class TestTokenEmbeddings:
    def test_they_are_what_the_encoder_is_fed_but_for_the_position_or_the_rows_of_the_matrix(self, live):
        student, table, ids = student_of(live), token_table_of(live), torch.arange(20)
        block, word = (TokenEmbeddings(student, table, "tokens", one) for one in ("block", "word"))
        inner = student[0].model
        with torch.no_grad():
            rows = inner.embeddings_project(inner.embeddings.word_embeddings.weight[:20])
            torch.testing.assert_close(word.of_tokens(ids), rows)
            inner.embeddings.position_embeddings.weight.zero_()
            fed = inner.embeddings_project(inner.embeddings(ids[None]))[0]
            torch.testing.assert_close(block.of_tokens(ids), fed)

    @pytest.mark.parametrize("embeddings", ["block", "word"])
    def test_a_student_with_the_teachers_own_embeddings_makes_no_error(self, live, embeddings):
        table = token_table_of(live)
        student = student_of(live, "layers:1")
        batch = batch_of(student, TEXTS[:4])
        pairs = TokenEmbeddings(student, table, "tokens", embeddings).add(step_of(batch), batch, ALONE).tokens
        torch.testing.assert_close(pairs.students, pairs.targets)
        assert pairs.students.requires_grad
        assert not pairs.targets.requires_grad

    def test_padding_does_not_count_and_over_the_vocabulary_each_token_counts_once(self, live):
        student, table = student_of(live), token_table_of(live)
        batch = batch_of(student, ["a", " ".join(TEXTS[:2])])
        pairs, everything = (
            TokenEmbeddings(student, table, over, "block").add(step_of(batch), batch, ALONE).tokens
            for over in ("tokens", "vocabulary")
        )
        lengths = batch.attention_mask.sum(dim=1).tolist()
        assert lengths[0] < lengths[1]
        assert torch.bincount(pairs.rows).tolist() == lengths
        assert pairs.total == sum(lengths) == len(pairs.students)
        assert len(everything.students) == len(live.model.tokenizer) == everything.total
        assert everything.rows is None

    def test_of_a_pruned_vocabulary_each_token_meets_its_own_row(self, live):
        size = len(live.model.tokenizer) - 10
        tokenizer = fast_tokenizer(live.model, 64, "")
        ids = np.concatenate([tokenizer([text]).ids for text in TEXTS])
        student = student_of(
            live,
            f"{COMPACT},vocab={size}",
            count_tokens=lambda t: np.bincount(ids, minlength=t.vocabulary_size),
        )
        table = token_table_of(live)
        batch = batch_of(student, TEXTS[:6])
        pairs = TokenEmbeddings(student, table, "tokens", "word").add(step_of(batch), batch, ALONE).tokens
        names = student.tokenizer.convert_ids_to_tokens(batch.input_ids[batch.attention_mask.bool()].tolist())
        for target, name in zip(pairs.targets, names, strict=True):
            np.testing.assert_array_equal(target.numpy(), table.word[table.tokens.index(name)])

    def test_a_student_of_another_width_is_refused(self, live):
        with pytest.raises(StudentError, match="8 dimensions where its layers begin, the teacher's 16"):
            TokenEmbeddings(student_of(live, "narrow:h=8,layers=2"), token_table_of(live), "tokens", "block")


class TestHiddenStates:
    @pytest.mark.parametrize(
        ("students", "teachers", "which", "chosen"),
        [
            (3, 12, "last", [9, 10, 11]),
            (3, 12, "spread", [3, 7, 11]),
            (12, 12, "spread", list(range(12))),
            (4, 6, "spread", [1, 2, 3, 5]),
            (1, 6, "last", [5]),
        ],
    )
    def test_which_layers_meet(self, students, teachers, which, chosen):
        assert choose_layers(students, teachers, which) == chosen

    def test_a_student_of_the_teachers_last_layer_and_the_teacher_differ_by_what_went_in(self, live):
        whole = student_of(live, "layers:4")
        batch = batch_of(whole, TEXTS[:3])
        states = HiddenStates(whole, live, "last", CPU, scaled=True)
        whole.train()
        whole({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})
        pairs = states.add(step_of(batch), batch, ALONE).hidden
        assert len(pairs.students) == 4
        for own, target in zip(pairs.students, pairs.targets, strict=True):
            torch.testing.assert_close(own[pairs.mask], target[pairs.mask], rtol=1e-4, atol=1e-4)
            assert own.requires_grad
            assert not target.requires_grad

    def test_targets_are_measured_over_the_real_tokens_of_rows_that_count(self, live):
        # As it was made, each token's states have a mean square of one.
        for module in live.model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(0))
        student = student_of(live, "layers:2")
        states = HiddenStates(student, live, "last", CPU, scaled=True)
        student.train()
        batch = batch_of(student, [TEXTS[0], f"{TEXTS[1]} {TEXTS[2]}", TEXTS[3]])
        lengths = batch.attention_mask.sum(dim=1)
        assert lengths[0] < lengths[1]
        # As in a process that takes part with a row of another.
        batch = replace(batch, counted=2, tokens=int(lengths[:2].sum()))
        student({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})
        pairs = states.add(step_of(batch), batch, ALONE).hidden
        for target, mean_square in zip(pairs.targets, pairs.mean_squares, strict=True):
            torch.testing.assert_close(mean_square, target[:2][pairs.mask[:2]].square().mean())
            assert not torch.allclose(mean_square, target[:2].square().mean(), rtol=1e-3)

    @pytest.mark.parametrize("spec", [COMPACT, NARROW])
    def test_the_teacher_runs_in_the_precision_that_the_student_runs_in(self, live, spec):
        student = student_of(live, spec)
        # As some teachers are stored.
        live.model.half()
        precisions = [True]

        def autocast():
            return torch.autocast("cpu", torch.bfloat16, enabled=precisions[0])

        states = HiddenStates(student, live, "spread", CPU, scaled=True, autocast=autocast)
        student.train()
        batch = batch_of(student, TEXTS[:3])
        seen: list[torch.dtype] = []
        linear = next(module for module in live.model.modules() if isinstance(module, nn.Linear))
        linear.register_forward_hook(lambda *found: seen.append(found[-1].dtype))
        for precisions[0] in (True, False):
            with autocast():
                student({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})
            pairs = states.add(step_of(batch), batch, ALONE).hidden
            assert {states.dtype for states in (*pairs.students, *pairs.targets)} == {torch.float32}
        assert seen == [torch.bfloat16, torch.float32]

    def test_the_teacher_attends_as_the_student_in_training_does(self, live):
        student = student_of(live)
        assert live.model[0].model.config._attn_implementation == "sdpa"
        HiddenStates(student, live, "last", CPU, scaled=True)
        use_short_attention(student)
        kinds = {model[0].model.config._attn_implementation for model in (student, live.model)}
        assert len(kinds) == 1
        assert kinds != {"sdpa"}

    def test_a_student_that_does_not_fit_is_refused(self, live):
        size = len(live.model.tokenizer) - 10
        counts = np.ones(len(live.model.tokenizer), np.int64)
        pruned = student_of(live, f"{COMPACT},vocab={size}", count_tokens=lambda _: counts)
        with pytest.raises(ConfigError, match="the same tokens"):
            HiddenStates(pruned, live, "last", CPU, scaled=True)
        narrow = student_of(live, NARROW)
        with pytest.raises(StudentError, match="lmx-kd"):
            HiddenStates(narrow, live, "last", CPU, scaled=False)
        HiddenStates(narrow, live, "spread", CPU, scaled=False)
        with pytest.raises(StudentError, match="5 layers and the teacher 4"):
            HiddenStates(student_of(live, "narrow:h=8,layers=5"), live, "spread", CPU, scaled=True)


class TestRuns:
    def test_without_the_table_the_command_that_makes_it_is_named(self, built_cache, tmp_path):
        with pytest.raises(InputError, match="--token-embeddings"):
            small_run(built_cache, tmp_path / "run", student=COMPACT, loss="simtde")
        assert not (tmp_path / "run").exists()

    def test_every_setting_makes_another_student_and_alpha_0_needs_no_table(
        self, built_cache, with_table, tmp_path
    ):
        weights: list[torch.Tensor] = []
        for number, given in enumerate(
            ({}, {"over": "vocabulary"}, {"embeddings": "word"}, {"scale": "relative"}, {"alpha": 0.0})
        ):
            cache = built_cache if "alpha" in given else with_table
            run = small_run(cache, tmp_path / str(number), student=COMPACT, loss="simtde", lr=0.003, **given)
            losses = [line["loss"] for line in metrics(run.folder) if "loss" in line]
            assert np.isfinite(losses).all()
            found = load_file(run.best / "model.safetensors")["embeddings_project.weight"]
            assert not any(torch.equal(found, other) for other in weights)
            weights.append(found)
        plain = small_run(built_cache, tmp_path / "mse", student=COMPACT, loss="mse", lr=0.003)
        assert torch.equal(load_file(plain.best / "model.safetensors")["embeddings_project.weight"], found)

    def test_the_token_loss_draws_the_embeddings_to_the_teachers(self, with_table, tmp_path, live):
        table = token_table_of(live)

        def error(model) -> float:
            found = TokenEmbeddings(model, table, "vocabulary", "block")
            batch = batch_of(model, TEXTS[:1])
            pairs = found.add(step_of(batch), batch, ALONE).tokens
            return float((pairs.students - pairs.targets).square().mean().detach())

        errors = {"start": error(student_of(live))}
        for name, alpha in (("with", 1.0), ("without", 0.0)):
            run = small_run(
                with_table,
                tmp_path / name,
                student=COMPACT,
                loss="simtde",
                alpha=alpha,
                over="vocabulary",
                epochs=10,
                lr=0.02,
                held_out=0,
            )
            errors[name] = error(load_teacher(run.best, device="cpu").model)
        # It starts at the least squares' best projection of the embeddings that a truncated SVD keeps.
        assert errors["with"] < 0.9 * errors["start"] < errors["without"]

    def test_layers_need_the_live_teacher_to_be_asked_for(self, built_cache, tmp_path):
        with pytest.raises(ConfigError, match="teacher online"):
            small_run(built_cache, tmp_path / "run", student=NARROW, loss="lmx-kd")
        with pytest.raises(ConfigError, match="reads cached vectors only"):
            small_run(built_cache, tmp_path / "run", student=NARROW, loss="mse", teacher="online")
        with pytest.raises(InputError, match="no teacher 'other'"):
            small_run(built_cache, tmp_path / "run", student=NARROW, loss="lmx-kd", teacher="online:other")
        run = small_run(built_cache, tmp_path / "run", student=NARROW, loss="lmx-kd", teacher="online")
        assert run.config.teacher == "online:tiny"
        assert [one.name for one in run.record.teachers] == ["tiny"]

    @pytest.mark.parametrize(
        ("spec", "loss", "settings"),
        [
            (COMPACT, "simtde", {"alpha": 0.0, "hidden": 1.0, "teacher": "online"}),
            (NARROW, "lmx-kd", {"teacher": "online"}),
        ],
    )
    def test_the_teacher_is_loaded_once(self, built_cache, tmp_path, monkeypatch, spec, loss, settings):
        loaded = []

        def load(source, contract, **more):
            loaded.append(source)
            return load_by_contract(source, contract, **more)

        monkeypatch.setattr(objective_setup, "load_by_contract", load)
        small_run(built_cache, tmp_path / "run", student=spec, loss=loss, **settings)
        assert len(loaded) == 1

    def test_the_matrices_are_kept_to_go_on_with_but_not_with_the_student(self, built_cache, tmp_path):
        settings = {"student": NARROW, "loss": "lmx-kd", "teacher": "online", **STOPPABLE}
        whole = small_run(built_cache, tmp_path / "whole", **settings)
        with pytest.raises(Stop):
            small_run(built_cache, tmp_path / "cut", **settings, on_progress=stop_at_3)
        kept = load_file(tmp_path / "cut" / "checkpoint.safetensors")
        assert any("matrices" in name for name in kept)
        resumed = resume(tmp_path / "cut", threads=1)
        assert resumed.resumed > 0
        assert resumed.result.final_loss == whole.result.final_loss
        best = load_file(resumed.best / "model.safetensors")
        assert not any("matrices" in name for name in best)
        for name, tensor in load_file(whole.best / "model.safetensors").items():
            assert torch.equal(tensor, best[name]), name

    def test_a_resumed_run_ends_with_the_bytes_of_one_that_was_never_interrupted(
        self, with_table, tmp_path, live
    ):
        student = f"{COMPACT},vocab={len(live.model.tokenizer) - 8}"
        settings = {"student": student, "loss": "simtde", "scale": "relative", **STOPPABLE}
        whole = small_run(with_table, tmp_path / "whole", **settings)
        with pytest.raises(Stop):
            small_run(with_table, tmp_path / "cut", **settings, on_progress=stop_at_3)
        resumed = resume(tmp_path / "cut", threads=1)
        assert resumed.resumed == 2
        found, wanted = ((run.best / "model.safetensors").read_bytes() for run in (resumed, whole))
        assert found == wanted

    def test_several_teachers_are_refused(self, two_teachers, tmp_path):
        with pytest.raises(ConfigError, match="inside of one teacher"):
            small_run(
                two_teachers, tmp_path / "run", student=COMPACT, loss="simtde", teacher=["tiny", "other"]
            )
        assert len(Cache(two_teachers).teachers()) == 2
