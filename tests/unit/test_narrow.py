from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from student_teachers import make_teacher
from transformers import BertConfig, BertModel

from distill.errors import StudentError
from distill.students.narrow import from_teacher
from distill.students.spec import parse_spec
from distill.students.student import build_student, count_parameters
from embedcache.teacher.load import load_teacher

pytest_plugins = ["distill_fixtures"]

SOME = ["a cat sees the dog", "the river"]


def narrow(teacher, spec: str, seed: int = 0):
    return from_teacher(teacher, parse_spec(f"narrow:{spec}"), seed=seed)


def test_a_narrow_student_is_as_deep_as_its_teacher_unless_told(teacher):
    student = narrow(teacher.model, "h=12")
    config = student[0].model.config
    assert type(student[0].model).__name__ == "ElectraModel"
    assert not hasattr(student[0].model, "embeddings_project")
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (12, 48, 4)
    assert narrow(teacher.model, "h=12,layers=7")[0].model.config.num_hidden_layers == 7
    own = teacher.model[0]
    assert (config.vocab_size, config.max_position_embeddings) == (len(own.tokenizer), 64)
    assert student[0].tokenizer(SOME) == own.tokenizer(SOME)
    assert student.max_seq_length == teacher.model.max_seq_length
    assert all(parameter.requires_grad for parameter in student.parameters())


@pytest.mark.parametrize(
    ("width", "heads"), [(192, 3), (128, 2), (64, 1), (312, 6), (100, 2), (67, 67), (8, 1)]
)
def test_heads_are_64_wide_or_as_wide_as_divides(teacher, width, heads):
    assert narrow(teacher.model, f"h={width},layers=1")[0].model.config.num_attention_heads == heads


def test_the_seed_decides_the_weights_and_nothing_else_random(teacher):
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    words = [
        narrow(teacher.model, "h=8", seed)[0].model.embeddings.word_embeddings.weight for seed in (1, 1, 2)
    ]
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(words[0], words[1])
    assert not torch.equal(words[0], words[2])


def test_a_head_brings_it_to_the_teachers_width(teacher):
    notes: list[str] = []
    student = build_student("narrow:h=8", teacher.contract, lambda: teacher, on_note=notes.append)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert student.encode(SOME).shape == (2, 16)
    assert "of the teacher's" in notes[0]


@pytest.mark.parametrize(("pooling", "mode"), [("cls", "cls"), ("mean", "mean"), (None, "cls")])
def test_it_pools_as_its_teacher_and_counts_positions_from_its_first_token(tmp_path, pooling, mode):
    teacher = make_teacher("roberta", tmp_path / "roberta", pooling)
    student = narrow(teacher, "h=8,layers=1")
    assert student[1].pooling_mode == mode
    assert student[0].model.config.max_position_embeddings == 64
    assert student[0].model.config.pad_token_id == 1
    long = ["cat " * 90, "dog"]
    vectors = np.asarray(student.encode(long))
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_it_is_a_bert_without_its_pooler(teacher):
    """To the bit: with the same weights a BertModel gives the same states."""
    model = narrow(teacher.model, "h=12,layers=2")[0].model
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = BertConfig(
        **{name: getattr(model.config, name) for name in names},
        max_position_embeddings=model.config.max_position_embeddings,
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    assert bert.state_dict().keys() == model.state_dict().keys()
    bert.load_state_dict(model.state_dict())
    ids = torch.arange(20).reshape(2, 10)
    with torch.inference_mode():
        assert torch.equal(bert(ids).last_hidden_state, model(ids).last_hidden_state)


def test_parameters_are_as_many_as_the_paper_counts_but_for_the_pooler(teacher):
    """SimTDE's table 2, LMX-KD-384-L12(384): 33.4 M with BERT's pooler, which the mean never uses."""
    model = narrow(teacher.model, "h=384,layers=12")[0].model
    table = (30_522 - model.config.vocab_size) + (512 - model.config.max_position_embeddings)
    count = count_parameters(model) + table * 384
    assert count == 33_212_160
    assert round((count + 384 * 384 + 384) / 1e6, 1) == 33.4


def test_what_is_saved_is_opened_with_every_bit_and_nothing_else(teacher, tmp_path):
    student = narrow(teacher.model, "h=8,layers=2")
    student.save_pretrained(str(tmp_path), create_model_card=False)
    opened = load_teacher(tmp_path, device="cpu").model
    wanted, found = student.state_dict(), opened.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    opened.save_pretrained(str(tmp_path / "again"), create_model_card=False)
    one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "again"))
    assert len(one) == len(wanted)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["albert", "electra", "distilbert", "mpnet"])
def test_the_teacher_may_be_of_any_architecture(tmp_path, kind):
    teacher = make_teacher(kind, tmp_path / kind)
    student = narrow(teacher, "h=8,layers=1")
    config = student[0].model.config
    # Of an architecture that is not known no position is taken to be kept back.
    assert config.max_position_embeddings == (64 if kind == "mpnet" else 66)
    assert config.pad_token_id == teacher.tokenizer.pad_token_id
    assert student[0].tokenizer(SOME) == teacher[0].tokenizer(SOME)
    assert np.isfinite(student.encode(["cat " * 90, "dog"])).all()


@pytest.mark.parametrize(("length", "positions"), [(40, 40), (10**30, 512)])
def test_a_teacher_without_positions_gives_its_length(tmp_path, monkeypatch, length, positions):
    teacher = make_teacher("albert", tmp_path / "albert")
    config = teacher[0].model.config
    layers = config.num_hidden_layers
    # Stands for a model of relative positions, whose configuration says no number of them.
    bare = SimpleNamespace(model_type="other", vocab_size=config.vocab_size, num_hidden_layers=layers)
    monkeypatch.setattr(teacher[0].model, "config", bare)
    teacher.max_seq_length = length
    assert narrow(teacher, "h=8")[0].model.config.max_position_embeddings == positions


def test_a_teacher_that_lacks_what_it_takes_is_refused(tmp_path, teacher):
    bert = make_teacher("bert", tmp_path / "bert")
    bert[0].tokenizer.pad_token = None
    with pytest.raises(StudentError, match=r"no padding token.*give it one \(tokenizer\.pad_token\)"):
        narrow(bert, "h=8")
    with pytest.raises(StudentError, match=r"h=99999, expected at most 8192; the teacher's layers are \d+"):
        narrow(make_teacher("bert", tmp_path / "other"), "h=99999")
    with pytest.raises(StudentError, match=r"'narrow:h=8': the teacher is a StaticEmbedding"):
        narrow(build_student("static:dim=4", teacher.contract, lambda: teacher), "h=8")
