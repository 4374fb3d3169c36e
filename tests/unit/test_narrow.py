from __future__ import annotations

import numpy as np
import pytest
import torch
from student_teachers import make_teacher

from distill.students.narrow import from_teacher
from distill.students.spec import parse_spec
from distill.students.student import build_student

pytest_plugins = ["distill_fixtures"]

SOME = ["a cat sees the dog", "the river"]


def narrow(teacher, spec: str, seed: int = 0):
    return from_teacher(teacher, parse_spec(f"narrow:{spec}"), seed=seed)


def test_a_narrow_student_is_as_deep_as_its_teacher_unless_told(teacher):
    student = narrow(teacher.model, "h=12")
    config = student[0].model.config
    assert type(student[0].model).__name__ == "BertModel"
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
