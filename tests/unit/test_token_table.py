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

from embedcache.errors import CorruptCacheError, InputError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, quiet_transformers
from embedcache.teacher.resolve import ModelSource
from embedcache.teacher.token_table import TABLE_FILE, TokenTable, token_table_of
from embedcache.testing import FakeEncoder, fake_teacher, sentences

CONTRACT = fake_teacher(16).contract
TOKENS = ("[PAD]", "a", "##b", "ü", '","', "", "a")
NUMBERS = np.random.default_rng(3).standard_normal((20, 4), dtype=np.float32)
PLAIN = TokenTable(NUMBERS[:7], TOKENS)
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
    assert not np.allclose(found.block(), found.words(), atol=0.1)


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_the_last_norm_of_a_decoder_is_not_that_of_its_embeddings(name: str) -> None:
    model = model_of(name)
    found = token_table_of(teacher_of(model))
    np.testing.assert_array_equal(found.word, model.get_input_embeddings().weight.detach().numpy())
    np.testing.assert_array_equal(found.block(), found.word)


def test_teachers_without_sound_token_embeddings_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    broken = model_of("Bert")
    with torch.no_grad():
        broken.get_input_embeddings().weight[4, 2] = float("nan")
    for teacher in map(teacher_of, (None, nn.Linear(2, 2), broken)):
        with pytest.raises(TeacherError):
            token_table_of(teacher)
    encoder: Any = FakeEncoder(fake_teacher(8))
    with pytest.raises(TeacherError):
        build(sentences(5), teacher=encoder, cache=tmp_path / "c", token_embeddings=True)
    assert not (tmp_path / "c").exists()


# The file


@pytest.mark.parametrize("table", [PLAIN, NORMED, WHOLE], ids=["words", "norm", "whole"])
def test_a_written_table_reads_back(path: Path, table: TokenTable) -> None:
    replace(table, word=np.asfortranarray(table.word)).write(path, CONTRACT)
    data = path.read_bytes()
    found = TokenTable.read(path, CONTRACT)
    for field in TokenTable.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, field), getattr(table, field))
    # Torch may write to the tensors; the file stays as it is.
    torch.from_numpy(found.word).zero_()
    assert path.read_bytes() == data
    assert json.loads(load_file(path)["tokens"].tobytes()) == list(TOKENS)


def test_the_bytes_of_a_table_with_a_projection_never_change(path: Path) -> None:
    part = np.arange(6, dtype=np.float32).reshape(3, 2)
    TokenTable(part, ("a", "é", ""), project_weight=part, project_bias=part[:, 0]).write(path, CONTRACT)
    golden = "24b96e97b34062b6a6842647e2201e5fb80563b2bc4c5f388c7d76121e5d68cf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == golden


def test_any_changed_byte_and_another_teacher_are_refused(path: Path) -> None:
    numbers: Any = tuple(range(7))
    replace(PLAIN, tokens=numbers).write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="tokens"):
        TokenTable.read(path, CONTRACT)
    WHOLE.write(path, CONTRACT)
    with pytest.raises(CorruptCacheError):
        TokenTable.read(path, fake_teacher(16, seed=1).contract)
    data = path.read_bytes()
    flipped = (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 3))
    for other in (*flipped, b"", data[:100], data[:-1], data + b"\0", b"\xff" * 8 + data[8:]):
        path.write_bytes(other)
        with pytest.raises(CorruptCacheError):
            TokenTable.read(path, CONTRACT)


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "rows": lambda header: header["word"].update(shape=[8, 4]),
    "stranger": lambda header: header.update(stranger={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "version": lambda header: header["__metadata__"].update(version="3"),
    "no projection": lambda header: header.pop("project.weight"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_with_the_right_digest_is_refused(path: Path, forgery: str) -> None:
    WHOLE.write(path, CONTRACT)
    whole = path.read_bytes()
    count = int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8 : 8 + count]), whole[8 + count :]
    del header["__metadata__"]["sha256"]
    FORGERIES[forgery](header)
    header["__metadata__"]["sha256"] = hashlib.sha256(canonical_json(header) + tensors).hexdigest()
    spelled = canonical_json(header)
    spelled += b" " * (-len(spelled) % 8)
    path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + tensors)
    with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
        TokenTable.read(path, CONTRACT)
    assert len(str(caught.value)) < 600


def test_a_build_stores_the_table_of_a_teacher_once_when_asked(
    tmp_path: Path, loaded_teacher: Teacher
) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)

    def built(**settings: Any) -> Any:
        return build(sentences(5), teacher=encoder, cache=tmp_path / "c", **settings)

    cache = built()
    with pytest.raises(InputError, match="--token-embeddings"):
        cache.token_table(cache.teacher())
    cache = built(token_embeddings=True)
    assert cache.result.encoded == 0
    embedding = loaded_teacher.model[0].model.get_input_embeddings()
    np.testing.assert_array_equal(cache.token_table(cache.teacher()).word, embedding.weight.numpy())
    (file,) = cache.folder.rglob(TABLE_FILE)
    before = file.stat()
    built(token_embeddings=True)
    assert file.stat() == before
