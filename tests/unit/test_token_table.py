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

from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, quiet_transformers
from embedcache.teacher.resolve import ModelSource
from embedcache.teacher.token_embeddings import token_table_of
from embedcache.teacher.token_table import TABLE_FILE, TokenTable, table_path
from embedcache.testing import FakeEncoder, fake_teacher, sentences

CONTRACT = fake_teacher(16).contract
OTHER = fake_teacher(16, seed=1).contract
ROWS, WIDTH = 7, 4
TOKENS = ("[PAD]", "a", "##b", "ü", '","', "", "a")


def table(**changes: Any) -> TokenTable:
    """Return a small table with every part."""
    numbers = np.random.default_rng(3).standard_normal((ROWS + 3, WIDTH), dtype=np.float32)
    full = TokenTable(numbers[3:], TOKENS, numbers[0], numbers[1], 1e-5, numbers[2])
    return replace(full, **changes)


def projection(to: int = 6) -> dict[str, Any]:
    """Return the parts of a linear map behind the block."""
    numbers = np.random.default_rng(4).standard_normal((to, WIDTH + 1), dtype=np.float32)
    return {"project_weight": numbers[:, 1:], "project_bias": numbers[:, 0]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / TABLE_FILE


# Models


class Modules(list[Any]):
    """Stands for a sentence-transformers model."""

    def __init__(self, *modules: object, vocabulary: dict[str, int]) -> None:
        super().__init__(modules)
        self.tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)


def teacher_of(inner: nn.Module | None, vocabulary: dict[str, int] | None = None) -> Teacher:
    """Return a teacher around a transformer, or one of static embeddings."""
    module = SimpleNamespace(model=inner) if inner is not None else nn.EmbeddingBag(3, 4)
    model: Any = Modules(module, vocabulary=vocabulary or {"a": 0, "b": 1})
    return Teacher(ModelSource("some", "some", Path("/dev/null")), model, CONTRACT)


SMALL = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "initializer_range": 0.5,
    "pad_token_id": 1,
}
WITH_TYPES = {
    "BertConfig": SMALL,
    "RobertaConfig": SMALL,
    "ElectraConfig": {**SMALL, "embedding_size": 4},
}
WITHOUT = {
    "MPNetConfig": SMALL,
    "DistilBertConfig": {
        "vocab_size": 30,
        "dim": 8,
        "n_layers": 1,
        "n_heads": 2,
        "hidden_dim": 16,
        "initializer_range": 0.5,
    },
}


def model_of(name: str, fields: dict[str, Any]) -> nn.Module:
    """Return a tiny model with random weights, no two of its norms and types alike."""
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, name)(**fields)
        model: nn.Module = transformers.AutoModel.from_config(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("name", [*WITH_TYPES, *WITHOUT])
def test_the_block_is_what_the_encoder_is_fed_but_for_positions(name: str) -> None:
    model: Any = model_of(name, {**WITH_TYPES, **WITHOUT}[name])
    found = token_table_of(teacher_of(model))
    assert (found.type_row is not None) == (name in WITH_TYPES)
    width = model.get_input_embeddings().embedding_dim
    assert found.word.shape == (30, width)
    # Only ELECTRA's embeddings are narrower than its layers.
    project = model.embeddings_project if width < 8 else torch.nn.Identity()
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
        fed = project(model.embeddings(input_ids=torch.arange(30)[None]))[0].numpy()
        words = project(model.get_input_embeddings().weight).numpy()
    assert fed.shape == (30, 8)
    np.testing.assert_allclose(found.block(), fed, atol=5e-6)
    np.testing.assert_allclose(found.words(), words, atol=5e-6)
    assert not np.allclose(found.block(), found.words(), atol=0.1)
    if found.type_row is not None:
        # Without the type it would be something else.
        assert not np.allclose(replace(found, type_row=None).block(), fed, atol=0.1)


def test_a_norm_without_a_bias_is_kept_so() -> None:
    model: Any = model_of("ModernBertConfig", {**SMALL, "norm_bias": False})
    found = token_table_of(teacher_of(model))
    assert found.norm_weight is not None
    assert found.norm_bias is None
    with torch.no_grad():
        fed = model.embeddings(input_ids=torch.arange(30)[None])[0].numpy()
    np.testing.assert_allclose(found.block(), fed, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("GPT2Config", {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 40}),
        ("LlamaConfig", SMALL),
        ("Qwen2Config", SMALL),
    ],
)
def test_the_last_norm_of_a_decoder_is_not_that_of_its_embeddings(name: str, fields: dict[str, Any]) -> None:
    model: Any = model_of(name, fields)
    found = token_table_of(teacher_of(model))
    assert (found.norm_weight, found.norm_bias, found.norm_eps, found.type_row) == (None, None, None, None)
    np.testing.assert_array_equal(found.word, model.get_input_embeddings().weight.detach().numpy())
    np.testing.assert_array_equal(found.block(), found.word)


