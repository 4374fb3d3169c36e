"""Narrow students: a BERT without its pooler, with the tokenizer and length of any teacher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from student_teachers import make_teacher
from transformers import BertConfig, BertModel

from distill.errors import StudentError
from distill.students.build import build_student, count_parameters
from distill.students.narrow import build_narrow
from embedcache.teacher.load import load_teacher

pytest_plugins = ["distill_fixtures"]

SOME = ["a cat sees the dog", "the river"]


def narrow(teacher: Any, h: int, layers: int | None = None, seed: int = 0) -> Any:
    return build_narrow(f"narrow:h={h}", teacher, seed, h=h, layers=layers)


def test_it_is_as_deep_as_its_teacher_by_default(teacher):
    student = narrow(teacher.model, 12)
    config, own = student[0].model.config, teacher.model[0]
    assert not hasattr(student[0].model, "embeddings_project")
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (12, 48, 4)
    assert narrow(teacher.model, 12, 7)[0].model.config.num_hidden_layers == 7
    assert (config.vocab_size, config.max_position_embeddings) == (len(own.tokenizer), 64)
    assert student[0].tokenizer(SOME) == own.tokenizer(SOME)
    assert student.max_seq_length == teacher.model.max_seq_length


@pytest.mark.parametrize(("h", "heads"), [(192, 3), (128, 2), (312, 6), (100, 2), (67, 67), (8, 1)])
def test_heads_are_at_most_64_wide_and_divide_the_width(teacher, h, heads):
    assert narrow(teacher.model, h, 1)[0].model.config.num_attention_heads == heads


def test_the_seed_decides_the_weights_and_nothing_else_random(teacher):
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    words = [narrow(teacher.model, 8, seed=s)[0].model.embeddings.word_embeddings.weight for s in (1, 1, 2)]
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(words[0], words[1])
    assert not torch.equal(words[0], words[2])


def test_it_is_a_bert_without_its_pooler(teacher):
    """To the bit: with the same weights a BertModel gives the same states."""
    model = narrow(teacher.model, 12, 2)[0].model
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    settings = {name: getattr(model.config, name) for name in (*names, "max_position_embeddings")}
    bert = BertModel(BertConfig(**settings), add_pooling_layer=False).eval()
    bert.load_state_dict(model.state_dict())
    ids = torch.arange(20).reshape(2, 10)
    with torch.inference_mode():
        assert torch.equal(bert(ids).last_hidden_state, model(ids).last_hidden_state)


def test_parameters_are_as_many_as_the_paper_counts(teacher):
    """SimTDE's table 2, LMX-KD-384-L12(384): 33.4 M with BERT's pooler, which the mean never uses."""
    model = narrow(teacher.model, 384, 12)[0].model
    table = (30_522 - model.config.vocab_size) + (512 - model.config.max_position_embeddings)
    count = count_parameters(model) + table * 384
    assert count == 33_212_160
    assert round((count + 384 * 384 + 384) / 1e6, 1) == 33.4


@pytest.mark.parametrize(("pooling", "mode"), [("cls", "cls"), ("mean", "mean"), (None, "cls")])
def test_it_pools_as_its_teacher(tmp_path, pooling, mode):
    student = narrow(make_teacher("roberta", tmp_path / "roberta", pooling), 8, 1)
    assert student[1].pooling_mode == mode
    config = student[0].model.config
    assert (config.max_position_embeddings, config.pad_token_id) == (64, 1)


@pytest.mark.parametrize("kind", ["albert", "electra", "distilbert", "mpnet"])
def test_the_teacher_may_be_of_any_architecture(tmp_path, kind):
    teacher = make_teacher(kind, tmp_path / kind)
    student = narrow(teacher, 8, 1)
    # Unknown architectures are assumed to reserve no positions.
    assert student[0].model.config.max_position_embeddings == (64 if kind == "mpnet" else 66)
    assert student[0].tokenizer(SOME) == teacher[0].tokenizer(SOME)
    assert np.isfinite(student.encode(["cat " * 90, "dog"])).all()


@pytest.mark.parametrize(("length", "positions"), [(40, 40), (10**30, 512)])
def test_a_teacher_without_positions_gives_its_length(tmp_path, monkeypatch, length, positions):
    teacher = make_teacher("albert", tmp_path / "albert")
    config = teacher[0].model.config
    # Stands for a model of relative positions, whose configuration has no number of them.
    bare = {name: getattr(config, name) for name in ("vocab_size", "num_hidden_layers")}
    monkeypatch.setattr(teacher[0].model, "config", SimpleNamespace(model_type="other", **bare))
    teacher.max_seq_length = length
    assert narrow(teacher, 8)[0].model.config.max_position_embeddings == positions


def test_an_unsuitable_teacher_is_refused(tmp_path, teacher):
    bert = make_teacher("bert", tmp_path / "bert")
    with pytest.raises(StudentError, match="h=99999"):
        narrow(bert, 99999)
    bert[0].tokenizer.pad_token = None
    with pytest.raises(StudentError, match="padding token"):
        narrow(bert, 8)
    static = build_student("static:dim=4", teacher.contract, lambda: teacher)
    with pytest.raises(StudentError, match="StaticEmbedding"):
        narrow(static, 8)
    static.save_pretrained(str(tmp_path / "static"), create_model_card=False)
    opened = load_teacher(tmp_path / "static", device="cpu")
    with pytest.raises(StudentError, match="StaticEmbedding"):
        build_student("static:dim=2", opened.contract, lambda: opened)
