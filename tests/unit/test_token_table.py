"""Token embeddings: taken from models, kept in one file with one spelling, refused when damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from flat_build import build
from safetensors.numpy import load_file
from torch import nn

from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, quiet_transformers
from embedcache.teacher.resolve import ModelSource
from embedcache.teacher.token_table import TABLE_FILE, TokenTable, table_path, token_table_of
from embedcache.testing import FakeEncoder, fake_teacher, sentences

CONTRACT = fake_teacher(16).contract
OTHER = fake_teacher(16, seed=1).contract
ROWS, WIDTH = 7, 4
TOKENS = ("[PAD]", "a", "##b", "ü", '","', "", "a")
NUMBERS = np.random.default_rng(3).standard_normal((20, WIDTH), dtype=np.float32)
PLAIN = TokenTable(NUMBERS[:ROWS], TOKENS)
NORMED = replace(PLAIN, norm_weight=NUMBERS[7], norm_bias=NUMBERS[8], norm_eps=1e-5, type_row=NUMBERS[9])
WHOLE = replace(NORMED, project_weight=NUMBERS[10:16], project_bias=NUMBERS[16:18].reshape(-1)[:6])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / TABLE_FILE


# Models


def teacher_of(inner: nn.Module | None, vocabulary: dict[str, int] | None = None) -> Teacher:
    """Teacher around a transformer, or one of static embeddings."""

    class Modules(list[Any]):
        tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary or {"a": 0, "b": 1})

    model: Any = Modules([nn.EmbeddingBag(3, 4) if inner is None else SimpleNamespace(model=inner)])
    return Teacher(ModelSource("some", "some", Path("/dev/null")), model, CONTRACT)


def model_of(name: str, **fields: Any) -> Any:
    """Tiny model with random weights, norms and types."""
    small = {
        "vocab_size": 30,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
        "pad_token_id": 1,
    }
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**small, **fields)
        model = transformers.AutoModel.from_config(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Bert", {}),
        ("Roberta", {}),
        ("MPNet", {}),
        ("Electra", {"embedding_size": 4}),
        ("ModernBert", {"norm_bias": False}),
    ],
)
def test_the_block_is_the_input_of_the_layers_without_positions(name: str, fields: dict[str, Any]) -> None:
    model = model_of(name, **fields)
    found = token_table_of(teacher_of(model))
    # Only ELECTRA's embeddings are narrower than its layers.
    project = getattr(model, "embeddings_project", torch.nn.Identity())
    with torch.no_grad():
        if hasattr(model.embeddings, "position_embeddings"):
            model.embeddings.position_embeddings.weight.zero_()
        fed = project(model.embeddings(input_ids=torch.arange(30)[None]))[0].numpy()
        words = project(model.get_input_embeddings().weight).numpy()
    np.testing.assert_allclose(found.block(), fed, atol=5e-6)
    np.testing.assert_allclose(found.words(), words, atol=5e-6)
    assert found.block().shape == (30, 8)
    assert not np.allclose(found.block(), found.words(), atol=0.1)


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_the_last_norm_of_a_decoder_is_not_that_of_its_embeddings(name: str) -> None:
    model = model_of(name)
    found = token_table_of(teacher_of(model))
    np.testing.assert_array_equal(found.word, model.get_input_embeddings().weight.detach().numpy())
    np.testing.assert_array_equal(found.block(), found.word)


def test_a_table_is_a_float32_copy_with_the_tokens_of_its_ids() -> None:
    model = model_of("Bert").to(torch.bfloat16)
    found = token_table_of(teacher_of(model, {"b": 2, "a": 2, "c": 0, "far": 31, "never": -1}))
    assert found.tokens == ("c", "", "a", *[""] * 27)
    assert found.word.dtype == np.float32
    assert torch.equal(torch.from_numpy(found.word).to(torch.bfloat16), model.get_input_embeddings().weight)
    found.word[:] = 0
    assert model.get_input_embeddings().weight.abs().sum() > 0


def test_teachers_without_sound_token_embeddings_are_refused() -> None:
    broken = model_of("Bert")
    with torch.no_grad():
        broken.get_input_embeddings().weight[4, 2] = float("nan")
    for teacher in (*map(teacher_of, (None, nn.Linear(2, 2), broken)), fake_teacher(16)):
        with pytest.raises(TeacherError):
            token_table_of(teacher)


def test_rows_are_found_by_token() -> None:
    # The first row of the duplicate "a" counts.
    assert PLAIN.rows_of(["ü", "[PAD]", "a", "ü"]).tolist() == [3, 0, 1, 3]
    assert PLAIN.rows_of([]).shape == (0,)
    for tokens in (["a", "t0"], [""]):
        with pytest.raises(InputError, match="1 of"):
            PLAIN.rows_of(tokens)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"word": np.zeros((0, WIDTH), np.float32), "tokens": ()}, "word"),
        ({"word": np.full((ROWS, WIDTH), np.inf, np.float32)}, "word"),
        ({"tokens": TOKENS[:-1]}, "6 tokens"),
        ({"norm_weight": np.ones(WIDTH + 1, np.float32)}, "norm.weight"),
        ({"norm_eps": None}, "norm_eps"),
        ({"norm_weight": None, "norm_eps": None}, "norm_bias"),
        ({"project_weight": None}, "project_weight"),
    ],
    ids=[str(number) for number in range(7)],
)
def test_parts_that_do_not_belong_together_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        replace(WHOLE, **changes)


# The file


@pytest.mark.parametrize("table", [PLAIN, NORMED, WHOLE], ids=["words", "norm", "whole"])
def test_what_is_written_is_read(path: Path, table: TokenTable) -> None:
    replace(table, word=np.asfortranarray(table.word)).write(path, CONTRACT)
    data = path.read_bytes()
    for found in (TokenTable.read(path, CONTRACT), TokenTable.read(path, CONTRACT.id)):
        for field in TokenTable.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(found, field), getattr(table, field))
        # Torch may write to the tensors; the file stays as it is.
        torch.from_numpy(found.word).zero_()
        assert path.read_bytes() == data
    tensors = load_file(path)
    np.testing.assert_array_equal(tensors["word"], table.word)
    assert json.loads(tensors["tokens"].tobytes()) == list(TOKENS)


def test_the_bytes_of_a_table_with_a_projection_never_change(path: Path) -> None:
    part = np.arange(6, dtype=np.float32).reshape(3, 2)
    TokenTable(part, ("a", "é", ""), project_weight=part, project_bias=part[:, 0]).write(path, CONTRACT)
    golden = "24b96e97b34062b6a6842647e2201e5fb80563b2bc4c5f388c7d76121e5d68cf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == golden


def test_any_changed_byte_a_missing_file_a_link_and_another_teacher_are_refused(path: Path) -> None:
    def refused(contract: Contract = CONTRACT) -> None:
        with pytest.raises(CorruptCacheError):
            TokenTable.read(path, contract)

    refused()
    WHOLE.write(path, CONTRACT)
    refused(OTHER)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused()
    for other in (b"", data[:1], data[:100], data[:-1], data + b"\0", b"\xff" * 8 + data[8:]):
        path.write_bytes(other)
        refused()
    path.write_bytes(data)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    refused()


def to(*keys: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Change of one field of a header."""

    def change(header: dict[str, Any]) -> None:
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = value

    return change


