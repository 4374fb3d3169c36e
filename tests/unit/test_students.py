"""Student specs, students of fewer layers and narrow ones, and the modules of every student."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS
from student_teachers import build, make_teacher
from teacher_folders import adapter, decoder
from transformers import BertConfig, BertModel

from distill.errors import StudentError
from distill.students.build import build_student, count_parameters, forward, without_head
from distill.students.layers import keep_layers, parse_layers
from distill.students.spec import ALIASES, KINDS, StudentOptions, is_from_teacher, parse_spec
from embedcache.teacher.aliases import ALIASES as TEACHERS
from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, tiny_encoder

pytest_plugins = ["distill_fixtures"]

SOME = TEXTS[:12]
HEAD = ["Transformer", "Pooling", "Dense", "Normalize"]
SPECS = ["layers:2", "compact:e=8,layers=2", "compact:e=16", "narrow:h=8", "static:dim=8"]


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
        ("layers:0,2,5", "layers", {}),
    ],
)
def test_a_spec_is_parsed(spec, kind, values):
    parsed = parse_spec(spec)
    assert (parsed.kind, parsed.values) == (kind, values)
    assert is_from_teacher(spec)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("compact:layers=3", "e is missing"),
        ("compact:e=8,e=9", "e=9"),
        ("compact:e=8,width=3", "width"),
        ("compact:e=", "e="),
        ("compact:e=8,copy=maybe", "copy"),
        *((f"static:dim={value}", "dim") for value in ("0", "-1", "1.5", "many", "²")),
        ("layer:3", "layers"),
        ("magic:3", "compact"),
        ("nowhere.py:build:3", "nowhere.py"),
        ("json:nothing", "nothing"),
    ],
)
def test_an_invalid_spec_is_refused_with_the_known_ones(spec, word):
    with pytest.raises(StudentError, match=word):
        parse_spec(spec)


def test_a_name_means_one_model():
    assert not set(ALIASES) & set(TEACHERS)
    assert not any(is_from_teacher(name) for name in (*ALIASES, "organisation/compact", "runs/a=b/best"))
    assert all(kind.form.startswith(f"{name}:") for name, kind in KINDS.items())


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
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


@pytest.mark.parametrize("text", ["", "x", "0", "5", "first:", "first:1,2", "middle:2", "0,4", "0,0", "1,"])
def test_layers_that_do_not_exist_are_refused(text):
    with pytest.raises(StudentError, match="expected K"):
        parse_layers(text, 4)


def test_all_layers_are_the_teacher_and_fewer_are_not(teacher):
    expected = encode(teacher.model)
    np.testing.assert_allclose(encode(make("layers:4", teacher)), expected, atol=1e-6)
    assert np.abs(encode(make("layers:3", teacher)) - expected).max() > 0.05
    with pytest.raises(StudentError, match="plain stack of layers"):
        keep_layers([torch.nn.Linear(1, 1)], "2")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [*SPECS, "folder"])
def test_a_saved_student_opens_with_every_bit_and_its_teacher_is_left_as_it_was(
    teacher, narrow, tmp_path, spec
):
    from sentence_transformers import SentenceTransformer

    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    student = make(narrow if spec == "folder" else spec, teacher, head="linear", dropout=0.5)
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
    with torch.no_grad():
        for parameter in student.parameters():
            assert parameter.requires_grad
            parameter.add_(1.0)
    after = teacher.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert (teacher.model.max_seq_length, names(teacher.model)[-1]) == (64, "Normalize")
    assert teacher.model[0].model.embeddings.dropout.p == pytest.approx(0.1)


def test_a_head_bridges_widths_and_is_added_to_equal_ones_on_request(teacher, narrow, plain):
    assert names(make(narrow, teacher)) == HEAD
    with pytest.raises(StudentError, match="head=linear"):
        make(narrow, teacher, head="none")
    heads = {head: "Dense" in names(make(plain, teacher, head=head)) for head in ("auto", "none", "tanh")}
    assert heads == {"auto": False, "none": False, "tanh": True}


def test_only_a_head_that_was_added_can_be_dropped(teacher, narrow, tmp_path):
    own = make(narrow, teacher)
    own.save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(StudentError, match="drop_head"):
        without_head(make(tmp_path, teacher))
    two = make(tmp_path, teacher, head="tanh")
    bare = without_head(two)
    assert (names(bare), bare[2] is two[2]) == (HEAD, True)
    np.testing.assert_allclose(encode(bare), encode(own), atol=1e-6)


@pytest.mark.parametrize("spec", ["folder", "narrow:h=8", "compact:e=16,layers=1,copy=no"])
def test_the_seed_decides_random_weights_and_nothing_else_random(teacher, narrow, spec):
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    made = [make(narrow if spec == "folder" else spec, teacher, seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers were used"
    first, same, other = made
    assert all(torch.equal(same[name], weight) for name, weight in first.items())
    assert not all(torch.equal(other[name], weight) for name, weight in first.items())


def test_vectors_have_length_one_if_the_teachers_have(teacher, narrow, tmp_path):
    np.testing.assert_allclose(np.linalg.norm(encode(make(narrow, teacher)), axis=1), 1, atol=1e-5)
    loose = load_teacher(tiny_encoder(tmp_path / "loose", normalize=False), device="cpu")
    scaled = tiny_encoder(tmp_path / "scaled", normalize=True, seed=2)
    assert names(make(scaled, loose)) == ["Transformer", "Pooling"]
    # A truncated vector is the beginning of a unit vector.
    cut = load_teacher(scaled, truncate_dim=8, device="cpu")
    assert names(make(str(scaled), cut)) == ["Transformer", "Pooling", "Dense"]
    whole = make("layers:2", cut)
    assert names(whole) == ["Transformer", "Pooling", "Normalize", "Dense"]
    np.testing.assert_allclose(encode(whole), encode(cut.model), atol=1e-6)


def test_a_student_of_an_adapter_is_whole(tmp_path):
    teacher = load_teacher(adapter(tmp_path / "adapter", decoder(tmp_path / "base", seed=3)), device="cpu")
    expected = encode_texts(teacher, SOME)
    whole = make("layers:2", teacher)
    np.testing.assert_allclose(encode(whole), expected, atol=1e-5)
    student = make("layers:1", load_teacher(tmp_path / "adapter", device="cpu"))
    student.save_pretrained(str(tmp_path / "student"), create_model_card=False)
    assert not (tmp_path / "student" / "adapter_config.json").exists()
    again = load_teacher(tmp_path / "student", device="cpu").model.float()
    np.testing.assert_allclose(encode(again), encode(student), atol=1e-6)


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
    for spec, length in (("layers:1", 65), ("static:dim=4", 9)):
        with pytest.raises(StudentError, match=f"max_length {length}"):
            make(spec, teacher, max_length=length)


@pytest.mark.parametrize(("dropout", "equal"), [(0.0, True), (0.5, False)])
def test_dropout_is_applied(teacher, dropout, equal):
    student = make("layers:2", teacher, dropout=dropout).train()
    ids = torch.arange(5, 25).reshape(2, 10)
    torch.manual_seed(0)
    first, second = (forward(student, ids, torch.ones_like(ids)) for _ in range(2))
    assert torch.equal(first, second) == equal


def test_a_folder_without_a_pooling_takes_the_mean_by_default(teacher, plain):
    default, mean, cls = (make(plain, teacher, pooling=pooling) for pooling in (None, "mean", "cls"))
    np.testing.assert_array_equal(encode(default), encode(mean))
    assert np.abs(encode(default) - encode(cls)).max() > 0.05
    with pytest.raises(StudentError, match=r"student\.pooling"):
        make("layers:2", teacher, pooling="cls")


def test_parameters_are_counted_once_and_noted(teacher):
    shared = torch.nn.Linear(3, 4, bias=False)
    modules = torch.nn.ModuleList([shared, torch.nn.Sequential(shared), torch.nn.Linear(2, 1)])
    assert count_parameters(modules) == 15
    notes: list[str] = []
    options = StudentOptions(on_note=notes.append)
    student = build_student("narrow:h=8", teacher.contract, lambda: teacher, options)
    assert f"{count_parameters(student) / 1e6:.2f} M parameters" in notes[-1]


def test_aliases_stand_for_hub_ids(monkeypatch, teacher):
    asked = []

    def load(spec, **settings):
        asked.append(spec)
        return copy.deepcopy(teacher)

    with monkeypatch.context() as patch:
        patch.setattr("distill.students.build.load_teacher", load)
        for spec in ("minilm-l3", "someorg/minilm-l3"):
            make(spec, teacher)
    assert asked == ["nreimers/MiniLM-L3-H384-uncased", "someorg/minilm-l3"]
    with pytest.raises(StudentError, match=r"bert-tny.*bert-tiny"):
        make("bert-tny", teacher)
    with pytest.raises(StudentError, match="nowhere/at/all"):
        make("./nowhere/at/all", teacher)


# Narrow students.


def test_a_narrow_student_is_a_bert_without_its_pooler_as_deep_as_its_teacher(teacher):
    student = build("narrow:h=12", teacher.model)
    model, config, own = student[0].model, student[0].model.config, teacher.model[0]
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (12, 48, 4)
    assert build("narrow:h=12,layers=7", teacher.model)[0].model.config.num_hidden_layers == 7
    assert (config.vocab_size, config.max_position_embeddings) == (len(own.tokenizer), 64)
    assert student[0].tokenizer(SOME) == own.tokenizer(SOME)
    assert student.max_seq_length == teacher.model.max_seq_length
    # To the bit: with the same weights a BertModel gives the same states.
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    settings = {key: getattr(config, key) for key in (*keys, "max_position_embeddings")}
    bert = BertModel(BertConfig(**settings), add_pooling_layer=False).eval()
    bert.load_state_dict(model.state_dict())
    ids = torch.arange(20).reshape(2, 10)
    with torch.inference_mode():
        assert torch.equal(bert(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize(("h", "heads"), [(192, 3), (312, 6), (100, 2), (67, 67), (8, 1)])
def test_heads_are_at_most_64_wide_and_divide_the_width(teacher, h, heads):
    assert build(f"narrow:h={h},layers=1", teacher.model)[0].model.config.num_attention_heads == heads


def test_a_narrow_student_has_as_many_parameters_as_the_paper_counts(teacher):
    """SimTDE's table 2, LMX-KD-384-L12(384): 33.4 M with BERT's pooler, which the mean never uses."""
    model = build("narrow:h=384,layers=12", teacher.model)[0].model
    table = (30_522 - model.config.vocab_size) + (512 - model.config.max_position_embeddings)
    count = count_parameters(model) + table * 384
    assert count == 33_212_160
    assert round((count + 384 * 384 + 384) / 1e6, 1) == 33.4


@pytest.mark.parametrize(
    ("kind", "pooling", "mode"),
    [
        ("roberta", "cls", "cls"),
        ("roberta", None, "cls"),
        ("albert", "mean", "mean"),
    ],
)
def test_the_teacher_of_a_narrow_student_may_be_of_any_architecture(tmp_path, kind, pooling, mode):
    teacher = make_teacher(kind, tmp_path / kind, pooling)
    student = build("narrow:h=8,layers=1", teacher)
    assert student[1].pooling_mode == mode
    config = student[0].model.config
    # Padding reserves two of RoBERTa's positions.
    assert config.max_position_embeddings == (66 if kind == "albert" else 64)
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
    assert build("narrow:h=8", teacher)[0].model.config.max_position_embeddings == positions


def test_an_unsuitable_teacher_is_refused(tmp_path, teacher):
    bert = make_teacher("bert", tmp_path / "bert")
    bert[0].tokenizer.pad_token = None
    with pytest.raises(StudentError, match="padding token"):
        build("narrow:h=8", bert)
    static = build_student("static:dim=4", teacher.contract, lambda: teacher)
    for spec in ("narrow:h=8", "compact:e=2"):
        with pytest.raises(StudentError, match="StaticEmbedding"):
            build(spec, static)
