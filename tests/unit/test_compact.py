from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from student_teachers import ARCHITECTURES, PAD, make_teacher
from transformers import AutoModel, AutoTokenizer, BertConfig, ElectraModel, RobertaConfig, XLMRobertaConfig

from distill.errors import StudentError
from distill.students.architectures import electra_config, lost_layers
from distill.students.compact import from_teacher
from distill.students.spec import parse_spec
from distill.students.student import build_student, count_parameters
from distill.training.token_embeddings import TokenEmbeddings
from embedcache.teacher.load import Teacher, load_teacher, quiet_transformers
from embedcache.teacher.token_table import TokenTable, token_table_of
from embedcache.teacher.tokenize import FastTokenizer
from embedcache.testing import sentences

pytest_plugins = ["distill_fixtures"]

TEXTS = [*sentences(12, seed=3, longest=9), "cat " * 80, "cat"]
EXACT = [kind for kind in ARCHITECTURES if kind not in ("mpnet", "albert")]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """Makes a teacher of an architecture, once."""
    made: dict[tuple[str, str | None], Any] = {}

    def make(kind: str, pooling: str | None = "mean") -> Any:
        if (kind, pooling) not in made:
            folder = tmp_path_factory.mktemp("architectures") / f"{kind}-{pooling}"
            made[kind, pooling] = make_teacher(kind, folder, pooling)
        return made[kind, pooling]

    return make


def compact(teacher: Any, spec: str, notes: list[str] | None = None, **settings: Any) -> Any:
    notes = [] if notes is None else notes
    return from_teacher(
        teacher, parse_spec(f"compact:{spec}"), **{"count_tokens": None, "on_note": notes.append, **settings}
    )


def encode(model: Any) -> np.ndarray:
    return np.asarray(model.encode(TEXTS, batch_size=5))


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_with_nothing_left_out_a_student_is_its_teacher(teachers, kind, pooling):
    teacher, notes = teachers(kind, pooling), []
    width = teacher[0].model.get_input_embeddings().embedding_dim
    student = compact(teacher, f"e={width}", notes)
    assert type(student[0].model).__name__ == "ElectraModel"
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert notes == []
    fewer = encode(compact(teacher, f"e={width},layers=3"))
    assert np.abs(fewer - encode(teacher)).max() > 0.05


@pytest.mark.parametrize("kind", EXACT)
def test_neurons_that_say_nothing_go_first(teachers, kind):
    teacher = copy.deepcopy(teachers(kind))
    width = teacher[0].model.get_input_embeddings().embedding_dim
    whole = compact(teacher, f"e={width}")
    layer = whole[0].model.encoder.layer[0]
    neurons = layer.intermediate.dense.out_features
    silent = [1, 4, neurons - 1]
    for weight in teacher[0].model.parameters():
        if weight.shape == layer.output.dense.weight.shape:
            weight.data[:, silent] = 0
    student = compact(teacher, f"e={width},ff={neurons - len(silent)}")
    config = student[0].model.config
    assert config.intermediate_size == neurons - len(silent)
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert np.abs(encode(compact(teacher, f"e={width},ff={neurons - 9}")) - encode(teacher)).max() > 1e-3
    assert count_parameters(compact(teacher, f"e={width},ff=5")) < count_parameters(student)


def test_neurons_that_are_kept_stay_in_their_order(teachers):
    teacher = teachers("bert")
    few = compact(teacher, "e=8,ff=7")[0].model.encoder.layer[0].intermediate.dense.weight
    many = compact(teacher, "e=8,ff=9")[0].model.encoder.layer[0].intermediate.dense.weight
    whole = compact(teacher, "e=8")[0].model.encoder.layer[0].intermediate.dense.weight
    places = [[int((whole == row).all(dim=1).nonzero()) for row in rows] for rows in (few, many)]
    assert set(places[0]) < set(places[1])
    assert places == [sorted(place) for place in places]


def test_what_the_kept_neurons_say_is_told(teachers):
    teacher, notes = teachers("bert"), []
    layers = [layer.state_dict() for layer in teacher[0].model.encoder.layer]
    says = [
        layer["intermediate.dense.weight"].norm(dim=1) * layer["output.dense.weight"].norm(dim=0)
        for layer in layers
    ]
    neurons = len(says[0])
    compact(teacher, "e=16,ff=7", notes)
    share = np.mean([float(one.topk(7).values.sum() / one.sum()) for one in says])
    assert notes == [f"7 of {neurons} neurons a layer, which are {share:.1%} of what they say"]
    assert 7 / neurons < share < 1
    # Nothing is left out here, and nothing is the teacher's there.
    for spec in (f"e=16,ff={neurons}", "e=16,ff=7,copy=no"):
        notes.clear()
        compact(teacher, spec, notes)
        assert not any("neurons" in note for note in notes)


