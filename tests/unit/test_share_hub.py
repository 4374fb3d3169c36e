"""Remotes in repositories of the model hub: its real client, and a server that answers as the hub does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Fault, Hub, hub_server
from huggingface_hub import HfApi, HfFileSystem, constants
from share_helpers import content, make_cache

from embedcache.errors import InputError, RemoteError
from embedcache.share import PullChoice, compare_with_remote, list_remote, pull, push
from embedcache.share.places import open_place, parse_location
from embedcache.share.places.base import RangesNotServedError, Stat
from embedcache.share.places.hub_client import build_hf_headers
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import LaterError

URL = "hf://datasets/ann/vectors"
LARGE = bytes(range(256)) * 400


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pauses: None) -> Iterator[Hub]:
    """Serve ``ann/vectors``, and let nobody be known."""
    repository = tmp_path / "hub" / "datasets" / "ann" / "vectors"
    (repository / "x").mkdir(parents=True)
    (repository / "x" / "small").write_bytes(b"small")
    (repository / "x" / "large").write_bytes(LARGE)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server(tmp_path / "hub") as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        # Once in a process the client asks the hub for a list that has nothing to do with files.
        build_hf_headers()
        served.asked.clear()
        yield served


def remote_of(url: str = URL) -> Remote:
    return Remote(parse_location(url))


def test_the_server_is_one_that_the_clients_own_file_system_reads(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Told of a hub, it looks whether that is another than the usual one.
    monkeypatch.undo()
    hub.page = 2
    (hub.folder / "datasets" / "ann" / "vectors" / "y").write_bytes(b"")
    files = HfFileSystem(endpoint=hub.url, skip_instance_cache=True)
    found = files.find("datasets/ann/vectors", detail=True)
    root = "datasets/ann/vectors"
    assert {name: one["size"] for name, one in found.items()} == {
        f"{root}/x/large": len(LARGE),
        f"{root}/x/small": 5,
        f"{root}/y": 0,
    }
    assert files.cat_file("datasets/ann/vectors/x/large", start=1000, end=3000) == LARGE[1000:3000]
    (entry,) = HfApi(hub.url).get_paths_info("ann/vectors", "x/small", repo_type="dataset")
    assert entry.size == 5  # type: ignore[union-attr]
    with pytest.raises(FileNotFoundError):
        files.info("datasets/ann/nothing/x")


def test_a_remote_in_a_repository_is_pulled_from(hub: Hub, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    there = hub.folder / "datasets" / "ann" / "vectors" / "a team"
    remote = f"{URL}/a%20team"
    with pytest.raises(RemoteError, match="no remote at hf://"):
        pull(tmp_path / "there", remote)
    push(cache, str(there))
    hub.page = 3
    assert compare_with_remote(tmp_path / "cache", remote).is_same
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)
    assert len(list_remote(remote).pushes) == 1
    # Large files came from where the hub sends for them.
    assert any(one.host == "storage" for one in hub.asked)
    with pytest.raises(RemoteError, match="can only be read"):
        push(cache, remote)
    part = pull(tmp_path / "part", remote, PullChoice(corpora=["corpus"], rows=10))
    assert part.part is not None
    assert part.part.rows == 10


def test_the_command_finds_the_hub_that_the_environment_names(hub: Hub, tmp_path: Path) -> None:
    push(make_cache(tmp_path / "cache"), str(hub.folder / "models" / "ann" / "shop"))
    hub.private.add("ann/shop")
    command = [sys.executable, "-m", "embedcache", "remote", "ls", "hf://models/ann/shop"]
    settings = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "EMBEDCACHE_CONFIG": str(tmp_path / "settings"),
    }
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "corpus" in done.stdout
    assert hub.token not in done.stdout + done.stderr


def test_what_is_asked_for_is_asked_for_once_and_no_more_of_it(hub: Hub) -> None:
    place = open_place(parse_location(f"{URL}/x"))
    assert b"".join(place.blocks("large", 1 << 12)) == LARGE
    assert [one.host for one in hub.asked] == ["hub", "storage"]
    assert max(len(block) for block in place.blocks("large", 1 << 12)) == 1 << 12
    hub.asked.clear()
    assert place.read_range("large", 1000, 64) == LARGE[1000:1064]
    assert [(one.span, one.sent) for one in hub.asked] == [("bytes=1000-1063", 0), ("bytes=1000-1063", 64)]
    # A folder is no file.
    assert open_place(parse_location(URL)).stat("x") is None


def test_listings_come_whole_and_are_those_of_the_moment(hub: Hub) -> None:
    hub.page = 2
    root = open_place(parse_location(URL))
    place = open_place(parse_location(f"{URL}/x"))
    assert root.list("") == {}
    assert root.list("nothing") == {}
    assert place.list("") == root.list("x") == {"small": Stat(5), "large": Stat(len(LARGE))}
    assert place.stat("new") is None
    for number in range(5):
        (hub.folder / "datasets" / "ann" / "vectors" / "x" / f"new {number}#?").write_bytes(b"12")
    assert len(place.list("")) == 7
    assert place.list("")["new 3#?"] == place.stat("new 3#?") == Stat(2)
    assert b"".join(place.blocks("new 3#?", 10)) == b"12"


def test_a_private_repository_needs_a_token_which_goes_to_the_hub_alone(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private.add("ann/vectors")
    for token in (None, "hf_wrong"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        hub.asked.clear()
        with pytest.raises(RemoteError, match=r"tried once\): HTTP status 401.*set HF_TOKEN") as found:
            remote_of().read("x/large", 1 << 20)
        assert len(hub.asked) == 1
        assert "hf_wrong" not in str(found.value)
        with pytest.raises(RemoteError, match="set HF_TOKEN"):
            remote_of().files_in("x")
    hub.asked.clear()
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert remote_of().read("x/large", 1 << 20) == LARGE
    assert [(one.host, one.token) for one in hub.asked] == [("hub", hub.token), ("storage", "")]


def test_a_repository_or_revision_that_is_not_there_is_told_of_at_once(hub: Hub) -> None:
    with pytest.raises(RemoteError, match=r"tried once\): HTTP status 401.*spelling"):
        remote_of("hf://datasets/ann/nothing").is_there()
    with pytest.raises(RemoteError, match=r"tried once\): HTTP status 404.*after '@'"):
        remote_of(f"{URL}@v2/x").is_there()
    assert remote_of(f"{URL}@v1/x").read("small", 10) == b"small"
    assert len(hub.asked) == 3
    with pytest.raises(InputError, match="needs a repository"):
        open_place(parse_location("hf://datasets/ann/@/x"))


@pytest.mark.parametrize(
    ("headers", "told"),
    [({"X-Error-Code": "GatedRepo"}, "ask for access on the repository's page"), ({}, "if it is private")],
)
def test_what_is_forbidden_is_told_of_at_once(hub: Hub, headers: dict[str, str], told: str) -> None:
    hub.faults.append(Fault("/resolve/", 5, 403, headers))
    with pytest.raises(RemoteError, match=rf"tried once\): HTTP status 403.*{told}.*HF_TOKEN"):
        remote_of().read("x/small", 10)
    assert len(hub.asked) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 0])
@pytest.mark.parametrize(
    ("part", "file", "data"), [("/resolve/", "x/small", b"small"), ("signature", "x/large", LARGE)]
)
def test_what_fails_is_tried_again(hub: Hub, status: int, part: str, file: str, data: bytes) -> None:
    hub.faults.append(Fault(part, 4, status))
    assert remote_of().read(file, 1 << 20) == data
    hub.faults.append(Fault(part, 5, status))
    with pytest.raises(RemoteError, match="tried 5 times") as found:
        remote_of().read(file, 1 << 20)
    # The address of a file on the other server is as good as a key.
    assert "signature" not in str(found.value)


@pytest.mark.parametrize("part", ["/tree/", "paths-info"])
def test_listings_that_fail_are_tried_again(hub: Hub, part: str) -> None:
    hub.faults += [Fault(part, 1, 503), Fault(part, 1, 200, body=b"<html>"), Fault(part, 1, 200, body=b"[1]")]
    if part == "/tree/":
        assert remote_of().files_in("x").keys() == {"small", "large"}
    else:
        assert remote_of().stat("x/small") == Stat(5)
    assert len(hub.asked) == 4


def test_a_server_that_falls_silent_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults.append(Fault("/tree/", 1, -1))
    hub.faults.append(Fault("/resolve/", 5, -1))
    began = time.monotonic()
    assert len(remote_of().files_in("x")) == 2
    with pytest.raises(RemoteError, match=r"tried 5 times\): the connection failed: "):
        remote_of().read("x/small", 10)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"Retry-After": "99999"}, 300),
        ({}, 0),
    ],
)
def test_who_asks_too_often_waits_as_long_as_the_hub_says(
    hub: Hub, headers: dict[str, str], seconds: float
) -> None:
    hub.faults.append(Fault("/resolve/", 1, 429, headers))
    with pytest.raises(LaterError) as found:
        list(open_place(parse_location(URL)).blocks("x/small", 10))
    assert found.value.seconds == seconds


def test_what_is_to_come_later_is_waited_for(hub: Hub) -> None:
    hub.faults.append(Fault("/resolve/", 1, 429, {"Retry-After": "1"}))
    began = time.monotonic()
    assert remote_of().read("x/small", 10) == b"small"
    assert time.monotonic() - began >= 1


def test_a_server_of_whole_files_says_so(hub: Hub) -> None:
    hub.faults.append(Fault("x/small", 1, 200, body=b"small"))
    with pytest.raises(RangesNotServedError, match="whole files alone"):
        remote_of().place.read_range("x/small", 1, 2)
    hub.faults.append(Fault("x/small", 1, 206, body=b"small"))
    with pytest.raises(OSError, match="more than 2 bytes arrived"):
        remote_of().place.read_range("x/small", 1, 2)


def test_a_client_that_is_to_stay_offline_is_told_of(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RemoteError, match=r"tried once\).*unset HF_HUB_OFFLINE"):
        remote_of().is_there()
    assert hub.asked == []


def test_the_client_has_the_names_that_are_used_of_it() -> None:
    # Two of them are re-exports, which a new version may move without a word.
    from embedcache.share.places import hub_client

    assert {name for name in hub_client.__all__ if not hasattr(hub_client, name)} == set()
    headers = hub_client.build_hf_headers(token="hf_known")  # noqa: S106 - a made-up one
    assert headers["authorization"] == "Bearer hf_known"
    with (
        pytest.raises(hub_client.ConnectionFailedError),
        hub_client.get_session().stream("GET", "http://127.0.0.1:9/", timeout=5.0),
    ):
        pass
