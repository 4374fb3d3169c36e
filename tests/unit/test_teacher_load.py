"""Loading a teacher: what determines its vectors is in the contract, and what is not known is refused."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embedcache.errors import TeacherError
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.testing import sentences, tiny_encoder

TEXTS = sentences(12)


@pytest.fixture
def folder(tiny_teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_teacher, tmp_path / "model"))


@pytest.fixture
def plain(plain_teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain_teacher, tmp_path / "plain"))


def load(folder: Path, **settings: Any) -> Teacher:
    return load_teacher(folder, device="cpu", **settings)


def vectors(teacher: Teacher, texts: list[str] = TEXTS) -> np.ndarray:
    return Encoder(teacher, compute_dtype="float32").encode(texts).vectors


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}))


def test_the_contract_of_a_sentence_transformers_folder(tiny_teacher: Path, loaded_teacher: Teacher) -> None:
    contract = loaded_teacher.contract
    assert (contract.pooling, contract.normalize, contract.modules) == ("mean", True, "")
    assert (contract.max_length, contract.dimension, contract.truncate_dim) == (64, 16, None)
    assert (contract.prompt, contract.output) == ("", "embedding")
    assert loaded_teacher.name == "tiny"
    assert loaded_teacher.folder == tiny_teacher
    assert loaded_teacher.dimension == 16


def test_the_contract_does_not_depend_on_where_the_folder_lies(folder: Path, loaded_teacher: Teacher) -> None:
    assert load(folder).contract == loaded_teacher.contract
    assert load(folder).name == "model"
    assert load(folder, name="named").name == "named"


def test_other_weights_are_another_teacher(tmp_path: Path, loaded_teacher: Teacher) -> None:
    other = load(tiny_encoder(tmp_path / "tiny", seed=1)).contract
    assert set(loaded_teacher.contract.differences(other)) == {"weights"}


def test_a_teacher_is_frozen(folder: Path) -> None:
    model = load(folder).model
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_dropout_is_off(folder: Path) -> None:
    edit(folder / "config.json", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    teacher = load(folder)
    assert np.array_equal(vectors(teacher), vectors(teacher))
    assert np.array_equal(teacher.model.encode(TEXTS), teacher.model.encode(TEXTS))
    teacher.model.train()
    with torch.no_grad():
        noisy = [teacher.model(teacher.model.preprocess(TEXTS))["sentence_embedding"] for _ in range(2)]
    assert not torch.equal(*noisy)  # so dropout was there to be switched off


def test_a_plain_folder_has_to_be_told_its_pooling(plain: Path) -> None:
    with pytest.raises(
        TeacherError, match=r"plain transformers folder.*--pooling mean\|cls\|cls-before-pooler\|pooler\|last"
    ):
        load(plain)


def test_every_pooling_is_another_teacher_with_other_vectors(plain: Path) -> None:
    found = {pooling: load(plain, pooling=pooling) for pooling in ("mean", "cls", "pooler", "last")}
    assert {name: teacher.contract.pooling for name, teacher in found.items()} == {
        "mean": "mean",
        "cls": "cls",
        "pooler": "pooler",
        "last": "lasttoken",
    }
    for one, two in combinations(found.values(), 2):
        assert one.contract.id != two.contract.id
        assert set(one.contract.differences(two.contract)) == {"pooling"}
        assert not np.allclose(vectors(one), vectors(two), atol=0.1)


def test_pooling_is_computed_as_its_name_says(plain: Path) -> None:
    text = "the red cat sleeps"
    inner = load(plain, pooling="mean").model[0]
    with torch.no_grad():
        output = inner.model(
            **{k: v for k, v in inner.preprocess([text]).items() if isinstance(v, torch.Tensor)}
        )
    states = output.last_hidden_state[0].numpy()
    expected = {
        "mean": states.mean(axis=0),
        "cls": states[0],
        "cls-before-pooler": states[0],
        "last": states[-1],
        "pooler": output.pooler_output[0].numpy(),
    }
    for pooling, vector in expected.items():
        np.testing.assert_allclose(vectors(load(plain, pooling=pooling), [text])[0], vector, atol=1e-5)


def test_cls_before_the_pooler_is_cls(plain: Path) -> None:
    assert load(plain, pooling="cls-before-pooler").contract == load(plain, pooling="cls").contract


def test_an_unknown_pooling_lists_the_known(plain: Path) -> None:
    with pytest.raises(TeacherError, match="unknown pooling 'max'"):
        load(plain, pooling="max")


def test_the_pooling_of_a_sentence_transformers_folder_can_be_overridden(
    folder: Path, loaded_teacher: Teacher
) -> None:
    changed = load(folder, pooling="cls")
    assert loaded_teacher.contract.differences(changed.contract) == {"pooling": ("mean", "cls")}
    assert not np.allclose(vectors(changed), vectors(loaded_teacher), atol=0.05)


def test_a_pooler_without_weights_is_refused(plain: Path) -> None:
    state = load_file(plain / "model.safetensors")
    kept = {name: value for name, value in state.items() if not name.startswith("pooler.")}
    save_file(kept, plain / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TeacherError, match="no pooler weights, so --pooling pooler would use random ones"):
        load(plain, pooling="pooler")
    assert load(plain, pooling="mean").contract.pooling == "mean"


def test_classes_of_the_folder_itself_are_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Module: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "evil.Module"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(
        TeacherError, match=r"code of its own \(evil\.Module\); nothing was run.*--trust-remote-code"
    ):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_an_auto_map_is_refused_and_not_run(plain: Path, tmp_path: Path, pooling: str) -> None:
    marker = tmp_path / "marker"
    (plain / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass EvilModel: pass\n")
    edit(plain / "config.json", auto_map={"AutoModel": "modeling_evil.EvilModel"})
    with pytest.raises(TeacherError, match=r"config\.json auto_map"):
        load(plain, pooling=pooling)
    assert not marker.exists()


@pytest.mark.parametrize("content", ["{", '"text"', "[1]"])
def test_a_damaged_list_of_modules_is_named(folder: Path, content: str) -> None:
    (folder / "modules.json").write_text(content)
    with pytest.raises(TeacherError, match=r"modules\.json is n.*copy the model again"):
        load(folder)


@pytest.mark.parametrize("layers", [1, 6])
def test_weights_that_lack_a_layer_of_the_config_are_refused(tmp_path: Path, layers: int) -> None:
    folder = tiny_encoder(tmp_path / "model", plain=True, layers=layers)
    edit(folder / "config.json", num_hidden_layers=layers + 1)
    with pytest.raises(
        TeacherError, match=rf"no weights for 16 parameters \(first: encoder\.layer\.{layers}\."
    ):
        load(folder, pooling="mean")


def test_weights_of_other_shapes_than_the_config_are_refused(plain: Path) -> None:
    edit(plain / "config.json", intermediate_size=48)
    with pytest.raises(TeacherError, match="cannot load"):
        load(plain, pooling="mean")


def test_weights_in_pickled_form_are_loaded_as_the_same_teacher(plain: Path) -> None:
    before = load(plain, pooling="mean")
    state = load_file(plain / "model.safetensors")
    (plain / "model.safetensors").unlink()
    torch.save(state, plain / "pytorch_model.bin")
    after = load(plain, pooling="mean")
    assert after.contract == before.contract
    assert np.array_equal(vectors(after), vectors(before))


def test_what_is_no_model_folder_is_refused(tmp_path: Path, plain: Path) -> None:
    with pytest.raises(TeacherError, match=r"no model folder: it has neither config\.json nor modules\.json"):
        load(tmp_path)
    (plain / "model.safetensors").unlink()
    with pytest.raises(TeacherError, match="no weights in"):
        load(plain, pooling="mean")


def test_max_length_cuts_and_is_part_of_the_contract(folder: Path, loaded_teacher: Teacher) -> None:
    short = load(folder, max_length=6)
    assert loaded_teacher.contract.differences(short.contract) == {"max_length": (64, 6)}
    texts = ["the red cat", "the red cat sleeps under a small old house today"]
    same, cut = (np.abs(vectors(short, [t]) - vectors(loaded_teacher, [t])).max() for t in texts)
    assert same < 1e-6
    assert cut > 1e-2


@pytest.mark.parametrize(
    ("length", "message"), [(65, "has positions for 64 tokens only"), (0, "at least 1 token")]
)
def test_a_max_length_out_of_range_is_refused(folder: Path, length: int, message: str) -> None:
    with pytest.raises(TeacherError, match=f"--max-length {length}: .*{message}"):
        load(folder, max_length=length)


def test_a_prompt_changes_vectors_and_contract(folder: Path, loaded_teacher: Teacher) -> None:
    prompted = load(folder, prompt="the bird: ")
    assert loaded_teacher.contract.differences(prompted.contract) == {"prompt": ("", "the bird: ")}
    assert not np.allclose(vectors(prompted), vectors(loaded_teacher), atol=0.01)
    by_hand = vectors(loaded_teacher, ["the bird: " + text for text in TEXTS])
    np.testing.assert_allclose(vectors(prompted), by_hand, atol=1e-5)


def test_the_models_own_default_prompt_is_used_unless_another_is_given(folder: Path) -> None:
    edit(folder / "config_sentence_transformers.json", prompts={"q": "query: "}, default_prompt_name="q")
    teacher = load(folder)
    assert teacher.contract.prompt == "query: "
    np.testing.assert_allclose(vectors(teacher), teacher.model.encode(TEXTS), atol=1e-5)
    assert load(folder, prompt="").contract.prompt == ""
    assert load(folder, prompt="x ").contract.prompt == "x "


def test_truncated_dimensions_are_the_leading_ones(folder: Path, loaded_teacher: Teacher) -> None:
    teacher = load(folder, truncate_dim=5)
    differences = loaded_teacher.contract.differences(teacher.contract)
    assert differences == {"truncate_dim": (None, 5), "dimension": (16, 5)}
    np.testing.assert_allclose(vectors(teacher), vectors(loaded_teacher)[:, :5], atol=1e-6)
    np.testing.assert_allclose(vectors(teacher), teacher.model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("dimension", [0, 17, -1])
def test_a_dimension_the_teacher_does_not_have_is_refused(folder: Path, dimension: int) -> None:
    with pytest.raises(TeacherError, match=f"--truncate-dim {dimension}: model gives 16 dimensions"):
        load(folder, truncate_dim=dimension)


def test_normalisation_can_be_put_on_and_taken_off(folder: Path, plain: Path) -> None:
    raw = load(folder, normalize=False)
    assert not raw.contract.normalize
    lengths = np.linalg.norm(vectors(raw), axis=1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=0.1)
    np.testing.assert_allclose(vectors(raw) / lengths, vectors(load(folder)), atol=1e-6)
    assert load(folder, normalize=True).contract == load(folder).contract

    unit = load(plain, pooling="mean", normalize=True)
    assert unit.contract.normalize
    assert not load(plain, pooling="mean").contract.normalize
    np.testing.assert_allclose(np.linalg.norm(vectors(unit), axis=1), 1, atol=1e-6)


def test_a_dense_layer_after_the_pooling_is_part_of_the_contract(plain: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense

    model = load(plain, pooling="mean").model
    model.append(Dense(16, 6))
    model.save_pretrained(str(tmp_path / "dense"), create_model_card=False)
    teacher = load(tmp_path / "dense")
    assert teacher.dimension == 6
    assert json.loads(teacher.contract.modules)[0]["type"] == "Dense"
    np.testing.assert_allclose(vectors(teacher), teacher.model.encode(TEXTS), atol=1e-5)


def in_older_layout(folder: Path) -> Path:
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(inner / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(modules))
    return inner


@pytest.mark.parametrize("pooling", [None, "cls", "pooler"])
def test_a_transformer_in_a_folder_of_its_own_is_the_same_teacher(folder: Path, pooling: str | None) -> None:
    before = load(folder, pooling=pooling)
    expected = vectors(before)
    in_older_layout(folder)
    after = load(folder, pooling=pooling)
    assert after.contract == before.contract
    np.testing.assert_allclose(vectors(after), expected, atol=1e-6)


def test_the_older_layout_is_checked_alike(folder: Path) -> None:
    inner = in_older_layout(folder)
    edit(inner / "config.json", num_hidden_layers=3)
    with pytest.raises(TeacherError, match="no weights for 16 parameters"):
        load(folder)
    edit(inner / "config.json", auto_map={"AutoModel": "modeling_evil.EvilModel"})
    with pytest.raises(TeacherError, match=r"config\.json auto_map"):
        load(folder)


@pytest.mark.parametrize("path", ["0_Missing", "..", "/", 3])
def test_a_transformer_outside_its_folder_is_refused(folder: Path, path: object) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(TeacherError, match=r"modules\.json.*; copy the model again"):
        load(folder)


@pytest.mark.parametrize("content", ["{}", "[]", '{"embedding_dimension": "x"}', '{"unknown": 1}'])
def test_a_damaged_pooling_configuration_is_named(folder: Path, content: str) -> None:
    (folder / "1_Pooling" / "config.json").write_text(content)
    with pytest.raises(TeacherError, match=r"cannot load .*; copy the model again"):
        load(folder)


def test_the_pooler_keeps_the_modules_after_the_pooling(folder: Path, plain: Path, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Dense

    pooler = load(folder, pooling="pooler")
    assert (pooler.contract.pooling, pooler.contract.normalize, pooler.contract.max_length) == (
        "pooler",
        True,
        64,
    )
    np.testing.assert_allclose(np.linalg.norm(vectors(pooler), axis=1), 1, atol=1e-6)

    model = load(plain, pooling="mean").model
    model.append(Dense(16, 6))
    model.max_seq_length = 9
    model.save_pretrained(str(tmp_path / "dense"), create_model_card=False)
    teacher = load(tmp_path / "dense", pooling="pooler")
    assert (teacher.dimension, teacher.contract.max_length) == (6, 9)
    assert json.loads(teacher.contract.modules)[0]["type"] == "Dense"
    dense = teacher.model[1]
    bare = torch.from_numpy(vectors(load(plain, pooling="pooler", max_length=9)))
    with torch.no_grad():
        expected = dense({"sentence_embedding": bare})["sentence_embedding"].numpy()
    np.testing.assert_allclose(vectors(teacher), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b"])
def test_a_name_that_cannot_be_a_file_is_refused(tiny_teacher: Path, name: str) -> None:
    with pytest.raises(TeacherError, match=r"cannot name a teacher .*--teacher-name"):
        load(tiny_teacher, name=name)


def test_a_device_that_is_not_there_is_refused(tiny_teacher: Path) -> None:
    with pytest.raises(TeacherError, match="cannot use device 'abacus'"):
        load_teacher(tiny_teacher, device="abacus")
