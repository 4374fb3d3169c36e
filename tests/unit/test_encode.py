"""Encoding equals sentence-transformers in every batch size, thread count and fast layer, for pairs too."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pair_helpers import joined
from student_teachers import make_teacher
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from embedcache.errors import InputError, TeacherError
from embedcache.pairs import join_pair
from embedcache.teacher import inference
from embedcache.teacher.encode import Encoder
from embedcache.teacher.inference import can_pack, has_fast_bfloat16, resolve_compute_dtype, short_attention
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts, fast_tokenizer
from embedcache.testing import encode_texts, sentences, tiny_encoder

CPU = torch.device("cpu")
PROMPT = "the old road: "
TEXTS = [
    *sentences(60),
    "the",
    "Žluťoučký 漢字 🙂, unknown WORDS!",
    "  blanks at   the ends  ",
    "the red cat " * 40,
    " ".join(["bird"] * 62),
    " ".join(["bird"] * 63),
]


def encoder(teacher: Teacher, **settings: Any) -> Encoder:
    return Encoder(teacher, **{"compute_dtype": "float32", **settings})


@pytest.fixture(scope="module")
def expected(loaded_teacher: Teacher) -> np.ndarray:
    return np.asarray(loaded_teacher.model.encode(TEXTS, batch_size=7))


# Vectors


@pytest.mark.parametrize("settings", [{"threads": 1}, {"threads": 3, "batch_tokens": 1}], ids=str)
def test_vectors_are_those_of_sentence_transformers(
    loaded_teacher: Teacher, expected: np.ndarray, settings: dict[str, Any]
) -> None:
    found = encoder(loaded_teacher, **settings).encode(TEXTS)
    assert found.vectors.dtype == np.float32
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert not np.allclose(found.vectors[0], expected[1], atol=1e-2)
    whole = [len(loaded_teacher.model.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert found.tokens.tolist() == [min(length, 64) for length in whole]
    assert found.truncated.tolist() == [length > 64 for length in whole]
    for name in settings:
        with pytest.raises(InputError, match=f"{name} 0"):
            encoder(loaded_teacher, **{name: 0})


def test_the_same_texts_give_the_same_bytes_and_order_does_not_matter(loaded_teacher: Teacher) -> None:
    order = np.random.default_rng(0).permutation(len(TEXTS))
    first, second = (encode_texts(loaded_teacher, TEXTS) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    mixed = encode_texts(loaded_teacher, [TEXTS[i] for i in order])
    np.testing.assert_allclose(mixed, first[order], atol=1e-6)
    assert [one.shape for one in encoder(loaded_teacher).encode([])] == [(0, 16), (0,), (0,)]


def test_a_prompt_can_be_left_out_of_the_pooling(tiny_teacher: Path) -> None:
    teacher = load_teacher(tiny_teacher, prompt=PROMPT, device="cpu")
    included = encode_texts(teacher, TEXTS)
    teacher.model[1].include_prompt = False
    found = encode_texts(teacher, TEXTS)
    np.testing.assert_allclose(found, teacher.model.encode(TEXTS, prompt=PROMPT), atol=1e-5)
    assert not np.allclose(found, included, atol=1e-2)


def test_without_a_fast_tokenizer_the_models_own_is_used(
    loaded_teacher: Teacher, expected: np.ndarray
) -> None:
    slow = encoder(loaded_teacher)
    slow.tokenizer = None
    found = slow.encode(TEXTS)
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert not found.tokens.any()  # unknown, so no row counts as whole
    pairs = joined(6)
    np.testing.assert_allclose(slow.encode(pairs).vectors, encode_texts(loaded_teacher, pairs), atol=2e-5)


def test_bfloat16_is_near_and_float16_needs_a_gpu(loaded_teacher: Teacher, expected: np.ndarray) -> None:
    half = encoder(loaded_teacher, compute_dtype="bfloat16")
    found = half.encode(TEXTS).vectors
    assert found.dtype == np.float32
    assert ((found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)).min() > 0.98
    assert not np.allclose(found, expected, atol=1e-5)
    assert half.provenance.items() >= {"compute_dtype": "bfloat16", "torch": torch.__version__}.items()
    assert resolve_compute_dtype("float16", torch.device("cuda")) is torch.float16
    assert resolve_compute_dtype("auto", CPU) is (torch.bfloat16 if has_fast_bfloat16() else torch.float32)
    for name, device in (("float16", CPU), ("int8", torch.device("cuda"))):
        with pytest.raises(InputError, match=name):
            resolve_compute_dtype(name, device)


@pytest.mark.parametrize("slow", [torch.float32, torch.bfloat16])
def test_bfloat16_counts_as_fast_where_it_takes_less_time(
    slow: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(inference.F, "linear", lambda x, weight: time.sleep(0.01 if x.dtype is slow else 0.0))
    assert has_fast_bfloat16.__wrapped__() is (slow is torch.float32)


# Batches


@pytest.mark.parametrize(
    ("rows", "error", "named"),
    [
        (3, torch.OutOfMemoryError("no"), None),
        (0, torch.OutOfMemoryError("no"), "tokens"),
        (3, RuntimeError("shapes do not match"), "shapes"),
    ],
)
def test_batches_that_do_not_fit_are_freed_and_halved_and_other_failures_are_raised(
    loaded_teacher: Teacher,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    error: Exception,
    named: str | None,
) -> None:
    small = encoder(loaded_teacher, batch_tokens=100_000, threads=1)
    forward, failed = small._model.forward, []

    def limited(features: dict[str, Any], **options: Any) -> Any:
        assert not any(one() is not None for one in failed)
        if len(features["input_ids"]) > rows:
            activation = torch.zeros(3)
            failed.append(weakref.ref(activation))
            raise type(error)(*error.args)
        return forward(features, **options)

    monkeypatch.setattr(small._model, "forward", limited)
    if named:
        with pytest.raises((TeacherError, RuntimeError), match=named):
            small.encode(TEXTS)
    else:
        np.testing.assert_allclose(small.encode(TEXTS).vectors, expected, atol=1e-5)
        assert len(failed) > 20
        assert small.counts.rows == len(TEXTS)


def test_windows_come_one_after_the_other_and_leave_no_thread_behind(
    loaded_teacher: Teacher, expected: np.ndarray
) -> None:
    before, windows = set(threading.enumerate()), [TEXTS[:10], TEXTS[10:11], TEXTS[11:50], TEXTS[50:]]
    parts = list(encoder(loaded_teacher).encode_windows(iter(windows)))
    assert [len(part.vectors) for part in parts] == [len(window) for window in windows]
    np.testing.assert_allclose(np.concatenate([part.vectors for part in parts]), expected, atol=1e-5)

    def failing() -> Iterator[list[str]]:
        yield TEXTS[:4]
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        list(encoder(loaded_teacher).encode_windows(failing()))
    closed_early = encoder(loaded_teacher).encode_windows(TEXTS[i : i + 4] for i in range(0, 60, 4))
    next(closed_early)
    assert set(threading.enumerate()) - before
    closed_early.close()
    assert not set(threading.enumerate()) - before


# Token ids


def rows_of(found: TokenizedTexts) -> list[list[int]]:
    return [found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize(("max_length", "prompt"), [(64, ""), (7, "query: "), (0, "query: ")])
def test_ids_are_those_of_the_teachers_tokenizer(
    loaded_teacher: Teacher, max_length: int, prompt: str
) -> None:
    tokenizer = loaded_teacher.model.tokenizer
    before = tokenizer.backend_tokenizer.to_str()
    found = FastTokenizer(tokenizer, max_length, prompt)(TEXTS)
    assert tokenizer.backend_tokenizer.to_str() == before
    limit = {"truncation": True, "max_length": max_length} if max_length else {"verbose": False}
    assert rows_of(found) == [tokenizer(prompt + text, **limit)["input_ids"] for text in TEXTS]
    assert found.truncated.any() == bool(max_length)
    assert rows_of(FastTokenizer(tokenizer, max_length, prompt)([])) == []


def test_a_single_text_has_the_tokenizers_own_token_types(tiny_teacher: Path) -> None:
    teacher = load_teacher(tiny_teacher, device="cpu")
    tokenizer = teacher.model.tokenizer
    marks = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    # XLNet's tokenizer, too, gives the mark its own type.
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:1 $A:0 [SEP]:0", pair="[CLS]:1 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=marks
    )
    np.testing.assert_allclose(encode_texts(teacher, TEXTS), teacher.model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("difference", ["texts", "types", "none"])
def test_a_fast_tokenizer_that_would_change_the_result_is_not_used(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch, difference: str
) -> None:
    preprocess = loaded_teacher.model.preprocess

    def changed(texts: list[Any], **options: Any) -> Any:
        if difference == "texts":
            texts = [text.replace("quotes", "") if isinstance(text, str) else text for text in texts]
        features = preprocess(texts, **options)
        if difference == "types":
            features["token_type_ids"] = torch.zeros_like(features["token_type_ids"])
        return features

    monkeypatch.setattr(loaded_teacher.model, "preprocess", changed)
    fast = fast_tokenizer(loaded_teacher.model, 64, "query: ")
    assert (fast is None) == (difference == "texts")
    # Token types matter to pairs alone.
    assert fast is None or fast.takes_pairs == (difference == "none")


# Pairs


PAIRS = [*joined(6), "the red cat", join_pair("a dog " * 50, "the bird"), join_pair("it", "the stone " * 60)]
SPLIT = [text.split("\x1f") for text in PAIRS]


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp(request.param)
    make_teacher(request.param, folder / "parts").save(str(folder / "model"), create_model_card=False)
    return load_teacher(folder / "model", name=request.param, device="cpu")


def test_vectors_of_pairs_are_those_of_the_models_own_tokenizer(kind: Teacher) -> None:
    tokenizer, model = kind.model.tokenizer, kind.model[0].model
    wanted = []
    for parts in SPLIT:
        features = tokenizer(*parts, truncation="longest_first", max_length=64, return_tensors="pt")
        with torch.inference_mode():
            wanted.append(model(**features).last_hidden_state.mean(dim=1)[0].numpy())
    found = encode_texts(kind, PAIRS)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    for other in (" ".join(SPLIT[0]), join_pair(*reversed(SPLIT[0]))):
        assert np.abs(found[0] - encode_texts(kind, [other])[0]).max() > 1e-2


@pytest.mark.parametrize(("max_length", "prompt"), [(64, "query: "), (12, ""), (0, "")])
def test_ids_and_types_of_pairs_are_the_tokenizers_own(kind: Teacher, max_length: int, prompt: str) -> None:
    own = kind.model.tokenizer
    found = FastTokenizer(own, max_length, prompt)(PAIRS)
    limit = {"truncation": True, "max_length": max_length} if max_length else {"truncation": False}
    for row, (ids, (first, *second)) in enumerate(zip(rows_of(found), SPLIT, strict=True)):
        # A prompt comes before the first text alone.
        wanted = own(prompt + first, *second, **limit, return_token_type_ids=True)
        assert ids == wanted["input_ids"]
        types = (np.arange(len(ids)) >= found.first_tokens[row]).astype(int).tolist()
        assert types == wanted["token_type_ids"]
        whole = own(prompt + first, *second, truncation=False, verbose=False)["input_ids"]
        assert found.truncated[row] == (len(ids) < len(whole))


# Fast layers


packs = pytest.mark.skipif(
    not can_pack(CPU, torch.float32), reason="packed layers are for x86 CPUs with oneDNN"
)


@packs
def test_only_the_exact_gelu_is_fused(tmp_path: Path) -> None:
    config = tiny_encoder(tmp_path / "model", plain=True) / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "gelu_new"'))
    teacher = load_teacher(config.parent, pooling="mean", device="cpu")
    assert teacher.model[0].model.config.hidden_act == "gelu_new"
    np.testing.assert_allclose(encode_texts(teacher, TEXTS), teacher.model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("width", "padded", "options"),
    [
        (3, False, {}),
        (17, True, {"scaling": 0.3}),
        (65, True, {}),
        (64, False, {"is_causal": True}),
        (5, False, {"position_bias": torch.linspace(-2, 2, 25).view(1, 1, 5, 5)}),
    ],
)
def test_short_attention_is_attention(width: int, padded: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module: Any = nn.Module()
    module.is_causal = False
    query, key, value = torch.randn(3, 3, 4, width, 8)
    seen = torch.arange(width) < torch.tensor([width, 3, 1])[:, None]
    mask = seen[:, None, None, :].expand(-1, 1, width, -1) if padded else None
    found, _ = short_attention(module, query, key, value, mask, **options)
    wanted, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


# GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.99999), ("auto", 0.98)])
def test_vectors_of_a_gpu_are_near(
    tiny_teacher: Path, expected: np.ndarray, dtype: str, least: float
) -> None:
    teacher = load_teacher(tiny_teacher, device="cuda")
    found = encoder(teacher, compute_dtype=dtype, batch_tokens=500).encode(TEXTS).vectors
    assert ((found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)).min() > least