def test_more_neurons_than_the_teacher_has_are_refused(teachers):
    with pytest.raises(StudentError, match=r"ff=9999, and the teacher's layers have .* choose 1 to"):
        compact(teachers("distilbert"), "e=8,ff=9999")


def test_layers_that_are_not_copied_are_random_by_the_seed_and_nothing_else_is(teachers):
    teacher, notes = teachers("bert"), []
    copied = compact(teacher, "e=8,layers=2").state_dict()
    first, same, other = (
        compact(teacher, "e=8,layers=2,copy=no", notes, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert any("begin with random weights" in note for note in notes)
    assert not any("copied but for" in note for note in notes)
    for name, tensor in first.items():
        drawn = ".encoder." in name and tensor.dim() == 2
        assert torch.equal(tensor, same[name])
        assert torch.equal(tensor, other[name]) is not drawn, name
        if drawn or ".encoder." not in name:
            assert torch.equal(tensor, copied[name]) is not drawn, name
    with pytest.raises(StudentError, match="copy=maybe, expected yes or no"):
        compact(teacher, "e=8,copy=maybe")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_pooler_becomes_modules_behind_the_transformer(teachers, kind):
    teacher, notes = teachers(kind, None), []
    student = compact(teacher, "e=16", notes)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Dense"]
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert notes == ["the teacher's pooler is carried over as a Dense module behind the pooling"]


def test_of_mpnet_all_is_carried_over_but_its_relative_positions(teachers):
    teacher, notes = teachers("mpnet"), []
    student = compact(teacher, "e=16", notes)
    assert np.abs(encode(student) - encode(teacher)).max() > 0.01
    assert notes == [f"layers are copied but for {lost_layers('mpnet')}: an ElectraModel has no place for it"]
    bias = teacher[0].model.encoder.relative_attention_bias.weight
    kept = bias.data.clone()
    bias.data.zero_()
    try:
        np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    finally:
        bias.data.copy_(kept)


@pytest.mark.parametrize(
    ("layers", "chosen"), [("2", [2, 3]), ("first:2", [0, 1]), ("every:2", [1, 3]), ("0+2+3", [0, 2, 3])]
)
def test_the_named_layers_are_the_teachers(teachers, layers, chosen):
    teacher = teachers("bert")
    student = compact(teacher, f"e=4,layers={layers}")
    originals = [layer.state_dict() for layer in teacher[0].model.encoder.layer]
    copies = [layer.state_dict() for layer in student[0].model.encoder.layer]
    assert len(copies) == len(chosen) == student[0].model.config.num_hidden_layers
    for copied, number in zip(copies, chosen, strict=True):
        for other, original in enumerate(originals):
            assert all(torch.equal(copied[name], original[name]) for name in original) == (other == number)


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "albert"])
def test_a_narrow_block_keeps_what_the_teacher_is_set_to(teachers, kind):
    teacher, notes = teachers(kind), []
    student = compact(teacher, "e=5,layers=2", notes)
    config, own = student[0].model.config, teacher[0].model.config
    words = len(teacher[0].model.get_input_embeddings().weight)
    assert (config.embedding_size, config.hidden_size) == (5, 16)
    assert (config.vocab_size, config.pad_token_id) == (words, own.pad_token_id)
    shifted = own.max_position_embeddings - (PAD + 1 if own.pad_token_id == PAD else 0)
    assert config.max_position_embeddings == shifted == len(student[0].model.embeddings.position_ids[0])
    assert config.hidden_act == getattr(own, "activation", None) or own.hidden_act
    assert config.type_vocab_size == getattr(own, "type_vocab_size", 1)
    assert student[0].model.embeddings_project.weight.shape == (16, 5)
    assert student[0].tokenizer("cat dog sees") == teacher[0].tokenizer("cat dog sees")
    assert student.max_seq_length == teacher.max_seq_length
    assert "width 5" in notes[0]
    assert "%" in notes[0]
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert encode(student).shape == encode(teacher).shape


