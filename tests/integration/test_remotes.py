"""Every kind of remote behaves the same: against real servers and emulators on the loopback device."""

from __future__ import annotations

import base64
import gc
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from fsspec.asyn import get_loop
from hub_emulator import hub_server
from remote_servers import (
    BUCKET,
    SECRET,
    azure_environment,
    azure_server,
    gcs_environment,
    gcs_server,
    http_server,
    make_key,
    s3_environment,
    s3_server,
    sftp_server,
    trust,
)
from sharing import DAY, assert_live_whole, content, make_cache, objects_of, start

from embedcache.errors import InputError, RemoteError
from embedcache.share import collect, drop, list_remote, pull, push, verify_remote
from embedcache.share.manifest import digest_in
from embedcache.share.remote import Remote, object_path
from embedcache.testing import fake_teacher, sentences

TEXTS = sentences(200, seed=6)
KINDS = ["folder", "s3", "sftp", "gs", "az"]
SECONDS = 20.0


@dataclass
class Server:
    """A server of one kind, and what goes wrong with it.

    Attributes:
        root: URL below which each test has its own remote.
        environment: environment variables of a client.
        wrong: the same with credentials that are refused; none where the kind has none.
        down: the same, or a URL, for a server that is down.
        no_bucket: a URL in a bucket that does not exist.
        home: of sftp, the user's home.
        port: its port.
    """

    root: str
    environment: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    down: dict[str, str] | str = ""
    no_bucket: str = ""
    home: Path = Path()
    port: int = 0


def _closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _serve(kind: str, folder: Path, stack: ExitStack) -> Server:
    closed = _closed_port()
    if kind == "folder":
        return Server(str(folder))
    if kind == "s3":
        port = stack.enter_context(s3_server(folder / "buckets"))
        known = s3_environment(port)
        wrong = {**known, "AWS_SECRET_ACCESS_KEY": "wrong"}
        return Server(f"s3://{BUCKET}", known, wrong, s3_environment(closed), "s3://nobody/x", port=port)
    if kind == "gs":
        port = stack.enter_context(gcs_server(folder / "gcs"))
        known = gcs_environment(port)
        return Server(f"gs://{BUCKET}", known, {}, gcs_environment(closed), "gs://nobody/x", port=port)
    if kind == "az":
        port = stack.enter_context(azure_server(folder / "azure"))
        known = azure_environment(port)
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(known["AZURE_STORAGE_CONNECTION_STRING"]) as client:
            client.create_container(BUCKET)
        other = base64.b64encode(b"wrong").decode()
        wrong = {name: value.replace(SECRET, other) for name, value in known.items()}
        return Server(f"az://{BUCKET}", known, wrong, azure_environment(closed), "az://nobody/x", port=port)
    port, home = stack.enter_context(sftp_server(folder))
    wrong_home = folder / "wrong"
    shutil.copytree(home, wrong_home)
    for path in (wrong_home / ".ssh").glob("id_ed25519*"):
        path.unlink()
    make_key(wrong_home / ".ssh" / "id_ed25519")
    environment = {"HOME": str(home), "SSH_AUTH_SOCK": ""}
    (folder / "data").mkdir()
    return Server(
        f"sftp://127.0.0.1:{port}{folder / 'data'}",
        environment,
        {**environment, "HOME": str(wrong_home)},
        f"sftp://127.0.0.1:{closed}{folder / 'data'}",
        home=home,
        port=port,
    )


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ExitStack() as stack:
        yield _serve(request.param, tmp_path_factory.mktemp(request.param), stack)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache of four shards; read it only."""
    return make_cache(tmp_path_factory.mktemp("caches") / "cache", TEXTS, shard_rows=64).folder


@pytest.fixture
def remote(server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of a new remote; afterwards, what was opened closes without a warning."""
    _use(server.environment, monkeypatch)
    yield f"{server.root}/{request.node.originalname}"
    gc.collect()


