"""Compact students: the teacher's layers after a narrow embedding block fitted to the teacher's."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from student_teachers import ARCHITECTURES, PAD, build, make_teacher
from threadpoolctl import threadpool_limits
from transformers import AutoModel, AutoTokenizer, BertConfig, ElectraModel, RobertaConfig

from distill.errors import StudentError
from distill.students import embedding_block
from distill.students.architectures import electra_config
from distill.students.build import count_parameters
from distill.students.embedding_block import EmbeddingBlock, narrow_block
from distill.training.intermediate import TokenEmbeddings
from embedcache.teacher.load import load_teacher, quiet_transformers
from embedcache.teacher.token_table import TokenTable, token_table_of
from embedcache.testing import sentences

pytest_plugins = ["distill_fixtures"]

TEXTS = [*sentences(12, seed=3, longest=9), "cat " * 80, "cat"]
KNOWN = [kind for kind in ARCHITECTURES if kind != "albert"]
EXACT = [kind for kind in KNOWN if kind != "mpnet"]


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


def whole(teacher: Any) -> str:
    """The spec of a student as wide as its teacher."""
    return f"compact:e={teacher[0].model.get_input_embeddings().embedding_dim}"


def encode(model: Any) -> np.ndarray:
    return np.asarray(model.encode(TEXTS, batch_size=5))


def count(tokenizer) -> np.ndarray:
    return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *((kind, "mean") for kind in EXACT),
        ("bert", "cls"),
        ("bert", None),
        ("roberta", None),
    ],
)
def test_with_nothing_left_out_a_student_is_its_teacher(teachers, kind, pooling):
    teacher = teachers(kind, pooling)
    np.testing.assert_allclose(encode(build(whole(teacher), teacher)), encode(teacher), atol=1e-5)
    assert np.abs(encode(build(f"{whole(teacher)},layers=3", teacher)) - encode(teacher)).max() > 0.05


def test_mpnet_loses_its_relative_positions_and_nothing_else(teachers):
    teacher, notes = copy.deepcopy(teachers("mpnet")), []
    student = build("compact:e=16", teacher, notes)
    assert np.abs(encode(student) - encode(teacher)).max() > 0.01
    assert "relative position" in notes[0]
    teacher[0].model.encoder.relative_attention_bias.weight.data.zero_()
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_neurons_without_weight_go_first(teachers, kind):
    teacher = copy.deepcopy(teachers(kind))
    layer = build("compact:e=16", teacher)[0].model.encoder.layer[0]
    neurons = layer.intermediate.dense.out_features
    silent = [1, 4, neurons - 1]
    for weight in teacher[0].model.parameters():
        if weight.shape == layer.output.dense.weight.shape:
            weight.data[:, silent] = 0
    student = build(f"compact:e=16,ff={neurons - len(silent)}", teacher)
    assert student[0].model.config.intermediate_size == neurons - len(silent)
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert np.abs(encode(build(f"compact:e=16,ff={neurons - 9}", teacher)) - encode(teacher)).max() > 1e-3


def test_the_heaviest_neurons_stay_in_order_and_their_share_is_noted(teachers):
    teacher, notes = teachers("bert"), []
    layers = [layer.state_dict() for layer in teacher[0].model.encoder.layer]
    weight = [
        x["intermediate.dense.weight"].norm(dim=1) * x["output.dense.weight"].norm(dim=0) for x in layers
    ]
    few = build("compact:e=16,ff=7", teacher, notes)[0].model.encoder.layer[0].intermediate.dense.weight
    rows = layers[0]["intermediate.dense.weight"]
    places = [int((rows == row).all(dim=1).nonzero()) for row in few]
    assert places == sorted(weight[0].topk(7).indices.tolist())
    share = np.mean([float(one.topk(7).values.sum() / one.sum()) for one in weight])
    assert f"{share:.1%}" in notes[0]


def test_layers_are_the_teachers_or_random_by_the_seed(teachers):
    teacher, spec = teachers("bert"), "compact:e=8,layers=0+2"
    copied = build(spec, teacher)
    for layer, number in zip(copied[0].model.encoder.layer, (0, 2), strict=True):
        original = teacher[0].model.encoder.layer[number].state_dict()
        assert all(torch.equal(value, original[name]) for name, value in layer.state_dict().items())
    first, other = (build(f"{spec},copy=no", teacher, seed=seed).state_dict() for seed in (1, 2))
    for name, tensor in first.items():
        drawn = ".encoder." in name and tensor.dim() == 2
        assert torch.equal(tensor, other[name]) is not drawn, name
        if drawn or ".encoder." not in name:
            assert torch.equal(tensor, copied.state_dict()[name]) is not drawn, name


@pytest.mark.parametrize("kind", KNOWN)
def test_a_narrow_block_keeps_the_teachers_settings(teachers, kind):
    teacher = teachers(kind)
    student = build("compact:e=5,layers=2", teacher)
    config, own = student[0].model.config, teacher[0].model.config
    words = len(teacher[0].model.get_input_embeddings().weight)
    assert (config.embedding_size, config.hidden_size) == (5, 16)
    assert (config.vocab_size, config.pad_token_id) == (words, own.pad_token_id)
    shifted = own.max_position_embeddings - (PAD + 1 if own.pad_token_id == PAD else 0)
    assert config.max_position_embeddings == shifted == len(student[0].model.embeddings.position_ids[0])
    assert config.hidden_act == getattr(own, "activation", None) or own.hidden_act
    assert config.type_vocab_size == getattr(own, "type_vocab_size", 1)
    assert student[0].tokenizer("cat dog sees") == teacher[0].tokenizer("cat dog sees")
    assert student.max_seq_length == teacher.max_seq_length
    assert encode(student).shape == encode(teacher).shape


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_saved_student_is_a_plain_electra_folder_of_the_same_bytes_each_time(teachers, kind, tmp_path):
    teacher, found = teachers(kind), []
    for name in ("once", "twice"):
        student = build("compact:e=6,layers=2", teacher)
        student.save_pretrained(str(tmp_path / name), create_model_card=False)
        teacher.encode(TEXTS[:3])
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        found.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert found[0] == found[1]
    folder = tmp_path / "once"
    np.testing.assert_allclose(encode(load_teacher(folder, device="cpu").model), encode(student), atol=1e-6)
    with quiet_transformers():
        plain, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(plain) is ElectraModel
    with torch.inference_mode():
        state = plain.eval()(**tokenizer("cat dog sees a river", return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(state[0].mean(dim=0), student.encode("cat dog sees a river"), atol=1e-5)


@pytest.mark.parametrize("embeddings", ["block", "word"])
def test_as_a_teacher_it_gives_the_token_embeddings_that_its_layers_read(teachers, tmp_path, embeddings):
    build("compact:e=6,layers=2", teachers("bert")).save_pretrained(str(tmp_path), create_model_card=False)
    teacher = load_teacher(tmp_path, device="cpu")
    token_table_of(teacher).write(tmp_path / "table", teacher.contract)
    table = TokenTable.read(tmp_path / "table", teacher.contract)
    wanted = torch.from_numpy(table.block() if embeddings == "block" else table.words())
    ids = torch.arange(len(table.tokens))
    students = (build(f"compact:e={e}", teacher.model) for e in (6, 3))
    same, other = (TokenEmbeddings(one, table, "vocabulary", embeddings).of_tokens(ids) for one in students)
    torch.testing.assert_close(same, wanted, atol=1e-5, rtol=1e-5)
    assert float((other - wanted).abs().max().detach()) > 0.05


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        ("bert", "e=17", "e=17"),
        ("electra", "e=9", "1 to 8"),
        ("distilbert", "e=8,ff=9999", "ff=9999"),
        ("bert", "e=4,layers=5", "has 4"),
        ("albert", "e=4", "albert"),
        ("bert", "e=4,vocab=40", "corpus"),
    ],
)
def test_settings_that_a_teacher_does_not_allow_are_refused(teachers, kind, settings, word):
    with pytest.raises(StudentError, match=word):
        build(f"compact:{settings}", teachers(kind))


TINY = BertConfig(hidden_size=128, num_attention_heads=2, intermediate_size=512)
SMALL = BertConfig(hidden_size=384, intermediate_size=1536)


@pytest.mark.parametrize(
    ("config", "width", "layers", "millions"),
    [
        # SimTDE's tables 1 to 3: students of SimCSE-BERT-base (of 3 and of all layers), MiniLM-L6, BERT-Tiny.
        (BertConfig(), 384, 3, 34.1),
        (BertConfig(), 384, 12, 97.9),
        (SMALL, 128, 3, 9.5),
        (TINY, 64, 2, 2.4),
        (TINY, 32, 2, 1.4),
    ],
)
def test_parameters_are_as_many_as_the_paper_counts(config, width, layers, millions):
    with torch.device("meta"):
        count = count_parameters(ElectraModel(electra_config(config, width, layers)))
    # The paper counts a pooler, which the mean over tokens never uses and an ElectraModel does not have.
    assert round((count + config.hidden_size**2 + config.hidden_size) / 1e6, 1) == millions
    assert (width, layers) != (128, 3) or count == 9_345_792


def test_positions_after_the_padding_row_are_counted_from_the_first_token():
    made = electra_config(RobertaConfig(max_position_embeddings=514), 8, 1)
    assert (made.max_position_embeddings, made.pad_token_id) == (512, 1)


def test_the_texts_decide_where_narrow_embeddings_begin(teacher):
    def rows(text: str) -> torch.Tensor:
        def count(tokenizer) -> np.ndarray:
            return np.bincount(tokenizer([text] * 50).ids, minlength=tokenizer.vocabulary_size)

        student = build("compact:e=4", teacher.model, count=count if text else None)
        return student[0].model.embeddings.word_embeddings.weight

    some = rows("cat dog")
    assert not any(torch.allclose(some, rows(other), atol=1e-3) for other in ("river tree", ""))


def test_a_pruned_vocabulary_keeps_the_rows_of_its_tokens(teacher):
    own = teacher.model[0].tokenizer
    size = len(own) - 10
    student = build(f"compact:e=16,vocab={size}", teacher.model, count=count)
    pruned, model = student[0].tokenizer, student[0].model
    assert len(pruned) == size == model.config.vocab_size == len(model.embeddings.word_embeddings.weight)
    assert model.config.pad_token_id == pruned.pad_token_id
    # The texts consist of kept tokens, so nothing is lost.
    np.testing.assert_allclose(encode(student), encode(teacher.model), atol=1e-5)


# The embedding block.

TOKENS, POSITIONS, WIDTH = 300, 20, 12
EVEN = torch.ones(TOKENS, dtype=torch.int64)
# Few tokens that are frequent, many that are rare, as in texts.
ZIPF = (100_000 / torch.arange(1, TOKENS + 1) ** 2).long()


def block(seed: int = 0) -> EmbeddingBlock:
    torch.manual_seed(seed)
    basis = torch.randn(WIDTH, WIDTH)
    return EmbeddingBlock(
        word=torch.randn(TOKENS, WIDTH) @ basis + torch.randn(WIDTH),
        position=torch.randn(POSITIONS, WIDTH) @ basis * 0.1,
        type=torch.zeros(2, WIDTH),
        norm_weight=torch.rand(WIDTH) + 0.5,
        norm_bias=torch.randn(WIDTH),
        eps=1e-12,
    )


def share_over(counts: torch.Tensor, small: EmbeddingBlock, teacher: EmbeddingBlock) -> float:
    """R2 over tokens as frequent as their counts, each at every position, summed exactly."""
    ids = torch.arange(TOKENS).repeat(POSITIONS)
    positions = torch.arange(POSITIONS).repeat_interleave(TOKENS)
    weight = (counts.double() / counts.sum()).repeat(POSITIONS)[:, None] / POSITIONS
    wanted, found = teacher.output(ids, positions), small.output(ids, positions)
    mean = (weight * wanted).sum(dim=0)
    error = (weight * (found - wanted).square()).sum()
    return float(1 - error / (weight * (wanted - mean).square()).sum())


@pytest.mark.parametrize("counts", [None, ZIPF], ids=["even", "texts"])
def test_directions_are_those_of_a_truncated_svd_weighted_by_frequency(counts):
    teacher = block()
    small, _ = narrow_block(teacher, 4, counts)
    shares = (EVEN if counts is None else counts).double() + (counts is not None)
    shares /= shares.sum()
    centred = teacher.word.double() - shares @ teacher.word.double()
    basis = torch.linalg.svd(shares.sqrt()[:, None] * centred)[2][:4].T
    signs = ((centred @ basis) * small.word).sum(dim=0).sign()
    torch.testing.assert_close(small.word.double(), centred @ basis * signs, atol=1e-4, rtol=0)
    # Positions have the same basis.
    position = teacher.position.double() @ basis * signs
    torch.testing.assert_close(small.position.double(), position, atol=1e-4, rtol=0)


def test_the_map_fits_the_tokens_of_the_texts():
    teacher = block()
    alike, counted = narrow_block(teacher, 3), narrow_block(teacher, 3, ZIPF)
    assert share_over(ZIPF, counted[0], teacher) > share_over(ZIPF, alike[0], teacher) + 0.02
    # The gain is lost on rare tokens.
    assert share_over(EVEN, counted[0], teacher) < share_over(EVEN, alike[0], teacher) - 0.02
    # Each reports its share over the tokens it is fitted to.
    assert counted[1] == pytest.approx(share_over(ZIPF, counted[0], teacher), abs=0.02)
    assert alike[1] == pytest.approx(share_over(EVEN, alike[0], teacher), abs=0.02)


def test_the_map_is_a_least_squares_optimum_also_for_a_block_that_is_widened():
    teacher = block()
    for target in (teacher, replace(teacher, project=(torch.randn(30, WIDTH), torch.randn(30)))):
        small, explained = narrow_block(target, 8)
        assert small.project is not None
        weight, bias = small.project
        assert 0.3 < explained < 1
        torch.manual_seed(1)
        for _ in range(5):
            moved = replace(small, project=(weight + 0.05 * torch.randn_like(weight), bias))
            assert share_over(EVEN, moved, target) < share_over(EVEN, small, target)


def test_the_same_block_and_counts_give_the_same_bytes_on_one_thread(monkeypatch):
    threads, samples = [], embedding_block._samples

    def watched(shares: torch.Tensor, positions: int):
        threads.append(torch.get_num_threads())
        return samples(shares, positions)

    monkeypatch.setattr(embedding_block, "_samples", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2):
            (first, _), (again, _) = (narrow_block(block(), 5, ZIPF) for _ in "12")
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1]
    for name in ("word", "position", "type"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert first.project is not None
    assert again.project is not None
    assert all(torch.equal(one, other) for one, other in zip(first.project, again.project, strict=True))
