"""Teachers: found by name, identified by digests of their files, loaded frozen with their contract."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling
from teacher_folders import edit

from embedcache.errors import TeacherError
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.load import POOLINGS, Teacher, load_teacher
from embedcache.teacher.model_folder import ModelFolder
from embedcache.teacher.resolve import resolve
from embedcache.testing import encode_texts, sentences

TEXTS = sentences(12)


@pytest.fixture
def folder(tiny_teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_teacher, tmp_path / "model"))


@pytest.fixture
def plain(plain_teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_teacher, tmp_path / "plain"))


def load(folder: Path, **settings: Any) -> Teacher:
    return load_teacher(folder, device="cpu", **settings)


def weights_digest(folder: Path) -> str:
    return ModelFolder(folder).weights_digest()[0]


def tokenizer_digest(folder: Path) -> str:
    return ModelFolder(folder).tokenizer_digest()


def architecture_digest(folder: Path) -> str:
    return ModelFolder(folder).architecture_digest()


def edit_module(folder: Path, number: int, **changes: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[number].update(changes)
    (folder / "modules.json").write_text(json.dumps(modules))


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def store(folder: Path, state: dict[str, torch.Tensor], name: str = "model.safetensors") -> None:
    save_file(state, folder / name, metadata={"format": "pt"})


def in_older_layout(folder: Path) -> Path:
    """Move the transformer into a subfolder."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(inner / path.name)
    edit_module(folder, 0, path=inner.name)
    return inner


# Found by alias, folder or hub id


class Hub:
    """Model hub with one repository; it remembers every download."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "0123abcd"
        self.folder.mkdir()
        (self.folder / "model.safetensors").touch()
        self.calls: list[dict[str, Any]] = []

    def __call__(self, model_id: str, **options: Any) -> str:
        self.calls.append({"model_id": model_id, **options})
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return a hub; the working folder holds a folder ``mpnet-base`` and a file ``file``."""
    found = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    (tmp_path / "mpnet-base").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return found


def test_an_alias_wins_over_a_folder_of_its_name(tmp_path: Path, hub: Hub) -> None:
    assert resolve("mpnet-base").alias is ALIASES["mpnet-base"]
    assert [call["model_id"] for call in hub.calls] == ["sentence-transformers/all-mpnet-base-v2"]
    for spec in ("./mpnet-base", Path("mpnet-base"), f"{tmp_path}/mpnet-base/"):
        source = resolve(spec)
        assert (source.name, source.folder.resolve()) == ("mpnet-base", tmp_path / "mpnet-base")
    assert len(hub.calls) == 1


def test_a_hub_id_is_downloaded_at_its_revision_without_code_and_pickles_only_if_need_be(hub: Hub) -> None:
    source = resolve("org/some.model@v2")
    assert (source.name, source.spec, source.revision) == ("some.model", "org/some.model@v2", "0123abcd")
    assert source.folder == hub.folder
    (call,) = hub.calls
    assert (call["model_id"], call["revision"]) == ("org/some.model", "v2")
    assert "*.safetensors" in call["allow_patterns"]
    assert not [p for p in call["allow_patterns"] if p.endswith((".py", ".bin", "*", ".pkl", ".pt"))]
    (hub.folder / "model.safetensors").unlink()
    resolve("org/model")
    assert ["pytorch_model*.bin" in call["allow_patterns"] for call in hub.calls] == [False, False, True]


@pytest.mark.parametrize("spec", ["minilm-l7", "no/such/folder", "./nothing", "../a/b", "a b/c", "", "file"])
def test_an_unknown_name_is_refused_without_asking_the_hub(spec: str, hub: Hub) -> None:
    with pytest.raises(TeacherError, match="minilm-l6"):
        resolve(spec)
    assert hub.calls == []


