"""Token embeddings: what is taken from a model, what the file holds, and what is refused."""

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
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn

from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.load import Teacher, quiet_transformers
from embedcache.teacher.resolve import ModelSource
from embedcache.testing import fake_teacher
from embedcache.token_table import TABLE_FILE, TokenTable

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
    found = TokenTable.from_teacher(teacher_of(model))
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
    found = TokenTable.from_teacher(teacher_of(model))
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
    found = TokenTable.from_teacher(teacher_of(model))
    assert (found.norm_weight, found.norm_bias, found.norm_eps, found.type_row) == (None, None, None, None)
    np.testing.assert_array_equal(found.word, model.get_input_embeddings().weight.detach().numpy())
    np.testing.assert_array_equal(found.block(), found.word)


def test_half_precision_is_widened_without_loss_and_the_model_is_left_alone() -> None:
    model: Any = model_of("BertConfig", SMALL).to(torch.bfloat16)
    found = TokenTable.from_teacher(teacher_of(model))
    assert found.word.dtype == np.float32
    assert torch.equal(torch.from_numpy(found.word).to(torch.bfloat16), model.get_input_embeddings().weight)
    found.word[:] = 0
    assert model.get_input_embeddings().weight.abs().sum() > 0


def test_ids_without_a_token_and_tokens_without_a_row() -> None:
    model = model_of("BertConfig", SMALL)
    found = TokenTable.from_teacher(teacher_of(model, {"b": 2, "a": 2, "c": 0, "far": 31, "never": -1}))
    assert found.tokens == ("c", "", "a", *[""] * 27)


