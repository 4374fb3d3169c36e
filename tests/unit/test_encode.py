"""Encoding gives what sentence-transformers gives, whatever the batches, threads and fast layers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from embedcache.errors import InputError, TeacherError
from embedcache.teacher import inference as attention
from embedcache.teacher.encode import Encoder, available_cores, encode_texts
from embedcache.teacher.inference import (
    PackedLinear,
    can_pack,
    has_native_bfloat16,
    prepare,
    resolve_compute_dtype,
)
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.testing import sentences

CPU = torch.device("cpu")
TEXTS = [
    *sentences(60),
    "the",
    "Žluťoučký 漢字 🙂, unknown WORDS!",
    "  blanks at   the ends  ",
    "the red cat sees a small bird " * 20,
    *sentences(3),
]


def encoder(teacher: Teacher, **settings: Any) -> Encoder:
    return Encoder(teacher, **{"compute_dtype": "float32", **settings})


@pytest.fixture(scope="module")
def expected(loaded_teacher: Teacher) -> np.ndarray:
    return np.asarray(loaded_teacher.model.encode(TEXTS, batch_size=7))


@pytest.mark.parametrize(
    "settings",
    [{"optimise": False}, {}, {"threads": 1}, {"threads": 3}, {"batch_tokens": 1}, {"batch_tokens": 100_000}],
    ids=str,
)
def test_vectors_are_those_of_sentence_transformers(
    loaded_teacher: Teacher, expected: np.ndarray, settings: dict[str, Any]
) -> None:
    found = encoder(loaded_teacher, **settings).encode(TEXTS)
    assert found.vectors.dtype == np.float32
    assert found.vectors.flags.c_contiguous
    np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    assert not np.allclose(found.vectors[0], expected[1], atol=1e-2)


def test_a_prompt_is_put_before_every_text(tiny_teacher: Path, expected: np.ndarray) -> None:
    teacher = load_teacher(tiny_teacher, prompt="the old road: ", device="cpu")
    found = encoder(teacher).encode(TEXTS).vectors
    np.testing.assert_allclose(found, teacher.model.encode(TEXTS, prompt="the old road: "), atol=1e-5)
    assert not np.allclose(found, expected, atol=1e-2)


def test_a_prompt_can_be_left_out_of_the_pooling(tiny_teacher: Path) -> None:
    teacher = load_teacher(tiny_teacher, prompt="the old road: ", device="cpu")
    included = encoder(teacher).encode(TEXTS).vectors
    teacher.model[1].include_prompt = False
    found = encoder(teacher).encode(TEXTS).vectors
    np.testing.assert_allclose(found, teacher.model.encode(TEXTS, prompt="the old road: "), atol=1e-5)
    assert not np.allclose(found, included, atol=1e-2)


@pytest.mark.parametrize("pooling", ["cls", "last", "pooler"])
def test_every_pooling_takes_the_same_road(plain_teacher: Path, pooling: str) -> None:
    teacher = load_teacher(plain_teacher, pooling=pooling, device="cpu")
    np.testing.assert_allclose(encoder(teacher).encode(TEXTS).vectors, teacher.model.encode(TEXTS), atol=1e-5)


def test_without_a_fast_tokenizer_the_models_own_is_used(
    loaded_teacher: Teacher, expected: np.ndarray
) -> None:
    slow = encoder(loaded_teacher)
    slow.tokenizer = None
    np.testing.assert_allclose(slow.encode(TEXTS).vectors, expected, atol=1e-5)


def test_order_follows_the_texts(loaded_teacher: Teacher) -> None:
    order = np.random.default_rng(0).permutation(len(TEXTS))
    straight = encoder(loaded_teacher).encode(TEXTS).vectors
    mixed = encoder(loaded_teacher).encode([TEXTS[i] for i in order]).vectors
    np.testing.assert_allclose(mixed, straight[order], atol=1e-6)


def test_the_same_texts_give_the_same_bytes(loaded_teacher: Teacher) -> None:
    first, second = (encoder(loaded_teacher).encode(TEXTS).vectors for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_tokens_and_truncation_are_counted(loaded_teacher: Teacher) -> None:
    found = encoder(loaded_teacher).encode(["the cat", "bird " * 62, "bird " * 63])
    assert found.tokens.tolist() == [4, 64, 64]
    assert found.truncated.tolist() == [False, False, True]


def test_nothing_gives_nothing(loaded_teacher: Teacher) -> None:
    found = encoder(loaded_teacher).encode([])
    assert (found.vectors.shape, found.tokens.shape, found.truncated.shape) == ((0, 16), (0,), (0,))


def test_encode_texts_is_the_same_in_one_call(loaded_teacher: Teacher, expected: np.ndarray) -> None:
    np.testing.assert_allclose(encode_texts(loaded_teacher, TEXTS, threads=1), expected, atol=1e-5)


def out_of_memory(monkeypatch: pytest.MonkeyPatch, encoder: Encoder, rows: int, error: Exception) -> None:
    forward = encoder._model.forward

    def limited(features: dict[str, Any], **options: Any) -> Any:
        if len(features["input_ids"]) > rows:
            raise error
        return forward(features, **options)

    monkeypatch.setattr(encoder._model, "forward", limited)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you ..."),
    ],
    ids=["cuda", "cpu"],
)
def test_batches_that_do_not_fit_are_halved(
    loaded_teacher: Teacher, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    small = encoder(loaded_teacher, batch_tokens=100_000)
    out_of_memory(monkeypatch, small, 3, error)
    np.testing.assert_allclose(small.encode(TEXTS).vectors, expected, atol=1e-5)
    # Halved again and again, 67 rows are 32 batches of two or three.
    assert small.times.batches_halved == 31
    assert small.times.rows == len(TEXTS)
    assert small.times.tokens == encoder(loaded_teacher).encode(TEXTS).tokens.sum()


def test_the_failed_batch_is_freed_before_its_halves_are_tried(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = encoder(loaded_teacher, batch_tokens=100_000, threads=1)
    forward = small._model.forward
    activations: list[weakref.ref[torch.Tensor]] = []
    alive = []

    def limited(features: dict[str, Any], **options: Any) -> Any:
        alive.append(sum(one() is not None for one in activations))
        if len(features["input_ids"]) > 30:
            activation = torch.zeros(3)
            activations.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(features, **options)

    monkeypatch.setattr(small._model, "forward", limited)
    small.encode(TEXTS)
    assert len(activations) > 1
    assert alive == [0] * len(alive)


def test_a_single_text_that_does_not_fit_is_named_by_its_size(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = encoder(loaded_teacher)
    out_of_memory(monkeypatch, hopeless, 0, torch.OutOfMemoryError("no"))
    with pytest.raises(TeacherError, match="a single text of 5 tokens; lower --max-length"):
        hopeless.encode(["the red cat"])


def test_other_failures_are_not_taken_for_memory(
    loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = encoder(loaded_teacher)
    out_of_memory(monkeypatch, broken, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        broken.encode(TEXTS)
    assert broken.times.batches_halved == 0


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("forward", "tokenise"))]


def test_windows_come_one_after_the_other(loaded_teacher: Teacher, expected: np.ndarray) -> None:
    running, calls = encoder(loaded_teacher), []
    sizes = [10, 1, 40, len(TEXTS) - 51]
    edges = np.cumsum([0, *sizes])
    windows = [TEXTS[a:b] for a, b in pairwise(edges)]
    parts = list(running.encode_windows(iter(windows), lambda: calls.append(1)))
    assert [len(part.vectors) for part in parts] == sizes
    np.testing.assert_allclose(np.concatenate([part.vectors for part in parts]), expected, atol=1e-5)
    assert len(calls) >= len(windows)
    assert worker_threads() == []


def test_closing_early_ends_the_threads(loaded_teacher: Teacher) -> None:
    results = encoder(loaded_teacher).encode_windows(TEXTS[i : i + 4] for i in range(0, 60, 4))
    next(results)
    assert worker_threads()
    results.close()
    assert worker_threads() == []


def test_a_failing_source_is_not_swallowed(loaded_teacher: Teacher) -> None:
    def windows() -> Iterator[list[str]]:
        yield TEXTS[:4]
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        list(encoder(loaded_teacher).encode_windows(windows()))
    assert worker_threads() == []


@pytest.mark.parametrize("settings", [{"batch_tokens": 0}, {"threads": 0}, {"threads": -1}], ids=str)
def test_settings_out_of_range_are_refused(loaded_teacher: Teacher, settings: dict[str, int]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} {value}: expected at least 1"):
        encoder(loaded_teacher, **settings)


def test_provenance_says_what_may_change_the_last_bits(loaded_teacher: Teacher) -> None:
    found = encoder(loaded_teacher).provenance
    assert (found["compute_dtype"], found["device"], found["torch"]) == ("float32", "cpu", torch.__version__)
    assert encoder(loaded_teacher, compute_dtype="bfloat16").provenance["compute_dtype"] == "bfloat16"


def test_bfloat16_is_near_but_not_the_same(loaded_teacher: Teacher, expected: np.ndarray) -> None:
    found = encoder(loaded_teacher, compute_dtype="bfloat16").encode(TEXTS).vectors
    assert found.dtype == np.float32
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)
    assert cosines.min() > 0.98
    assert not np.allclose(found, expected, atol=1e-5)


def test_compute_dtypes_are_resolved() -> None:
    assert resolve_compute_dtype("float32", CPU) is torch.float32
    assert resolve_compute_dtype("bfloat16", CPU) is torch.bfloat16
    assert resolve_compute_dtype("float16", torch.device("cuda")) is torch.float16
    assert resolve_compute_dtype("auto", CPU) is (torch.bfloat16 if has_native_bfloat16() else torch.float32)
    with pytest.raises(InputError, match="float16 needs a GPU"):
        resolve_compute_dtype("float16", CPU)
    with pytest.raises(InputError, match="unknown compute dtype 'int8': choose one of auto, float32"):
        resolve_compute_dtype("int8", CPU)


def test_all_cores_are_used_unless_told_otherwise(loaded_teacher: Teacher) -> None:
    assert encoder(loaded_teacher).threads == available_cores() >= 1
    assert encoder(loaded_teacher, threads=1).streams == 1


packs = pytest.mark.skipif(
    not can_pack(CPU, torch.float32), reason="packed layers are for x86 CPUs with oneDNN"
)


@packs
def test_the_fast_layers_go_into_a_copy(loaded_teacher: Teacher) -> None:
    fast = prepare(loaded_teacher.model, torch.float32)
    packed = [module for module in fast.modules() if isinstance(module, PackedLinear)]
    plain = [module for module in loaded_teacher.model.modules() if isinstance(module, nn.Linear)]
    assert len(packed) == len(plain) == 13
    assert sum(module.activation == "gelu" for module in packed) == 2
    assert fast[0].model.config._attn_implementation == "embedcache_short"
    assert loaded_teacher.model[0].model.config._attn_implementation == "sdpa"
    unchanged = prepare(loaded_teacher.model, torch.float32, optimise=False)
    assert not any(isinstance(module, PackedLinear) for module in unchanged.modules())


@packs
def test_bfloat16_is_packed_only_where_the_cpu_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported in (False, True):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda found=supported: found)
        assert can_pack(CPU, torch.bfloat16) is supported
        assert can_pack(CPU, torch.float32)


@packs
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_is_the_layer_it_was_made_of(gelu: bool, bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 40, bias=bias), torch.randn(3, 5, 24)
    with torch.no_grad():
        wanted = F.gelu(linear(x)) if gelu else linear(x)
        torch.testing.assert_close(PackedLinear(linear, gelu=gelu)(x), wanted, atol=1e-5, rtol=0)


@packs
@pytest.mark.parametrize("activation", ["gelu_new", "relu", "gelu_pytorch_tanh"])
def test_only_the_exact_gelu_is_fused(plain_teacher: Path, tmp_path: Path, activation: str) -> None:
    import json
    import shutil

    folder = Path(shutil.copytree(plain_teacher, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": activation}))
    teacher = load_teacher(folder, pooling="mean", device="cpu")
    np.testing.assert_allclose(encoder(teacher).encode(TEXTS).vectors, teacher.model.encode(TEXTS), atol=1e-5)


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None])[:, None, None, :].expand(-1, 1, width, -1)


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize(
    "mask", [lambda width: None, lambda width: mask_of([width, 3, 1], width)], ids=["none", "padded"]
)
@pytest.mark.parametrize("width", [1, 17, 64, 65])
def test_short_attention_is_attention(
    width: int, mask: Callable[[int], torch.Tensor | None], scaling: float | None
) -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    width = max(width, 3) if mask(4) is not None else width
    query, key, value = torch.randn(3, 3, 4, width, 8)
    found, _ = attention.short_attention(module, query, key, value, mask(width), scaling=scaling)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask(width), scale=scaling)
    torch.testing.assert_close(found, wanted.transpose(1, 2), atol=1e-5, rtol=0)


def test_short_attention_leaves_causal_models_to_the_library() -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.is_causal = True  # type: ignore[assignment]
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    found, _ = attention.short_attention(module, query, key, value, None)
    wanted = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(found, wanted.transpose(1, 2), atol=1e-5, rtol=0)
    assert not torch.allclose(
        found, F.scaled_dot_product_attention(query, key, value).transpose(1, 2), atol=1e-2
    )
