"""Student specs, and what every student gets: its teacher's length, width and scale."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS

from distill.errors import StudentError
from distill.students.build import build_student, count_parameters, forward, without_head
from distill.students.layers import keep_layers, parse_layers
from distill.students.registry import StudentOptions
from distill.students.spec import ALIASES, is_from_teacher, parse_spec, student_forms, student_kinds
from embedcache.teacher.load import load_teacher
from embedcache.teacher.resolve import ALIASES as TEACHERS
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]

SOME = TEXTS[:12]
HEAD = ["Transformer", "Pooling", "Dense", "Normalize"]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    """A student folder of width 8 whose vectors are not scaled."""
    folder = tmp_path_factory.mktemp("narrow") / "narrow"
    return tiny_encoder(folder, dimension=8, layers=1, normalize=False, seed=5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A plain transformers folder of the teacher's width, which does not name its pooling."""
    return tiny_encoder(tmp_path_factory.mktemp("plain") / "plain", layers=1, plain=True, seed=6)


def make(spec: object, teacher, seed: int = 0, **settings: Any):
    def refuse():
        raise AssertionError("the teacher was loaded for a student that needs none")

    live = (lambda: teacher) if is_from_teacher(str(spec)) else refuse
    return build_student(str(spec), teacher.contract, live, StudentOptions(seed), **settings)


def encode(model) -> np.ndarray:
    return np.asarray(model.encode(SOME))


def names(model) -> list[str]:
    return [type(module).__name__ for module in model]


@pytest.mark.parametrize(
    ("spec", "kind", "values"),
    [
        ("compact:layers=0+2+5, e=8,vocab=900", "compact", {"e": 8, "layers": "0+2+5", "vocab": 900}),
        ("compact:e=8,layers=every:2,copy=no", "compact", {"e": 8, "layers": "every:2", "copy": False}),
        ("narrow:h=192,layers=6", "narrow", {"h": 192, "layers": 6}),
        ("static:dim=256", "static", {"dim": 256}),
        ("layers:0,2,5", "layers", {}),
        ("minilm-l3", None, {}),
        ("organisation/compact", None, {}),
        ("runs/a=b/best", None, {}),
    ],
)
def test_a_spec_is_parsed(spec, kind, values):
    parsed = parse_spec(spec)
    assert (parsed.kind and parsed.kind.name, dict(parsed.values)) == (kind, values)
    assert is_from_teacher(spec) == (kind is not None)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("compact:", "e is missing"),
        ("compact:layers=3", "e is missing"),
        ("compact:e=8,e=9", "each once"),
        ("compact:e=8,width=3", "keys e, layers, copy, ff, vocab"),
        ("compact:e=", "KEY=VALUE"),
        ("compact:e=8,layers=0,2", "KEY=VALUE"),
        ("compact:e=8,copy=maybe", "yes or no"),
        *((f"static:dim={value}", "at least 1") for value in ("0", "-1", "1.5", "many", "²")),
        ("layer:3", "did you mean layers:3"),
        ("compct:e=8", "did you mean compact:e=8"),
        ("magic:3", "no kind 'magic'"),
        ("nowhere.py:build:3", "nowhere.py"),
        ("json:nothing", "no 'nothing'"),
    ],
)
def test_an_invalid_spec_is_refused_with_what_is_known(spec, word):
    with pytest.raises(StudentError, match=word):
        parse_spec(spec)


def test_the_registry_lists_kinds_without_torch():
    kinds = student_kinds()
    assert all(kind.summary and kind.form.startswith(f"{name}:") for name, kind in kinds.items())
    assert all(kind.form in student_forms() for kind in kinds.values())
    code = "import sys, distill.students.spec; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not set(ALIASES) & set(TEACHERS), "a name that means two models"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("1", [3]),
        ("2", [2, 3]),
        ("last:2", [2, 3]),
        ("first:2", [0, 1]),
        ("every:2", [1, 3]),
        ("0,3", [0, 3]),
        ("3+1", [3, 1]),
    ],
)
def test_exactly_the_selected_layers_are_copied(teacher, text, chosen):
    assert parse_layers(text, 4) == chosen
    student = keep_layers(teacher.model, text)
    originals = [layer.state_dict() for layer in teacher.model[0].model.encoder.layer]
    copies = [layer.state_dict() for layer in student[0].model.encoder.layer]
    assert len(copies) == len(chosen) == student[0].model.config.num_hidden_layers
    for copied, number in zip(copies, chosen, strict=True):
        for other, original in enumerate(originals):
            assert all(torch.equal(copied[name], original[name]) for name in original) == (other == number)
    assert all(parameter.requires_grad for parameter in student.parameters())


