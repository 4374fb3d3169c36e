"""Token ids are the teacher's own; batches keep to their budget and hold every row once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedcache.teacher.batching import token_budget_batches
from embedcache.teacher.encode import padded_features
from embedcache.teacher.load import Teacher
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts, fast_tokenizer
from embedcache.testing import sentences

TEXTS = [
    *sentences(20),
    "the",
    "  Upper CASE, and 'quotes'!  ",
    "Žluťoučký 漢字 🙂 unknown",
    "the red cat " * 40,
    " ".join(["bird"] * 62),
    " ".join(["bird"] * 63),
]


def own_ids(teacher: Teacher, text: str, max_length: int, prompt: str = "") -> list[int]:
    tokenizer = teacher.model[0].tokenizer
    ids: list[int] = tokenizer(prompt + text, truncation=True, max_length=max_length)["input_ids"]
    return ids


@pytest.mark.parametrize("prompt", ["", "query: "])
@pytest.mark.parametrize("max_length", [64, 7])
def test_ids_are_those_of_the_teachers_tokenizer(
    loaded_teacher: Teacher, max_length: int, prompt: str
) -> None:
    found = FastTokenizer(loaded_teacher.model[0].tokenizer, max_length, prompt)(TEXTS)
    expected = [own_ids(loaded_teacher, text, max_length, prompt) for text in TEXTS]
    assert [
        found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)
    ] == expected
    assert found.lengths.tolist() == [len(ids) for ids in expected]
    assert found.ids.dtype == np.int32


def test_truncation_is_seen_exactly_where_tokens_were_cut(loaded_teacher: Teacher) -> None:
    found = FastTokenizer(loaded_teacher.model[0].tokenizer, 64)(TEXTS)
    whole = [len(loaded_teacher.model[0].tokenizer(text)["input_ids"]) for text in TEXTS]
    assert found.truncated.tolist() == [length > 64 for length in whole]
    assert found.truncated.tolist()[-3:] == [True, False, True]


def test_without_a_maximal_length_nothing_is_cut(loaded_teacher: Teacher) -> None:
    found = FastTokenizer(loaded_teacher.model[0].tokenizer, 0)(["the red cat " * 40])
    assert found.lengths.tolist() == [122]
    assert not found.truncated.any()


def test_no_texts_give_no_ids(loaded_teacher: Teacher) -> None:
    found = FastTokenizer(loaded_teacher.model[0].tokenizer, 64)([])
    assert (len(found.ids), found.offsets.tolist(), len(found.truncated)) == (0, [0], 0)


def test_the_teachers_own_tokenizer_keeps_its_settings(loaded_teacher: Teacher) -> None:
    before = loaded_teacher.model[0].tokenizer.backend_tokenizer.to_str()
    FastTokenizer(loaded_teacher.model[0].tokenizer, 5)(TEXTS)
    assert loaded_teacher.model[0].tokenizer.backend_tokenizer.to_str() == before


def test_special_tokens_can_be_left_out(loaded_teacher: Teacher) -> None:
    tokenizer = loaded_teacher.model[0].tokenizer
    framed, bare = (FastTokenizer(tokenizer, 0, special_tokens=special) for special in (True, False))
    expected = [own_ids(loaded_teacher, text, 10_000)[1:-1] for text in [*TEXTS, ""]]
    found = bare([*TEXTS, ""])
    assert [
        found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)
    ] == expected
    assert found.lengths[-1] == 0
    assert framed([""]).lengths.tolist() == [2]
    assert bare.fingerprint != framed.fingerprint
    # The whole length is for the text's own tokens.
    assert FastTokenizer(tokenizer, 7, special_tokens=False)(["the red cat " * 9]).lengths.tolist() == [7]


def test_the_fingerprint_is_that_of_the_ids(loaded_teacher: Teacher) -> None:
    tokenizer = loaded_teacher.model[0].tokenizer
    prints = {
        FastTokenizer(tokenizer, *arguments).fingerprint for arguments in ((64,), (63,), (64, "q"), (0,))
    }
    assert len(prints) == 4
    assert FastTokenizer(tokenizer, 64).fingerprint in prints


def test_every_id_is_below_the_vocabulary_size(loaded_teacher: Teacher) -> None:
    fast = FastTokenizer(loaded_teacher.model[0].tokenizer, 64)
    assert fast(TEXTS).ids.max() < fast.vocabulary_size == len(loaded_teacher.model[0].tokenizer)


def test_the_fast_way_is_taken_for_an_ordinary_teacher(loaded_teacher: Teacher) -> None:
    assert isinstance(fast_tokenizer(loaded_teacher.model, 64, "query: "), FastTokenizer)


def test_the_fast_way_is_left_where_it_would_give_other_ids(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = loaded_teacher.model.preprocess

    def stripped(texts: list[str], **options: Any) -> Any:
        return preprocess([text.replace("quotes", "") for text in texts], **options)

    monkeypatch.setattr(loaded_teacher.model, "preprocess", stripped)
    assert fast_tokenizer(loaded_teacher.model, 64, "") is None


def test_the_fast_way_is_left_for_models_that_are_not_transformers() -> None:
    assert fast_tokenizer([SimpleNamespace()], 64, "") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("pads_left", [False, True])
def test_padding_goes_where_the_tokenizer_puts_it(pads_left: bool) -> None:
    ids = np.arange(1, 10, dtype=np.int32)
    tokenized = TokenizedTexts(ids, np.array([0, 2, 3, 9]), np.zeros(3, np.bool_))
    tokenizer: Any = SimpleNamespace(pads_left=pads_left, pad_id=77, uses_token_types=True)
    features = padded_features(tokenized, np.array([2, 0]), tokenizer)
    short, mask = (
        ([77] * 4 + [1, 2], [0] * 4 + [1] * 2) if pads_left else ([1, 2] + [77] * 4, [1] * 2 + [0] * 4)
    )
    assert features["input_ids"].tolist() == [[4, 5, 6, 7, 8, 9], short]
    assert features["attention_mask"].tolist() == [[1] * 6, mask]
    assert features["token_type_ids"].tolist() == [[0] * 6] * 2
    tokenizer.uses_token_types = False
    assert set(padded_features(tokenized, np.array([1]), tokenizer)) == {"input_ids", "attention_mask"}


LENGTHS = st.lists(st.integers(0, 50), max_size=60).map(lambda found: np.array(found, dtype=np.int64))


@given(lengths=LENGTHS, budget=st.integers(1, 120))
def test_batches_hold_every_row_once_and_keep_to_the_budget(lengths: np.ndarray, budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
    longest = [int(lengths[batch].max()) for batch in batches]
    assert longest == sorted(longest, reverse=True)


def test_batches_are_as_full_as_the_budget_lets_them() -> None:
    batches = token_budget_batches(np.array([4, 9, 4, 4, 2]), 8)
    assert [batch.tolist() for batch in batches] == [[1], [0, 2], [3, 4]]


def test_batches_of_like_lengths_waste_little() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, size=2000)
    batches = token_budget_batches(lengths, 1024)
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert padded < 1.02 * lengths.sum()
    in_order = sum(16 * int(lengths[i : i + 16].max()) for i in range(0, 2000, 16))
    assert padded < 0.6 * in_order
