"""Digests say what a model is: the same for the same tensors in other files, another for any change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from embedcache.errors import TeacherError
from embedcache.teacher.model_folder import (
    architecture_digest,
    tokenizer_digest,
    weight_files,
    weights_digest,
)

State = dict[str, torch.Tensor]


@pytest.fixture
def folder(plain_teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_teacher, tmp_path / "model"))


def state_of(folder: Path) -> State:
    return load_file(folder / "model.safetensors")


def store(folder: Path, state: State) -> None:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}))


def test_the_container_does_not_matter(folder: Path) -> None:
    state = state_of(folder)
    digest, names = weights_digest(folder)
    assert names == sorted(f"./{name}" for name in state)
    store(folder, dict(reversed(state.items())))
    assert weights_digest(folder)[0] == digest

    (folder / "model.safetensors").unlink()
    for number, part in enumerate((list(state)[::2], list(state)[1::2]), start=1):
        save_file({name: state[name] for name in part}, folder / f"model-0000{number}-of-00002.safetensors")
    assert weights_digest(folder)[0] == digest

    for path in folder.glob("*.safetensors"):
        path.unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert weights_digest(folder)[0] == digest


def test_safetensors_are_preferred_to_pickles(folder: Path) -> None:
    digest, _ = weights_digest(folder)
    torch.save({"other": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert weights_digest(folder)[0] == digest


def smallest_change(state: State) -> State:
    name = "encoder.layer.1.output.dense.bias"
    changed = state[name].clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(9.0))
    return {**state, name: changed}


@pytest.mark.parametrize(
    "change",
    [
        smallest_change,
        lambda state: {("x." + name if "pooler" in name else name): value for name, value in state.items()},
        lambda state: {name: value for name, value in state.items() if "pooler" not in name},
        lambda state: {name: value.double() if "pooler" in name else value for name, value in state.items()},
        lambda state: {
            name: value.reshape(1, *value.shape) if "pooler" in name else value
            for name, value in state.items()
        },
    ],
    ids=["one bit", "name", "missing", "dtype", "shape"],
)
def test_any_change_of_the_tensors_is_seen(folder: Path, change: Any) -> None:
    digest, _ = weights_digest(folder)
    store(folder, change(state_of(folder)))
    assert weights_digest(folder)[0] != digest


def test_weights_of_later_modules_count_and_exports_do_not(folder: Path) -> None:
    digest, _ = weights_digest(folder)
    for name in ("onnx", "openvino"):
        (folder / name).mkdir()
        save_file({"x": torch.zeros(1)}, folder / name / "model.safetensors")
    assert weights_digest(folder)[0] == digest
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": torch.zeros(1)}, folder / "2_Dense" / "model.safetensors")
    assert [path.parent.name for path in weight_files(folder)] == ["model", "2_Dense"]
    assert weights_digest(folder)[0] != digest


def test_every_dtype_has_bytes(folder: Path) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)
    store(folder, {str(kind): torch.ones(3).to(kind) for kind in kinds} | {"scalar": torch.tensor(1.0)})
    digest, names = weights_digest(folder)
    assert len(names) == 6
    store(folder, {str(kind): torch.ones(3).to(kind) for kind in kinds} | {"scalar": torch.tensor(2.0)})
    assert weights_digest(folder)[0] != digest


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_damaged_safetensors_are_found(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TeacherError, match="safetensors"):
        weights_digest(folder)
    path.unlink()
    with pytest.raises(TeacherError, match="no weights"):
        weights_digest(folder)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def test_a_pickle_with_code_in_it_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1), "b": Evil(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(TeacherError, match="safetensors"):
        weights_digest(folder)
    assert not marker.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)["b"].close()
    assert marker.exists()  # so the file above was dangerous


@pytest.mark.parametrize(
    "content",
    [[torch.zeros(1)], {"state": {"a": torch.zeros(1)}}, {"epoch": 3}, b"", b"PK\x03\x04" + bytes(50)],
)
def test_a_pickle_of_other_things_is_refused(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(TeacherError, match="more than plain tensors or is damaged"):
        weights_digest(folder)


def test_the_tokenizer_is_what_makes_ids(folder: Path) -> None:
    digest = tokenizer_digest(folder)
    edit(folder / "tokenizer.json", padding={"length": 8}, truncation={"max_length": 8})
    edit(folder / "tokenizer_config.json", model_max_length=7, name_or_path="elsewhere", padding="longest")
    assert tokenizer_digest(folder) == digest
    seen = {digest}
    for name, changes in (
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}),
        ("tokenizer_config.json", {"strip_accents": True}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
    ):
        edit(folder / name, **changes)
        seen.add(tokenizer_digest(folder))
    assert len(seen) == 4


def test_a_vocabulary_file_serves_where_there_is_no_fast_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TeacherError, match="no tokenizer"):
        tokenizer_digest(folder)
    (folder / "vocab.txt").write_text("a\nb\n")
    digest = tokenizer_digest(folder)
    (folder / "vocab.txt").write_text("a\nc\n")
    assert tokenizer_digest(folder) != digest


def test_the_architecture_is_what_computes(folder: Path) -> None:
    digest = architecture_digest(folder)
    edit(
        folder / "config.json",
        transformers_version="9.9",
        torch_dtype="float32",
        _name_or_path="x",
        use_cache=False,
    )
    assert architecture_digest(folder) == digest
    edit(folder / "config.json", hidden_act="relu")
    assert architecture_digest(folder) != digest


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(TeacherError, match=r"config\.json"):
        architecture_digest(folder)


def test_the_side_a_text_is_cut_on_counts_and_the_usual_one_needs_no_mention(folder: Path) -> None:
    digest = tokenizer_digest(folder)
    edit(folder / "tokenizer_config.json", truncation_side="right")
    assert tokenizer_digest(folder) == digest
    edit(folder / "tokenizer_config.json", truncation_side="left")
    left = tokenizer_digest(folder)
    assert left != digest
    edit(folder / "tokenizer_config.json", truncation_side=None)
    edit(folder / "tokenizer.json", truncation={"max_length": 8, "direction": "Right"})
    assert tokenizer_digest(folder) == digest
    edit(folder / "tokenizer.json", truncation={"max_length": 8, "direction": "Left"})
    assert tokenizer_digest(folder) == left


def test_a_transformer_in_a_folder_of_its_own_has_the_same_weights(folder: Path) -> None:
    digest, names = weights_digest(folder)
    (folder / "0_Transformer").mkdir()
    (folder / "model.safetensors").rename(folder / "0_Transformer" / "model.safetensors")
    assert weights_digest(folder, "0_Transformer") == (digest, names)
