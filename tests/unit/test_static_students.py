"""Static students start near their teacher, and give every text a vector wherever they are run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from distill.errors import StudentError
from distill.students import static
from distill.students.build import forward
from distill.students.spec import StudentOptions, parse_spec
from distill.students.static import (
    SMOOTHING,
    PaddedStatic,
    flat_features,
    is_static,
    static_tokenizer,
    token_shares,
    token_weights,
)
from distill.training.selection import StudentEncoder
from distill.training.task import tokenizer_of
from embedcache.teacher.encode import Encoder, padded_features
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer
from embedcache.testing import WORDS, encode_texts, sentences, tiny_encoder

TEXTS = sentences(60, seed=2)
EMPTY = ["", "   ", "漢字", "漢 字 the"]


def count(tokenizer: FastTokenizer) -> NDArray[np.int64]:
    return np.bincount(tokenizer(TEXTS).ids, minlength=tokenizer.vocabulary_size)


def made(
    teacher: Teacher, settings: str = "dim=8", *, counted: bool = True, on_trial: bool = False
) -> SentenceTransformer:
    options = StudentOptions(count_tokens=count if counted else None, on_trial=on_trial)
    return parse_spec(f"static:{settings}").build(teacher, options)


@pytest.fixture(scope="module")
def student(loaded_teacher: Teacher) -> SentenceTransformer:
    """Left as it is by every test."""
    model = made(loaded_teacher)
    model.append(Normalize())
    return model


@pytest.fixture(scope="module")
def saved(student: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "student"
    student.save(str(folder), create_model_card=False)
    return folder


def vectors_of(model: SentenceTransformer, texts: list[str]) -> NDArray[np.float32]:
    return model.encode(texts, show_progress_bar=False)


def test_single_tokens_begin_with_the_teachers_vectors(loaded_teacher) -> None:
    """With as many dimensions as the teacher has, nothing is lost but scale and centre."""
    model = made(loaded_teacher, f"dim={loaded_teacher.dimension}")
    words = list(WORDS[:20])
    ids = loaded_teacher.model.tokenizer.convert_tokens_to_ids(words)
    tokenizer = static_tokenizer(model)
    # Both tokens and counts are those of the texts alone, with nothing around them.
    assert [tokenizer([word]).ids.tolist() for word in words] == [[number] for number in ids]
    ordinary = np.ones(len(loaded_teacher.model.tokenizer), dtype=bool)
    ordinary[loaded_teacher.model.tokenizer.all_special_ids] = False
    shares = token_shares(count(tokenizer), ordinary)
    centre = shares[ordinary] @ encode_tokens(loaded_teacher, np.flatnonzero(ordinary))
    weight, basis = (w.detach().numpy() for w in (model[0].embedding.weight, model[1].linear.weight))
    back = weight[ids] @ basis.T / token_weights(shares)[ids, None] + centre
    np.testing.assert_allclose(back, encode_texts(loaded_teacher, words), atol=1e-5)
    # The bias points where the centre is. Special tokens have no vectors.
    bias = model[1].linear.bias.detach().numpy()
    assert bias @ centre / np.linalg.norm(bias) / np.linalg.norm(centre) == pytest.approx(1, abs=1e-5)
    assert ((np.abs(weight).sum(axis=1) > 0) == ordinary).all()


def encode_tokens(teacher: Teacher, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """One token at a time, as the teacher's own tokenizer frames a text."""
    tokenizer = teacher.model.tokenizer
    rows = []
    for number in ids.tolist():
        framed = torch.tensor([[tokenizer.cls_token_id, number, tokenizer.sep_token_id]])
        with torch.no_grad():
            features = {"input_ids": framed, "attention_mask": torch.ones_like(framed)}
            rows.append(teacher.model(features)["sentence_embedding"][0].numpy())
    return np.stack(rows)