def test_a_failed_download_is_one_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> str:
        raise LocalEntryNotFoundError("Cannot reach the hub.\nAnd more.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for spec in ("org/model", "minilm-l6"):
        with pytest.raises(TeacherError, match=r"embedcache-distill\[minilm\][^\n]*$"):
            resolve(spec)


# Identified by digests of what its files say


def store_parts(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Store weights in two files and their index."""
    places = {}
    for number, part in enumerate((list(state)[::2], list(state)[1::2]), start=1):
        name = f"model-0000{number}-of-00002.safetensors"
        store(folder, {one: state[one] for one in part}, name)
        places |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_weights_are_the_same_in_every_container_and_place(folder: Path) -> None:
    state, digest = state_of(folder), weights_digest(folder)
    store(folder, dict(reversed(state.items())))
    assert weights_digest(folder) == digest
    (folder / "model.safetensors").unlink()
    store_parts(folder, state)
    assert weights_digest(folder) == digest
    assert load(folder).contract.weights == digest
    in_older_layout(folder)
    assert weights_digest(folder) == digest


def test_files_beside_the_loaded_weights_change_nothing(folder: Path) -> None:
    state, digest = state_of(folder), weights_digest(folder)
    other = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for name in ("model.fp16.safetensors", "model_backup.safetensors", "onnx/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        store(folder, other, name)
    torch.save(other, folder / "pytorch_model.bin")
    (folder / "2_Dense").mkdir()  # which modules.json does not name
    store(folder / "2_Dense", other)
    assert weights_digest(folder) == digest
    # Of what is left, transformers loads this one.
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert load(folder).contract.weights == digest
    torch.save(other, folder / "pytorch_model.bin")
    assert weights_digest(folder) != digest
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(TeacherError, match="no weights"):
        load(folder)


def test_any_change_of_the_weights_is_seen(folder: Path) -> None:
    state, name = state_of(folder), "pooler.dense.bias"
    bias, digests = state.pop(name), [weights_digest(folder)]
    nudged = bias.clone()
    nudged[-1] = torch.nextafter(bias[-1], torch.tensor(9.0))
    changes = [{name: value} for value in (nudged, bias.double(), bias.bfloat16(), bias[None])]
    for change in [*changes, {"x": bias}, {}]:
        store(folder, state | change)
        digests.append(weights_digest(folder))
    edit_module(folder, 2, path="2_Dense")
    (folder / "2_Dense").mkdir()
    for number in range(2):
        store(folder / "2_Dense", {"x": torch.tensor([number])})
        digests.append(weights_digest(folder))
    for number in range(2):
        store(folder, {"x": torch.tensor([number])}, "classifier.safetensors")
        digests.append(weights_digest(folder))
    assert len(set(digests)) == len(digests)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def test_a_pickle_of_tensors_is_read_and_one_of_anything_else_is_refused_and_not_run(
    plain: Path, tmp_path: Path
) -> None:
    before, state, pickled = load(plain, pooling="mean"), state_of(plain), plain / "pytorch_model.bin"
    (plain / "model.safetensors").unlink()
    torch.save(state, pickled)
    after = load(plain, pooling="mean")
    assert after.contract == before.contract
    assert np.array_equal(encode_texts(after, TEXTS), encode_texts(before, TEXTS))
    marker = tmp_path / "marker"
    for content in ([torch.zeros(1)], {"a": {"b": torch.zeros(1)}}, {"a": torch.zeros(1), "b": Evil(marker)}):
        torch.save(content, pickled)
        with pytest.raises(TeacherError, match=r"pytorch_model\.bin|safetensors"):
            weights_digest(plain)
    assert not marker.exists()
    torch.load(pickled, weights_only=False)["b"].close()
    assert marker.exists()  # so the file was dangerous


def test_the_tokenizer_is_what_makes_ids(folder: Path) -> None:
    digest = tokenizer_digest(folder)
    edit(folder / "tokenizer.json", padding={"length": 8}, truncation={"max_length": 8})
    edit(folder / "tokenizer_config.json", model_max_length=7, padding="longest", truncation_side="right")
    assert tokenizer_digest(folder) == digest
    seen = [digest]
    for name, changes in (
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}),
        ("tokenizer_config.json", {"strip_accents": True}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
    ):
        edit(folder / name, **changes)
        seen.append(tokenizer_digest(folder))
    edit(folder / "tokenizer_config.json", truncation_side=None)
    edit(folder / "tokenizer.json", truncation={"max_length": 8, "direction": "Left"})
    assert tokenizer_digest(folder) == seen[-1]
    # A vocabulary serves if there is no fast tokenizer.
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TeacherError, match="no tokenizer"):
        tokenizer_digest(folder)
    for vocabulary in ("a\nb\n", "a\nc\n"):
        (folder / "vocab.txt").write_text(vocabulary)
        seen.append(tokenizer_digest(folder))
    assert len(set(seen)) == len(seen)


def test_the_architecture_is_what_computes(folder: Path) -> None:
    digest = architecture_digest(folder)
    edit(folder / "config.json", transformers_version="9", torch_dtype="float32", use_cache=False)
    assert architecture_digest(folder) == digest
    edit(folder / "config.json", hidden_act="relu")
    assert architecture_digest(folder) != digest


# Loaded with its contract


@pytest.mark.parametrize("pooling", [None, "pooler"])
def test_the_contract_does_not_depend_on_place_or_layout(
    folder: Path, tiny_teacher: Path, pooling: str | None
) -> None:
    before = load(tiny_teacher, pooling=pooling)
    contract = before.contract
    assert (contract.normalize, contract.max_length, contract.dimension) == (True, 64, 16)
    assert (contract.prompt, contract.output, contract.truncate_dim) == ("", "embedding", None)
    in_older_layout(folder)
    after = load(folder, pooling=pooling)
    assert (after.contract, after.name, load(folder, name="named").name) == (contract, "model", "named")
    np.testing.assert_allclose(encode_texts(after, TEXTS), encode_texts(before, TEXTS), atol=1e-6)


def test_a_teacher_is_frozen_and_its_dropout_off(folder: Path) -> None:
    edit(folder / "config.json", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    teacher = load(folder)
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert np.array_equal(encode_texts(teacher, TEXTS), encode_texts(teacher, TEXTS))
    teacher.model.train()
    assert not np.array_equal(*(teacher.model(teacher.model.preprocess(TEXTS))["sentence_embedding"]
                                .detach().numpy() for _ in range(2)))  # fmt: skip


def test_every_pooling_is_computed_as_its_name_says(plain: Path) -> None:
    text = "the red cat sleeps"
    inner = load(plain, pooling="mean").model[0]
    features = inner.preprocess([text])
    with torch.no_grad():
        output = inner.model(**{k: v for k, v in features.items() if isinstance(v, torch.Tensor)})
    states = output.last_hidden_state[0].numpy()
    expected = {
        "mean": ("mean", states.mean(axis=0)),
        "cls": ("cls", states[0]),
        "cls-before-pooler": ("cls", states[0]),
        "last": ("lasttoken", states[-1]),
        "pooler": ("pooler", output.pooler_output[0].numpy()),
    }
    assert expected.keys() == POOLINGS.keys()
    for pooling, (word, vector) in expected.items():
        teacher = load(plain, pooling=pooling)
        assert teacher.contract.pooling == word
        np.testing.assert_allclose(encode_texts(teacher, [text])[0], vector, atol=1e-5)


def test_a_pooling_that_the_model_lacks_is_asked_for_or_refused(plain: Path, tmp_path: Path) -> None:
    load(plain, pooling="pooler").model.save_pretrained(str(tmp_path / "bare"), create_model_card=False)
    assert load(tmp_path / "bare", pooling="pooler").contract.pooling == "pooler"
    store(plain, {name: value for name, value in state_of(plain).items() if not name.startswith("pooler.")})
    for folder, pooling, named in (
        (tmp_path / "bare", "mean", "no pooling to replace"),
        (plain, None, r"pooling mean\|"),
        (plain, "pooler", "no pooler weights"),
    ):
        with pytest.raises(TeacherError, match=named):
            load(folder, pooling=pooling)


@pytest.mark.parametrize("place", ["modules.json", "auto_map", "0_Transformer"])
def test_code_of_the_folder_is_refused_and_not_run(folder: Path, tmp_path: Path, place: str) -> None:
    marker = tmp_path / "marker"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Module: pass\n")
    inner = in_older_layout(folder) if place == "0_Transformer" else folder
    if place == "modules.json":
        edit_module(folder, 1, type="evil.Module")
    else:
        edit(inner / "config.json", auto_map={"AutoConfig": "evil.Module"}, model_type="unheard_of")
    with pytest.raises(TeacherError, match="trust_remote_code"):
        load(folder)
    assert not marker.exists()


def test_classes_that_transformers_has_need_no_code(folder: Path, loaded_teacher: Teacher) -> None:
    edit(folder / "config.json", auto_map={"AutoModel": "own.Model"})
    teacher = load(folder)
    assert teacher.contract.code is None
    np.testing.assert_array_equal(encode_texts(teacher, TEXTS), encode_texts(loaded_teacher, TEXTS))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no model": lambda folder: shutil.rmtree(folder) or folder.mkdir(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "half the weights": lambda folder: os.truncate(folder / "model.safetensors", 4000),
    "modules.json {": lambda folder: (folder / "modules.json").write_text("{"),
    "modules.json ..": lambda folder: edit_module(folder, 0, path=".."),
    "modules.json /": lambda folder: edit_module(folder, 1, path="/"),
    "config.json []": lambda folder: (folder / "config.json").write_text("[]"),
    "missing folder": lambda folder: edit_module(folder, 0, path="0_Missing"),
    "more layers": lambda folder: edit(folder / "config.json", num_hidden_layers=3),
    "more layers below": lambda folder: edit(in_older_layout(folder) / "config.json", num_hidden_layers=3),
    "wider layers": lambda folder: edit(folder / "config.json", intermediate_size=48),
    "pooling x": lambda folder: edit(folder / "1_Pooling" / "config.json", embedding_dimension="x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_error(folder: Path, damage: str) -> None:
    DAMAGES[damage](folder)
    with pytest.raises(TeacherError, match=damage.split(" ")[0] if ".json" in damage else None):
        load(folder)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pooling": "max"}, "mean"),
        ({"max_length": 65}, "64"),
        ({"max_length": 0}, "max_length 0"),
        ({"truncate_dim": 17}, "16 dimensions"),
        ({"truncate_dim": 0}, "truncate_dim 0"),
        ({"device": "abacus"}, "abacus"),
        ({"prompt_name": "query"}, "no prompts"),
        ({"task": "query"}, "takes no task"),
        ({"arguments": ["model.dtype=float32"]}, "use compute_dtype"),
        ({"arguments": ["model.attn_implementation=eager"]}, "identity"),
        ({"arguments": ["add_eos_token=true"]}, "tokenizer.K=V"),
        ({"name": "a/b"}, "TeacherOptions.name"),
    ],
    ids=str,
)
def test_settings_that_the_teacher_cannot_have_are_refused(
    tiny_teacher: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(TeacherError, match=named):
        load_teacher(tiny_teacher, **settings)


def vectors_with(folder: Path, settings: dict[str, Any]) -> np.ndarray:
    """Vectors by sentence-transformers itself."""
    model = SentenceTransformer(str(folder), device="cpu")
    if "pooling" in settings:
        model[1] = Pooling(16, settings["pooling"])
    if "normalize" in settings:
        del model[2]
    model.max_seq_length = settings.get("max_length", 64)
    found = model.encode(TEXTS, prompt=settings.get("prompt"), truncate_dim=settings.get("truncate_dim"))
    return np.asarray(found)


@pytest.mark.parametrize(
    ("settings", "differences"),
    [
        ({"pooling": "cls"}, {"pooling": ("mean", "cls")}),
        ({"max_length": 6}, {"max_length": (64, 6)}),
        ({"prompt": "the bird: "}, {"prompt": ("", "the bird: ")}),
        ({"truncate_dim": 5}, {"truncate_dim": (None, 5), "dimension": (16, 5)}),
        ({"normalize": False}, {"normalize": (True, False)}),
    ],
    ids=["pooling", "max_length", "prompt", "truncate_dim", "normalize"],
)
def test_a_setting_changes_the_vectors_and_its_field_of_the_contract(
    folder: Path, loaded_teacher: Teacher, settings: dict[str, Any], differences: dict[str, Any]
) -> None:
    changed = load(folder, **settings)
    assert loaded_teacher.contract.differences(changed.contract) == differences
    found = encode_texts(changed, TEXTS)
    np.testing.assert_allclose(found, vectors_with(folder, settings), atol=1e-5)
    usual = vectors_with(folder, {})[:, : found.shape[1]]
    assert np.allclose(found, usual, atol=1e-2) == ("truncate_dim" in settings)


def test_a_models_own_prompt_is_the_default(folder: Path) -> None:
    edit(folder / "config_sentence_transformers.json", prompts={"q": "query: "}, default_prompt_name="q")
    prompts = [load(folder, prompt=prompt).contract.prompt for prompt in (None, "", "x ")]
    assert prompts == ["query: ", "", "x "]


def test_modules_after_the_pooling_are_part_of_the_contract(plain: Path, tmp_path: Path) -> None:
    model = load(plain, pooling="mean").model
    model.append(Dense(16, 6))
    model.max_seq_length = 9
    model.save_pretrained(str(tmp_path / "dense"), create_model_card=False)
    teacher = load(tmp_path / "dense")
    assert (teacher.dimension, teacher.contract.max_length) == (6, 9)
    assert json.loads(teacher.contract.modules)[0]["type"] == "Dense"
    bare = torch.from_numpy(encode_texts(load(plain, pooling="mean", max_length=9), TEXTS))
    with torch.no_grad():
        expected = teacher.model[-1]({"sentence_embedding": bare})["sentence_embedding"].numpy()
    found = encode_texts(teacher, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    scaled = encode_texts(load(tmp_path / "dense", normalize=True), TEXTS)
    np.testing.assert_allclose(scaled, found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-6)