FORGERIES = {
    "rows": to("word", "shape", value=[ROWS + 1, WIDTH]),
    "stranger": to("stranger", value={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "no-metadata": to("__metadata__", value={}),
    "version": to("__metadata__", "version", value="3"),
    "no-projection": lambda header: header.pop("project.weight"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_with_the_right_digest_is_refused(path: Path, forgery: str) -> None:
    WHOLE.write(path, CONTRACT)
    whole = path.read_bytes()
    count = int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8 : 8 + count]), whole[8 + count :]
    del header["__metadata__"]["sha256"]
    FORGERIES[forgery](header)
    digest = hashlib.sha256(canonical_json(header) + tensors).hexdigest()
    header["__metadata__"] = {**header.get("__metadata__", {}), "sha256": digest}
    spelled = canonical_json(header)
    spelled += b" " * (-len(spelled) % 8)
    path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + tensors)
    with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
        TokenTable.read(path, CONTRACT)
    assert len(str(caught.value)) < 600


def test_tokens_that_are_no_texts_are_refused(path: Path) -> None:
    numbers: Any = tuple(range(ROWS))
    replace(PLAIN, tokens=numbers).write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="tokens"):
        TokenTable.read(path, CONTRACT)


# In a cache


def test_a_cache_without_a_sound_table_says_so(tmp_path: Path, loaded_teacher: Teacher) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)

    def built(**settings: Any) -> Any:
        return build(sentences(5), teacher=encoder, cache=tmp_path / "c", **settings)

    cache = built()
    with pytest.raises(InputError, match="--token-embeddings"):
        cache.token_table(cache.teacher())
    cache = built(token_embeddings=True)
    embedding = loaded_teacher.model[0].model.get_input_embeddings()
    np.testing.assert_array_equal(cache.token_table(cache.teacher()).word, embedding.weight.numpy())
    file = table_path(cache.folder, loaded_teacher.contract)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptCacheError):
        cache.token_table(cache.teacher())


def test_a_teacher_without_any_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    encoder: Any = FakeEncoder(fake_teacher(8))
    with pytest.raises(TeacherError):
        build(sentences(5), teacher=encoder, cache=tmp_path / "c", token_embeddings=True)
    assert not (tmp_path / "c").exists()