def test_on_trial_a_student_is_refused_alike_and_its_teacher_is_not_run(
    loaded_teacher, student, monkeypatch
) -> None:
    def run_it(*_: object) -> None:
        raise AssertionError("the teacher was run")

    monkeypatch.setattr(Encoder, "forward", run_it)
    tried = made(loaded_teacher, on_trial=True)
    shapes = {name: weight.shape for name, weight in tried.named_parameters()}
    assert shapes == {name: weight.shape for name, weight in student.named_parameters()}
    assert not any(weight.any() for weight in tried.parameters())
    for wrong in ("dim=17", "dim=8,vocab=1000000", "dim=8,vocab=5"):
        with pytest.raises(StudentError):
            made(loaded_teacher, wrong, on_trial=True)


def test_before_training_it_is_like_its_teacher(loaded_teacher, student) -> None:
    assert student[0].embedding.weight.shape == (len(loaded_teacher.model.tokenizer), 8)
    assert student.get_embedding_dimension() == loaded_teacher.dimension
    assert is_static(student)
    assert not is_static(loaded_teacher.model)
    wanted, found = encode_texts(loaded_teacher, TEXTS), vectors_of(student, TEXTS)
    # All vectors of so small a teacher point nearly the same way; what tells texts apart is the rest.
    own, other = found - found.mean(axis=0), wanted - wanted.mean(axis=0)
    assert np.corrcoef(own.ravel(), other.ravel())[0, 1] > 0.3


def test_frequent_tokens_weigh_less(loaded_teacher) -> None:
    ordinary = np.array([False, True, True, True])
    shares = token_shares(np.array([50, 90, 10, 0]), ordinary)
    assert shares.tolist() == [0, 0.9, 0.1, 0]
    weights = token_weights(shares)
    assert (weights * shares).sum() == pytest.approx(1)
    assert weights[1] / weights[3] == pytest.approx(SMOOTHING / (SMOOTHING + 0.9))
    # Without a corpus: by the tokens' order.
    for counts in (None, np.zeros(4, dtype=np.int64)):
        np.testing.assert_allclose(token_shares(counts, ordinary), np.array([0, 6, 3, 2]) / 11)
    one, other = (made(loaded_teacher, counted=counted)[0].embedding.weight for counted in (True, False))
    assert not torch.equal(one, other)


def test_texts_without_known_tokens_have_the_vector_of_the_bias(student) -> None:
    vectors = vectors_of(student, EMPTY)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    bias = torch.nn.functional.normalize(student[1].linear.bias.detach(), dim=0).numpy()
    np.testing.assert_allclose(vectors[:3], np.tile(bias, (3, 1)), atol=1e-6)
    assert np.abs(vectors[3] - bias).max() > 1e-3


@pytest.mark.parametrize("texts", [TEXTS, EMPTY, ["", ""], ["the"], ["", "the cat", "", "a", ""]])
def test_padded_batches_give_the_vectors_of_the_model(student, texts: list[str]) -> None:
    tokenizer = tokenizer_of(student, "static:dim=8")
    features = padded_features(tokenizer(texts), np.arange(len(texts)), tokenizer)
    ids, mask = features["input_ids"], features["attention_mask"]
    flat, own = flat_features(ids, mask), student.preprocess(texts)
    assert all(torch.equal(flat[name], own[name]) for name in ("input_ids", "offsets"))
    wanted = vectors_of(student, texts)
    np.testing.assert_allclose(forward(student, ids, mask).detach().numpy(), wanted, atol=1e-6)
    padded = PaddedStatic(student)(features)["sentence_embedding"]
    np.testing.assert_allclose(padded.detach().numpy(), wanted, atol=1e-6)
    # What stands in the padding is not read.
    other = forward(student, torch.where(mask.bool(), ids, 7), mask)
    assert torch.equal(other, forward(student, ids, mask))
    encode = StudentEncoder(student, tokenizer, torch.device("cpu"), nullcontext)
    np.testing.assert_allclose(encode(tokenizer(texts)), wanted, atol=1e-6)