def test_the_teacher_is_left_as_it_was(teachers):
    teacher = teachers("roberta")
    before, vectors = {k: v.clone() for k, v in teacher.state_dict().items()}, encode(teacher)
    for spec in ("e=4,layers=2", "e=16"):
        student = compact(teacher, spec)
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(1.0)
    assert all(torch.equal(teacher.state_dict()[k], v) for k, v in before.items())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    np.testing.assert_array_equal(encode(teacher), vectors)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_converting_twice_gives_the_same_bytes(teachers, kind, tmp_path):
    teacher = teachers(kind)
    state = torch.random.get_rng_state()
    for name in ("once", "twice"):
        compact(teacher, "e=6,layers=2").save_pretrained(str(tmp_path / name), create_model_card=False)
        teacher.encode(TEXTS[:3])
    assert digests(tmp_path / "once") == digests(tmp_path / "twice")
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers were used up"
    compact(teacher, "e=6,layers=first:2").save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert digests(tmp_path / "once") != digests(tmp_path / "other")


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_saved_student_is_a_plain_electra_folder(teachers, kind, tmp_path):
    student = compact(teachers(kind), "e=6,layers=2")
    student.save_pretrained(str(tmp_path), create_model_card=False)
    loaded = load_teacher(tmp_path, device="cpu")
    np.testing.assert_allclose(encode(loaded.model), encode(student), atol=1e-6)
    with quiet_transformers():
        plain, tokenizer = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(plain) is ElectraModel
    assert plain.config.model_type == "electra"
    states = plain.state_dict()
    assert states.keys() == student[0].model.state_dict().keys()
    assert all(torch.equal(states[k], v) for k, v in student[0].model.state_dict().items())
    loaded.model.save_pretrained(str(tmp_path / "again"), create_model_card=False)
    saved = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path, tmp_path / "again")]
    assert saved[0] == saved[1]
    with torch.inference_mode():
        state = plain.eval()(**tokenizer("cat dog sees a river", return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(state[0].mean(dim=0), student.encode("cat dog sees a river"), atol=1e-5)


@pytest.mark.parametrize("embeddings", ["block", "word"])
def test_as_a_teacher_it_gives_the_token_embeddings_that_its_layers_are_fed(teachers, tmp_path, embeddings):
    compact(teachers("bert"), "e=6,layers=2").save_pretrained(str(tmp_path), create_model_card=False)
    teacher = load_teacher(tmp_path, device="cpu")
    token_table_of(teacher).write(tmp_path / "table", teacher.contract)
    table = TokenTable.read(tmp_path / "table", teacher.contract)
    wanted = torch.from_numpy(table.block() if embeddings == "block" else table.words())
    assert wanted.shape == (len(table.tokens), 16)
    ids = torch.arange(len(table.tokens))
    same = TokenEmbeddings(compact(teacher.model, "e=6"), table, "vocabulary", embeddings).of_tokens(ids)
    torch.testing.assert_close(same, wanted, atol=1e-5, rtol=1e-5)
    other = TokenEmbeddings(compact(teacher.model, "e=3"), table, "vocabulary", embeddings).of_tokens(ids)
    assert float((other - wanted).abs().max().detach()) > 0.05


def test_what_a_teacher_does_not_allow_is_refused(teachers):
    with pytest.raises(StudentError, match="e=17, and the teacher's token embeddings have 16 numbers"):
        compact(teachers("bert"), "e=17")
    with pytest.raises(StudentError, match="have 8 numbers; choose 1 to 8"):
        compact(teachers("electra"), "e=9")
    with pytest.raises(StudentError, match="the teacher has 4 layers; choose 1 to 4"):
        compact(teachers("bert"), "e=4,layers=5")
    with pytest.raises(
        StudentError, match=r"'compact:e=4,layers=middle:2' is not understood.*layers=every:K"
    ):
        compact(teachers("bert"), "e=4,layers=middle:2")
    with pytest.raises(StudentError, match=r"bert, electra, roberta, xlm-roberta.*'albert'"):
        compact(teachers("albert"), "e=4")
    with pytest.raises(StudentError, match=r"'compact:e=4,vocab=40': vocab=40 .* no corpus to count them in"):
        compact(teachers("bert"), "e=4,vocab=40")


@pytest.mark.parametrize(
    ("config", "width", "layers", "millions"),
    [
        # SimTDE's tables 1 to 3: students of SimCSE-BERT-base (of 3 and of all layers), MiniLM-L6, BERT-Tiny.
        (BertConfig(), 384, 3, 34.1),
        (BertConfig(), 384, 12, 97.9),
        (BertConfig(hidden_size=384, intermediate_size=1536), 128, 3, 9.5),
        (BertConfig(hidden_size=128, num_attention_heads=2, intermediate_size=512), 64, 2, 2.4),
        (BertConfig(hidden_size=128, num_attention_heads=2, intermediate_size=512), 32, 2, 1.4),
    ],
)
def test_parameters_are_as_many_as_the_paper_counts(config, width, layers, millions):
    with torch.device("meta"):
        student = ElectraModel(electra_config(config, width, layers))
    # The paper counts a pooler, which the mean over tokens never uses and an ElectraModel does not have.
    pooler = config.hidden_size**2 + config.hidden_size
    assert round((count_parameters(student) + pooler) / 1e6, 1) == millions


def test_the_smallest_student_of_the_paper_has_the_exact_count():
    with torch.device("meta"):
        config = BertConfig(hidden_size=384, intermediate_size=1536, num_attention_heads=12)
        assert count_parameters(ElectraModel(electra_config(config, 128, 3))) == 9_345_792


def test_positions_behind_the_padding_row_are_counted_from_the_first_token():
    for config in (
        RobertaConfig(max_position_embeddings=514),
        XLMRobertaConfig(max_position_embeddings=514),
    ):
        made = electra_config(config, 8, 1)
        assert (made.max_position_embeddings, made.pad_token_id) == (512, 1)


def build(teacher: Teacher, spec: str, **settings: Any) -> tuple[Any, list[str]]:
    notes: list[str] = []
    model = build_student(spec, teacher.contract, lambda: teacher, on_note=notes.append, **settings)
    return model, notes


def test_a_student_gets_what_every_student_gets(teacher):
    student, notes = build(teacher, "compact:e=4,layers=2", head="linear", max_length=9, dropout=0.4)
    names = [type(module).__name__ for module in student]
    assert names == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert student.max_seq_length == 9
    assert student[0].model.embeddings.dropout.p == pytest.approx(0.4)
    np.testing.assert_allclose(np.linalg.norm(encode(student), axis=1), 1, atol=1e-5)
    full = count_parameters(teacher.model)
    own = count_parameters(student)
    share = f"{own / 1e6:.2f} M parameters, {own / full:.1%} of the teacher's {full / 1e6:.2f} M"
    assert notes[-1] == share
    assert build(teacher, "layers:2")[1] == []
    with pytest.raises(StudentError, match=r"student\.pooling cls: 'compact:e=4'"):
        build(teacher, "compact:e=4", pooling="cls")
    with pytest.raises(StudentError, match="takes at most 64 tokens"):
        build(teacher, "compact:e=4", max_length=65)


def test_a_static_student_reads_to_the_end_of_a_text(teacher):
    student, notes = build(teacher, "static:dim=4")
    assert type(student[0]).__name__ == "StaticEmbedding"
    assert type(student[len(student) - 1]).__name__ == "Normalize"
    long, short = student.encode(["cat " * 400 + "dog", "cat " * 400])
    assert not np.array_equal(long, short)
    assert "parameters" in notes[-1]
    with pytest.raises(StudentError, match=r"student\.max_length 9: 'static:dim=4' reads texts to their end"):
        build(teacher, "static:dim=4", max_length=9)


def test_the_texts_decide_where_narrow_embeddings_begin(teacher):
    def counted(texts: list[str]):
        return lambda tokenizer: np.bincount(tokenizer(texts).ids, minlength=tokenizer.vocabulary_size)

    some = build(teacher, "compact:e=4", count_tokens=counted(["cat dog"] * 50))
    same = build(teacher, "compact:e=4", count_tokens=counted(["cat dog"] * 50))
    others = build(teacher, "compact:e=4", count_tokens=counted(["river tree"] * 50))
    none = build(teacher, "compact:e=4")
    rows = [model[0].model.embeddings.word_embeddings.weight for model, _ in (some, same, others, none)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2], atol=1e-3)
    assert not torch.allclose(rows[0], rows[3], atol=1e-3)
    assert "(R2 over the texts)" in some[1][0]
    assert "(R2 over a vocabulary whose tokens count alike)" in none[1][0]


def test_a_pruned_vocabulary_keeps_the_rows_of_its_tokens(teacher):
    own = teacher.model[0].tokenizer
    counted: list[FastTokenizer] = []

    def count(tokenizer: FastTokenizer) -> np.ndarray:
        counted.append(tokenizer)
        return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)

    size = len(own) - 10
    student, notes = build(teacher, f"compact:e=16,vocab={size}", count_tokens=count)
    assert len(counted) == 1
    pruned, model = student[0].tokenizer, student[0].model
    assert len(pruned) == size == model.config.vocab_size == len(model.embeddings.word_embeddings.weight)
    assert model.config.pad_token_id == pruned.pad_token_id
    table = teacher.model[0].model.embeddings.word_embeddings.weight
    for word in ("cat", "dog", "[CLS]", "[PAD]"):
        new, old = pruned.convert_tokens_to_ids(word), own.convert_tokens_to_ids(word)
        assert torch.equal(model.embeddings.word_embeddings.weight[new], table[old])
    # The texts are made of tokens that are kept, so nothing is lost.
    np.testing.assert_allclose(encode(student), encode(teacher.model), atol=1e-5)
    assert f"{size} of {len(own)} tokens" in notes[0]