BAD_LAYERS = [
    "",
    "x",
    "0",
    "5",
    "1.5",
    "first:",
    "first:5",
    "first:1,2",
    "middle:2",
    "0,4",
    "0,0",
    "-1,2",
    "1,",
]


@pytest.mark.parametrize("text", BAD_LAYERS)
def test_layers_that_do_not_exist_are_refused(text):
    with pytest.raises(StudentError, match=f"layers:{text}"):
        parse_layers(text, 4)


def test_a_model_without_a_plain_stack_of_layers_is_refused():
    with pytest.raises(StudentError, match="no plain stack of layers"):
        keep_layers([torch.nn.Linear(1, 1)], "2")  # type: ignore[arg-type]


def test_all_layers_are_the_teacher_and_fewer_are_not(teacher):
    expected = encode(teacher.model)
    np.testing.assert_allclose(encode(make("layers:4", teacher)), expected, atol=1e-6)
    assert np.abs(encode(make("layers:3", teacher)) - expected).max() > 0.05


@pytest.mark.parametrize(
    "spec", ["layers:2", "compact:e=8,layers=2", "compact:e=16", "narrow:h=8", "static:dim=8"]
)
def test_the_teacher_is_left_as_it_was(teacher, spec):
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    student = make(spec, teacher, head="linear", dropout=0.5)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    after = teacher.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert len(teacher.model[0].model.encoder.layer) == teacher.model[0].model.config.num_hidden_layers == 4
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert (teacher.model.max_seq_length, names(teacher.model)[-1]) == (64, "Normalize")
    assert teacher.model[0].model.embeddings.dropout.p == pytest.approx(0.1)


@pytest.mark.parametrize(
    "spec", ["layers:first:2", "compact:e=8,layers=2", "narrow:h=8", "static:dim=8", "folder"]
)
@pytest.mark.parametrize("settings", [{}, {"head": "linear", "dropout": 0.3}])
def test_a_saved_student_opens_with_every_bit(teacher, narrow, tmp_path, spec, settings):
    from sentence_transformers import SentenceTransformer

    student = make(narrow if spec == "folder" else spec, teacher, **settings)
    student.save_pretrained(str(tmp_path), create_model_card=False)
    again = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(encode(again), encode(student), atol=1e-6)
    assert names(again) == names(student)
    found, wanted = again.state_dict(), student.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    if spec != "static:dim=8":
        assert again.max_seq_length == student.max_seq_length
        assert again[0].model.config.hidden_dropout_prob == pytest.approx(0.1)


def test_a_head_bridges_widths(teacher, narrow):
    student = make(narrow, teacher)
    assert names(student) == HEAD
    assert encode(student).shape == (len(SOME), 16)
    with pytest.raises(StudentError, match="--head linear"):
        make(narrow, teacher, head="none")


@pytest.mark.parametrize(
    ("head", "added"), [("auto", False), ("none", False), ("linear", True), ("tanh", True)]
)
def test_equal_widths_take_a_head_only_on_request(teacher, plain, head, added):
    assert ("Dense" in names(make(plain, teacher, head=head))) == added


def test_only_a_head_that_was_added_can_be_dropped(teacher, narrow, tmp_path):
    own = make(narrow, teacher)
    own.save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(StudentError, match="no head was added"):
        without_head(make(tmp_path, teacher))
    two = make(tmp_path, teacher, head="tanh")
    bare = without_head(two)
    assert (names(bare), bare[2] is two[2]) == (HEAD, True)
    np.testing.assert_allclose(encode(bare), encode(own), atol=1e-6)