def test_half_precision_is_widened_without_loss_and_the_model_is_left_alone() -> None:
    model: Any = model_of("BertConfig", SMALL).to(torch.bfloat16)
    found = token_table_of(teacher_of(model))
    assert found.word.dtype == np.float32
    assert torch.equal(torch.from_numpy(found.word).to(torch.bfloat16), model.get_input_embeddings().weight)
    found.word[:] = 0
    assert model.get_input_embeddings().weight.abs().sum() > 0


def test_ids_without_a_token_and_tokens_without_a_row() -> None:
    model = model_of("BertConfig", SMALL)
    found = token_table_of(teacher_of(model, {"b": 2, "a": 2, "c": 0, "far": 31, "never": -1}))
    assert found.tokens == ("c", "", "a", *[""] * 27)


def test_teachers_without_sound_token_embeddings_are_refused() -> None:
    broken: Any = model_of("BertConfig", SMALL)
    with torch.no_grad():
        broken.get_input_embeddings().weight[4, 2] = float("nan")
    for teacher in (*map(teacher_of, (None, nn.Linear(2, 2), broken)), fake_teacher(16)):
        with pytest.raises(TeacherError):
            token_table_of(teacher)


def test_rows_are_found_by_token() -> None:
    # Of "a", which stands twice, the first row counts.
    assert table().rows_of(["ü", "[PAD]", "a", "ü"]).tolist() == [3, 0, 1, 3]
    assert table().rows_of([]).shape == (0,)
    for tokens in (["a", "t0"], [""]):
        with pytest.raises(InputError, match="1 of"):
            table().rows_of(tokens)


def test_without_a_norm_the_block_is_the_sum() -> None:
    without = table(norm_weight=None, norm_bias=None, norm_eps=None)
    assert without.type_row is not None
    np.testing.assert_allclose(without.block(), without.word + without.type_row, rtol=1e-6)
    np.testing.assert_array_equal(replace(without, type_row=None).block(), without.word)
    assert not np.allclose(table().block(), without.block())


def test_a_projection_widens_words_and_block() -> None:
    plain, wide = table(), table(**projection())
    matrix, bias = wide.project_weight, wide.project_bias
    assert matrix is not None
    np.testing.assert_allclose(wide.block(), plain.block() @ matrix.T + bias, atol=1e-5)
    np.testing.assert_allclose(wide.words(), plain.word @ matrix.T + bias, atol=1e-5)
    assert wide.block().dtype == wide.words().dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"word": np.zeros((0, WIDTH), np.float32), "tokens": ()}, "word"),
        ({"tokens": TOKENS[:-1]}, "6 tokens"),
        ({"norm_weight": np.ones(WIDTH + 1, np.float32)}, "norm_weight"),
        ({"type_row": np.ones((1, WIDTH), np.float32)}, "type_row"),
        ({"norm_eps": None}, "norm_eps"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"norm_weight": None, "norm_eps": None}, "norm_bias"),
        ({**projection(), "project_bias": None}, "project_"),
        ({**projection(), "project_bias": np.ones(5, np.float32)}, "project_weight"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        table(**changes)


# The file

PARTIAL: dict[str, dict[str, Any]] = {
    "whole": {},
    "no-bias": {"norm_bias": None},
    "words-alone": {"norm_weight": None, "norm_bias": None, "norm_eps": None, "type_row": None},
    "projection": projection(),
}


def same(one: TokenTable, other: TokenTable) -> bool:
    ours, theirs = vars(one), vars(other)
    return all(np.array_equal(ours[field], theirs[field]) for field in TokenTable.__dataclass_fields__)


@pytest.mark.parametrize("parts", PARTIAL)
def test_what_is_written_is_read(path: Path, parts: str) -> None:
    written = table(**PARTIAL[parts])
    replace(written, word=np.asfortranarray(written.word)).write(path, CONTRACT)
    data = path.read_bytes()
    found = TokenTable.read(path, CONTRACT)
    assert same(found, written)
    assert same(TokenTable.read(path, CONTRACT.id), written)
    # It can be given to torch, which wants to write, and the file stays as it is.
    torch.from_numpy(found.word).zero_()
    assert path.read_bytes() == data
    tensors = load_file(path)
    np.testing.assert_array_equal(tensors["word"], written.word)
    assert json.loads(tensors["tokens"].tobytes()) == list(TOKENS)


def test_the_bytes_are_those_of_version_one(path: Path) -> None:
    word = np.arange(6, dtype=np.float32).reshape(3, 2)
    vector = np.array([0.5, 2], np.float32)
    TokenTable(word, ("a", "é", ""), vector, -vector, 1e-12, vector + 1).write(path, CONTRACT)
    golden = "26d1f8dd53cade482aa182bb6fed507aff931fba00faea53b1ef608d8fb58925"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == golden


@pytest.mark.parametrize("parts", ["whole", "projection"])
def test_any_changed_byte_is_found(path: Path, parts: str) -> None:
    table(**PARTIAL[parts]).write(path, CONTRACT)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptCacheError):
            TokenTable.read(path, CONTRACT)
    for cut in (0, 1, 8, 100, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(CorruptCacheError):
            TokenTable.read(path, CONTRACT)


def test_missing_files_links_and_other_teachers_tables_are_refused(path: Path) -> None:
    with pytest.raises(CorruptCacheError):
        TokenTable.read(path, CONTRACT)
    table().write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="another teacher"):
        TokenTable.read(path, OTHER)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with pytest.raises(CorruptCacheError):
        TokenTable.read(path, CONTRACT)