def _use(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def _objects(remote: Remote) -> set[str]:
    return {path[-64:] for path in remote.find("objects")}


def _one_error(act: Callable[[], object], seconds: float = SECONDS) -> str:
    """Return the message of the one error that ``act`` raises within seconds."""
    began = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        act()
    assert time.monotonic() - began < seconds
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 700
    return text


def test_pull_gives_back_a_push(remote: str, cache: Path, tmp_path: Path) -> None:
    assert "no remote there" in _one_error(lambda: pull(tmp_path / "none", remote))
    first = push(cache, remote, by="Ann", licence="CC0-1.0")
    objects = objects_of(cache)
    assert (first.sent, first.manifest != "") == (len(objects), True)
    again = push(cache, remote)
    assert (again.sent, again.manifest, again.present) == (0, "", len(objects))
    pulled = pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache)
    assert pulled.vectors == {"fake": 200}
    assert pull(tmp_path / "there", remote).files == 0
    ((digest, listed),) = list_remote(remote).items()
    assert (digest, listed.by, listed.licence) == (first.manifest, "Ann", "CC0-1.0")
    check = verify_remote(remote)
    assert check.is_sound
    assert check.objects == len(objects)
    now, opened = time.time(), Remote(remote)
    assert all(abs(found.time - now) < 600 for found in opened.find("objects").values())
    # An object is replaced, and what is taken back is deleted.
    path = object_path(next(cache.glob("teachers/*/shards/*.arrow")).stem)
    opened.write(path, b"damaged")
    assert verify_remote(remote).damaged.keys() == {path[-64:]}
    assert push(cache, remote).sent == 1
    drop(remote, [first.manifest])
    assert (list_remote(remote), collect(remote).files) == ({}, 0)
    assert "nothing was pushed" in _one_error(lambda: pull(tmp_path / "none", remote))
    assert collect(remote, clock=lambda: time.time() + 15 * DAY).files == len(objects)
    assert opened.find("objects") == {}


def test_additions_of_another_process_are_seen_at_once(remote: str, cache: Path, tmp_path: Path) -> None:
    push(cache, remote)
    reader = Remote(remote)
    before = sorted(reader.names_in("manifests"))
    assert _objects(reader) == objects_of(cache)
    other = make_cache(tmp_path / "other", sentences(70, seed=8), name="other", shard_rows=64).folder
    pushing = start("push", other, remote)
    pushing.join(120)
    assert pushing.exitcode == 0
    (added,) = set(reader.names_in("manifests")) - set(before)
    assert _objects(reader) == objects_of(cache) | objects_of(other)
    drop(remote, [digest_in(added)])
    assert sorted(reader.names_in("manifests")) == before
    assert reader.stat(f"manifests/{added}") is None


