from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS

from distill.errors import StudentError
from distill.students.aliases import STUDENTS
from distill.students.initialise import from_teacher_layers, parse_layers
from distill.students.student import build_student, count_parameters, forward, without_head
from embedcache.teacher.load import load_teacher
from embedcache.teacher.resolve import ALIASES
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]

SOME = TEXTS[:12]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    """A student folder of width 8 whose vectors are not scaled."""
    return tiny_encoder(
        tmp_path_factory.mktemp("narrow") / "narrow", dimension=8, layers=1, normalize=False, seed=5
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A plain transformers folder of the teacher's width, which does not say its pooling."""
    return tiny_encoder(tmp_path_factory.mktemp("plain") / "plain", layers=1, plain=True, seed=6)


def make(spec: object, teacher, **settings: Any):
    def refuse():
        raise AssertionError("the teacher was loaded for a student that needs none")

    live = (lambda: teacher) if str(spec).startswith("layers:") else refuse
    return build_student(str(spec), teacher.contract, live, **settings)


def encode(model) -> np.ndarray:
    return np.asarray(model.encode(SOME))


def reload(model, folder: Path):
    from sentence_transformers import SentenceTransformer

    model.save_pretrained(str(folder), create_model_card=False)
    return SentenceTransformer(str(folder), device="cpu")


def kinds(model) -> list[str]:
    return [type(module).__name__ for module in model]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("1", [3]),
        ("2", [2, 3]),
        ("4", [0, 1, 2, 3]),
        ("last:2", [2, 3]),
        ("first:2", [0, 1]),
        ("0,3", [0, 3]),
        ("3,1", [3, 1]),
    ],
)
def test_a_spec_names_layers(spec, expected):
    assert parse_layers(spec, 4) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "x",
        "0",
        "5",
        "-1",
        "1.5",
        "first:",
        "first:5",
        "first:0",
        "first:1,2",
        "middle:2",
        "0,4",
        "0,0",
        "-1,2",
        "1,",
    ],
)
def test_specs_that_name_no_layers_are_refused_with_the_spec(spec):
    with pytest.raises(StudentError, match=f"layers:{spec}'"):
        parse_layers(spec, 4)


@pytest.mark.parametrize(
    ("spec", "chosen"), [("2", [2, 3]), ("first:2", [0, 1]), ("0,3", [0, 3]), ("3,1", [3, 1])]
)
def test_exactly_the_named_layers_are_copied(teacher, spec, chosen):
    student = from_teacher_layers(teacher.model, spec)
    originals = [layer.state_dict() for layer in teacher.model[0].model.encoder.layer]
    copies = [layer.state_dict() for layer in student[0].model.encoder.layer]
    assert len(copies) == len(chosen) == student[0].model.config.num_hidden_layers
    for copied, number in zip(copies, chosen, strict=True):
        for other, original in enumerate(originals):
            same = all(torch.equal(copied[name], original[name]) for name in original)
            assert same == (other == number)
    embeddings = student[0].model.embeddings.word_embeddings.weight
    assert torch.equal(embeddings, teacher.model[0].model.embeddings.word_embeddings.weight)
    assert all(parameter.requires_grad for parameter in student.parameters())


def test_all_layers_are_the_teacher_and_fewer_are_not(teacher):
    expected = encode(teacher.model)
    np.testing.assert_allclose(encode(make("layers:4", teacher)), expected, atol=1e-6)
    assert np.abs(encode(make("layers:3", teacher)) - expected).max() > 0.05


def test_the_teacher_is_left_as_it_was(teacher):
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    student = make("layers:2", teacher, head="linear", dropout=0.5, max_length=7)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    after = teacher.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert len(teacher.model[0].model.encoder.layer) == teacher.model[0].model.config.num_hidden_layers == 4
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert teacher.model.max_seq_length == 64
    assert kinds(teacher.model)[-1] == "Normalize"
    assert teacher.model[0].model.embeddings.dropout.p == pytest.approx(0.1)


@pytest.mark.parametrize("settings", [{}, {"head": "linear"}, {"dropout": 0.3}, {"max_length": 9}])
def test_a_saved_student_gives_the_same_vectors(teacher, tmp_path, settings):
    student = make("layers:first:2", teacher, **settings)
    again = reload(student, tmp_path / "student")
    np.testing.assert_allclose(encode(again), encode(student), atol=1e-6)
    assert kinds(again) == kinds(student)
    assert again[0].model.config.num_hidden_layers == 2
    assert again.max_seq_length == student.max_seq_length
    assert again[0].model.config.hidden_dropout_prob == pytest.approx(0.1)


def test_a_head_bridges_widths_and_stays_in_the_saved_model(teacher, narrow, tmp_path):
    student = make(narrow, teacher)
    assert kinds(student) == ["Transformer", "Pooling", "Dense", "Normalize"]
    vectors = encode(student)
    assert vectors.shape == (len(SOME), 16)
    again = reload(student, tmp_path / "student")
    np.testing.assert_allclose(encode(again), vectors, atol=1e-6)
    assert torch.equal(again[2].linear.weight, student[2].linear.weight)


def test_only_a_head_that_was_added_can_be_dropped(teacher, narrow, tmp_path):
    own = make(narrow, teacher)
    folder = tmp_path / "own"
    own.save_pretrained(str(folder), create_model_card=False)
    again = make(folder, teacher)
    assert kinds(again) == ["Transformer", "Pooling", "Dense", "Normalize"]
    with pytest.raises(StudentError, match=r"student\.drop_head: no head was added"):
        without_head(again)
    two = make(folder, teacher, head="tanh")
    assert kinds(two) == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    bare = without_head(two)
    assert kinds(bare) == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert bare[2] is two[2]
    np.testing.assert_allclose(encode(bare), encode(own), atol=1e-6)