def test_a_real_teacher(loaded_teacher: Teacher) -> None:
    found = TokenTable.from_teacher(loaded_teacher)
    assert found.tokens[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ids = loaded_teacher.model.tokenizer.convert_tokens_to_ids(["cat", "##a", "[MASK]"])
    assert found.rows_of(["cat", "##a", "[MASK]"]).tolist() == ids


@pytest.mark.parametrize("inner", [None, nn.Linear(2, 2)], ids=["static", "no-transformer"])
def test_a_teacher_without_token_embeddings_is_refused(inner: nn.Module | None) -> None:
    with pytest.raises(TeacherError, match=r"some has no table .*needs a transformer"):
        TokenTable.from_teacher(teacher_of(inner))
    with pytest.raises(TeacherError, match="no table of token embeddings"):
        TokenTable.from_teacher(fake_teacher(16))


def test_weights_that_are_not_finite_are_refused() -> None:
    model: Any = model_of("BertConfig", SMALL)
    with torch.no_grad():
        model.get_input_embeddings().weight[4, 2] = float("nan")
    with pytest.raises(TeacherError, match="not finite: copy the model again"):
        TokenTable.from_teacher(teacher_of(model))


# The table


def test_rows_are_found_by_token() -> None:
    rows = table().rows_of(["ü", "[PAD]", "a", "ü"])
    # Of "a", which stands twice, the first row counts.
    assert rows.tolist() == [3, 0, 1, 3]
    assert rows.dtype == np.int64
    assert table().rows_of([]).shape == (0,)


def test_tokens_that_are_not_there_are_named_and_counted() -> None:
    with pytest.raises(InputError, match=r"6 of 7 tokens .* \('t0', 't1', 't2', 't3', 't4', …\): take"):
        table().rows_of(["a", *(f"t{i}" for i in range(6))])
    # An id without a token is no token.
    with pytest.raises(InputError, match=r"1 of 1 tokens are not among the 7 .*\(''\)"):
        table().rows_of([""])


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
    assert wide.block().shape == wide.words().shape == (ROWS, 6)
    assert wide.block().dtype == wide.words().dtype == np.float32
    assert plain.words() is plain.word


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**projection(), "project_bias": None}, "project_weight and project_bias go together"),
        ({**projection(), "project_weight": None}, "project_weight and project_bias go together"),
        (
            {**projection(), "project_bias": np.zeros(5, np.float32)},
            r"\(6, 4\) and project_bias \(5,\), expected",
        ),
        ({"tokens": TOKENS[1:]}, "6 tokens"),
        ({"word": np.zeros((0, WIDTH), np.float32), "tokens": ()}, "at least one"),
        ({"word": np.zeros(ROWS, np.float32)}, "expected"),
        ({"type_row": np.zeros(WIDTH + 1, np.float32)}, r"type_row has shape \(5,\), expected .*\(4,\)"),
        ({"norm_bias": np.zeros((1, WIDTH), np.float32)}, "norm_bias has shape"),
        ({"norm_eps": None}, "go together"),
        ({"norm_weight": None, "norm_eps": None}, "go together"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        table(**changes)


# The file


def same(one: TokenTable, other: TokenTable) -> bool:
    """Return whether two tables are the same to the bit."""
    parts = ("word", "norm_weight", "norm_bias", "type_row", "project_weight", "project_bias")
    pairs = [(getattr(one, name), getattr(other, name)) for name in parts]
    alike = all((a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in pairs)
    return alike and (one.tokens, one.norm_eps) == (other.tokens, other.norm_eps)


PARTIAL = {
    "whole": {},
    "no-type": {"type_row": None},
    "no-bias": {"norm_bias": None},
    "no-norm": {"norm_weight": None, "norm_bias": None, "norm_eps": None},
    "words-alone": {"norm_weight": None, "norm_bias": None, "norm_eps": None, "type_row": None},
    "projection": projection(),
    "projection-alone": {
        "norm_weight": None,
        "norm_bias": None,
        "norm_eps": None,
        "type_row": None,
        **projection(1),
    },
}


@pytest.mark.parametrize("parts", PARTIAL)
def test_what_is_written_is_read(path: Path, parts: str) -> None:
    written = table(**PARTIAL[parts])
    written.write(path, CONTRACT)
    data = path.read_bytes()
    found = TokenTable.read(path, CONTRACT)
    assert same(found, written)
    assert same(TokenTable.read(path, CONTRACT.id), written)
    # It can be given to torch, which wants to write, and the file stays as it is.
    torch.from_numpy(found.word).zero_()
    assert path.read_bytes() == data
    found.write(path.with_name("again"), CONTRACT)
    assert path.with_name("again").read_bytes() != data
    written.write(path.with_name("twice"), CONTRACT)
    assert path.with_name("twice").read_bytes() == data


def test_a_view_of_another_layout_gives_the_same_bytes(path: Path) -> None:
    written = table()
    written.write(path, CONTRACT)
    turned = replace(written, word=np.asfortranarray(written.word))
    turned.write(path.with_name("turned"), CONTRACT)
    assert path.with_name("turned").read_bytes() == path.read_bytes()


def test_any_reader_of_safetensors_reads_it(path: Path) -> None:
    written = table()
    written.write(path, CONTRACT)
    found = load_file(path)
    assert set(found) == {"word", "tokens", "norm.weight", "norm.bias", "type"}
    np.testing.assert_array_equal(found["word"], written.word)
    np.testing.assert_array_equal(found["type"], written.type_row)
    assert json.loads(found["tokens"].tobytes()) == list(TOKENS)
    with safe_open(path, "np") as handle:
        metadata = handle.metadata()
    assert metadata["contract"] == CONTRACT.id
    assert (metadata["norm_eps"], metadata["version"]) == ("1e-05", "1")
    assert len(metadata["sha256"]) == 64


def test_the_bytes_are_those_of_version_one(path: Path) -> None:
    word = np.arange(6, dtype=np.float32).reshape(3, 2)
    vector = np.array([0.5, 2], np.float32)
    TokenTable(word, ("a", "é", ""), vector, -vector, 1e-12, vector + 1).write(path, CONTRACT)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == GOLDEN


GOLDEN = "26d1f8dd53cade482aa182bb6fed507aff931fba00faea53b1ef608d8fb58925"


def test_a_table_with_a_projection_is_of_version_two(path: Path) -> None:
    """Readers of version 1 do not call it damaged."""
    table(**projection()).write(path, CONTRACT)
    with safe_open(path, "np") as handle:
        assert handle.metadata()["version"] == "2"
        assert handle.get_slice("project.weight").get_shape() == [6, WIDTH]
    table().write(path, CONTRACT)
    with safe_open(path, "np") as handle:
        assert handle.metadata()["version"] == "1"


@pytest.mark.parametrize("parts", ["whole", "projection"])
def test_any_changed_byte_is_found(path: Path, parts: str) -> None:
    table(**PARTIAL[parts]).write(path, CONTRACT)
    data = path.read_bytes()
    for place in range(len(data)):
        # The second bit makes a later version of version 1.
        path.write_bytes(data[:place] + bytes([data[place] ^ 2]) + data[place + 1 :])
        with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
            TokenTable.read(path, CONTRACT)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 100, -1, -40])