def test_the_seed_decides_the_head_and_nothing_else_random(teacher, narrow):
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    heads = [make(narrow, teacher, seed)[2].linear.weight for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers were used"
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_vectors_have_length_one_if_the_teachers_have(teacher, narrow, tmp_path):
    np.testing.assert_allclose(np.linalg.norm(encode(make(narrow, teacher)), axis=1), 1, atol=1e-5)
    loose = load_teacher(tiny_encoder(tmp_path / "loose", normalize=False), device="cpu")
    scaled = tiny_encoder(tmp_path / "scaled", normalize=True, seed=2)
    assert names(make(scaled, loose)) == ["Transformer", "Pooling"]
    # A truncated vector is the beginning of a unit vector.
    cut = load_teacher(scaled, truncate_dim=8, device="cpu")
    assert names(make("layers:1", cut)) == ["Transformer", "Pooling", "Dense"]


def test_weights_stored_in_half_precision_are_trained_in_full(tmp_path):
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


def test_the_length_is_the_teachers_by_default(teacher, plain):
    assert make("layers:1", teacher).max_seq_length == make(plain, teacher).max_seq_length == 64
    short = make("compact:e=4,layers=1", teacher, max_length=5)
    assert short.preprocess([" ".join(["cat"] * 30)])["input_ids"].shape[1] == short.max_seq_length == 5
    with pytest.raises(StudentError, match="at most 64 tokens"):
        make("layers:1", teacher, max_length=65)
    with pytest.raises(StudentError, match="max_length 9"):
        make("static:dim=4", teacher, max_length=9)


@pytest.mark.parametrize(("dropout", "equal"), [(0.0, True), (0.5, False)])
def test_dropout_is_applied(teacher, dropout, equal):
    student = make("layers:2", teacher, dropout=dropout).train()
    ids = torch.arange(5, 25).reshape(2, 10)
    torch.manual_seed(0)
    first, second = (forward(student, ids, torch.ones_like(ids)) for _ in range(2))
    assert torch.equal(first, second) == equal


def test_a_folder_without_a_pooling_takes_the_mean_by_default(teacher, plain):
    mean, told, cls = (make(plain, teacher, pooling=pooling) for pooling in (None, "mean", "cls"))
    np.testing.assert_array_equal(encode(mean), encode(told))
    assert np.abs(encode(mean) - encode(cls)).max() > 0.05
    with pytest.raises(StudentError, match="pools as its teacher"):
        make("layers:2", teacher, pooling="cls")


def test_parameters_are_counted_once_and_noted(teacher):
    shared = torch.nn.Linear(3, 4, bias=False)
    modules = torch.nn.ModuleList([shared, torch.nn.Sequential(shared), torch.nn.Linear(2, 1)])
    assert count_parameters(modules) == 15
    for spec, noted in (("layers:2", 0), ("narrow:h=8", 1)):
        notes: list[str] = []
        options = StudentOptions(on_note=notes.append)
        student = build_student(spec, teacher.contract, lambda: teacher, options)
        assert len(notes) == noted
        assert all(f"{count_parameters(student) / 1e6:.2f} M parameters" in note for note in notes)


def test_aliases_stand_for_hub_ids(monkeypatch, teacher):
    asked = []

    def load(spec, **settings):
        asked.append(spec)
        return copy.deepcopy(teacher)

    with monkeypatch.context() as patch:
        patch.setattr("distill.students.build.load_teacher", load)
        for spec in ("minilm-l3", "somebody/minilm-l3"):
            make(spec, teacher)
    assert asked == ["nreimers/MiniLM-L3-H384-uncased", "somebody/minilm-l3"]
    with pytest.raises(StudentError, match=r"bert-tny.*bert-tiny"):
        make("bert-tny", teacher)
    with pytest.raises(StudentError, match="nowhere/at/all"):
        make("./nowhere/at/all", teacher)


OUTSIDE = """
from distill.students.layers import keep_layers

def ends(spec, teacher, options, *, last: int = 1):
    '''The first layer, and the last ones.'''
    layers = len(teacher.model[0].model.encoder.layer)
    return keep_layers(teacher.model, "0," + ",".join(map(str, range(layers - last, layers))))
"""


@pytest.mark.parametrize("form", ["{folder}/ends.py:ends", "ends:ends"])
def test_a_student_kind_outside_the_package_is_a_function(teacher, tmp_path, monkeypatch, form):
    (tmp_path / "ends.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = form.format(folder=tmp_path)
    for text, chosen in ((spec, "0,3"), (f"{spec}:last=2", "0,2,3")):
        found, wanted = make(text, teacher), keep_layers(teacher.model, chosen)
        assert encode(found) == pytest.approx(encode(wanted), abs=1e-6)
    with pytest.raises(StudentError, match="key"):
        parse_spec(f"{spec}:first=2")