def test_widths_that_differ_without_a_head_are_refused(teacher, narrow):
    with pytest.raises(StudentError, match=r"8 dimensions, its targets 16.*--head linear"):
        make(narrow, teacher, head="none")


def test_equal_widths_take_a_head_only_where_asked(teacher, plain):
    assert "Dense" not in kinds(make(plain, teacher))
    assert "Dense" not in kinds(make(plain, teacher, head="none"))
    assert "Dense" in kinds(make(plain, teacher, head="linear"))


def test_the_seed_decides_the_head_and_nothing_else_random(teacher, narrow):
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    heads = [make(narrow, teacher, seed=seed)[2].linear.weight for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers were used up"
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_length_one_as_the_teacher_has_it(teacher, narrow, tmp_path):
    np.testing.assert_allclose(np.linalg.norm(encode(make(narrow, teacher)), axis=1), 1, atol=1e-5)
    loose = load_teacher(tiny_encoder(tmp_path / "loose", normalize=False), device="cpu")
    scaled = tiny_encoder(tmp_path / "scaled", normalize=True, seed=2)
    student = make(scaled, loose)
    assert kinds(student) == ["Transformer", "Pooling"]
    assert np.abs(np.linalg.norm(encode(student), axis=1) - 1).min() > 0.01


def test_a_truncated_teachers_vectors_have_no_length_of_one_to_match(tmp_path):
    cut = load_teacher(tiny_encoder(tmp_path / "cut"), truncate_dim=8, device="cpu")
    assert kinds(make("layers:1", cut)) == ["Transformer", "Pooling", "Dense"]


def test_weights_stored_in_half_precision_are_trained_in_full(tmp_path):
    import json

    from safetensors.torch import load_file, save_file

    folder = tiny_encoder(tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.bfloat16() for name, value in weights.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    half = load_teacher(folder, device="cpu")
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    for spec in ("layers:1", str(folder)):
        assert {p.dtype for p in make(spec, half).parameters()} == {torch.float32}


def test_the_length_is_the_teachers_unless_told(teacher, plain):
    assert make("layers:1", teacher).max_seq_length == 64
    assert make(plain, teacher).max_seq_length == 64
    short = make("layers:1", teacher, max_length=5)
    assert short.max_seq_length == 5
    assert short.preprocess([" ".join(["cat"] * 30)])["input_ids"].shape[1] == 5
    with pytest.raises(StudentError, match="takes at most 64 tokens"):
        make("layers:1", teacher, max_length=65)


@pytest.mark.parametrize(("dropout", "equal"), [(0.0, True), (0.5, False)])
def test_dropout_is_what_was_asked_for(teacher, dropout, equal):
    student = make("layers:2", teacher, dropout=dropout).train()
    ids = torch.arange(5, 25).reshape(2, 10)
    torch.manual_seed(0)
    first, second = (forward(student, ids, torch.ones_like(ids)) for _ in range(2))
    assert torch.equal(first, second) == equal


def test_a_folder_that_does_not_say_its_pooling_takes_the_mean_unless_told(teacher, plain):
    mean, told, cls = (make(plain, teacher, pooling=pooling) for pooling in (None, "mean", "cls"))
    np.testing.assert_array_equal(encode(mean), encode(told))
    assert np.abs(encode(mean) - encode(cls)).max() > 0.05


def test_pooling_is_refused_where_it_would_do_nothing(teacher):
    with pytest.raises(StudentError, match=r"student\.pooling cls: 'layers:2'"):
        make("layers:2", teacher, pooling="cls")


@pytest.mark.parametrize("spec", ["nowhere", "./nowhere/at/all"])
def test_a_student_that_is_not_there_is_refused_by_name(teacher, spec):
    with pytest.raises(StudentError, match=spec.removeprefix("./")):
        make(spec, teacher)


def test_a_model_without_a_plain_stack_of_layers_is_refused(teacher):
    class Table(torch.nn.Module):
        pass

    with pytest.raises(StudentError, match="a Table has no plain stack of layers"):
        from_teacher_layers([Table()], "2")  # type: ignore[arg-type]


def test_parameters_are_counted_once():
    shared = torch.nn.Linear(3, 4, bias=False)
    assert (
        count_parameters(torch.nn.ModuleList([shared, torch.nn.Sequential(shared), torch.nn.Linear(2, 1)]))
        == 15
    )


def test_short_names_of_students_stand_for_hub_ids(monkeypatch, teacher):
    asked = []

    def load(spec, **settings):
        asked.append(spec)
        return copy.deepcopy(teacher)

    monkeypatch.setattr("distill.students.student.load_teacher", load)
    build_student("minilm-l3", teacher.contract, lambda: teacher)
    build_student("somebody/minilm-l3", teacher.contract, lambda: teacher)
    assert asked == ["nreimers/MiniLM-L3-H384-uncased", "somebody/minilm-l3"]
    assert not set(STUDENTS) & set(ALIASES), "a name that means two models"


def test_a_mistyped_short_name_is_answered_with_those_there_are(teacher):
    with pytest.raises(StudentError, match=r"'bert-tny'.*students by short names: bert-tiny, "):
        build_student("bert-tny", teacher.contract, lambda: teacher)
    with pytest.raises(StudentError) as refused:
        build_student("no/such", teacher.contract, lambda: teacher)
    assert "short names" not in str(refused.value)