# Files made to harm: their digests are right


def forged(path: Path, change: Callable[[dict[str, Any]], object], source: TokenTable) -> None:
    """Write a file with another header, and the digest that goes with it."""
    source.write(path, CONTRACT)
    whole = path.read_bytes()
    count = int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8 : 8 + count]), whole[8 + count :]
    change(header)
    header["__metadata__"].pop("sha256", None)
    header["__metadata__"]["sha256"] = hashlib.sha256(canonical_json(header) + tensors).hexdigest()
    spelled = canonical_json(header)
    spelled += b" " * (-len(spelled) % 8)
    path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + tensors)


def to(*keys: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Return a change of one field of a header."""

    def change(header: dict[str, Any]) -> None:
        for key in keys[:-1]:
            header = header[key]
        header[keys[-1]] = value

    return change


FORGERIES = {
    "rows": to("word", "shape", value=[ROWS + 1, WIDTH]),
    "negative": to("word", "shape", value=[-ROWS, -WIDTH]),
    "empty": to("word", "shape", value=[0, WIDTH]),
    "bool": to("word", "shape", value=[True, WIDTH]),
    "float": to("word", "shape", value=[7.0, 4.0]),
    "huge": to("word", "shape", value=[10**4000, 10**12]),
    "many-tokens": to("tokens", "shape", value=[10**9]),
    "overlap": to("type", "data_offsets", value=[0, 16]),
    "outside": to("word", "data_offsets", value=[0, 10**15]),
    "dtype": to("word", "dtype", value="F64"),
    "stranger": to("stranger", value={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "no-metadata": to("__metadata__", value={}),
    "list": to("word", value=[1, 2]),
    "no-eps": lambda header: header["__metadata__"].pop("norm_eps"),
    "eps-spelling": to("__metadata__", "norm_eps", value="0.00001"),
    "contract": to("__metadata__", "contract", value=7),
    "version": to("__metadata__", "version", value="0"),
    "no-projection": lambda header: header.pop("project.weight"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_is_refused(path: Path, forgery: str) -> None:
    forged(path, FORGERIES[forgery], table(**projection()))
    with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
        TokenTable.read(path, CONTRACT)
    assert len(str(caught.value)) < 600


def test_a_newer_version_is_not_called_damaged(path: Path) -> None:
    forged(path, to("__metadata__", "version", value="3"), table())
    with pytest.raises(CacheFormatError, match="version 3"):
        TokenTable.read(path, CONTRACT)


@pytest.mark.parametrize(
    "start",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",
        (10_000).to_bytes(8, "little") + b"[" * 10_000,
        (4).to_bytes(8, "little") + b"null",
        (20).to_bytes(8, "little") + b'{"__metadata__":[1]}',
        (8).to_bytes(8, "little") + b"\xff" * 8,
    ],
    ids=["endless", "deep", "null", "list", "no-text"],
)
def test_a_header_that_is_none_is_refused(path: Path, start: bytes) -> None:
    path.write_bytes(start)
    with pytest.raises(CorruptCacheError):
        TokenTable.read(path, CONTRACT)


def test_nonsense_with_a_right_digest_is_refused(path: Path) -> None:
    word = table().word.copy()
    word[5, 1] = np.inf
    table(word=word).write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="not finite"):
        TokenTable.read(path, CONTRACT)
    numbers: Any = tuple(range(ROWS))
    table(tokens=numbers).write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="tokens"):
        TokenTable.read(path, CONTRACT)


# In a cache


def test_a_build_stores_them_once_and_encodes_nothing_for_them(
    tmp_path: Path, loaded_teacher: Teacher
) -> None:
    (tmp_path / "words.txt").write_text("\n".join(sentences(20)), encoding="utf-8")
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)

    def built(**settings: Any) -> Any:
        return build(
            tmp_path / "words.txt", teacher=loaded_teacher, encoder=encoder, cache=tmp_path / "c", **settings
        )

    cache = built()
    with pytest.raises(InputError, match="--token-embeddings"):
        cache.token_table(cache.teacher())
    cache = built(token_embeddings=True)
    file = table_path(cache.folder, loaded_teacher.contract)
    before = file.stat()
    built(token_embeddings=True)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    embedding = loaded_teacher.model[0].model.get_input_embeddings()
    np.testing.assert_array_equal(cache.token_table(cache.teacher()).word, embedding.weight.numpy())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptCacheError):
        built(token_embeddings=True)
    # A build that does not ask for them does not need them.
    built()


def test_a_teacher_without_any_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\n", encoding="utf-8")
    encoder: Any = FakeEncoder(fake_teacher(8))
    with pytest.raises(TeacherError):
        build(
            tmp_path / "words.txt",
            teacher=encoder.teacher,
            encoder=encoder,
            cache=tmp_path / "c",
            token_embeddings=True,
        )
    assert not (tmp_path / "c").exists()
