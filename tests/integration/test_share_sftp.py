"""Sharing by way of a real ssh server: round trips, many at once, connections that end."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ports import reserved_port, wait_until_listening
from share_server import (
    Proxy,
    assert_drops_do_no_harm,
    assert_objects_right,
    content,
    make_cache,
)

from embedcache.check import verify
from embedcache.errors import RemoteError
from embedcache.share import collect_remote, pull, push
from embedcache.share.places import Location, open_place
from embedcache.testing import sentences

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
TEXTS = sentences(64 * 8, seed=4)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(SSHD is None, reason="no sshd: install an OpenSSH server"),
    pytest.mark.timeout(600),
]
pytest.importorskip("paramiko", reason="needs the extra sftp")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Run a server of this user's own; yield its port and the home of a user who may log in."""
    assert SSHD is not None
    folder = tmp_path_factory.mktemp("sshd")
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for key in (folder / "host", home / ".ssh" / "id_ed25519"):
        make_key(key)
    shutil.copy(home / ".ssh" / "id_ed25519.pub", folder / "authorized")
    words = (folder / "host.pub").read_text().split()[:2]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nPasswordAuthentication no\nUsePAM no\n"
        "Subsystem sftp internal-sftp\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        # Where the server, run by root, gives its rights up.
        Path("/run/sshd").mkdir(exist_ok=True)
    with reserved_port() as port, (folder / "log").open("wb") as log:
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(words)}\n")
        child = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "config"), "-p", str(port)], stderr=log
        )
        try:
            wait_until_listening(port, child)
            yield port, home
        finally:
            child.terminate()
            child.wait(60)


@pytest.fixture
def port(server: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this process log in with the user's key alone."""
    monkeypatch.setenv("HOME", str(server[1]))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return server[0]


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)


def url_of(port: int, folder: Path) -> str:
    return f"sftp://{getpass.getuser()}@127.0.0.1:{port}{folder}"


def test_a_cache_goes_there_and_back(port: int, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS, name="one")
    remote = url_of(port, tmp_path / "deep" / "remote")
    sent = push(cache, remote)
    assert sent.sent == assert_objects_right(tmp_path / "deep")
    assert push(cache, remote).sent == 0
    pull(tmp_path / "there", remote)
    assert content(tmp_path / "there") == content(cache.folder)
    assert not verify(tmp_path / "there").findings
    assert [path.name for path in (tmp_path / "deep" / "remote" / "claims").iterdir()] == ["README"]
    assert not list((tmp_path / "deep").rglob(".tmp-*"))
    assert collect_remote(remote, hours=0, delete=True).found == ()
    # A folder is the same remote.
    pull(tmp_path / "local", str(tmp_path / "deep" / "remote"))
    assert content(tmp_path / "local") == content(cache.folder)


def test_what_the_place_does_is_what_a_folder_does(port: int, tmp_path: Path) -> None:
    place = open_place(Location("sftp", "127.0.0.1", str(tmp_path / "place"), getpass.getuser(), port))
    assert place.list("nothing") == {}
    assert place.stat("nothing") is None
    with pytest.raises(FileNotFoundError):
        list(place.blocks("nothing", 10))
    data = os.urandom(3_000_001)
    place.write("a/b/c", data)
    found = place.list("a/b")["c"]
    assert found.bytes == len(data)
    assert found.changed == pytest.approx(time.time(), abs=60)
    assert place.stat("a/b/c") == found
    assert b"".join(place.blocks("a/b/c", 1 << 20)) == data
    assert place.read_range("a/b/c", 1_000_000, 70_000) == data[1_000_000:1_070_000]
    assert place.read_range("a/b/c", 3_000_000, 70_000) == data[-1:]
    (tmp_path / "place" / "a" / "b" / "link").symlink_to("c")
    (tmp_path / "place" / "a" / "b" / ".tmp-x").write_bytes(b"")
    left = f".tmp-{'0' * 32}-c"
    (tmp_path / "place" / "a" / "b" / left).write_bytes(b"half")
    (tmp_path / "place" / "a" / "b" / f"{left}-link").symlink_to("c")
    assert place.list("a/b").keys() == {"c"}
    assert place.temporary("nothing") == {}
    assert {name: stat.bytes for name, stat in place.temporary("a/b").items()} == {left: 4}
    assert place.stat("a/b/link") is None
    place.write("a/b/c", b"new")
    assert b"".join(place.blocks("a/b/c", 1 << 20)) == b"new"
    place.remove("a/b/c")
    place.remove("a/b/c")
    assert place.list("a/b") == {}