@pytest.mark.parametrize("act", ["push", "pull"])
@pytest.mark.parametrize("failure", ["wrong", "down", "no_bucket"])
def test_a_failure_is_one_clear_error(
    failure: str,
    act: str,
    server: Server,
    cache: Path,
    remote: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    how = getattr(server, failure)
    if not how:
        pytest.skip("does not happen with this kind")
    if failure == "down" and server.root.startswith("gs:"):
        pytest.skip("gcsfs tries again for minutes and has no option for it")
    is_patient = failure == "down" and server.root.startswith("az:")
    if is_patient and not request.config.getoption("--slow"):
        pytest.skip("the client tries again for 80 s: add --slow to run it")
    if isinstance(how, dict):
        _use(how, monkeypatch)
    url = how if isinstance(how, str) else remote
    command = partial(push, cache, url) if act == "push" else partial(pull, tmp_path / "there", url)
    message = _one_error(command, seconds=150 if is_patient else SECONDS)
    assert url in message
    assert SECRET not in message


@pytest.mark.parametrize("server", ["sftp"], indirect=True)
@pytest.mark.parametrize("known", ["unknown", "changed", "no file"])
def test_an_ssh_server_that_is_not_known_is_refused(
    known: str, server: Server, remote: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(server.home, home)
    if known == "changed":
        make_key(tmp_path / "other")
        trust(home, tmp_path / "other", server.port)
    elif known == "unknown":
        (home / ".ssh" / "known_hosts").write_text("")
    else:
        (home / ".ssh" / "known_hosts").unlink()
    monkeypatch.setenv("HOME", str(home))
    assert "not trusted" in _one_error(lambda: push(cache, remote))
    assert not Path(remote.partition(str(server.port))[2]).exists()


@pytest.mark.parametrize("server", ["sftp"], indirect=True)
def test_a_broken_connection_is_replaced(remote: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.share.remote.PAUSE", 0.1)
    push(cache, remote)
    reader = Remote(remote).open()
    get_loop().call_soon_threadsafe(reader._fs.client.abort)
    time.sleep(0.2)
    assert _objects(reader) == objects_of(cache)


@pytest.mark.parametrize("server", ["folder", "sftp"], indirect=True)
def test_nothing_is_visible_before_it_is_whole(server: Server, remote: str, tmp_path: Path) -> None:
    folder = Path(remote.partition(str(server.port))[2] if server.port else remote)
    large = make_cache(
        tmp_path / "large", sentences(2000, seed=9), teacher=fake_teacher(1024), shard_rows=400
    ).folder
    seen: list[tuple[str, int]] = []
    ended = threading.Event()

    def sizes() -> dict[str, int]:
        paths = (*folder.glob("objects/??/*"), *folder.glob("manifests/*"))
        return {path.name: path.stat().st_size for path in paths if not path.name.startswith(".tmp-")}

    def poll() -> None:
        while not ended.is_set():
            seen.extend(sizes().items())
            assert_live_whole(folder)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        push(large, remote)
    finally:
        ended.set()
        reader.join()
    final = sizes()
    assert assert_live_whole(folder) == 1
    assert final.keys() > objects_of(large)
    assert len(seen) > len(final)
    assert all(final[name] == size for name, size in seen)
    assert not list(folder.rglob(".tmp-*"))


def test_http_is_read_and_never_written(cache: Path, tmp_path: Path) -> None:
    push(cache, str(tmp_path / "served" / "remote"))
    with http_server(tmp_path / "served") as url:
        pull(tmp_path / "there", f"{url}/remote")
        assert content(tmp_path / "there") == content(cache)
        assert pull(tmp_path / "there", f"{url}/remote").files == 0
        assert verify_remote(f"{url}/remote").is_sound
        assert len(list_remote(f"{url}/remote")) == 1
        assert "no remote there" in _one_error(lambda: pull(tmp_path / "none", f"{url}/other"))
        for act in (lambda: push(cache, f"{url}/remote"), lambda: collect(f"{url}/remote")):
            with pytest.raises(InputError, match="read-only"):
                act()
    _one_error(lambda: pull(tmp_path / "none", f"{url}/remote"))
    gc.collect()


HUB_PROGRAM = """
import sys, time
from pathlib import Path
from embedcache.errors import InputError
from embedcache.share import collect, drop, list_remote, pull, push, verify_remote

cache, remote, folder = sys.argv[1:]
first = push(cache, remote, licence="CC-BY-4.0")
again = push(cache, remote)
assert first.sent > 0 and again.sent == 0 and not again.manifest, (first, again)
pull(folder, remote)
assert pull(folder, remote).files == 0
assert verify_remote(remote).is_sound
assert len(list_remote(remote)) == 1
for forbidden in (lambda: collect(remote), lambda: drop(remote, [first.manifest], now=True)):
    try:
        forbidden()
    except InputError:
        continue
    raise AssertionError("something was deleted")
Path(folder + ".manifest").write_text(first.manifest)
"""


def test_the_hub_holds_a_remote(cache: Path, tmp_path: Path) -> None:
    remote = "hf://datasets/team/data/remote"
    with hub_server(tmp_path / "hub") as environment:

        def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program, *map(str, words)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)

        ended = run(HUB_PROGRAM, cache, remote, tmp_path / "there")
        assert ended.returncode == 0, ended.stderr[-3000:]
        none = run("import sys; from embedcache.share import pull; pull('none', sys.argv[1])", f"{remote}s")
    assert content(tmp_path / "there") == content(cache)
    assert "no remote there" in none.stderr
    created, *commits = (tmp_path / "hub" / "log.txt").read_text().splitlines()
    assert created == "create datasets/team/data private"
    # The marker, the objects together, the manifest, the card.
    assert len(commits) == 4
    repository = tmp_path / "hub" / "datasets" / "team" / "data"
    assert_live_whole(repository / "remote")
    card = (repository / "remote" / "README.md").read_text()
    assert "CC-BY-4.0" in card
    assert f"embedcache pull {remote}" in card


def test_a_model_repository_of_the_hub_is_not_a_remote(cache: Path) -> None:
    with pytest.raises(InputError, match="datasets"):
        push(cache, "hf://team/model")