def test_a_file_cut_short_is_refused(path: Path, cut: int) -> None:
    table().write(path, CONTRACT)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    with pytest.raises(CorruptCacheError, match=r"is damaged \(.*: 'embedcache repair' makes it anew"):
        TokenTable.read(path, CONTRACT)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptCacheError, match="its header tells of"):
        TokenTable.read(path, CONTRACT)


def test_a_missing_file_and_another_teachers_are_refused(path: Path) -> None:
    with pytest.raises(CorruptCacheError, match="No such file"):
        TokenTable.read(path, CONTRACT)
    table().write(path, OTHER)
    with pytest.raises(CorruptCacheError, match=f"another teacher, '{OTHER.id[:12]}'"):
        TokenTable.read(path, CONTRACT)


def test_a_link_is_not_followed(path: Path) -> None:
    table().write(path.with_name("elsewhere"), CONTRACT)
    path.symlink_to("elsewhere")
    with pytest.raises(CorruptCacheError, match="symbolic link"):
        TokenTable.read(path, CONTRACT)


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="choose another folder"):
        table().write(tmp_path / "file" / TABLE_FILE, CONTRACT)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Files that were made to harm: their digests are right


def forged(
    path: Path,
    change: Callable[[dict[str, Any]], object],
    data: bytes | None = None,
    source: TokenTable | None = None,
) -> None:
    """Write a file with another header, or other tensors, and the digest that goes with them."""
    (source or table()).write(path, CONTRACT)
    whole = path.read_bytes()
    count = int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8 : 8 + count]), data if data is not None else whole[8 + count :]
    change(header)
    header["__metadata__"].pop("sha256", None)
    header["__metadata__"]["sha256"] = hashlib.sha256(canonical_json(header) + tensors).hexdigest()
    spelled = canonical_json(header)
    spelled += b" " * (-len(spelled) % 8)
    path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + tensors)


def test_forging_as_such_works(path: Path) -> None:
    forged(path, lambda header: None)
    assert same(TokenTable.read(path, CONTRACT), table())


def _set(*keys: str) -> Callable[[object], Callable[[dict[str, Any]], object]]:
    def to(value: object) -> Callable[[dict[str, Any]], object]:
        def change(header: dict[str, Any]) -> None:
            for key in keys[:-1]:
                header = header[key]
            header[keys[-1]] = value

        return change

    return to


