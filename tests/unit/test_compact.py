"""Compact students: the teacher's layers after a narrow embedding block fitted to the teacher's."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from student_teachers import ARCHITECTURES, PAD, make_teacher
from threadpoolctl import threadpool_limits
from transformers import AutoModel, AutoTokenizer, BertConfig, ElectraModel, RobertaConfig

from distill.errors import StudentError
from distill.students import embedding_block
from distill.students.architectures import electra_config, lost_layers
from distill.students.build import build_student, count_parameters
from distill.students.compact import build_compact
from distill.students.embedding_block import EmbeddingBlock, narrow_block
from distill.students.registry import StudentOptions
from distill.training.intermediate import TokenEmbeddings
from embedcache.teacher.load import load_teacher, quiet_transformers
from embedcache.teacher.token_table import TokenTable, token_table_of
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


def compact(teacher: Any, e: int, notes: list[str] | None = None, seed: int = 0, **settings: Any) -> Any:
    options = StudentOptions(seed, on_note=([] if notes is None else notes).append)
    return build_compact("compact", teacher, options, e=e, **settings)


def width_of(teacher: Any) -> int:
    return teacher[0].model.get_input_embeddings().embedding_dim


def encode(model: Any) -> np.ndarray:
    return np.asarray(model.encode(TEXTS, batch_size=5))


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_with_nothing_left_out_a_student_is_its_teacher(teachers, kind, pooling):
    teacher, notes = teachers(kind, pooling), []
    student = compact(teacher, width_of(teacher), notes)
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert notes == []
    assert np.abs(encode(compact(teacher, width_of(teacher), layers="3")) - encode(teacher)).max() > 0.05


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_pooler_becomes_modules_after_the_transformer(teachers, kind):
    student = compact(teachers(kind, None), 16)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Dense"]
    np.testing.assert_allclose(encode(student), encode(teachers(kind, None)), atol=1e-5)


def test_mpnet_loses_its_relative_positions_and_nothing_else(teachers):
    teacher, notes = copy.deepcopy(teachers("mpnet")), []
    student = compact(teacher, 16, notes)
    assert np.abs(encode(student) - encode(teacher)).max() > 0.01
    assert lost_layers("mpnet") in notes[0]
    teacher[0].model.encoder.relative_attention_bias.weight.data.zero_()
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)


@pytest.mark.parametrize("kind", EXACT)
def test_neurons_without_weight_go_first(teachers, kind):
    teacher = copy.deepcopy(teachers(kind))
    width = width_of(teacher)
    layer = compact(teacher, width)[0].model.encoder.layer[0]
    neurons = layer.intermediate.dense.out_features
    silent = [1, 4, neurons - 1]
    for weight in teacher[0].model.parameters():
        if weight.shape == layer.output.dense.weight.shape:
            weight.data[:, silent] = 0
    student = compact(teacher, width, ff=neurons - len(silent))
    assert student[0].model.config.intermediate_size == neurons - len(silent)
    np.testing.assert_allclose(encode(student), encode(teacher), atol=1e-5)
    assert np.abs(encode(compact(teacher, width, ff=neurons - 9)) - encode(teacher)).max() > 1e-3


def test_the_heaviest_neurons_stay_in_order_and_their_share_is_noted(teachers):
    teacher, notes = teachers("bert"), []
    layers = [layer.state_dict() for layer in teacher[0].model.encoder.layer]
    weight = [
        x["intermediate.dense.weight"].norm(dim=1) * x["output.dense.weight"].norm(dim=0) for x in layers
    ]
    few = compact(teacher, 16, notes, ff=7)[0].model.encoder.layer[0].intermediate.dense.weight
    whole = layers[0]["intermediate.dense.weight"]
    places = [int((whole == row).all(dim=1).nonzero()) for row in few]
    assert places == sorted(weight[0].topk(7).indices.tolist())
    share = np.mean([float(one.topk(7).values.sum() / one.sum()) for one in weight])
    assert f"{share:.1%}" in notes[0]


def test_layers_that_are_not_copied_are_random_by_the_seed_and_nothing_else_is(teachers):
    teacher, two = teachers("bert"), {"layers": "2", "copy": False}
    copied = compact(teacher, 8, layers="2").state_dict()
    first, same, other = (compact(teacher, 8, seed=seed, **two).state_dict() for seed in (1, 1, 2))
    for name, tensor in first.items():
        drawn = ".encoder." in name and tensor.dim() == 2
        assert torch.equal(tensor, same[name])
        assert torch.equal(tensor, other[name]) is not drawn, name
        if drawn or ".encoder." not in name:
            assert torch.equal(tensor, copied[name]) is not drawn, name


@pytest.mark.parametrize(("layers", "chosen"), [("2", [2, 3]), ("first:2", [0, 1]), ("0+2+3", [0, 2, 3])])
def test_the_selected_layers_are_the_teachers(teachers, layers, chosen):
    teacher = teachers("bert")
    copies = compact(teacher, 4, layers=layers)[0].model.encoder.layer
    assert len(copies) == len(chosen)
    for copied, number in zip(copies, chosen, strict=True):
        original = teacher[0].model.encoder.layer[number].state_dict()
        assert all(torch.equal(value, original[name]) for name, value in copied.state_dict().items())


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "albert"])
def test_a_narrow_block_keeps_the_teachers_settings(teachers, kind):
    teacher = teachers(kind)
    student = compact(teacher, 5, layers="2")
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


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_building_twice_gives_the_same_bytes(teachers, kind, tmp_path):
    teacher, state = teachers(kind), torch.random.get_rng_state()
    for name in ("once", "twice"):
        compact(teacher, 6, layers="2").save_pretrained(str(tmp_path / name), create_model_card=False)
        teacher.encode(TEXTS[:3])
    assert digests(tmp_path / "once") == digests(tmp_path / "twice")
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers were used"


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_saved_student_is_a_plain_electra_folder(teachers, kind, tmp_path):
    student = compact(teachers(kind), 6, layers="2")
    student.save_pretrained(str(tmp_path), create_model_card=False)
    np.testing.assert_allclose(encode(load_teacher(tmp_path, device="cpu").model), encode(student), atol=1e-6)
    with quiet_transformers():
        plain, tokenizer = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(plain) is ElectraModel
    with torch.inference_mode():
        state = plain.eval()(**tokenizer("cat dog sees a river", return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(state[0].mean(dim=0), student.encode("cat dog sees a river"), atol=1e-5)


@pytest.mark.parametrize("embeddings", ["block", "word"])
def test_as_a_teacher_it_gives_the_token_embeddings_that_its_layers_read(teachers, tmp_path, embeddings):
    compact(teachers("bert"), 6, layers="2").save_pretrained(str(tmp_path), create_model_card=False)
    teacher = load_teacher(tmp_path, device="cpu")
    token_table_of(teacher).write(tmp_path / "table", teacher.contract)
    table = TokenTable.read(tmp_path / "table", teacher.contract)
    wanted = torch.from_numpy(table.block() if embeddings == "block" else table.words())
    ids = torch.arange(len(table.tokens))
    same = TokenEmbeddings(compact(teacher.model, 6), table, "vocabulary", embeddings).of_tokens(ids)
    torch.testing.assert_close(same, wanted, atol=1e-5, rtol=1e-5)
    other = TokenEmbeddings(compact(teacher.model, 3), table, "vocabulary", embeddings).of_tokens(ids)
    assert float((other - wanted).abs().max().detach()) > 0.05


@pytest.mark.parametrize(
    ("kind", "settings", "word"),
    [
        ("bert", {"e": 17}, "e=17"),
        ("electra", {"e": 9}, "1 to 8"),
        ("distilbert", {"e": 8, "ff": 9999}, "ff=9999"),
        ("bert", {"e": 4, "layers": "5"}, "4 layers"),
        ("bert", {"e": 4, "layers": "middle:2"}, "middle:2"),
        ("albert", {"e": 4}, "albert"),
        ("bert", {"e": 4, "vocab": 40}, "no corpus"),
    ],
)
def test_what_a_teacher_does_not_allow_is_refused(teachers, kind, settings, word):
    with pytest.raises(StudentError, match=word):
        compact(teachers(kind), **settings)


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
    def rows(text: str | None) -> torch.Tensor:
        def count(tokenizer) -> np.ndarray:
            return np.bincount(tokenizer([text] * 50).ids, minlength=tokenizer.vocabulary_size)

        options = StudentOptions(count_tokens=count if text else None)
        student = build_student("compact:e=4", teacher.contract, lambda: teacher, options)
        return student[0].model.embeddings.word_embeddings.weight

    some = rows("cat dog")
    assert torch.equal(some, rows("cat dog"))
    assert not any(torch.allclose(some, rows(other), atol=1e-3) for other in ("river tree", None))


def test_a_pruned_vocabulary_keeps_the_rows_of_its_tokens(teacher):
    def count(tokenizer) -> np.ndarray:
        return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)

    own, notes = teacher.model[0].tokenizer, []
    size = len(own) - 10
    options = StudentOptions(count_tokens=count, on_note=notes.append)
    student = build_student(f"compact:e=16,vocab={size}", teacher.contract, lambda: teacher, options)
    pruned, model = student[0].tokenizer, student[0].model
    assert len(pruned) == size == model.config.vocab_size == len(model.embeddings.word_embeddings.weight)
    assert model.config.pad_token_id == pruned.pad_token_id
    # The texts consist of kept tokens, so nothing is lost.
    np.testing.assert_allclose(encode(student), encode(teacher.model), atol=1e-5)
    assert f"{size} of {len(own)} tokens" in notes[0]


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


@pytest.mark.parametrize("width", [3, 6])
def test_the_map_fits_the_tokens_of_the_texts(width):
    teacher = block()
    alike, counted = narrow_block(teacher, width), narrow_block(teacher, width, ZIPF)
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
    shares = [narrow_block(teacher, width)[1] for width in (2, 5, 8, 11)]
    assert shares == sorted(shares)


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
            found = [narrow_block(block(), 5, counts)[0] for counts in (ZIPF, ZIPF.clone(), ZIPF.flip(0))]
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1, 1]
    first, again, turned = found
    assert all(
        torch.equal(getattr(first, name), getattr(again, name)) for name in ("word", "position", "type")
    )
    assert first.project is not None
    assert again.project is not None
    assert all(torch.equal(one, other) for one, other in zip(first.project, again.project, strict=True))
    assert not torch.allclose(first.word, turned.word, atol=1e-3)