def test_what_a_push_that_was_killed_has_left_goes(port: int, tmp_path: Path) -> None:
    remote = url_of(port, tmp_path / "remote")
    push(make_cache(tmp_path / "cache", TEXTS, name="one"), remote)
    old, young = (tmp_path / "remote" / "cards" / f".tmp-{digit * 32}-x.md" for digit in "01")
    for path in (old, young):
        path.write_bytes(b"the first half")
    then = time.time() - 200 * 3600
    os.utime(old, (then, then))
    found = collect_remote(remote, delete=True)
    assert [one.path for one in found.found] == [f"cards/{old.name}"]
    assert (old.exists(), young.exists()) == (False, True)


def test_two_push_at_once_and_nothing_travels_twice(port: int, tmp_path: Path) -> None:
    remote = url_of(port, tmp_path / "remote")
    caches = [
        make_cache(tmp_path / f"c{number}", TEXTS[64 * number :][: 64 * 5], name=f"n{number}")
        for number in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda cache: push(cache, remote, jobs=2), caches))
    assert sum(one.sent for one in done) == assert_objects_right(tmp_path / "remote")
    pull(tmp_path / "there", remote)
    union: dict[str, str] = {}
    for cache in caches:
        union |= content(cache.folder)
    assert content(tmp_path / "there") == union


def test_connections_that_drop_delay_and_damage_nothing(port: int, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384, shard_rows=16)
    proxy = Proxy(port, drop=0.6)
    known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
    key = known.read_text().split()[1:]
    known.write_text(f"{known.read_text()}[127.0.0.1]:{proxy.port} {' '.join(key[:2])}\n")
    remote = url_of(proxy.port, tmp_path / "remote")
    assert_drops_do_no_harm(cache, remote, tmp_path / "remote", tmp_path, proxy)


def test_a_host_that_is_not_known_is_refused_at_once(port: int, tmp_path: Path) -> None:
    known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
    before = known.read_text()
    remote = url_of(port, tmp_path / "remote")
    try:
        known.write_text("")
        with pytest.raises(RemoteError, match=r"tried once.*not found in known_hosts"):
            pull(tmp_path / "there", remote)
        # Another key than it used to have: somebody may stand in between.
        make_key(tmp_path / "other")
        words = (tmp_path / "other.pub").read_text().split()[:2]
        known.write_text(f"[127.0.0.1]:{port} {' '.join(words)}\n")
        with pytest.raises(RemoteError, match=r"tried once.*does not match"):
            pull(tmp_path / "there", remote)
    finally:
        known.write_text(before)


def test_a_user_who_may_not_log_in_is_told_so_at_once(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    shutil.copy(Path(os.environ["HOME"]) / ".ssh" / "known_hosts", tmp_path / ".ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RemoteError, match=r"tried once.*see to the credentials"):
        pull(tmp_path / "there", url_of(port, tmp_path / "remote"))
    # A key that the server does not know.
    make_key(tmp_path / ".ssh" / "id_ed25519")
    with pytest.raises(RemoteError, match=r"tried once.*could not log in: Authentication failed.*ssh agent"):
        pull(tmp_path / "there", url_of(port, tmp_path / "remote"))


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("named", [False, True])
def test_a_locked_key_is_told_of_at_once(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, named: bool
) -> None:
    settings = tmp_path / ".ssh"
    settings.mkdir()
    shutil.copy(Path(os.environ["HOME"]) / ".ssh" / "known_hosts", settings)
    key = settings / ("team" if named else f"id_{kind}")
    make_key(key, kind, passphrase="locked")  # noqa: S106 - it is to stay locked
    if named:
        # A key that is not on this machine does no harm.
        (settings / "config").write_text(
            f"Host 127.0.0.1\n  IdentityFile {key}\n  IdentityFile ~/.ssh/none\n"
        )
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        RemoteError, match=rf"tried once\).*a passphrase locks the key {key}; .*'ssh-add {key}'"
    ):
        pull(tmp_path / "there", url_of(port, tmp_path / "remote"))