FORGERIES = {
    "rows": _set("word", "shape")([ROWS + 1, WIDTH]),
    "swapped": _set("word", "shape")([WIDTH, ROWS]),
    "flat": _set("word", "shape")([ROWS * WIDTH]),
    "negative": _set("word", "shape")([-ROWS, -WIDTH]),
    "none": _set("word", "shape")([0, WIDTH]),
    "bool": _set("word", "shape")([True, WIDTH]),
    "float": _set("word", "shape")([7.0, 4.0]),
    "huge": _set("word", "shape")([10**12, 10**12]),
    "absurd": _set("word", "shape")([10**4000, 10**4000]),
    "many-tokens": _set("tokens", "shape")([10**9]),
    "norm-shape": _set("norm.weight", "shape")([WIDTH + 1]),
    "overlap": _set("type", "data_offsets")([0, 16]),
    "outside": _set("word", "data_offsets")([0, 10**15]),
    "dtype": _set("word", "dtype")("F64"),
    "stranger": _set("stranger")({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "more": _set("__metadata__", "format")("pt"),
    "no-metadata": lambda header: header.update(__metadata__={}),
    "list": _set("word")([1, 2]),
    "no-weight": lambda header: header.pop("norm.weight"),
    "no-eps": lambda header: header["__metadata__"].pop("norm_eps"),
    "eps-nan": _set("__metadata__", "norm_eps")("nan"),
    "eps-negative": _set("__metadata__", "norm_eps")("-1.0"),
    "eps-text": _set("__metadata__", "norm_eps")("little"),
    "eps-spelling": _set("__metadata__", "norm_eps")("0.00001"),
    "contract": _set("__metadata__", "contract")(7),
    "version": _set("__metadata__", "version")("0"),
    "no-version": lambda header: header["__metadata__"].pop("version"),
}


FORGED_PROJECTIONS = {
    "no-bias": lambda header: header.pop("project.bias"),
    "no-weight": lambda header: header.pop("project.weight"),
    "bias-shape": _set("project.bias", "shape")([WIDTH]),
    "bias-flat": _set("project.bias", "shape")([]),
    "bias-text": _set("project.bias", "shape")(["6"]),
    "bias-none": _set("project.bias", "shape")([0]),
    "weight-shape": _set("project.weight", "shape")([WIDTH, 6]),
    "absurd": _set("project.bias", "shape")([10**4000]),
    "list": _set("project.bias")([1]),
    "version": _set("__metadata__", "version")("1"),
}


@pytest.mark.parametrize("forgery", FORGED_PROJECTIONS)
def test_a_forged_projection_is_refused(path: Path, forgery: str) -> None:
    forged(path, FORGED_PROJECTIONS[forgery], source=table(**projection()))
    with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
        TokenTable.read(path, CONTRACT)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_is_refused(path: Path, forgery: str) -> None:
    forged(path, FORGERIES[forgery])
    with pytest.raises(CorruptCacheError, match=TABLE_FILE) as caught:
        TokenTable.read(path, CONTRACT)
    assert len(str(caught.value)) < 600


def test_a_newer_version_is_not_called_damaged(path: Path) -> None:
    forged(path, _set("__metadata__", "version")("3"))
    with pytest.raises(CacheFormatError, match=r"version 3, this embedcache reads .* version 2: upgrade"):
        TokenTable.read(path, CONTRACT)


@pytest.mark.parametrize(
    "start",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",
        (1 << 20).to_bytes(8, "little") + b" " * (1 << 20),
        (10_000).to_bytes(8, "little") + b"[" * 10_000,
        (4).to_bytes(8, "little") + b"null",
        (2).to_bytes(8, "little") + b"{}",
        (20).to_bytes(8, "little") + b'{"__metadata__":[1]}',
        (8).to_bytes(8, "little") + b"\xff" * 8,
    ],
    ids=["endless", "large", "deep", "null", "empty", "list", "no-text"],
)
def test_a_header_that_is_none_is_refused(path: Path, start: bytes) -> None:
    path.write_bytes(start)
    with pytest.raises(CorruptCacheError, match=r"is damaged \("):
        TokenTable.read(path, CONTRACT)


@pytest.mark.parametrize("tokens", [["a"] * (ROWS - 1), [1] * ROWS, {"a": 1}, [["a"]] * ROWS])
def test_tokens_that_are_none_are_refused(path: Path, tokens: object) -> None:
    table().write(path, CONTRACT)
    data, spelled = path.read_bytes(), canonical_json(tokens)
    old = len(canonical_json(list(TOKENS)))
    begin = 8 + int.from_bytes(data[:8], "little")
    first = len(data) - begin - old

    def change(header: dict[str, Any]) -> None:
        header["tokens"].update(shape=[len(spelled)], data_offsets=[first, first + len(spelled)])

    forged(path, change, data[begin : begin + first] + spelled)
    with pytest.raises(CorruptCacheError, match="its tokens are no list of 7 texts"):
        TokenTable.read(path, CONTRACT)


def test_numbers_that_are_not_finite_are_refused(path: Path) -> None:
    word = table().word.copy()
    word[5, 1] = np.inf
    table(word=word).write(path, CONTRACT)
    with pytest.raises(CorruptCacheError, match="word holds numbers that are not finite"):
        TokenTable.read(path, CONTRACT)


def test_more_tokens_than_a_reader_takes_are_not_written(path: Path) -> None:
    word = np.zeros((13, 1), np.float32)
    with pytest.raises(InputError, match="its vocabulary cannot be kept"):
        TokenTable(word, ("x" * (1 << 20),) * 13).write(path, CONTRACT)
    assert not path.exists()