def test_gradients_reach_the_tokens_of_the_batch_and_no_others(loaded_teacher) -> None:
    model = made(loaded_teacher)
    tokenizer = static_tokenizer(model)
    features = padded_features(tokenizer(["the cat", ""]), np.arange(2), tokenizer)
    forward(model, features["input_ids"], features["attention_mask"]).sum().backward()
    touched = model[0].embedding.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert touched == sorted(tokenizer(["the cat"]).ids.tolist())


def test_it_reads_a_text_to_its_end_without_special_tokens(student, loaded_teacher) -> None:
    assert tokenizer_of(student, "static:dim=8")(["the cat sees a dog " * 200]).lengths.tolist() == [1000]
    with pytest.raises(StudentError, match=r"student\.max_length 12"):
        tokenizer_of(student, "static:dim=8", 12)
    # Static models of other makers keep the frame that they never use.
    backend = loaded_teacher.model.tokenizer.backend_tokenizer
    framed = type(backend).from_str(backend.to_str())
    model = SentenceTransformer(modules=[StaticEmbedding(framed, embedding_dim=4)], device="cpu")
    assert len(framed.encode("the cat").ids) == 4
    assert len(static_tokenizer(model)(["the cat"]).ids) == 2


def test_saved_it_is_a_teacher_like_any_other(student, saved, loaded_teacher) -> None:
    texts = [*TEXTS, *EMPTY]
    wanted = vectors_of(student, texts)
    opened = load_teacher(saved, device="cpu")
    np.testing.assert_allclose(encode_texts(opened, texts), wanted, atol=1e-6)
    assert (opened.contract.max_length, opened.contract.pooling) == (0, "none")
    assert opened.contract.normalize
    # The padded features of the fast way are nothing that a StaticEmbedding could be fed.
    assert fast_tokenizer(opened.model, 0, "") is None
    again = SentenceTransformer(str(saved), device="cpu")
    np.testing.assert_array_equal(vectors_of(again, texts), wanted)
    with pytest.raises(StudentError, match="StaticEmbedding"):
        made(opened, "dim=2")


def test_a_smaller_vocabulary_takes_its_rows_along(loaded_teacher) -> None:
    whole, pruned, again = (made(loaded_teacher, f"dim=8{more}") for more in ("", *[",vocab=112"] * 2))
    assert all(torch.equal(*both) for both in zip(pruned.parameters(), again.parameters(), strict=True))
    assert pruned[0].embedding.weight.shape == (112, 8)
    old, new = (static_tokenizer(model)(TEXTS).ids for model in (whole, pruned))
    tokens = [[model.tokenizer.id_to_token(i) for i in ids] for model, ids in ((whole, old), (pruned, new))]
    assert tokens[0] == tokens[1]
    assert old.tolist() != new.tolist()
    # The PCA of fewer tokens is another one, but the angles between vectors stay what they were.
    rows = [model[0].embedding.weight.detach().numpy() for model in (whole, pruned)]
    angles = [rows[0][old[:50]] @ rows[0][old[:50]].T, rows[1][new[:50]] @ rows[1][new[:50]].T]
    assert np.corrcoef(angles[0].ravel(), angles[1].ravel())[0, 1] > 0.95


def test_its_teachers_vectors_are_those_of_one_thread_a_batch(loaded_teacher, monkeypatch) -> None:
    threads: list[int] = []
    forward_of = Encoder.forward

    def watched(self, features):
        threads.append(torch.get_num_threads())
        return forward_of(self, features)

    monkeypatch.setattr(Encoder, "forward", watched)
    monkeypatch.setattr(static, "_TOKENS_AT_ONCE", 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made(loaded_teacher)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(threads) > 5
    assert set(threads) == {1}


def test_a_prompt_is_part_of_the_teachers_vectors(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "tiny")
    teachers = (load_teacher(folder, prompt=prompt, device="cpu") for prompt in (None, "the old "))
    one, other = (made(teacher, "dim=16")[1].linear.bias for teacher in teachers)
    assert not torch.allclose(one, other, atol=1e-3)
