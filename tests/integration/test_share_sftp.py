"""Sharing by way of a real ssh server: round trips, many at once, connections that end."""

from __future__ import annotations

import getpass
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from place_servers import SSHD, make_key, ssh_server, url_of
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
from embedcache.testing import sentences

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
    with ssh_server(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.fixture
def port(server: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this process log in with the user's key alone."""
    monkeypatch.setenv("HOME", str(server[1]))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return server[0]


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
    told = (
        rf"tried once\): known_hosts has no key of 127\.0\.0\.1, .*"
        rf"'ssh -p {port} {getpass.getuser()}@127\.0\.0\.1'.*"
        rf"'ssh-keyscan -p {port} 127\.0\.0\.1 >> ~/\.ssh/known_hosts'"
    )
    changed = (
        r"tried once\): 127\.0\.0\.1 has another key than the one in known_hosts.*"
        rf"'ssh-keygen -R \[127\.0\.0\.1\]:{port}'"
    )
    try:
        known.write_text("")
        with pytest.raises(RemoteError, match=told):
            pull(tmp_path / "there", remote)
        # Another key than it used to have: somebody may stand in between.
        make_key(tmp_path / "other")
        words = (tmp_path / "other.pub").read_text().split()[:2]
        known.write_text(f"[127.0.0.1]:{port} {' '.join(words)}\n")
        with pytest.raises(RemoteError, match=changed):
            pull(tmp_path / "there", remote)
    finally:
        known.write_text(before)


@pytest.mark.parametrize("inside", ["/proc/nothing", "afile", "afile/x"])
def test_a_folder_that_cannot_be_made_is_told_of_at_once(port: int, tmp_path: Path, inside: str) -> None:
    (tmp_path / "afile").write_bytes(b"")
    cache = make_cache(tmp_path / "cache", TEXTS[:10], name="one")
    with pytest.raises(
        RemoteError, match=r"tried once\): the server has no folder .*and it cannot be made; see to the path"
    ):
        push(cache, url_of(port, tmp_path / inside))


def test_a_server_that_lets_nobody_write_is_told_of_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:10], name="one")
    push(cache, str(tmp_path / "remote"))
    make_cache(tmp_path / "cache", TEXTS[10:20], name="two")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ssh_server(tmp_path / "ssh", read_only=True) as (port, home):
        monkeypatch.setenv("HOME", str(home))
        remote = url_of(port, tmp_path / "remote")
        pull(tmp_path / "there", remote)
        with pytest.raises(RemoteError, match=r"tried once\): nothing may be written to .*; ask whoever"):
            push(cache, remote)


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
